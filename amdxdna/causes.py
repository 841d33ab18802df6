"""The one table that turns a failed call and its errno into a cause and a remedy.

The causes come from the driver's source (drivers/accel/amdxdna of Linux 7.3) and from the errno measured on
the stock driver.
"""

from __future__ import annotations

import errno as _errno
from typing import Any, NamedTuple

from amdxdna.errors import (
    BadArgument,
    Closed,
    ContextRefused,
    DeviceBusy,
    DeviceLost,
    NoDevice,
    NoFreeContext,
    OutOfHeap,
    OutOfMemory,
    PermissionDenied,
    Unsupported,
    WaitTimeout,
    XdnaError,
)


class _Row(NamedTuple):
    error: type[XdnaError]
    meaning: str
    remedy: str


_NO_ADDRESS = _Row(
    NoDevice,
    "the driver can give this process no address space on the device: no PASID, and no other "
    "address mode is on",
    "Enable the IOMMU (firmware setup, and no iommu=off or amd_iommu=off on the kernel command line); inside "
    "a virtual machine load the driver with force_iova=1",
)
_FULL = "Close device buffers and kernels that are no longer needed"
_COPY = "Use a private read-write mapping or copy the data into an ordinary buffer"
_OLD = "the driver does not know this request"
_OLD_REMEDY = "Use a newer kernel (`uname -r`), or do without this feature"
_MEMLOCK = (
    "Raise the locked-memory limit (`ulimit -l unlimited`, or LimitMEMLOCK= of the service) or copy "
    "the data into an ordinary buffer"
)
_RELOAD = "Reload the module (`modprobe -r amdxdna; modprobe amdxdna`) or reboot; see `dmesg`"
_CLOSED_HANDLE = "no such handle on this device: it was closed, or belongs to another open of the node"
STILL_RUNNING = "It is still running: give it more time, or wait for it again"
"""What to do when a time limit has passed, in a program and at the command line."""
_BUG = "This is a bug in the caller; the values passed are in the message"

# (call, errno) -> cause and remedy. A call is looked up by its full name, then word by word less, then "*".
CAUSES: dict[tuple[str, int], _Row] = {
    ("open", _errno.ENOENT): _Row(
        NoDevice,
        "there is no NPU node: the amdxdna module is not loaded, or it failed to start the device",
        "Load it (`modprobe amdxdna`, Linux 6.14 or newer) and look at `dmesg | grep amdxdna`: missing "
        "firmware (linux-firmware, amdnpu/) or a firmware of another protocol are the usual causes",
    ),
    ("open", _errno.EMFILE): _Row(
        XdnaError,
        "this process's file descriptors ran out",
        "Raise the limit (`ulimit -n`), or close what is not used",
    ),
    ("open", _errno.ENFILE): _Row(
        XdnaError,
        "this machine's file descriptors ran out",
        "End other programs, or raise the limit (fs.file-max)",
    ),
    ("open", _errno.EACCES): _Row(
        PermissionDenied,
        "this user may not open the node",
        "Join the node's group (`ls -l /dev/accel`; `usermod -aG render USER`, then log in again). In a "
        "container pass the node in and give the group by number: its id differs from the host's",
    ),
    ("open", _errno.EPERM): _Row(
        PermissionDenied,
        "a sandbox or container refuses the node",
        "Allow the device (for example `--device /dev/accel/accel0`)",
    ),
    ("open", _errno.EBUSY): _Row(
        DeviceBusy,
        "the driver refuses another open of the node (some builds allow one open a process)",
        "Share one Device in the process, and end other programs that use the NPU",
    ),
    ("open", _errno.ENXIO): _Row(
        NoDevice, "the node is left over: no driver is behind it", "Reload the module or reboot"
    ),
    ("open", _errno.ENODEV): _NO_ADDRESS,
    ("open", _errno.EOPNOTSUPP): _NO_ADDRESS,
    ("open", _errno.EINVAL): _NO_ADDRESS,
    ("open", _errno.EISDIR): _Row(
        NoDevice, "this is a directory", "Give the path of an accel node, such as /dev/accel/accel0"
    ),
    ("open", _errno.ENOTTY): _Row(
        NoDevice, "this file is no DRM device", "Give the path of an accel node, such as /dev/accel/accel0"
    ),
    ("mmap", _errno.EAGAIN): _Row(OutOfMemory, "the mapping would pass the locked-memory limit", _MEMLOCK),
    ("mmap", _errno.EPERM): _Row(OutOfMemory, "locked memory is not allowed for this user", _MEMLOCK),
    ("mmap", _errno.ENOMEM): _Row(
        OutOfMemory,
        "no memory or no address space for the mapping",
        "Close buffers, or raise the address-space limit (`ulimit -v`)",
    ),
    ("mmap", _errno.EINVAL): _Row(BadArgument, "the range is not a buffer of this node", _BUG),
    ("CREATE_BO", _errno.EINVAL): _Row(BadArgument, "the driver does not accept this type or size", _BUG),
    ("CREATE_BO", _errno.ENOSPC): _Row(
        OutOfMemory,
        "the driver has no room for a buffer of this size (or the size is 0)",
        "Ask for less, or close buffers",
    ),
    ("CREATE_BO", _errno.ENOMEM): _Row(
        OutOfMemory, "the kernel has no memory for the buffer", "Close buffers or free memory"
    ),
    ("CREATE_BO DEV", _errno.EAGAIN): _Row(OutOfHeap, "the device heap is full (or not mapped yet)", _FULL),
    ("CREATE_BO DEV", _errno.ENOSPC): _Row(OutOfHeap, "the device heap is full", _FULL),
    ("CREATE_BO DEV", _errno.EINVAL): _Row(
        OutOfHeap, "the size is 0 or over the largest heap of the device", "Split the buffer"
    ),
    ("CREATE_BO DEV_HEAP", _errno.ENOSPC): _Row(
        OutOfHeap, "the heap is at the largest size the driver gives one process", _FULL
    ),
    ("CREATE_BO userptr read-only", _errno.ENOMEM): _Row(
        BadArgument, "this driver takes no read-only memory", _COPY
    ),
    ("CREATE_BO DEV_HEAP", _errno.EBUSY): _Row(
        OutOfHeap, "this driver gives each process one heap and it is full", _FULL
    ),
    ("CREATE_BO DEV_HEAP", _errno.EOPNOTSUPP): _Row(
        OutOfHeap, "this driver cannot enlarge the device heap and it is full", _FULL
    ),
    ("CREATE_BO DEV_HEAP", _errno.EINVAL): _Row(
        OutOfMemory,
        "the driver cannot make the device heap: it has no contiguous memory (without an IOMMU "
        "it needs CMA), or wants another size than 64 MiB",
        "Enable the IOMMU, or use a kernel with CMA (`zgrep CMA /proc/config.gz`) and cma=128M on its "
        "command line",
    ),
    ("CREATE_BO userptr", _errno.EFAULT): _Row(
        BadArgument,
        "the driver cannot pin this memory: it is unmapped, read-only, or a shared mapping of a disk file",
        _COPY,
    ),
    ("CREATE_BO userptr", _errno.EPERM): _Row(
        OutOfMemory, "pinning user memory needs a locked-memory limit above 0", _MEMLOCK
    ),
    ("CREATE_BO userptr", _errno.ENOMEM): _Row(
        OutOfMemory,
        "the driver cannot pin this memory: it is over the locked-memory limit, or (as other "
        "drivers than Linux 7.2's and 7.3's say it) unmapped, or a shared mapping of a disk file",
        _MEMLOCK,
    ),
    ("CREATE_BO userptr", _errno.EINVAL): _Row(
        BadArgument,
        "address and length must be multiples of the page size (and the driver must know "
        "user-pointer buffers: Linux 6.17 or newer)",
        "Align them, or copy the data into an ordinary buffer",
    ),
    ("CREATE_HWCTX", _errno.EINVAL): _Row(
        NoFreeContext,
        "the firmware gives no hardware context; most often all of them are taken",
        "Close other programs that use the NPU (`python -m amdxdna contexts` lists the holders); a program "
        "can share contexts through Device.pool",
    ),
    ("CREATE_HWCTX", _errno.ENOENT): _Row(
        BadArgument,
        "the process has no device heap yet (or, with AMD's legacy driver, all contexts are taken)",
        "Allocate the heap before the first context",
    ),
    ("CREATE_HWCTX", _errno.EAGAIN): _Row(
        OutOfHeap,
        "the device heap is not mapped, or has no room for the context's own command buffers",
        "Map the heap before the first context; close device buffers that are no longer needed",
    ),
    ("CREATE_HWCTX", _errno.EBUSY): _Row(
        NoFreeContext, "this open of the node holds 255 contexts, the driver's limit", "Close some of them"
    ),
    ("CREATE_HWCTX", _errno.ENODEV): _Row(
        DeviceLost,
        "the driver no longer reaches the firmware, or the device was removed; contexts that are "
        "open may go on working",
        _RELOAD,
    ),
    ("CREATE_HWCTX", _errno.ENOSPC): _Row(
        OutOfHeap, "the device heap has no room for the context's own command buffers", _FULL
    ),
    ("CREATE_HWCTX", _errno.ETIME): _Row(
        DeviceLost, "the firmware does not answer; contexts that are open may go on working", _RELOAD
    ),
    ("CREATE_HWCTX", _errno.ENOMEM): _Row(
        OutOfMemory, "the kernel has no memory for the context", "Free memory"
    ),
    ("CONFIG_HWCTX", _errno.EINVAL): _Row(
        BadArgument, "the context is gone, already configured, or a CU names no device buffer", _BUG
    ),
    ("CONFIG_HWCTX", _errno.ENODEV): _Row(
        ContextRefused,
        "the driver has no channel to this context: the firmware gave it up",
        "Make it again; see `dmesg` if that happens every time",
    ),
    ("CONFIG_HWCTX", _errno.E2BIG): _Row(BadArgument, "more compute units than fit one page", _BUG),
    ("DESTROY_HWCTX", _errno.EINVAL): _Row(BadArgument, _CLOSED_HANDLE, _BUG),
    ("EXEC_CMD", _errno.EINVAL): _Row(
        BadArgument, "the context or the command buffer is gone", "Create a fresh context"
    ),
    # Starts check whose buffers they get: what the driver alone finds was closed by another thread meanwhile.
    ("EXEC_CMD", _errno.ENOENT): _Row(
        Closed,
        "an argument buffer was closed, or belongs to another device",
        "Close a buffer when no thread starts commands with it any more",
    ),
    ("EXEC_CMD", _errno.EALREADY): _Row(BadArgument, "a buffer is listed twice in one submit", _BUG),
    ("EXEC_CMD", _errno.EFAULT): _Row(BadArgument, "the pages of an argument buffer cannot be reached", _BUG),
    ("EXEC_CMD", _errno.ENODEV): _Row(
        DeviceLost, "the device is stopped or was removed", "See `dmesg`; reload the module"
    ),
    # aie2_populate_range: the pages could not be faulted in within a second. The context is as it was.
    ("EXEC_CMD", _errno.ETIME): _Row(
        OutOfMemory,
        "the pages of a buffer were not brought back into memory in time",
        "Start again; free memory if it happens every time",
    ),
    ("SYNCOBJ_TIMELINE_WAIT", _errno.ETIME): _Row(
        WaitTimeout, "the command has not completed within the time given", STILL_RUNNING
    ),
    ("WAIT_CMD", _errno.ETIME): _Row(
        WaitTimeout, "the command has not completed within the time given", STILL_RUNNING
    ),
    # A timeline lives as long as its context's object: only the end of the open takes it away under a wait.
    ("SYNCOBJ_TIMELINE_WAIT", _errno.ENOENT): _Row(
        Closed,
        "the device was closed by another thread, and the command's timeline with it",
        "Wait for the commands before the device is closed",
    ),
    ("SYNCOBJ_TIMELINE_WAIT", _errno.EINVAL): _Row(
        BadArgument, "nothing was submitted under this sequence number", _BUG
    ),
    ("GET_BO_INFO", _errno.ENOENT): _Row(BadArgument, _CLOSED_HANDLE, _BUG),
    ("GEM_CLOSE", _errno.EINVAL): _Row(BadArgument, _CLOSED_HANDLE, _BUG),
    ("PRIME_HANDLE_TO_FD", _errno.EOPNOTSUPP): _Row(
        Unsupported, "device and user-pointer buffers cannot be exported", "Export a share buffer"
    ),
    ("PRIME_FD_TO_HANDLE", _errno.EBADF): _Row(BadArgument, "this file descriptor is not open", _BUG),
    ("PRIME_FD_TO_HANDLE", _errno.EINVAL): _Row(
        BadArgument, "this file descriptor is no dma-buf", "Pass the descriptor an exporter gave"
    ),
    ("GET_INFO", _errno.EOPNOTSUPP): _Row(Unsupported, _OLD, _OLD_REMEDY),
    ("GET_INFO QUERY_SENSORS", _errno.ENODEV): _Row(
        Unsupported,
        "this machine offers no such data (the sensors need the amd_pmf module)",
        "Load amd_pmf, or do without this feature",
    ),
    ("GET_INFO", _errno.EINVAL): _Row(BadArgument, "the driver does not accept this query", _BUG),
    ("GET_ARRAY", _errno.EOPNOTSUPP): _Row(Unsupported, _OLD, _OLD_REMEDY),
    ("SET_STATE", _errno.EOPNOTSUPP): _Row(Unsupported, _OLD, _OLD_REMEDY),
    ("SET_STATE", _errno.EACCES): _Row(
        PermissionDenied, "only root may change the device's state", "Run it with sudo"
    ),
    ("SET_STATE", _errno.EINVAL): _Row(
        BadArgument,
        "the driver refuses this state (turbo needs an idle device: no open context)",
        "Close the contexts first, or choose another mode",
    ),
    ("WAIT_CMD", _errno.EOPNOTSUPP): _Row(Unsupported, "this device has no WAIT_CMD", _OLD_REMEDY),
    ("*", _errno.EACCES): _Row(PermissionDenied, "this user may not do this", "Run it with more rights"),
    ("*", _errno.EPERM): _Row(PermissionDenied, "this user may not do this", "Run it with more rights"),
    ("*", _errno.ENOMEM): _Row(
        OutOfMemory, "the kernel has no memory for this", "Close buffers or free memory"
    ),
    ("*", _errno.EFBIG): _Row(
        OutOfMemory,
        "files may not grow so large (ulimit -f), and the emulated device keeps its buffers in one",
        "Raise the limit",
    ),
    ("*", _errno.ENOTTY): _Row(
        Unsupported, "the file is no amdxdna node, or its driver is too old for this call", _OLD_REMEDY
    ),
    ("*", _errno.EOPNOTSUPP): _Row(Unsupported, _OLD, _OLD_REMEDY),
    ("*", _errno.EBADF): _Row(Closed, "the node was closed", _BUG),
    ("*", _errno.EFAULT): _Row(
        BadArgument, "an address passed to the driver is not readable or writable", _BUG
    ),
    ("*", _errno.EINVAL): _Row(BadArgument, "the driver does not accept these arguments", _BUG),
    ("*", _errno.ENODEV): _Row(
        DeviceLost, "the device was removed or its driver unloaded", "See `dmesg`; reload the module"
    ),
    # What the kernel answers for a filtered call whose listener is closed: seccomp_unotify(2).
    ("*", _errno.ENOSYS): _Row(
        DeviceLost,
        "the emulating process is gone (or a sandbox refuses this system call)",
        "Start the program again under `python -m amdxdna emulate`",
    ),
    ("*", _errno.EIO): _Row(
        DeviceLost, "the device does not answer", "See `dmesg`; reload the module or reboot"
    ),
    ("*", _errno.ETIME): _Row(
        DeviceLost, "the firmware does not answer", "See `dmesg`; reload the module or reboot"
    ),
    ("*", _errno.ETIMEDOUT): _Row(DeviceLost, "the device does not start or change its power state", _RELOAD),
    ("*", _errno.EPIPE): _Row(DeviceLost, "the driver's mailbox to the firmware is broken", _RELOAD),
    ("*", _errno.EBUSY): _Row(DeviceBusy, "the driver is busy", "Try again later"),
}

_UNKNOWN = _Row(XdnaError, "an error the binding has no explanation for", "See `dmesg | grep amdxdna`")


def explain(call: str, errno: int) -> tuple[type[XdnaError], str, str]:
    """The table's row for `call` (``"CREATE_BO DEV"``: a name, then what it was about) and `errno`.

    Returns (exception class, meaning, remedy).
    """
    key = call
    while key:
        row = CAUSES.get((key, errno))
        if row is not None:
            return row
        key = key.rpartition(" ")[0]
    return CAUSES.get(("*", errno), _UNKNOWN)


def from_errno(call: str, errno: int, detail: str = "", **facts: Any) -> XdnaError:
    """The exception for a failed `call`; `detail` (what was passed) goes behind the meaning."""
    error, meaning, remedy = explain(call, errno)
    if detail:
        meaning = f"{meaning} [{detail}]"
    return error(meaning, call=call, errno=errno, remedy=remedy, **facts)
