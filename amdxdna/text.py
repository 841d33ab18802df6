"""Text of others (names of processes, files, sections, a model's words) made fit for a terminal. No I/O."""

from __future__ import annotations

import reprlib


def printable(text: str) -> str:
    """`text` with whatever a terminal would not show as itself spelled out: ``\\x1b``, ``\\u202e``, ``\\n``.

    That is what `str.isprintable` says no to: controls, marks that turn the direction of text, line
    separators, surrogates.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(c: str) -> str:
    known = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(c)
    code = ord(c)
    return known or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def one_line(text: str) -> str:
    """`text` in one line: every run of white space one space, the rest as :func:`printable`."""
    return printable(" ".join(text.split()))


class _Brief(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python writes no more digits than sys.get_int_max_str_digits()
            return f"<a number of {x.bit_length():,} bits>"


brief = _Brief().repr
"""The `repr` of anything, cut short; also of a number that Python's own does not write."""
