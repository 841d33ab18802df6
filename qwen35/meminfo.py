"""What /proc/meminfo says."""

from __future__ import annotations

__all__ = ["available"]


def available() -> int | None:
    """Bytes that a new program could take without swapping; None where the kernel does not say."""
    try:
        with open("/proc/meminfo") as file:
            found = dict(line.split(":", 1) for line in file)
        return int(found["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return None
