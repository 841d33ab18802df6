"""Long prompts: beside the peers, on the timed NPU, and how near the host's kernels come to the peak.

Attention grows with the square of the length and is the host's; so is the DeltaNet. Their operations are
counted from the algorithm: of attention 4 hd a head and pair of a query and a key that it sees; of the
chunked DeltaNet the products of a chunk of 64 tokens, a triangular one as half a square one. Exponentials,
norms and the convolution are not counted, but take their time: two fifths of the DeltaNet's on a Zen 4 core
with AVX-512 (samples of the processor's clock: products 60%, the convolution with its SiLU 19%, the gated
norm 12%), so that its products run at the peak where its share of it is 0.6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qwen35._host import lib
from qwen35.bench import machine
from qwen35.bench.figures import Printer, median
from qwen35.bench.pairs import compare, turns
from qwen35.bench.timed import LIMITS, prompt_seconds, ratio_figures
from qwen35.model.attention import Attention
from qwen35.model.deltanet import DeltaNet, LinearState

if TYPE_CHECKING:
    from qwen35.bench.peers import Peer
    from qwen35.bench.text import Subject
    from qwen35.bundle.config import ModelConfig

__all__ = ["kernel_figures", "long_figures"]

QUADRATIC = 4096
"""Tokens up to which a peer that only computes in float32 is asked."""
_CHUNK: int = lib.HOST_DELTA_CHUNK
_ROWS = 2048
"""Rows a call of the kernels gets: a pass."""

U16 = NDArray[np.uint16]


def long_figures(
    subject: Subject, out: Printer, peers: Sequence[Peer], lengths: Sequence[int], repeats: int
) -> None:
    """Prompts of `lengths`, ours and the peers' in turns, and ours on the timed NPU; then the kernels."""
    for length in lengths:
        others = [peer for peer in peers if peer.kind != "transformers" or length <= QUADRATIC]
        run = partial(subject.prompt, length)
        run()  # buffers of this length
        ours, theirs = turns(others, repeats, run, {"prompt": length, "new": 0}, "prompt")
        out.add("long_prompt", median(chain.from_iterable(ours)), "s", tokens=length)
        compare(out, "long_prompt", "s", length, "tokens", others, ours, theirs)
        if subject.emulated:
            with subject.mode("timed"):
                runs = [prompt_seconds(subject, length) for _ in range(repeats)]
            ratio_figures(out, "timed_long_prompt", runs, "s", f"at most x {LIMITS['prompt']}", tokens=length)
    kernel_figures(subject.model.config, out, lengths, repeats)


def kernel_figures(config: ModelConfig, out: Printer, lengths: Sequence[int], repeats: int) -> None:
    """Seconds of all layers of a kind by one layer's, and its share of the peak measured beside every run."""
    kinds = [
        ("att", "host_attention", _attention, _attention_operations),
        ("lin", "host_deltanet", _deltanet, _deltanet_operations),
    ]
    for length in lengths:
        for kind, name, prepare, count in kinds:
            layers = config.layer_types.count(kind)
            if not layers:
                continue
            run = prepare(config, length)
            run()
            found = []
            for _ in range(repeats):
                began = time.perf_counter()
                run()
                seconds = time.perf_counter() - began
                found.append((seconds, count(config, length) / seconds, machine.fma_rate()))
            out.add(name, layers * median(seconds for seconds, _, _ in found), "s", tokens=length)
            out.add(
                f"{name}_peak",
                median(rate / peak for _, rate, peak in found),
                "x",
                "at least x 0.8",
                tokens=length,
                of="peak_float32",
                gflops=round(median(rate for _, rate, _ in found) / 1e9, 1),
                peak_float32=round(median(peak for _, _, peak in found) / 1e9, 1),
            )


def _bits(rng: np.random.Generator, rows: int, columns: int) -> U16:
    """bf16 between an eighth and two, of either sign."""
    bits: U16 = rng.integers(0x3E00, 0x4000, (rows, columns), np.uint16)
    bits[:, ::2] |= 0x8000
    return bits


def _passes(length: int) -> list[tuple[int, int]]:
    return [(start, min(start + _ROWS, length)) for start in range(0, length, _ROWS)]


def _attention(c: ModelConfig, length: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    layer = Attention(c, *np.zeros((2, c.head_dim), np.float32))
    rows, half = min(length, _ROWS), c.rotary_dim // 2
    y = _bits(rng, rows, c.n_att)
    angles = rng.uniform(-3, 3, (rows, half)).astype(np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    out = np.empty((rows, c.num_attention_heads * c.head_dim), np.uint16)
    keys, values = (np.zeros((length, c.num_key_value_heads * c.head_dim), np.uint16) for _ in range(2))

    def run() -> None:
        for start, stop in _passes(length):
            n = stop - start
            layer.prefill(y[:n], start, cosines[:n], sines[:n], keys, values, out[:n])

    return run


def _attention_operations(c: ModelConfig, length: int) -> float:
    return 4 * c.head_dim * c.num_attention_heads * (length * (length + 1) / 2)


def _deltanet(c: ModelConfig, length: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    heads, dk, dv = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    columns = -(-2 * heads // 16) * 16
    taps = rng.standard_normal((c.conv_dim, c.linear_conv_kernel_dim)).astype(np.float32)
    layer = DeltaNet(
        c, taps, -np.ones(heads, np.float32), np.zeros(heads, np.float32), np.ones(dv, np.float32), columns
    )
    rows = min(length, _ROWS)
    y = _bits(rng, rows, c.n_lin)
    gates: Any = rng.standard_normal((rows, columns)).astype(np.float32)
    out = np.empty((rows, c.lin_value), np.uint16)
    raw = np.zeros(heads * dk * dv + 16, np.float32)
    start = -raw.__array_interface__["data"][0] % 64 // 4
    matrices = raw[start : start + heads * dk * dv].reshape(heads, dk, dv)
    state = LinearState(np.zeros((c.linear_conv_kernel_dim - 1, c.conv_dim), np.uint16), matrices)

    def run() -> None:
        for first, stop in _passes(length):
            layer.prefill(y[: stop - first], gates[: stop - first], state, state, out[: stop - first])

    return run


def _deltanet_operations(c: ModelConfig, length: int) -> float:
    keys, heads = c.linear_num_key_heads, c.linear_num_value_heads
    dk, dv = c.linear_key_head_dim, c.linear_value_head_dim
    shared = 2 * _CHUNK * dk  # k k^T and q k^T, each a triangle
    own = 6 * dk * dv + 2 * _CHUNK * dv  # k S, q S and the state; the triangular solve and the mix
    return length * (keys * shared + heads * own)
