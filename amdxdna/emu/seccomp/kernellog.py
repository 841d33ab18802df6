"""/dev/kmsg of a program under `emulate`: what the emulated driver says, not the host's kernel."""

from __future__ import annotations

import contextlib
import fcntl
import os

from amdxdna.emu.pci.sysfs import FUNCTION
from amdxdna.emu.personality import Personality

PATH = "/dev/kmsg"
_SLOT = 4096  # a packet takes a page of the pipe's (pipe(7))
_PIPE_BYTES = 256 * _SLOT
_LINE_BYTES = 1024  # PRINTKRB_RECORD_MAX of kernel/printk/internal.h
_ERROR, _INFO = 3, 6


def open_log(kind: Personality, number: int, began: float, said: str) -> int:
    """A descriptor that reads as /dev/kmsg does, a record a read, and then ends; the caller closes it.

    `said`: the driver's lines, as :meth:`amdxdna.emu.driver.objects.Device.kernel_log` gives them. Before
    them stands DRM's about a new device (drm_dev_register of drivers/gpu/drm/drm_drv.c), at `began` seconds
    since the boot. Format: Documentation/ABI/testing/dev-kmsg of Linux. Raises OSError.
    """
    version = f"{kind.major}.{kind.minor}.0"
    first = f"[drm] Initialized amdxdna_accel_driver {version} for {FUNCTION} on minor {number}"
    records = [(_INFO, began, first)]
    for line in said.splitlines():
        when, _, text = line.partition(" ")
        records.append((_ERROR, float(when), f"amdxdna {FUNCTION}: {text}"))
    reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        with contextlib.suppress(OSError):  # a user may have little room in pipes
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) // _SLOT
        numbered = list(enumerate(records))
        for index, (level, seconds, text) in numbered[-room:]:
            data = text.encode(errors="replace")[:_LINE_BYTES]
            os.write(writer, b"%d,%d,%d,-;%s\n" % (level, index, int(seconds * 1e6), data))
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return reader
