"""Run-time power management: an idle device is suspended, and nobody notices."""

from __future__ import annotations

import errno
from pathlib import Path

from .kit import COMPLETED, Target, case, fails, until

POWER = "power"


def _device() -> Path:
    (node,) = Path("/sys/class/accel").glob("accel*")
    return Path(node / "device").resolve() / POWER


def _suspend() -> None:
    """Lets the driver suspend the idle device soon and waits until it has."""
    (_device() / "autosuspend_delay_ms").write_text("50")
    # Drivers that do not suspend take all of this time.
    until(lambda: (_device() / "runtime_status").read_text().strip() == "suspended", 20, "suspend")


@case()
def idle_with_a_context(t: Target) -> None:
    """A context survives a suspend: the driver makes it and its CUs anew on resume."""
    t.needs_kernel("power is the kernel's")
    ready = t.ready()
    for _ in range(2):
        assert ready.copy() == COMPLETED
        _suspend()
    assert ready.copy() == COMPLETED
    assert len(ready.contexts()) == 1


@case()
def pdi_closed_before_suspend(t: Target) -> None:
    """The driver configures the CUs again on resume, from the handle: without it the device stays down for
    that client, and is there for the next."""
    t.needs_kernel("power is the kernel's")
    ready = t.ready()
    assert ready.copy() == COMPLETED
    ready.close_bo(ready.pdi.handle)
    _suspend()
    with fails(errno.EINVAL):
        ready.copy()
    ready.close()
    assert t.ready().copy() == COMPLETED


@case()
def open_while_suspended(t: Target) -> None:
    """A suspended device is opened and queried as any other."""
    t.needs_kernel("power is the kernel's")
    _suspend()
    assert t.ready().copy() == COMPLETED
