"""How a handler refuses a call: by the OSError of an errno."""

from __future__ import annotations

import os


def error(number: int) -> OSError:
    """The OSError of an errno."""
    return OSError(number, os.strerror(number))
