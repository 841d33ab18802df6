"""Weight formats of a bundle: bf16 bits, bfp16 and bfp6s streams."""

from __future__ import annotations

from qwen35.formats.bf16 import from_bf16, to_bf16
from qwen35.formats.stream import Format, FormatError, Weights, bfp6s, bfp16

__all__ = [
    "Format",
    "FormatError",
    "Weights",
    "bfp16",
    "bfp6s",
    "by_name",
    "from_bf16",
    "to_bf16",
]


def by_name(name: str) -> Format:
    """The format that a manifest calls `name`. Raises FormatError for one that this runtime does not read."""
    try:
        return {"bfp16": bfp16, "bfp6s": bfp6s}[name]
    except KeyError:
        raise FormatError(f"weight format {name!r} is unknown; known: bfp16, bfp6s") from None
