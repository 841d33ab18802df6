"""The picture formats that are read, and how much of them. A table alone: a command line is checked against
it before Pillow and numpy are loaded."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["BEGINNING", "FORMATS", "MAX_BYTES", "MAX_PIXELS", "SHOWN", "SUFFIXES", "Format"]

MAX_PIXELS = 16_777_216
"""Largest picture that is read: as many pixels as a Qwen3.5 checkpoint's processor lets through unshrunk
(`longest_edge` of its preprocessor_config.json). Larger ones are refused by their header: whatever is read
takes less than 300 MiB."""
MAX_BYTES = 80_000_000
"""Largest file: more than such a picture takes without compression, at four bytes a pixel."""
_WEBP_PIXELS = 12_582_912
"""Pillow's WebP decoder (libwebp's WebPAnimDecoder) holds two canvases, the picture twice and the file, about
15 bytes a pixel."""


class Format(NamedTuple):
    """A format; `beginning` is a pattern of its files' first bytes, the rest its limits."""

    shown: str
    suffixes: tuple[str, ...]
    beginning: bytes
    pixels: int = MAX_PIXELS
    nbytes: int = MAX_BYTES


FORMATS = {
    "JPEG": Format("JPEG", (".jpg", ".jpeg"), rb"\xff\xd8\xff"),
    "PNG": Format("PNG", (".png",), rb"\x89PNG"),
    "WEBP": Format("WebP", (".webp",), rb"RIFF....WEBP", _WEBP_PIXELS, 4 * _WEBP_PIXELS),
    "GIF": Format("GIF", (".gif",), rb"GIF8"),
    "BMP": Format("BMP", (".bmp",), rb"BM"),
}
"""By Pillow's name."""

SUFFIXES = tuple(suffix for each in FORMATS.values() for suffix in each.suffixes)
BEGINNING = re.compile(b"|".join(each.beginning for each in FORMATS.values()), re.DOTALL)
*_others, _last = (each.shown for each in FORMATS.values())
SHOWN = f"{', '.join(_others)} or {_last}"
"""The formats' names, for messages."""
