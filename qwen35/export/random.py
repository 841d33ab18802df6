"""Seeded random text tensors of any model shape, generated as packed streams without an encoding step.

Weights are normal with the fan-in scale that keeps logits apart (see `_spread`). Every tensor has its own
generator, seeded by (seed, name): contents depend on neither order nor block size. For load, memory and
speed tests at full shape; the model says nothing sensible.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle.config import ModelConfig, VisionConfig
from qwen35.bundle.schema import TensorSpec, stream_bytes
from qwen35.formats import bfp6s, to_bf16

__all__ = ["RandomText", "RandomVision", "random_stream"]

BLOCK_BYTES = 8 << 20
_BFP6S_SPREAD = math.sqrt((64**2 - 1) / 12)


def random_stream(
    rows: int, k: int, std: float, gemv_format: str, seed: tuple[int, int], used: int | None = None
) -> Iterator[NDArray[np.uint8]]:
    """A packed stream of `rows` x `k` random weights of standard deviation `std`, in pieces.

    Rows from `used` on are zeros. bfp16 weights are normal; bfp6s ones uniform over the 64 levels.
    """
    bits = np.random.SFC64(np.random.SeedSequence(seed))
    group = _bfp6s_group if gemv_format == "bfp6s" else _bfp16_group
    size = stream_bytes(8, k, gemv_format)
    step = max(1, BLOCK_BYTES // size)
    count = -(-rows // 8)
    for first in range(0, count, step):
        groups = min(step, count - first)
        # Whole words a group, so that the block size does not change what is drawn.
        raw = bits.random_raw(groups * (size // 8)).view(np.uint8).reshape(groups, size)
        part = group(raw, k, std)
        if used is not None:
            _blank(part.reshape(groups, -1), first, used, k, gemv_format)
        yield part.reshape(-1)


def _bfp16_group(raw: NDArray[np.uint8], k: int, std: float) -> NDArray[np.uint8]:
    table, exponent = _normal_table(std)
    # bytearray.translate is several times faster than indexing a table with an array
    mantissas = np.frombuffer(bytearray(raw.data.cast("B")).translate(table), np.uint8)
    blocks = mantissas.reshape(len(raw), k // 8, 8, 9)
    blocks[..., 0] = exponent
    return blocks


@lru_cache(maxsize=64)
def _normal_table(std: float) -> tuple[bytes, int]:
    """Mantissas at 256 equally likely quantiles of a normal of deviation `std`, and the exponent byte."""
    quantiles = [NormalDist(0.0, std).inv_cdf((i + 0.5) / 256) for i in range(256)]
    exponent = math.ceil(math.log2(quantiles[-1] / 127))
    mantissas = np.rint(np.array(quantiles) / 2.0**exponent).astype(np.int8)
    return mantissas.tobytes(), exponent + 133


def _bfp6s_group(raw: NDArray[np.uint8], k: int, std: float) -> NDArray[np.uint8]:
    scales = [(c, e) for c in range(5, 9) for e in range(-53, 11)]
    c, e = min(scales, key=lambda scale: abs(math.log(_BFP6S_SPREAD * scale[0] / 2 * 2.0 ** scale[1] / std)))
    segments = raw.reshape(len(raw), k // bfp6s.k_step, bfp6s.group_bytes)
    segments[..., 768:] = (e + 133 - 80) << 2 | (c - 5)
    return segments


def _blank(part: NDArray[np.uint8], first: int, used: int, k: int, gemv_format: str) -> None:
    """Sets the rows past `used` of groups first.. to zeros."""
    for at, group in enumerate(part):
        keep = used - (first + at) * 8
        if keep >= 8:
            continue
        if gemv_format == "bfp16":
            group.reshape(k // 8, 8, 9)[:, max(keep, 0) :] = 0
        elif keep <= 0:
            # u = 32 is zero: low nibbles 0, high bits 2 in both halves and both lane ranges
            planes = group.reshape(k // bfp6s.k_step, bfp6s.group_bytes)[:, :768].reshape(-1, 8, 96)
            planes[..., :64], planes[..., 64:] = 0, 0xAA


def _seed(seed: int, name: str) -> tuple[int, int]:
    return seed, zlib.crc32(name.encode())


def _generator(seed: tuple[int, int]) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed)))


class RandomText:
    """The text tensors of a random model, item by item of `schema.text_schema`."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self._config, self._seed = config, seed

    def pieces(self, item: TensorSpec) -> Iterator[NDArray[Any]]:
        """The item's bytes in order, as contiguous arrays."""
        seed = _seed(self._seed, item.name)
        if item.rows:
            used = self._config.vocab_size - item.slice * item.rows if item.part == "head" else None
            weights = self._config.gemv_format
            yield from random_stream(item.rows, item.k, self._spread(item), weights, seed, used)
            return
        rng = _generator(seed)
        if item.part == "embed":
            rows, d = item.shape
            for first in range(0, rows, 1024):
                normal = rng.standard_normal((min(1024, rows - first), d), np.float32)
                yield to_bf16(normal * np.float32(2 / math.sqrt(d)))
        else:
            yield np.ascontiguousarray(self._host(item, rng), np.float32)

    def _spread(self, item: TensorSpec) -> float:
        c = self._config
        if item.part == "head":
            return 2 / math.sqrt(c.hidden_size)
        return 1 / math.sqrt(c.intermediate_size if item.part == "down" else item.k)

    def _host(self, item: TensorSpec, rng: np.random.Generator) -> NDArray[Any]:
        if item.part == "A":
            return -rng.uniform(0.5, 8.0, item.shape)
        if item.part == "dt_bias":
            steps = np.exp(rng.uniform(math.log(1e-3), math.log(0.1), item.shape))
            return np.log(np.expm1(steps))
        if item.part == "conv":
            taps = rng.uniform(-0.25, 0.25, item.shape)
            taps[:, -1] += 0.6
            return taps
        normal = rng.standard_normal(item.shape)
        if item.part == "ba":
            return normal / math.sqrt(item.shape[-1])
        return 0.1 * normal + (1.0 if item.part == "norm" else 0.0)


class RandomVision:
    """The tower's tensors of a random model, item by item of `schema.vision_schema`; factors are one."""

    def __init__(self, config: VisionConfig, seed: int = 0) -> None:
        self._config, self._seed = config, seed

    def pieces(self, item: TensorSpec) -> Iterator[NDArray[Any]]:
        """The item's bytes in order, as contiguous arrays."""
        v, seed = self._config, _seed(self._seed, item.name)
        rng = _generator(seed)
        if not item.rows:
            if item.part.endswith(".f"):
                yield np.ones(item.shape, np.float32)
            elif item.part == "pos":
                yield rng.standard_normal(item.shape, np.float32) * np.float32(0.5)
            else:
                mean = 1.0 if item.part.endswith("_w") else 0.0
                yield (mean + 0.1 * rng.standard_normal(item.shape)).astype(np.float32)
            return
        slices = {"fc2": v.n_fc2, "m1": v.n_merge, "m2": v.n_merge}.get(item.part, 1)
        std = 1 / math.sqrt((v.patch_dim if item.part == "patch" else v.hidden_size) * slices)
        used = v.intermediate_size if item.part == "fc1" else None
        yield from random_stream(item.rows, item.k, std, "bfp16", seed, used)
        if item.weights == "bfp16x2":
            yield from random_stream(item.rows, item.k, std / 512, "bfp16", (seed[0] + 1, seed[1]), used)
        bias = 0.1 * rng.standard_normal(item.rows).astype(np.float32)
        if item.slice:
            bias[:] = 0
        if used is not None:
            bias[used:] = 0
        yield bias
