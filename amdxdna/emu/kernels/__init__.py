"""Kernels of the emulated NPU: the instruction-stream format, the kernel families, and running them.

`execute` is all the NPU model needs; `stream` builds what an exporter writes into a bundle; `model` defines
the results in numpy; `measure` tells what the machine could do at most.

Numbers, in every variant (`isa`): bf16 activations and the weights enter exactly, sums are float32, results
are rounded once, half to even, to bf16. A sum that float32 holds exactly is exact; otherwise the order of
additions shows, within float32's rounding of the terms. Results depend neither on the number of threads nor,
for a GEMM, on the other rows.

- GEMV makes integers of x: a weight block's x share an exponent and become integers of 15 or 16 bits. What
  these cut off smaller values goes into further integers for the same block until nothing is left, so that
  nothing is lost whatever the range within a block. Not finite, or outside 2^-122 .. 2^113: plain float32.
- The BF16 GEMM (vdpbf16ps) takes denormal weights, activations and sums as zero and adds the two products of
  a pair one after the other; the other variants keep denormals.
- A bfp16 block of exponent 0 (weights below 2^-126) may count as zero, one of 255 gives no finite sum.
- All-zero rows of A are not multiplied: they get the bias and the epilogue.
"""

from __future__ import annotations

from .families import Family, UnknownPdi, family_of, pdi
from .runner import (
    ABORTED,
    INVALID,
    OK,
    Operand,
    Prepared,
    Result,
    Stop,
    Wait,
    demands,
    execute,
    prepare,
    work,
)
from .stream import Demand, StreamError

__all__ = [
    "ABORTED",
    "Demand",
    "Family",
    "INVALID",
    "OK",
    "Operand",
    "Prepared",
    "Result",
    "Stop",
    "StreamError",
    "UnknownPdi",
    "Wait",
    "demands",
    "execute",
    "family_of",
    "pdi",
    "prepare",
    "work",
]
