"""Text of others (names of processes, files, sections, a model's words) made fit for a terminal. No I/O."""

from __future__ import annotations


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
    return known or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000
                     else f"\\U{code:08x}")


def one_line(text: str) -> str:
    """`text` in one line: every run of white space one space, the rest as :func:`printable`."""
    return printable(" ".join(text.split()))
