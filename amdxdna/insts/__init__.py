"""Reads instruction streams: AIE transaction binaries (`txn`, also out of an `elf`) and the emulator's own.

:func:`disassemble` never fails on bytes: what it does not understand is an op ``raw``, and what is wrong with
the stream is in the listing's ``problems``.
"""

from __future__ import annotations

from amdxdna.insts.listing import Listing, disassemble

__all__ = ["Listing", "disassemble"]
