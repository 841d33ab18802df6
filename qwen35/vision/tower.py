"""The vision tower: a picture's patches -> the embeddings of its image tokens.

Every projection is a GEMM on the tower's own hardware context; LayerNorms, the rotation, attention, the GELU
of `w8` weights, the merger's GELU and the sums over K slices are the host's. Biases are inside the packed
streams (the GEMM adds them). Of a weight with factors (`w8`) every GEMM output column is multiplied by its
own on the host, fc1's before the GELU; without them (`bfp16x2`) fc1's GEMM ends with the GELU (as published
bundles have it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle.schema import vision_schema
from qwen35.errors import ImageError
from qwen35.formats import bf16
from qwen35.model.timing import Timing
from qwen35.model.weights import Weights
from qwen35.vision.host import GELU_ERF, GELU_TANH, FullAttention, LayerNorm, activate
from qwen35.vision.positions import resample, rotation

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.bundle.bundle import Bundle
    from qwen35.bundle.config import VisionConfig
    from qwen35.model.projections import Projections

__all__ = ["VisionTower"]

_KEYS = ("v_patch", "v_qkv", "v_proj", "v_fc1", "v_fc2", "v_m1", "v_m2")
F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Block:
    norm_in: LayerNorm
    """Adds the block before's MLP to x, then norms."""
    attention: FullAttention
    norm_mlp: LayerNorm
    """Adds this block's attention to x, then norms."""
    fc1_factors: F32 | None


class VisionTower:
    """The tower of one bundle on one device. Not thread-safe.

    Device buffers are sized by the largest picture so far and kept until `release`. The caller keeps bundle,
    device and `npu` open for the tower's life.
    """

    def __init__(
        self,
        bundle: Bundle,
        npu: Projections,
        config: VisionConfig,
        timing: Timing | None = None,
        *,
        way: str = "copy",
        release: bool | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Uploads the weights (`way`, `release`, `progress(done, total)` in bytes as in Weights.load).

        Raises BundleError for tensors that do not fit, and the binding's errors.
        """
        self.config, self._npu = config, npu
        self.timing = timing or Timing()
        c, tensors = config, bundle.tensors
        specs = {spec.name: spec for spec in vision_schema(c)}
        self._weights = Weights.load(
            bundle,
            npu.device,
            [name for name, spec in specs.items() if spec.rows],
            way=way,
            release=release,
            progress=progress,
        )

        def host(name: str) -> F32:
            return np.array(tensors.of(specs["vis." + name]))

        def factors(name: str, outputs: int) -> F32 | None:
            name = f"vis.{name}.f"
            return np.array(tensors.expect(name, "f32", outputs)) if name in tensors else None

        self._inner = npu.gemm_spec("v_fc1").n  # intermediate_size, or more where the exporter padded it
        self._table = host("pos")
        self._patch_factors = factors("patch", c.hidden_size)
        self._m1_factors, self._m2_factors = (
            factors("m1", c.n_merge * c.hidden_size),
            factors("m2", c.out_hidden_size),
        )
        self._blocks: list[_Block] = []
        before: F32 | None = None
        for i in range(c.depth):
            at = f"b{i}."
            self._blocks.append(
                _Block(
                    LayerNorm(
                        host(at + "ln1_w"),
                        host(at + "ln1_b"),
                        c.n_fc2 if i else 0,
                        before,
                    ),
                    FullAttention(c.num_heads, c.head_dim, factors(at + "qkv", 3 * c.hidden_size)),
                    LayerNorm(
                        host(at + "ln2_w"),
                        host(at + "ln2_b"),
                        1,
                        factors(at + "proj", c.hidden_size),
                    ),
                    factors(at + "fc1", self._inner),
                )
            )
            before = factors(at + "fc2", c.hidden_size)
        self._merger_norm = LayerNorm(host("m_ln_w"), host("m_ln_b"), c.n_fc2, before)
        self._buffers: dict[str, Buffer] = {}
        self._chunks = 0

    @property
    def report(self) -> str:
        """One line: how the weights came to the device."""
        return self._weights.report

    def encode(self, patches: F32, grid: tuple[int, int], progress: Progress | None = None) -> F32:
        """Patches float32 [gh * gw, 3 p p] in merge-block order -> float32 [gh * gw / merge^2, out].

        `progress(block, depth)` is called after every block. Raises ImageError for a grid that does not
        fit the patches or the tower, and the binding's errors; after one, as after Ctrl-C, the tower is as
        before.
        """
        c, n = self.config, len(patches)
        whole = (
            grid[0] * grid[1] == n
            and not grid[0] % c.spatial_merge_size
            and not grid[1] % c.spatial_merge_size
        )
        if not whole or patches.shape[1:] != (c.patch_dim,):
            raise ImageError(f"patches {patches.shape} do not fit a grid of {grid[0]}x{grid[1]}")
        if not 1 <= n <= c.max_patches:
            raise ImageError(
                f"the picture has {n} patches; the tower takes 1..{c.max_patches}",
                remedy="give a smaller picture",
            )
        try:
            return self._run(patches, grid, progress)
        except BaseException:
            over = False
            try:
                over = self._npu.drain()
            finally:
                if not over:  # a command may write its buffers still: they are not used again
                    buffers, self._buffers, self._chunks = self._buffers, {}, 0
                    for buffer in buffers.values():
                        buffer.abandon()
            raise

    def _run(self, patches: F32, grid: tuple[int, int], progress: Progress | None) -> F32:
        c, n, lap = self.config, len(patches), self.timing.lap
        self.timing.start()
        chunks = -(-n // self._npu.gemm_spec("v_patch").m)
        self._reserve(chunks)
        a, narrow = self._reads("v_patch", "a"), self._writes("v_patch", "c")
        a[:] = 0  # the padding of K, and rows past the picture
        a[:n, : c.patch_dim] = bf16.to_bf16(patches)
        cosines, sines = rotation(grid, c.spatial_merge_size, c.head_dim, c.rope_theta)
        x = resample(self._table, c.pos_side, grid, c.spatial_merge_size)
        lap("vision.host")
        self._gemm("v_patch", chunks, "a", "patch", "c")
        embedded = bf16.from_bf16(narrow[:n])
        x += embedded if self._patch_factors is None else embedded * self._patch_factors
        scratch = self._blocks[0].attention.scratch(n)
        qkv, wide = self._writes("v_qkv", "qkv"), self._writes("v_fc1", "fc1")
        parts = [self._writes("v_fc2", f"part{j}") for j in range(c.n_fc2)]
        into = {key: self._reads(key, "a") for key in ("v_qkv", "v_proj", "v_fc1")}
        added = self._writes("v_proj", "c")
        for i, block in enumerate(self._blocks):
            block.norm_in.rows(x, parts if i else [], into["v_qkv"])
            lap("vision.host")
            self._gemm("v_qkv", chunks, "a", f"b{i}.qkv", "qkv")
            block.attention.rows(qkv, cosines, sines, scratch, into["v_proj"])
            lap("vision.attention")
            self._gemm("v_proj", chunks, "a", f"b{i}.proj", "c")
            block.norm_mlp.rows(x, [added], into["v_fc1"])
            lap("vision.host")
            self._gemm("v_fc1", chunks, "a", f"b{i}.fc1", "fc1")
            if block.fc1_factors is not None:  # else the GEMM ends with the GELU
                activate(GELU_TANH, n, self._inner, [wide], wide, block.fc1_factors)
                lap("vision.host")
            self._slices("v_fc2", chunks, "fc1", f"b{i}.fc2", "part", c.n_fc2)
            if progress is not None:
                progress(i + 1, c.depth)
        return self._merge(x, parts)

    def _merge(self, x: F32, parts: list[U16]) -> F32:
        """The merger: rows of merge^2 patches side by side -> linear -> GELU -> linear."""
        c, lap = self.config, self.timing.lap
        tokens, wide = len(x) // c.n_merge, c.n_merge * c.hidden_size
        chunks = -(-tokens // self._npu.gemm_spec("v_m1").m)
        normed = np.empty((len(x), c.hidden_size), np.uint16)
        self._merger_norm.rows(x, parts, normed)
        self._reads("v_m1", "joined", wide)[:tokens] = normed.reshape(tokens, wide)
        lap("vision.host")
        self._slices("v_m1", chunks, "joined", "m1", "inner", c.n_merge)
        inner = [self._writes("v_m1", f"inner{j}") for j in range(c.n_merge)]
        activate(GELU_ERF, tokens, wide, inner, self._reads("v_m2", "joined", wide), self._m1_factors)
        lap("vision.host")
        self._slices("v_m2", chunks, "joined", "m2", "out", c.n_merge)
        out = np.zeros((tokens, c.out_hidden_size), np.float32)
        for j in range(c.n_merge):
            out += bf16.from_bf16(self._writes("v_m2", f"out{j}")[:tokens, : c.out_hidden_size])
        if self._m2_factors is not None:
            out *= self._m2_factors
        lap("vision.host")
        return out

    def _gemm(self, key: str, chunks: int, a: str, weight: str, c: str) -> None:
        self._npu.gemm(key, chunks, self._buffers[a], self._weights["vis." + weight], self._buffers[c])
        self.timing.lap("vision.npu." + key[2:])

    def _slices(self, key: str, chunks: int, a: str, weight: str, c: str, count: int) -> None:
        """`count` K slices of one product, each reading A from its own column on; all submitted at once."""
        step = self._npu.gemm_spec(key).k * 2
        self._npu.dispatch(
            key,
            chunks,
            [
                (self._buffers[a].sub(j * step), self._weights[f"vis.{weight}.{j}"], self._buffers[f"{c}{j}"])
                for j in range(count)
            ],
        ).run()
        self.timing.lap("vision.npu." + key[2:])

    def _reserve(self, chunks: int) -> None:
        """Buffers for `chunks` chunks of patches. Rows past the picture are never read back."""
        if chunks <= self._chunks:
            return
        self.release()
        c, spec = self.config, self._npu.gemm_spec
        rows = chunks * spec("v_patch").m
        merged = -(-rows // c.n_merge // spec("v_m1").m)
        reads, writes = {}, {}
        for key in _KEYS:
            reads[key], writes[key] = self._npu.spans(key, merged if key in ("v_m1", "v_m2") else chunks)
        # K slices read shifted views, the last of which must end inside.
        shift, merger = (c.n_fc2 - 1) * c.hidden_size, (c.n_merge - 1) * c.hidden_size
        sizes = {
            "a": max(reads[key] for key in ("v_patch", "v_qkv", "v_proj", "v_fc1")),
            "c": max(writes["v_patch"], writes["v_proj"]),
            "qkv": writes["v_qkv"],
            "fc1": max(writes["v_fc1"], reads["v_fc2"] + shift),
            "joined": max(reads["v_m1"], reads["v_m2"]) + merger,
        }
        sizes |= {f"part{j}": writes["v_fc2"] for j in range(c.n_fc2)}
        sizes |= {f"inner{j}": writes["v_m1"] for j in range(c.n_merge)}
        sizes |= {f"out{j}": writes["v_m2"] for j in range(c.n_merge)}
        for name, elements in sizes.items():
            self._buffers[name] = self._npu.alloc(elements * 2)
        self._chunks = chunks

    def _reads(self, key: str, name: str, columns: int = 0) -> U16:
        """A device buffer as GEMM `key` reads it, bf16 bits [rows, K]; or more columns, for K slices."""
        spec = self._npu.gemm_spec(key)
        return self._rows(name, spec.lda, columns or spec.k)

    def _writes(self, key: str, name: str) -> U16:
        """A device buffer as GEMM `key` writes it, bf16 bits [rows, N]."""
        spec = self._npu.gemm_spec(key)
        return self._rows(name, spec.c_stride, spec.n)

    def _rows(self, name: str, stride: int, columns: int) -> U16:
        flat: U16 = self._buffers[name].view("u2")
        return flat[: flat.size // stride * stride].reshape(-1, stride)[:, :columns]

    def release(self) -> None:
        """Gives the activation buffers back; the next picture takes new ones."""
        buffers, self._buffers, self._chunks = self._buffers, {}, 0
        for buffer in buffers.values():
            buffer.close()

    def close(self) -> None:
        """Gives weights and buffers back. Idempotent."""
        self.release()
        self._weights.close()
