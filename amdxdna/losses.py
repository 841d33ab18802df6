"""Contexts that a driver drops under the program's feet: how often they are made again, what is told then.

Linux 6.14 to 6.18 destroy every context of an open when any duplicate of its descriptor closes
(``DriverProfile.loses_contexts``), which the end, or the exec, of any child process does. So a context can go
between two calls; one that goes right after another more often than that says that children start all the
time.
"""

from __future__ import annotations

import time

from amdxdna.errors import ContextLost
from amdxdna.signals import interruptible

__all__ = ["MOST", "pause"]

MOST = 32
"""Contexts that may go one right after the other before the caller is told."""
_AT_ONCE, _FIRST, LONGEST_PAUSE = 3, 1e-3, 0.1
"""So many are made again at once; then a burst of children is waited out, a little longer each time."""


def pause(losses: int, call: str) -> None:
    """After the `losses`-th loss in a row, before the next try; two seconds in all. Raises ContextLost."""
    if losses >= MOST:
        raise ContextLost(
            "this driver drops a program's hardware contexts whenever one of its child processes starts or "
            f"ends, and has done so {losses} times in a row",
            call=call,
            remedy="Start child processes while nothing runs on the NPU, or fewer of them; Linux 7.0 and "
            "newer keep the contexts",
        )
    if losses > _AT_ONCE:
        interruptible(time.sleep, min(_FIRST * 2 ** (losses - _AT_ONCE - 1), LONGEST_PAUSE))
