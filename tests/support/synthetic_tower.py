"""The vision tower's part of tests.support.synthetic_bundle, written straight from the format page.

Streams, params and records share no code with the exporter. `Habits` (strides, spans, contexts, chunks)
applies to the tower's GEMMs as it does to the text model's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.synthetic import BASE_TOKENS, Shape
from tests.support.synthetic_bundle import Blob, Habits, bfp16_stream, gemm_records, xclbin

BIAS, GELU, PAIR = 2, 4, 8
MAX_PATCHES = 128


def decoded(stream: bytes, n: int, k: int) -> np.ndarray:
    """A bfp16 stream as float32 [n, k]: value = m * 2^(e - 133)."""
    blocks = np.frombuffer(stream, np.uint8).reshape(n // 8, k // 8, 8, 9).transpose(0, 2, 1, 3)
    values = blocks[..., 1:].view(np.int8) * np.exp2(blocks[..., :1].astype(np.float64) - 133)
    return values.reshape(n, k).astype(np.float32)


def steps_of(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """w8: the power of two and the factor in [1, 2) of each row, whose product is a step of its int8 weights.

    The step is the row's largest magnitude over 127; a row of zeros has any.
    """
    step = np.abs(matrix).max(axis=1).astype(np.float64) / 127
    step[step == 0] = 1
    power = np.floor(np.log2(step))
    return power, (step / np.exp2(power)).astype(np.float32)


class Tower:
    """Params, tensors and records of one tower."""

    def __init__(self, shape: Shape, habits: Habits) -> None:
        assert shape.vision is not None
        self.v, self.habits, self.out, self.shape = shape.vision, habits, shape.hidden, shape
        self.w8 = habits.vision == "w8"
        self.merge = self.v.merge**2
        self.slices = -(-self.v.mlp // self.v.hidden)

    def _params(self) -> list[str]:
        v = self.v
        factor = (v.patch * v.merge) ** 2
        params = {
            "D": v.hidden,
            "I": v.mlp,
            "depth": v.depth,
            "heads": v.heads,
            "patch": v.patch,
            "merge": v.merge,
            "out": self.out,
            "pos_side": v.pos_side,
            "rope_theta": 10000,
            "image_token": self.shape.image_token,
            "vision_start": BASE_TOKENS + 3,
            "vision_end": BASE_TOKENS + 4,
            "min_pixels": factor * 4,
            "max_pixels": MAX_PATCHES * v.patch**2,
            "max_patches": MAX_PATCHES,
            "weights": self.habits.vision,
        }
        return [f"param v.{name} {value}" for name, value in params.items()]

    def lines(self, directory: Path) -> list[str]:
        """The manifest's lines; writes the kernels."""
        h, d, spare = self.habits, self.v.hidden, self.habits.spare
        wide, merged, pair = self.slices * d, self.merge * d, 0 if self.w8 else PAIR
        (directory / "kernels/vision.xclbin").write_bytes(xclbin("gemm"))
        lines = [*self._params(), "xclbin vision kernels/vision.xclbin MLIR_AIE"]
        inner = wide + spare
        shapes = {  # N, lda, c_stride: those of A and of C differ from GEMM to GEMM
            "v_patch": (d, d + spare, d + 2 * spare),
            "v_qkv": (3 * d, d + 3 * spare, 3 * d + spare),
            "v_proj": (d, d + 2 * spare, d + spare),
            "v_fc1": (wide, d + spare, inner),
            "v_fc2": (d, inner, d + 3 * spare),
            "v_m1": (merged, merged + spare, merged + 2 * spare),
            "v_m2": (self.out, merged + 3 * spare, self.out + spare),
        }
        most = h.chunks if h.chunks is not None else MAX_PATCHES // h.chunk
        for key, (n, lda, stride) in shapes.items():
            flags = BIAS | pair | (GELU if pair and key == "v_fc1" else 0)
            lines += gemm_records(directory, h, key, (d, n, lda, stride), most, flags, "vision")
        return lines

    def tensors(self, t: dict[str, np.ndarray], blob: Blob) -> None:
        """Adds `vis.*` of a checkpoint's tensors."""
        v, d = self.v, self.v.hidden
        get = {name.removeprefix("model.visual."): value for name, value in t.items()}

        def norm(name: str, source: str) -> None:
            blob.f32(f"vis.{name}_w", get[source + ".weight"])
            blob.f32(f"vis.{name}_b", get[source + ".bias"])

        get["patch.weight"] = get["patch_embed.proj.weight"].sum(axis=2).reshape(d, -1)
        get["patch.bias"] = get["patch_embed.proj.bias"]
        self._weight(blob, "patch", get, "patch")
        blob.f32("vis.pos", get["pos_embed.weight"])
        for i in range(v.depth):
            at = f"blocks.{i}."
            norm(f"b{i}.ln1", at + "norm1")
            norm(f"b{i}.ln2", at + "norm2")
            for name, source in (("qkv", "attn.qkv"), ("proj", "attn.proj"), ("fc1", "mlp.linear_fc1")):
                rows = self.slices * d if name == "fc1" else 0
                self._weight(blob, f"b{i}.{name}", get, at + source, rows)
            self._weight(blob, f"b{i}.fc2", get, at + "mlp.linear_fc2", slices=self.slices)
        norm("m_ln", "merger.norm")
        for name in ("m1", "m2"):
            self._weight(blob, name, get, f"merger.linear_fc{name[1]}", slices=self.merge)

    def _weight(
        self, blob: Blob, name: str, get: dict[str, np.ndarray], source: str, rows: int = 0, slices: int = 0
    ) -> None:
        """One linear, padded with zeros to `rows` outputs and whole slices of K; the first has the bias."""
        d, weight, bias = self.v.hidden, get[source + ".weight"], get[source + ".bias"]
        matrix = np.zeros((max(rows, len(weight)), max(slices, 1) * d), np.float32)
        matrix[: len(weight), : weight.shape[1]] = weight
        offsets = np.zeros(len(matrix), np.float32)
        offsets[: len(bias)] = bias
        power, factor = steps_of(matrix) if self.w8 else (np.zeros(len(matrix)), np.ones(len(matrix)))
        for j in range(max(slices, 1)):
            part = np.ascontiguousarray(matrix[:, j * d : (j + 1) * d])
            own = (offsets if j == 0 else np.zeros_like(offsets)) / factor
            data = self._eight(part, power, factor) if self.w8 else self._pair(part)
            stream = f"vis.{name}.{j}" if slices else f"vis.{name}"
            blob.bytes(stream, data + own.astype("<f4").tobytes())
        if self.w8:
            blob.f32(f"vis.{name}.f", factor)

    @staticmethod
    def _pair(matrix: np.ndarray) -> bytes:
        high = bfp16_stream(matrix)
        return high + bfp16_stream(matrix - decoded(high, *matrix.shape))

    @staticmethod
    def _eight(matrix: np.ndarray, power: np.ndarray, factor: np.ndarray) -> bytes:
        """int8 q of q * 2^power * factor, in blocks that all have the row's exponent."""
        n, k = matrix.shape
        step = factor.astype(np.float64) * np.exp2(power)
        q = np.clip(np.rint(matrix / step[:, None]), -127, 127).astype(np.int8)
        blocks = np.empty((n, k // 8, 9), np.uint8)
        blocks[:, :, 0] = (power + 133).astype(np.uint8)[:, None]
        blocks[:, :, 1:] = q.reshape(n, k // 8, 8).view(np.uint8)
        return blocks.reshape(n // 8, 8, k // 8, 9).transpose(0, 2, 1, 3).tobytes()
