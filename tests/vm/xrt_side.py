"""Runs in the XRT guest: the same kernel on the same data, through Debian's pyxrt and through ours."""

from __future__ import annotations

import struct
from typing import Any

NODE = "/dev/accel/accel0"
XCLBIN = "/copy.xclbin"
OPCODE = 3  # run an instruction stream
WORDS = 1024


def source() -> bytes:
    """What is copied."""
    return struct.pack(f"<{WORDS}I", *(i * 2654435761 & 0xFFFFFFFF for i in range(WORDS)))


def xrt(stream: str) -> dict[str, Any]:
    """Runs `stream` (hexadecimal) through pyxrt; addresses as it knows them, state and result."""
    import pyxrt

    code, data = bytes.fromhex(stream), source()
    device = pyxrt.device(0)
    xclbin = pyxrt.xclbin(XCLBIN)
    device.register_xclbin(xclbin)
    context = pyxrt.hw_context(device, xclbin.get_uuid())
    names = [kernel.get_name() for kernel in xclbin.get_kernels()]
    kernel = pyxrt.kernel(context, names[0])
    to_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
    from_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
    instructions = pyxrt.bo(device, len(code), pyxrt.bo.cacheable, kernel.group_id(1))
    instructions.write(code, 0)
    instructions.sync(to_device)
    buffers = [pyxrt.bo(device, len(data), pyxrt.bo.host_only, kernel.group_id(3 + i)) for i in range(2)]
    buffers[0].write(data, 0)
    buffers[0].sync(to_device)
    run = kernel(OPCODE, instructions, len(code), *buffers)
    state = str(run.wait())
    buffers[1].sync(from_device)
    return {
        "kernels": names,
        "uuid": xclbin.get_uuid().to_string(),
        "state": state,
        "instructions": instructions.address(),
        "buffers": [bo.address() for bo in buffers],
        "result": bytes(buffers[1].map()[: len(data)]).hex(),
    }


def ours(stream: str) -> dict[str, Any]:
    """The same through this project's binding."""
    from amdxdna import Device
    from amdxdna.xclbin import Xclbin

    data = source()
    xclbin = Xclbin.read(XCLBIN)
    with Device.open(NODE) as device:
        kernel = device.pool.kernel(xclbin, bytes.fromhex(stream))
        buffers = [device.alloc(len(data)) for _ in range(2)]
        buffers[0].memory()[:] = data
        run = kernel.start(*buffers)
        run.wait(outputs=[buffers[1]])
        return {
            "kernels": list(xclbin.kernels),
            "uuid": str(xclbin.uuid),
            "state": run.state.name,
            "buffers": [buffer.address for buffer in buffers],
            "result": bytes(buffers[1].memory()).hex(),
        }


FULL = {
    "full": "main:seq",
    "scratch": "main",
    "many": "main",
    "packets": "main:seq",
    "whole": "main",
    "two": "main:turn",
}
"""ELF files with the kernel instance to run, whose buffers are all the arguments."""
PARTIAL = ("part", "pre")


def control_code(side: str) -> dict[str, Any]:
    """Runs control code of ELF files through one pyxrt: state, result and argument addresses of each."""
    if side == "xrt":
        import pyxrt
    else:
        from amdxdna import pyxrt  # type: ignore[no-redef]

    device = pyxrt.device(0)
    to_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
    from_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
    found: dict[str, Any] = {}

    def run(name: str, kernel: Any, count: int, first: int) -> None:
        buffers = [pyxrt.ext.bo(device, 2 * len(source())) for _ in range(count)]
        for buffer in buffers:
            buffer.write(source() * 2, 0)
            buffer.sync(to_device)
        made = pyxrt.run(kernel)
        for index, buffer in enumerate(buffers):
            made.set_arg(first + index, buffer)
        if first:
            made.set_arg(0, OPCODE)
        if name == "scratch":  # XRT leaves what was there before
            pad = made.get_ctrl_scratchpad_bo()
            pad.map()[:8] = struct.pack("<2I", 3, 8)
            pad.sync(to_device)
        made.start()
        state = str(made.wait())
        buffers[1].sync(from_device)
        found[name] = {
            "state": state,
            "addresses": [buffer.address() for buffer in buffers],
            "result": bytes(buffers[1].map()[:64]).hex(),
        }

    for name, instance in FULL.items():
        context = pyxrt.hw_context(device, pyxrt.elf(f"/{name}.elf"))
        run(name, pyxrt.ext.kernel(context, instance), 8 if name == "many" else 2, 0)
        del context
    xclbin = pyxrt.xclbin(XCLBIN)
    device.register_xclbin(xclbin)
    context = pyxrt.hw_context(device, xclbin.get_uuid())
    for name in PARTIAL:
        module = pyxrt.module(pyxrt.elf(f"/{name}.elf"))
        run(name, pyxrt.ext.kernel(context, module, "MLIR_AIE"), 2, 3)
    return found


def heap_pointer(node: str = NODE) -> Any:
    """A user-pointer BO over a DEV buffer's memory: the errno, or whether it is that memory."""
    from amdxdna import Device
    from amdxdna.errors import XdnaError

    with Device.open(node) as device:
        buffer = device.alloc(8192, "dev")
        buffer.write(bytes(8192))
        try:
            over = device.wrap(buffer.host_address, 4096)
        except XdnaError as error:
            return error.errno
        over.write(b"heap")
        return buffer.read(0, 4) == b"heap"


def info() -> dict[str, Any]:
    """What our device query says."""
    from amdxdna import Device

    with Device.open(NODE) as device:
        found = device.info()
        return {
            "columns": found.metadata.cols,
            "rows": found.metadata.rows,
            "firmware": str(found.firmware),
            "power": found.power_mode.name,
        }
