"""Small things to do with an open NPU that show whether it works, for doctor and selftest."""

from __future__ import annotations

import struct
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
    """`nbytes` (a multiple of 4) of words in which no two neighbours, and no two seeds, are alike."""
    count = nbytes // 4
    return struct.pack(f"<{count}I", *((i * 2654435761 + seed * 40503) & 0xFFFFFFFF for i in range(count)))


def modelled(device: Device) -> bool:
    """Whether the NPU is this package's model of one, told by its firmware's build number."""
    from amdxdna import query
    from amdxdna.emu.identity import FIRMWARE_BUILD

    return query.firmware_version(device.client).build == FIRMWARE_BUILD


def copy_kernel(device: Device, nbytes: int) -> Kernel:
    """A kernel that copies `nbytes` of its first buffer to its second. Only a :func:`modelled` NPU can run it."""
    from amdxdna.emu.kernels import stream
    from amdxdna.emu.xclbins import xclbin_bytes
    from amdxdna.xclbin import Xclbin

    return device.pool.kernel(Xclbin.read(xclbin_bytes("copy")), stream.copy(nbytes, 0), name="MLIR_AIE")


class Trial:
    """Steps that go deeper and deeper. Each raises the error of the call that failed.

    ``modelled``: the NPU is this package's model of one, in this process or in a virtual machine, and can run
    the copy kernel; there is no compiled program in this package for the real one.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.modelled = modelled(device)
        self._kernel: Kernel | None = None

    def queries(self) -> str:
        """Asks for firmware and array; returns the firmware's version."""
        from amdxdna import query

        self.device.metadata()
        return str(query.firmware_version(self.device.client))

    def memory(self, nbytes: int = PAGE) -> None:
        """Makes the heap and a buffer of each kind; what is written, flushed and read must be the same."""
        data = pattern(nbytes)
        for kind in ("dev", "share", "cmd"):
            with self.device.alloc(nbytes, kind) as buffer:
                buffer.write(data)
                if buffer.read() != data:
                    raise WrongData(
                        f"a {kind} buffer does not keep what is written to it",
                        call="alloc",
                        remedy="Check the machine's memory",
                    )

    def context(self) -> None:
        """Makes a hardware context over the whole array and destroys it, without loading anything into it."""
        client = self.device.client
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
            if error.errno == 22:
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

    def copy(self, nbytes: int = PAGE, seed: int = 1) -> bool:
        """Runs a copy of `nbytes` on the NPU and compares every byte; False where no command can be run."""
        if not self.modelled:
            return False
        device = self.device
        if self._kernel is None:
            self._kernel = copy_kernel(device, nbytes)
        data = pattern(nbytes, seed)
        with device.alloc(nbytes) as source, device.alloc(nbytes) as target:
            source.write(data)
            self._kernel.run(source, target, outputs=[target])
            if target.read() != data:
                raise WrongData(
                    "a copy that the NPU completed has wrong data",
                    call="EXEC_CMD",
                    remedy="Run selftest --loop to see how often; the data is compared byte by byte",
                )
        return True

    def close(self) -> None:
        """Gives the kernel back."""
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.close()
