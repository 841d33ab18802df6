"""A known pattern behind a buffer's end, which tells a kernel that writes past it.

The driver gives memory in whole pages, so the NPU can reach behind a short buffer without a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer

GUARD_BYTES = 4096
"""To be allocated behind a buffer's own size."""

_PATTERN = bytes((0xA5 ^ (7 * n)) & 0xFF for n in range(256)) * (GUARD_BYTES // 256)


def guard(buffer: Buffer, nbytes: int) -> None:
    """Fills what lies behind the first `nbytes` of a buffer that is GUARD_BYTES larger."""
    buffer.write(_PATTERN, nbytes)


def overrun(buffer: Buffer, nbytes: int) -> int:
    """How many bytes behind the first `nbytes` are known to be written over; 0: none."""
    found = bytes(buffer.view()[nbytes : nbytes + GUARD_BYTES])
    return next((n + 1 for n in range(GUARD_BYTES - 1, -1, -1) if found[n] != _PATTERN[n]), 0)
