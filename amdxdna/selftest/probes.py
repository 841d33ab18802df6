"""Small things to do with an open NPU that show whether it works, for doctor and selftest."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from amdxdna.abandoned import abandon
from amdxdna.create_hwctx import create
from amdxdna.errors import XdnaError
from amdxdna.selftest.stopping import stopping

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.kernel import Kernel

PAGE = 4096


class WrongData(XdnaError):
    """The NPU reported success, but what it wrote is not what it should have written."""


def pattern(nbytes: int, seed: int = 1) -> bytes:
    """`nbytes` bytes that are the same for the same seed, and for no other."""
    return random.Random(seed).randbytes(nbytes)


def copy_kernel(device: Device, nbytes: int, addend: int = 0) -> Kernel:
    """Copies `nbytes` of its first buffer to its second, adding `addend` to each 32-bit word.

    Only the emulated NPU can run it: there is no compiled program in this package for the real one.
    """
    from amdxdna.emu.kernels import stream
    from amdxdna.emu.xclbins import KERNEL_NAME, xclbin_bytes
    from amdxdna.xclbin import Xclbin

    return device.pool.kernel(
        Xclbin.read(xclbin_bytes("copy")), stream.copy(nbytes, addend), name=KERNEL_NAME
    )


def make_context(device: Device) -> None:
    """Makes a hardware context over the whole array and destroys it, without loading anything into it.

    Raises NoFreeContext, ContextRefused or what else the call means.
    """
    client = device.client
    _ = client.heap
    array = client.metadata

    def discard(made: Any) -> None:
        handle, made.handle = made.handle, 0
        abandon(client, [handle], made.syncobj_handle, {}, [])

    create(client, array.cols, array.core.row_count, discard)


def keeps_data(device: Device, kind: str, nbytes: int = PAGE) -> None:
    """What is written to a new buffer, flushed and read must be the same. Raises WrongData."""
    data = pattern(nbytes)
    with device.alloc(nbytes, kind) as buffer:
        buffer.write(data)
        if buffer.read() != data:
            raise WrongData(
                f"a {kind} buffer does not keep what is written to it",
                call="alloc",
                remedy="Check the machine's memory",
            )


def check_copy(device: Device, kernel: Kernel, nbytes: int, seed: int = 1) -> None:
    """Runs a copy kernel and compares every byte. Raises WrongData, or what the run raises."""
    data = pattern(nbytes, seed)
    with device.alloc(nbytes) as source, device.alloc(nbytes) as target:
        source.write(data)
        with stopping(device):
            kernel.run(source, target, outputs=[target])
        if target.read() != data:
            raise WrongData(
                "a copy that the NPU completed has wrong data",
                call="EXEC_CMD",
                remedy="Run `python -m amdxdna selftest --loop` to see how often",
            )
