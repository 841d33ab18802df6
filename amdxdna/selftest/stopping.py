"""Ctrl-C while a command is on the NPU."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amdxdna.errors import CommandInFlight, WaitTimeout, XdnaError

if TYPE_CHECKING:
    from amdxdna.device import Device

_ENDING = (
    "amdxdna: stopping: a command is still on the NPU; its hardware context is being ended, which takes the "
    "driver some seconds (Ctrl-C again ends at once)"
)
_ENDED = "the command was ended with its hardware context: what it wrote is not known"
_LEFT = "the driver could not end the command: it may run on until this process is gone"


@contextlib.contextmanager
def stopping(device: Device) -> Iterator[None]:
    """Commands are started and waited for inside. Ctrl-C, or a wait that was long enough, ends them before
    their buffers are given back, which would wait for the driver's time-out. Enter it behind them.

    The driver ends a context within some two seconds (aie2_hwctx_fini of aie2_ctx.c). The KeyboardInterrupt
    that comes out says what became of the command. A second Ctrl-C meanwhile ends the process.
    """
    try:
        yield
    except (WaitTimeout, CommandInFlight):
        with contextlib.suppress(XdnaError):
            device.pool.abort()
        raise
    except KeyboardInterrupt:
        if not device.pool.in_flight():
            raise
        with contextlib.suppress(OSError, ValueError):
            print(_ENDING, file=sys.stderr, flush=True)
        with _ends_at_once():
            try:
                device.pool.abort()
                said = _LEFT if device.pool.in_flight() else _ENDED
            except XdnaError as error:
                said = f"{_LEFT} ({error.meaning})"
        raise KeyboardInterrupt(said) from None


@contextlib.contextmanager
def _ends_at_once() -> Iterator[None]:
    """SIGINT ends the process. Does nothing in another thread than the main one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
