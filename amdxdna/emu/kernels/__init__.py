"""Kernels of the emulated NPU: the instruction-stream format, the kernel families, and running them.

`execute` is all the NPU model needs; `stream` builds what an exporter writes into a bundle.
"""

from __future__ import annotations

from .families import Family, UnknownPdi, family_of, pdi
from .runner import ABORTED, INVALID, OK, Operand, Result, Wait, execute, work
from .stream import StreamError

__all__ = [
    "ABORTED",
    "Family",
    "INVALID",
    "OK",
    "Operand",
    "Result",
    "StreamError",
    "UnknownPdi",
    "Wait",
    "execute",
    "family_of",
    "pdi",
    "work",
]
