"""Every error of the binding. What a failed call means, and what to do: :mod:`amdxdna.causes`.

Each :class:`XdnaError` carries

* ``call``: the call that failed, by its interface name (``"CREATE_HWCTX"``, ``"open"``) or, where no call was
  made, what was attempted (``"alloc"``);
* ``errno``: the number the kernel gave, or None where the binding itself refused;
* ``meaning``: the cause in plain words;
* ``remedy``: what the reader can do about it.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import Any

# errno.errorcode calls this one ENOTSUP; the driver's sources and manuals do not.
_NAMES = {**_errno.errorcode, _errno.EOPNOTSUPP: "EOPNOTSUPP"}


class XdnaError(OSError):
    """Base of every error of the binding; an :class:`OSError` with ``errno`` and ``strerror``."""

    call: str
    meaning: str
    remedy: str

    def __init__(
        self, meaning: str, *, call: str = "", errno: int | None = None, remedy: str = "", **facts: Any
    ) -> None:
        if errno is None:
            super().__init__(meaning)
        else:
            super().__init__(errno, os.strerror(errno))
        self.call = call
        self.meaning = meaning
        self.remedy = remedy
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        parts = []
        if self.call:
            parts.append(self.call)
        if self.errno is not None:
            parts.append(f"{_NAMES.get(self.errno, self.errno)}, {self.strerror}")
        head = f"{parts[0]} failed ({parts[1]}): " if len(parts) == 2 else "".join(f"{p}: " for p in parts)
        return f"{head}{self.meaning}" + (f". {self.remedy}" if self.remedy else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.errno, dict(self.__dict__))


def _rebuild(cls: type[XdnaError], errno: int | None, facts: dict[str, Any]) -> XdnaError:
    return cls(facts.pop("meaning"), errno=errno, **facts)


class NoDevice(XdnaError):
    """No usable NPU node: none exists, or the driver refuses to open the one there is."""


class PermissionDenied(XdnaError):
    """The user may not do this: open the node, change the power mode, pin memory."""


class DeviceBusy(XdnaError):
    """The driver serves nobody else now (EBUSY)."""


class DeviceLost(XdnaError):
    """The device or its firmware stopped answering. Contexts that are open may still work."""


class Unsupported(XdnaError):
    """The driver is older than the feature, or lacks it. ``needed`` is the DRM minor, where one is known."""

    needed: int | None = None


class BadArgument(XdnaError, ValueError):
    """The call was refused for what was passed to it; nothing changed."""


class BadType(BadArgument, TypeError):
    """An argument is of a kind that the call cannot take."""


class NoFreeContext(XdnaError):
    """Every hardware context is taken. ``holders``: (pid, contexts) pairs, where the driver tells them.

    ``certain`` is false where the driver cannot tell: it passes any refusal of the firmware on as EINVAL, and
    the firmware may hold fewer contexts than the driver thinks. ``columns``: where no partition of that width
    is free; only contexts of another width are in its way.
    """

    columns: int | None = None
    holders: tuple[tuple[int, int], ...] = ()
    certain: bool = True


class ContextRefused(XdnaError):
    """The firmware refused a hardware context though not all are taken."""


class ContextLost(XdnaError):
    """The driver drops the contexts faster than they are made again (see
    ``DriverProfile.loses_contexts``)."""


class OutOfHeap(XdnaError):
    """The device heap is full. ``requested``, ``used``, ``size`` and ``limit`` are in bytes, where known."""

    requested: int = 0
    used: int = 0
    size: int = 0
    limit: int = 0


class OutOfMemory(XdnaError, MemoryError):
    """The system has no memory for it, or the locked-memory limit is too low."""


class CommandFailed(XdnaError):
    """A command did not complete. ``state`` is its ERT state; in a chain, ``index`` is the failing member."""

    state: int = 0
    index: int | None = None


class CommandRejected(CommandFailed):
    """The driver took the packet and dropped it: the wait returned with the state still NEW."""


class CommandAborted(CommandFailed):
    """The command was dropped since the context was reset, mostly by another command's timeout."""


class CommandTimeout(CommandFailed):
    """The device made no progress for some time (the driver's, see ``Device.profile.tdr_seconds``) and the
    driver reset the context.

    ``health`` is the decoded report (:class:`amdxdna.run.Health`) or None where the driver left none.
    ``in_flight``: see :class:`CommandInFlight`.
    """

    health: Any = None
    in_flight: bool = False


class CommandInFlight(CommandTimeout):
    """A wait without a limit of the caller's has ended though the driver has not given the command up.

    ``in_flight`` is true: the NPU may still read and write the command's buffers, which must not be used
    again. The context is given up when it is next needed; what the command uses stays until the driver has
    let go of it.
    """

    in_flight = True


class WaitTimeout(XdnaError, TimeoutError):
    """The caller's own time limit passed. The command is still running and can be waited for again."""


class BadXclbin(XdnaError, ValueError):
    """A file is no valid xclbin. ``path`` names it, ``offset`` is the byte where the trouble is."""

    path: str = ""
    offset: int = 0


class BadElf(XdnaError, ValueError):
    """A file is no valid ELF file of control code. ``path`` and ``offset`` are as :class:`BadXclbin`'s.

    ``os_abi``: where it is for another generation of the array, the file's OS/ABI byte.
    """

    path: str = ""
    offset: int = 0
    os_abi: int | None = None


class Closed(XdnaError):
    """The object was closed, or belongs to the parent of this forked process."""


def unsupported(feature: str, needed: int, minor: int) -> Unsupported:
    """`feature` came with DRM minor `needed`; the driver at hand reports `minor`."""
    return Unsupported(
        f"{feature} needs amdxdna driver version 0.{needed} or newer; this one is 0.{minor}",
        call=feature,
        remedy="Use a newer kernel (`uname -r`), or do without this feature",
        needed=needed,
    )


def closed(what: str) -> Closed:
    """`what` (``"buffer"``) was used after close()."""
    return Closed(f"this {what} is closed", call=what, remedy=f"Open or allocate a new {what}")


def of_parent(call: str) -> Closed:
    """The device was opened before the fork that made this process."""
    return Closed(
        "this device was opened by the parent process",
        call=call,
        remedy="Open the device in the process that uses it, after the fork",
    )
