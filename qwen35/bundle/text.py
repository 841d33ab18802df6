"""Reading the text files of a bundle: bounded, UTF-8, numbers in plain decimal only."""

from __future__ import annotations

import codecs
import errno
import math
import os
import re
from pathlib import Path

from amdxdna.files import read_regular
from qwen35.bundle.errors import BundleError

__all__ = [
    "AGAIN",
    "any_path",
    "parse_count",
    "parse_real",
    "read_bytes",
    "read_lines",
    "relative_path",
    "shown",
    "unreadable",
]

AGAIN = "download or export the bundle again"
"""What to do about a file that is none of a bundle's."""
_MARKS = {codecs.BOM_UTF8: "UTF-8", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
"""Byte order marks, and the encodings whose they are."""

_COUNT = re.compile(r"\+?[0-9]{1,18}\Z")
_MOST_LINES = 1 << 17
_LONGEST_LINE = 1 << 20
_REAL = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?\Z")


def shown(text: str, limit: int = 60) -> str:
    """`text` cut to `limit` characters for an error message, control characters escaped."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def read_lines(path: Path, limit: int) -> list[str]:
    """The lines of a UTF-8 text file of at most `limit` bytes, without their line ends.

    Raises BundleError: missing, unreadable, not a regular file, too long, or not UTF-8 (naming the line).
    """
    data = read_bytes(path, limit)
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            message = f"an editor has saved it as {encoding} with a byte order mark"
            raise BundleError(path, 1, message, f"save it as UTF-8 without one, or {AGAIN}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BundleError(path, line, f"byte 0x{data[error.start]:02x} is not UTF-8 text", AGAIN) from None
    count = text.count("\n")
    if count > _MOST_LINES:
        raise BundleError(path, 0, f"{count:,} lines, and no bundle needs more than {_MOST_LINES:,}")
    lines = text.split("\n")
    longest = max(map(len, lines))
    if longest > _LONGEST_LINE:
        number = next(n for n, line in enumerate(lines, 1) if len(line) > _LONGEST_LINE)
        raise BundleError(path, number, f"a line of {longest:,} characters, which no bundle needs")
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def read_bytes(path: Path, limit: int) -> bytes:
    """The contents of a file of at most `limit` bytes. Raises BundleError; allocates what the file holds."""
    try:
        return read_regular(path, limit)
    except FileNotFoundError:
        raise BundleError(path, 0, "no such file", "is this a whole bundle directory?") from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise BundleError(path, 0, f"longer than {limit:,} bytes, which no bundle needs") from None
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> BundleError:
    """The error for a file of a bundle that is there and cannot be opened or read."""
    remedy = ""
    if error.errno in (errno.EINVAL, errno.EISDIR):
        remedy = f"put the bundle's own {path.name} here, or a link to it"
    elif error.errno == errno.EACCES:
        remedy = "let this user read it"
    return BundleError(path, 0, f"cannot be read: {error.strerror}", remedy)


def parse_count(text: str) -> int | None:
    """A decimal integer of at most 18 digits, a plus before them at most; None for anything else."""
    return int(text) if _COUNT.match(text) else None


def parse_real(text: str) -> float | None:
    """A finite decimal number, or None for anything else."""
    if not _REAL.match(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def any_path(text: str) -> bool:
    """Whether `text` can be a file's path at all, inside the bundle or not."""
    return bool(text) and "\0" not in text and all(len(part.encode()) <= 255 for part in text.split("/"))


def relative_path(text: str) -> str | None:
    """A bundle-relative file name in normal form, or None where it would leave the bundle's directory.

    Symbolic links are followed (a downloaded bundle may be a directory of links), so this is a check
    of the name alone.
    """
    if not text or "\0" in text or os.path.isabs(text) or "\\" in text:
        return None
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return None
    try:
        if any(len(part.encode()) > 255 for part in parts):
            return None
    except UnicodeEncodeError:  # half a character, which JSON can spell
        return None
    return "/".join(parts)
