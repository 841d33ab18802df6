"""Weight formats of a bundle: bf16 bits, bfp16 and bfp6s streams.

`by_name("bfp16")` gives the module of a manifest's format name; `bfp16` and `bfp6s` have the same functions.
"""

from __future__ import annotations

from types import ModuleType

from qwen35.formats import bfp6s, bfp16
from qwen35.formats.bf16 import from_bf16, to_bf16
from qwen35.formats.stream import FormatError, Weights, interleave_gate_up

__all__ = [
    "FormatError",
    "Weights",
    "bfp16",
    "bfp6s",
    "by_name",
    "from_bf16",
    "interleave_gate_up",
    "to_bf16",
]


def by_name(name: str) -> ModuleType:
    """The format module called `name`. Raises FormatError for a name this runtime does not read."""
    try:
        return {"bfp16": bfp16, "bfp6s": bfp6s}[name]
    except KeyError:
        raise FormatError(f"weight format {name!r} is unknown; known: bfp16, bfp6s") from None
