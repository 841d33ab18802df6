"""Small things to do with an open NPU that show whether it works, for doctor and selftest."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

from amdxdna import ioctl
from amdxdna._native import ffi
from amdxdna.errors import XdnaError
from amdxdna.hwctx import DEFAULT_OPS_PER_CYCLE, refused

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.kernel import Kernel

PAGE = 4096


class WrongData(XdnaError):
    """The NPU reported success, but what it wrote is not what it should have written."""


def pattern(nbytes: int, seed: int = 1) -> bytes:
    """`nbytes` bytes that are the same for the same seed, and for no other."""
    return random.Random(seed).randbytes(nbytes)


def modelled(device: Device) -> bool:
    """Whether the NPU is this package's model of one, told by its firmware's build number."""
    from amdxdna import query
    from amdxdna.emu.identity import FIRMWARE_BUILD

    return query.firmware_version(device.client).build == FIRMWARE_BUILD


def copy_kernel(device: Device, nbytes: int, addend: int = 0) -> Kernel:
    """Copies `nbytes` of its first buffer to its second, adding `addend` to each 32-bit word.

    Only a :func:`modelled` NPU can run it: there is no compiled program in this package for the real one.
    """
    from amdxdna.emu.kernels import stream
    from amdxdna.emu.xclbins import xclbin_bytes
    from amdxdna.xclbin import Xclbin

    return device.pool.kernel(Xclbin.read(xclbin_bytes("copy")), stream.copy(nbytes, addend), name="MLIR_AIE")


def make_context(device: Device) -> None:
    """Makes a hardware context over the whole array and destroys it, without loading anything into it.

    Raises NoFreeContext, ContextRefused or what else the call means.
    """
    client = device.client
    _ = client.heap
    array = client.metadata
    qos = ffi.new("struct amdxdna_qos_info *")
    request = ffi.new(
        "struct amdxdna_drm_create_hwctx *",
        {
            "qos_p": ioctl.address_of(qos),
            "num_tiles": array.cols * array.core.row_count,
            "max_opc": DEFAULT_OPS_PER_CYCLE,
        },
    )
    try:
        ioctl.call(client.node, "CREATE_HWCTX", request, detail=f"{array.cols} columns")
    except XdnaError as error:
        if error.errno == errno.EINVAL:
            raise refused(client) from None
        raise
    ioctl.call(
        client.node,
        "DESTROY_HWCTX",
        ffi.new("struct amdxdna_drm_destroy_hwctx *", {"handle": request.handle}),
    )
    ioctl.call(
        client.node,
        "SYNCOBJ_DESTROY",
        ffi.new("struct drm_syncobj_destroy *", {"handle": request.syncobj_handle}),
    )


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
        kernel.run(source, target, outputs=[target])
        if target.read() != data:
            raise WrongData(
                "a copy that the NPU completed has wrong data",
                call="EXEC_CMD",
                remedy="Run `amdxdna selftest --loop` to see how often",
            )
