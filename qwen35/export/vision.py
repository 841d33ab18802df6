"""The vision tower in a bundle: its params, its GEMMs, and a checkpoint's weights as their streams.

Every GEMM has K = hidden_size and its bias at the end of the stream: of a weight cut into K slices the first
one carries the bias, the others zeros. The patch kernels of both frames are summed and K is padded with zeros
to hidden_size. fc1 has n_fc2 * hidden_size outputs, those past intermediate_size with zero weights, bias 0
and factor 1, so that fc2's slices read it in place.

Weights `w8`: a row's weights are q * f * 2^e with int8 q, one e and one factor f in [1, 2). The stream holds
q * 2^e as bfp16 blocks of one exponent, and the bias divided by f; tensor `vis.NAME.f` holds the factors,
which the host multiplies into the GEMM's output columns (fc1's before its GELU). Weights `bfp16x2`: the
stream is the bfp16 stream of the weights and then that of what rounding left, whose products are summed;
fc1's GELU is in the kernel. The emulated kernels' flags for these are GELU and PAIR.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle.config import ModelConfig, VisionConfig
from qwen35.bundle.params import THETA
from qwen35.bundle.schema import TensorSpec
from qwen35.bundle.sizes import SIZES
from qwen35.errors import ModelError
from qwen35.export.checkpoint import Checkpoint, read_json
from qwen35.export.errors import CheckpointError
from qwen35.export.kernels import Gemm
from qwen35.export.plan import Options
from qwen35.export.rows import to_float32
from qwen35.formats import bfp16

__all__ = [
    "CheckpointVision",
    "plan_random_vision",
    "plan_vision",
    "quantise_w8",
    "vision_gemms",
    "vision_problem",
    "w8_stream",
]

MIN_PIXELS = 65536
MAX_PIXELS = 16777216


def plan_vision(checkpoint: Checkpoint, options: Options) -> VisionConfig | None:
    """The tower's params, or None without a tower or with options.vision "none". Raises CheckpointError."""
    section = checkpoint.vision
    if options.vision == "none" or section is None:
        return None
    checkpoint.vision_prefix  # noqa: B018  a tower without tensors is an error before anything else
    patch, merge = section.count("patch_size", most=1024), section.count("spatial_merge_size", most=64)
    side = math.isqrt(section.count("num_position_embeddings"))
    if side * side != section.count("num_position_embeddings"):
        raise section.fail("num_position_embeddings", "is no square")
    if section.count("temporal_patch_size", 2) != 2 or section.count("in_channels", 3) != 3:
        raise section.fail("temporal_patch_size", "and in_channels must be 2 and 3")
    if section.table.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise section.fail("hidden_act", f"is {section.table['hidden_act']!r:.40}, not gelu_pytorch_tanh")
    lowest, highest = MIN_PIXELS, MAX_PIXELS
    preprocessor = checkpoint.path / "preprocessor_config.json"
    if preprocessor.is_file():
        size = read_json(preprocessor).section("size")
        lowest = size.count("shortest_edge", lowest, 1 << 30)
        highest = size.count("longest_edge", highest, 1 << 30)
    highest = max(min(highest, options.max_pixels), lowest)
    config = VisionConfig(
        hidden_size=section.count("hidden_size", most=1 << 20),
        intermediate_size=section.count("intermediate_size", most=1 << 20),
        depth=section.count("depth", most=4096),
        num_heads=section.count("num_heads"),
        patch_size=patch,
        spatial_merge_size=merge,
        out_hidden_size=section.count("out_hidden_size"),
        pos_side=side,
        rope_theta=section.section("rope_parameters").real("rope_theta", 10000.0, *THETA),
        image_token_id=checkpoint.config.count("image_token_id"),
        vision_start_token_id=checkpoint.config.count("vision_start_token_id"),
        vision_end_token_id=checkpoint.config.count("vision_end_token_id"),
        min_pixels=lowest,
        max_pixels=highest,
        weights=options.vision,
        max_patches=max_patches(highest, patch, merge, options.vision_chunk),
    )
    found = vision_problem(config)
    if found:
        raise CheckpointError(checkpoint.config.path, f"vision_config: {found}")
    return config


def plan_random_vision(size: str, options: Options, text: ModelConfig) -> VisionConfig | None:
    """The tower of one of the known sizes, or None with options.vision "none"."""
    if options.vision == "none":
        return None
    known = SIZES[size.lower()]
    first = text.eos_token_id[0]
    return VisionConfig(
        hidden_size=known.vision_hidden_size,
        intermediate_size=known.vision_intermediate_size,
        depth=known.vision_depth,
        num_heads=known.vision_num_heads,
        patch_size=known.vision_patch_size,
        spatial_merge_size=2,
        out_hidden_size=text.hidden_size,
        pos_side=48,
        rope_theta=10000.0,
        image_token_id=first + 12,
        vision_start_token_id=first + 9,
        vision_end_token_id=first + 10,
        min_pixels=MIN_PIXELS,
        max_pixels=max(options.max_pixels, MIN_PIXELS),
        weights=options.vision,
        max_patches=max_patches(
            max(options.max_pixels, MIN_PIXELS), known.vision_patch_size, 2, options.vision_chunk
        ),
    )


def max_patches(max_pixels: int, patch: int, merge: int, chunk: int) -> int:
    """Patches of the largest image, rounded up to whole chunks before and after merging."""
    step = chunk * merge * merge
    return -(-(max_pixels // (patch * patch)) // step) * step


def vision_problem(v: VisionConfig) -> str | None:
    """Why the kernels cannot hold a tower of this shape; None when they can."""
    if v.hidden_size % 8 or v.out_hidden_size % 8:
        return f"hidden size {v.hidden_size} or output {v.out_hidden_size} is no multiple of 8"
    if v.hidden_size % v.num_heads or v.head_dim % 4:
        return f"{v.num_heads} heads of {v.hidden_size} / {v.num_heads} dims"
    if v.depth * v.n_fc2 > 1 << 16:
        return f"{v.depth} blocks of an MLP {v.intermediate_size:,} wide, {v.n_fc2} times the hidden size"
    if v.patch_dim > v.hidden_size:
        return f"a patch has {v.patch_dim} values, more than the hidden size {v.hidden_size}"
    return None


def vision_gemms(v: VisionConfig, chunk: int) -> list[Gemm]:
    """The tower's GEMMs, over as many chunks as max_patches takes (the merger's: a merge^2-th of that)."""
    rows, wide, merged = v.max_patches // chunk, v.n_fc2 * v.hidden_size, v.n_merge * v.hidden_size
    after = max(1, v.max_patches // v.n_merge // chunk)
    pair = v.weights == "bfp16x2"

    def gemm(key: str, n: int, lda: int, chunks: int, gelu: bool = False) -> Gemm:
        return Gemm(
            key, chunk, v.hidden_size, n, lda, n, chunks, bias=True, gelu=gelu, pair=pair, ctx="vision"
        )

    return [
        gemm("v_patch", v.hidden_size, v.hidden_size, rows),
        gemm("v_qkv", 3 * v.hidden_size, v.hidden_size, rows),
        gemm("v_proj", v.hidden_size, v.hidden_size, rows),
        gemm("v_fc1", wide, v.hidden_size, rows, gelu=pair),
        gemm("v_fc2", v.hidden_size, wide, rows),
        gemm("v_m1", merged, merged, after),
        gemm("v_m2", v.out_hidden_size, merged, after),
    ]


Quantised = tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.float32]]


def quantise_w8(weights: NDArray[np.float32]) -> Quantised:
    """[N, K] as q * f * 2^e: int8 q in [-127, 127], int32 e [N], float32 f [N] in [1, 2).

    The step f * 2^e is the row's largest magnitude over 127; a row of zeros has q = 0, e = 0, f = 1.
    """
    largest = np.abs(weights).max(axis=1).astype(np.float64)
    step = np.where(largest > 0, largest / 127, 1.0)
    e = np.maximum(np.floor(np.log2(step)), -126.0)
    f = (step / np.exp2(e)).astype(np.float32)
    scaled = weights / (f.astype(np.float64) * np.exp2(e))[:, None]
    return np.clip(np.rint(scaled), -127, 127).astype(np.int8), e.astype(np.int32), f


def w8_stream(q: NDArray[np.int8], e: NDArray[np.int32], bias: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The bfp16 stream of q * 2^e, exactly, and then the bias, uint8; N and K are multiples of 8."""
    n, k = q.shape
    blocks = np.empty((n // 8, k // 8, 8, 9), np.uint8)
    blocks[..., 0] = (e + 133).astype(np.uint8).reshape(n // 8, 1, 8)
    blocks[..., 1:] = q.view(np.uint8).reshape(n // 8, 8, k // 8, 8).transpose(0, 2, 1, 3)
    return np.concatenate([blocks.reshape(-1), np.ascontiguousarray(bias, "<f4").view(np.uint8)])


def pair_stream(weights: NDArray[np.float32], bias: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The bfp16 streams of the weights and of what rounding left of them, and then the bias."""
    high = bfp16.encode(weights)
    low = bfp16.encode(weights - bfp16.decode(high, *weights.shape), bias=bias)
    return np.concatenate([high, low])


class CheckpointVision:
    """The tower's tensors of a checkpoint, item by item of `vision_schema`."""

    def __init__(self, checkpoint: Checkpoint, config: VisionConfig) -> None:
        self._checkpoint, self._config = checkpoint, config
        # A weight's slices and factors come one after the other: one weight is kept.
        self._quantised = lru_cache(maxsize=1)(self._quantise)

    def pieces(self, item: TensorSpec) -> Iterator[NDArray[Any]]:
        """The item's bytes as one contiguous array."""
        if item.part.endswith(".f"):
            yield self._quantised(item.part[:-2], item.layer)[2]
        elif not item.rows:
            yield np.ascontiguousarray(self._host(item), np.float32)
        else:
            yield self._stream(item)

    def weight(self, part: str, layer: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weight [outputs, inputs] and bias [outputs] of a linear, float32, padded as the streams need it."""
        v, get = self._config, self._checkpoint.vision_tensor
        merged, block = v.n_merge * v.hidden_size, f"blocks.{layer}."
        linears: dict[str, tuple[str, int, int]] = {
            "qkv": (block + "attn.qkv", 3 * v.hidden_size, v.hidden_size),
            "proj": (block + "attn.proj", v.hidden_size, v.hidden_size),
            "fc1": (block + "mlp.linear_fc1", v.intermediate_size, v.hidden_size),
            "fc2": (block + "mlp.linear_fc2", v.hidden_size, v.intermediate_size),
            "m1": ("merger.linear_fc1", merged, merged),
            "m2": ("merger.linear_fc2", v.out_hidden_size, merged),
        }
        if part == "patch":
            name, rows = "patch_embed.proj", v.hidden_size
            kernels = to_float32(get(name + ".weight", v.hidden_size, 3, 2, v.patch_size, v.patch_size))
            matrix = kernels.sum(axis=2, dtype=np.float32).reshape(v.hidden_size, v.patch_dim)
        else:
            name, rows, k = linears[part]
            matrix = to_float32(get(name + ".weight", rows, k))
        bias = to_float32(get(name + ".bias", rows))
        if not np.isfinite(matrix).all():  # of patch kernels it is the sum
            raise ModelError(f"{name}: float32 cannot hold its sums", str(self._checkpoint.path))
        outputs = v.n_fc2 * v.hidden_size if part == "fc1" else rows
        inputs = {"patch": v.hidden_size, "fc2": v.n_fc2 * v.hidden_size}.get(part, matrix.shape[1])
        padding = (0, outputs - rows)
        return np.pad(matrix, (padding, (0, inputs - matrix.shape[1]))), np.pad(bias, padding)

    def _quantise(self, part: str, layer: int) -> Quantised:
        return quantise_w8(self.weight(part, layer)[0])

    def _stream(self, item: TensorSpec) -> NDArray[np.uint8]:
        weights, bias = self.weight(item.part, item.layer)
        columns = slice(item.slice * self._config.hidden_size, (item.slice + 1) * self._config.hidden_size)
        if item.slice:
            bias = np.zeros_like(bias)
        if item.weights == "bfp16x2":
            return pair_stream(np.ascontiguousarray(weights[:, columns]), bias)
        q, e, f = self._quantised(item.part, item.layer)
        return w8_stream(np.ascontiguousarray(q[:, columns]), e, bias / f)

    def _host(self, item: TensorSpec) -> NDArray[Any]:
        v, get = self._config, self._checkpoint.vision_tensor
        if item.part == "pos":
            return to_float32(get("pos_embed.weight", *item.shape))
        kind, block = {"w": ".weight", "b": ".bias"}[item.part[-1]], f"blocks.{item.layer}."
        norm = {"ln1": block + "norm1", "ln2": block + "norm2", "m_ln": "merger.norm"}[item.part[:-2]]
        return to_float32(get(norm + kind, v.hidden_size))
