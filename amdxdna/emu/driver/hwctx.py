"""Hardware contexts: creation, CU configuration, destruction (amdxdna_ctx.c, aie2_ctx.c, aie2_solver.c)."""

from __future__ import annotations

import errno
import struct
from typing import Any

from amdxdna._native import ffi, lib
from amdxdna.emu.driver import clocks, minors
from amdxdna.emu.driver.bo import DEV, Bo
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.objects import Client, Device, Hwctx

MAX_CONTEXTS = 255
MAX_JOBS = 4
COMMAND_BUFFER = 4096
CORE_ROWS = 4
OPS_PER_COLUMN = 4096
MAX_CUS = 32
MAX_CONFIG = 4096
_MASK = 0xFFFFFFFF
_CONFIG_HEAD = struct.Struct("<H3H")
_CU_CONFIG = struct.Struct("<IB3B")


def create(client: Client, args: Any) -> None:
    """CREATE_HWCTX. Fills in handle and syncobj_handle. Holds the device's lock."""
    if args.ext or args.ext_flags:
        raise error(errno.EINVAL)
    qos = ffi.new("struct amdxdna_qos_info *")
    client.user.read_into(args.qos_p, qos, ffi.sizeof("struct amdxdna_qos_info"))
    hwctx = Hwctx(client, qos, int(args.num_tiles))
    device = client.device
    with device.lock:
        _init(hwctx)
        handle = client.next_context
        for _ in range(MAX_CONTEXTS):
            if handle > MAX_CONTEXTS:
                handle = 1
            if handle not in client.contexts:
                break
            handle += 1
        else:
            client.syncobjs.pop(hwctx.syncobj)
            release(hwctx)
            raise error(errno.EBUSY)
        client.next_context = handle + 1
        hwctx.id = handle
        client.contexts[handle] = hwctx
    args.handle = handle
    args.syncobj_handle = hwctx.syncobj


def _init(hwctx: Hwctx) -> None:
    client, device = hwctx.client, hwctx.device
    if not client.heap.chunks:
        raise error(errno.ENOENT)
    try:
        for _ in range(MAX_JOBS):
            hwctx.command_buffers.append(client.heap.create_dev(COMMAND_BUFFER))
        limit = device.kind.context_limit
        if limit and sum(len(each.contexts) for each in device.clients) >= limit:
            raise error(errno.ENOENT)  # aie2_rq_add of the legacy driver
        columns = hwctx.num_tiles // CORE_ROWS
        if not 1 <= columns <= device.options.columns:
            raise error(errno.EINVAL)
        if requested_gops(hwctx) > OPS_PER_COLUMN * columns * device.clock_max // 1000:
            raise error(errno.EINVAL)
        # The firmware shares the array in time only: every context gets all columns.
        hwctx.num_col = device.options.columns
        connect(hwctx)
        expand(hwctx)
    except OSError:
        release(hwctx)
        raise
    _set_default_clock(device, hwctx, columns)
    hwctx.syncobj = client.add_syncobj(hwctx.timeline)


def requested_gops(hwctx: Hwctx) -> int:
    """The solver's load of a QoS request, in 32-bit arithmetic, times its efficiency factor of 2."""
    rate = 1000 // hwctx.latency if hwctx.latency else 0
    rate = max(rate, hwctx.fps)
    return (rate * hwctx.gops & _MASK) * 2 & _MASK


def _set_default_clock(device: Device, hwctx: Hwctx, columns: int) -> None:
    """A new context's QoS raises or sets the default clock level."""
    device.default_level = clocks.level_for(
        hwctx.gops, hwctx.fps, hwctx.latency, requested_gops(hwctx), OPS_PER_COLUMN * columns
    )
    if device.power_mode == 0:
        device.level = device.default_level


def connect(hwctx: Hwctx) -> None:
    """Makes the firmware context and gives it the heap. EINVAL for every refusal of the firmware's."""
    device, client = hwctx.device, hwctx.client
    status, number = device.npu.create_context(hwctx.start_col, hwctx.num_col, pasid=client.pasid)
    if status:
        device.log(f"create context: firmware status {status:#x}")
        raise error(errno.EINVAL)
    hwctx.firmware = number
    device.memory.bind(number, client)
    chunks, hwctx.heap = hwctx.heap or client.heap.chunks[:1], []
    for chunk in chunks:
        attach(hwctx, chunk)


def reconnect(hwctx: Hwctx) -> None:
    """Makes the firmware context of a disconnected context anew, with the heap it had."""
    old = hwctx.heap
    try:
        connect(hwctx)
    finally:
        for chunk in old:
            hwctx.device.memory.put(chunk)


def pretend(client: Client, number: int) -> Hwctx:
    """A context that some other process holds: it takes a slot and shows in queries."""
    device = client.device
    hwctx = Hwctx(
        client,
        ffi.new("struct amdxdna_qos_info *", {"priority": lib.AMDXDNA_QOS_NORMAL_PRIORITY}),
        CORE_ROWS * device.options.columns,
    )
    hwctx.id = number
    hwctx.num_col = device.options.columns
    _, hwctx.firmware = device.npu.create_context(hwctx.start_col, hwctx.num_col)
    return hwctx


def attach(hwctx: Hwctx, chunk: Bo) -> None:
    """Maps a heap chunk, 64 MiB at a time, where the firmware wants it aligned to that. EINVAL."""
    device = hwctx.device
    address = chunk.bus_address(device.memory.pasid)
    status = device.npu.map_heap(
        hwctx.firmware if hwctx.firmware is not None else -1, address, chunk.size, add=bool(hwctx.heap)
    )
    if status:
        device.log(f"context {hwctx.firmware}: heap at {address:#x} refused with firmware status {status:#x}")
        raise error(errno.EINVAL)
    hwctx.heap.append(device.memory.get(chunk))


def expand(hwctx: Hwctx) -> None:
    """Gives the context the chunks that the heap has grown by."""
    for chunk in hwctx.client.heap.chunks[len(hwctx.heap) :]:
        attach(hwctx, chunk)


def disconnect(hwctx: Hwctx) -> None:
    """Destroys the firmware context; what it had in flight is never answered."""
    if hwctx.firmware is None:
        return
    device = hwctx.device
    device.npu.destroy_context(hwctx.firmware)
    device.memory.unbind(hwctx.firmware)
    hwctx.firmware = None


def configure_firmware(hwctx: Hwctx) -> None:
    """Sends the CU configuration. EINVAL: a handle that is no DEV BO. A refusal by firmware goes unseen."""
    device = hwctx.device
    if hwctx.cus is None or hwctx.firmware is None:
        return
    if len(hwctx.cus) > MAX_CUS:
        raise error(errno.EINVAL)
    cus = []
    for handle, function in hwctx.cus:
        bo = hwctx.client.handles.get(handle)
        if bo is None or bo.kind != DEV:
            raise error(errno.EINVAL)
        cus.append((bo.dev_address, function))
    device.npu.config_cus(hwctx.firmware, cus)


def catch_up(hwctx: Hwctx) -> None:
    """Configures a context that was made anew, when that is due: whoever looks at it first does so."""
    device = hwctx.device
    if not 0 < hwctx.configure_at <= device.clock():
        return
    with device.lock, hwctx.lock:
        if not hwctx.configure_at:
            return
        hwctx.configure_at = 0.0
        try:
            configure_firmware(hwctx)
        except OSError as reason:
            device.log(f"CUs could not be configured again: {reason}")


def config(client: Client, args: Any) -> None:
    """CONFIG_HWCTX: sets the context's CUs; debug buffers from the minor on that brought them."""
    if args.pad:
        raise error(errno.EINVAL)
    data = b""
    if args.param_type == lib.DRM_AMDXDNA_HWCTX_CONFIG_CU:
        if args.param_val_size > MAX_CONFIG:
            raise error(errno.E2BIG)
        data = client.user.read(args.param_val, args.param_val_size)
    elif args.param_type not in (lib.DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF, lib.DRM_AMDXDNA_HWCTX_REMOVE_DBG_BUF):
        raise error(errno.EINVAL)
    with client.device.lock:
        hwctx = client.contexts.get(args.handle)
        if hwctx is None:
            raise error(errno.EINVAL)
        if args.param_type == lib.DRM_AMDXDNA_HWCTX_CONFIG_CU:
            _config_cus(hwctx, data)
        else:
            _debug_buffer(hwctx, args.param_val & _MASK, args.param_type)


def _config_cus(hwctx: Hwctx, data: bytes) -> None:
    number, *pad = _CONFIG_HEAD.unpack(data[:8].ljust(8, b"\0"))
    if any(pad) or hwctx.cus is not None or not number or 8 + 8 * number > len(data):
        raise error(errno.EINVAL)
    if hwctx.firmware is None:
        raise error(errno.ENODEV)
    cus = []
    for handle, function, *padding in _CU_CONFIG.iter_unpack(data[8 : 8 + 8 * number]):
        if any(padding):
            raise error(errno.EINVAL)
        cus.append((handle, function))
    hwctx.cus = cus
    try:
        configure_firmware(hwctx)
    except OSError:
        hwctx.cus = None
        raise


def _debug_buffer(hwctx: Hwctx, handle: int, kind: int) -> None:
    """Attaches or detaches a debug buffer; the firmware writes nothing into it."""
    client = hwctx.client
    if client.device.kind.level < minors.DEBUG_BUFFER:
        raise error(errno.EOPNOTSUPP)
    bo = client.handles.get(handle)
    if bo is None or bo.kind != DEV:
        raise error(errno.EINVAL)
    if kind == lib.DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF:
        if bo.assigned:
            raise error(errno.EBUSY)
        bo.assigned = hwctx.id
    else:
        if bo.assigned != hwctx.id:
            raise error(errno.EINVAL)
        bo.assigned = 0


def release(hwctx: Hwctx) -> None:
    """Gives back what a context holds; nothing of it is in flight."""
    disconnect(hwctx)
    for bo in (*hwctx.command_buffers, *hwctx.heap):
        hwctx.device.memory.put(bo)
    hwctx.command_buffers, hwctx.heap = [], []
