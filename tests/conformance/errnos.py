"""The errno of every misuse, as measured on the stock driver of Linux 7.3.4.

LINES is the table: group, name, errno (0: success) and the call. A group names the state that its lines
start from. Every line is independent of the others; on the emulated device each is a test of its own, on the
kernel's one case a group runs them all. Packets that are accepted and go wrong are in packets.py.

What the seam cannot express is in descriptor.py: a private mapping (EINVAL), MAP_LOCKED (EPERM), read() on
the node (EAGAIN). Opening without permission is queries.permissions (for the emulated device, a fault).
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from amdxdna._native import ffi, lib
from amdxdna.emu.kernels import stream

from .kit import (
    HEAP_BYTES,
    START_NPU,
    Client,
    Ready,
    Skip,
    Target,
    case,
    header,
    join,
)

MIB = 1 << 20
E = errno
SHARE, DEV_HEAP, DEV, CMD = (
    lib.AMDXDNA_BO_SHARE,
    lib.AMDXDNA_BO_DEV_HEAP,
    lib.AMDXDNA_BO_DEV,
    lib.AMDXDNA_BO_CMD,
)
_MASK = 0xFFFFFFFF
_BAD_POINTER = 8
_BAD_HANDLE = 9999


class Line(NamedTuple):
    group: str
    name: str
    expected: int
    call: Callable[[Any], object]


def address(value: Any) -> int:
    """The address of a cffi object or buffer."""
    return int(ffi.cast("uintptr_t", value))


def call(client: Client, name: str, layout: str, **fields: Any) -> Any:
    """Issues AMDXDNA request `name` with a struct of these fields; the struct."""
    args = ffi.new(f"struct {layout} *", fields)
    client.ioctl(getattr(lib, f"DRM_IOCTL_{name}"), args)
    return args


# -- what the groups start from


class Bench(Ready):
    """Ready, and the pieces that misuse needs."""

    def __init__(self, node: Any) -> None:
        super().__init__(node)
        self.unconfigured = self.context()

    def code(self, program: bytes) -> tuple[int, int]:
        bo = self.load(program)
        return bo.device, len(program)

    def start_npu(self, program: bytes, opcode: int = START_NPU, source: int | None = None) -> list[int]:
        """Eleven words behind the header, as the measured packets had; buffers follow."""
        where, size = self.code(program)
        source = self.source.device if source is None else source
        words = [1, where & _MASK, where >> 32, size, 0, 3, 0, where & _MASK, where >> 32, size]
        for each in (source, self.destination.device):
            words += [each & _MASK, each >> 32]
        return [header(opcode, len(words)), *words]


def _unmapped(t: Target) -> Client:
    client = t.client()
    client.create_bo(DEV_HEAP, HEAP_BYTES)
    return client


def bench(t: Target) -> Bench:
    bench = Bench(t.open_node())
    t.clients.append(bench)
    return bench


def _unprivileged(t: Target) -> Client:
    client = t.client()
    client.heap()
    return client


GROUPS: dict[str, Callable[[Target], Any]] = {
    "bare": Target.client,
    "heap not mapped": _unmapped,
    "ready": bench,
    "unprivileged": _unprivileged,
}
EMULATED_OPTIONS: dict[str, dict[str, Any]] = {"unprivileged": {"privileged": False, "memlock": 4096}}
"""What the emulated device must pretend for a group."""


# -- calls


def create_bo(kind: int, size: int, **fields: int) -> Callable[[Client], object]:
    return lambda c: call(c, "AMDXDNA_CREATE_BO", "amdxdna_drm_create_bo", type=kind, size=size, **fields)


def user_bo(
    offset: int = 0,
    *,
    where: int = 0,
    size: int = 8192,
    entries: int = 1,
    fd: int = -1,
) -> Callable[[Client], object]:
    """A user-pointer BO over fresh memory (or `where`)."""

    def run(c: Client) -> object:
        memory = mmap.mmap(-1, 16384, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = where or address(ffi.from_buffer(memory)) + offset
        table = ffi.from_buffer(struct.pack("<iIQQ", fd, entries, start, size))
        return call(
            c, "AMDXDNA_CREATE_BO", "amdxdna_drm_create_bo", type=SHARE, size=size, vaddr=address(table)
        )

    return run


def create_context(
    tiles: int = 16, *, qos: dict[str, int] | None = None, null: bool = False, **fields: int
) -> Callable[[Client], object]:
    def run(c: Client) -> object:
        quality = ffi.new("struct amdxdna_qos_info *", qos or {})
        return call(
            c,
            "AMDXDNA_CREATE_HWCTX",
            "amdxdna_drm_create_hwctx",
            max_opc=0x800,
            num_tiles=tiles,
            qos_p=0 if null else address(quality),
            **fields,
        )

    return run


def map_heap(size: int, offset: int | None = None) -> Callable[[Client], object]:
    return lambda c: c.map(c.info(1).map_offset if offset is None else offset, size)


def info(handle: int | None = None, **fields: int) -> Callable[[Ready], object]:
    return lambda c: call(
        c,
        "AMDXDNA_GET_BO_INFO",
        "amdxdna_drm_get_bo_info",
        handle=c.source.handle if handle is None else handle,
        **fields,
    )


def sync(bo: str, **fields: int) -> Callable[[Ready], object]:
    return lambda c: call(
        c,
        "AMDXDNA_SYNC_BO",
        "amdxdna_drm_sync_bo",
        handle=getattr(c, bo).handle if bo else _BAD_HANDLE,
        **fields,
    )


def config(
    cus: int = 1,
    *,
    size: int | None = None,
    param: int = 0,
    pointer: int | None = None,
    bo: str = "pdi",
    head: int = 0,
    pad: int = 0,
    context: int | None = None,
) -> Callable[[Bench], object]:
    """CONFIG_HWCTX of the context without CUs. `head` and `pad` are the paddings of block and CU."""

    def run(c: Bench) -> object:
        handle = getattr(c, bo).handle if bo else _BAD_HANDLE
        block = struct.pack("<H3H", cus, head, 0, 0) + struct.pack("<IBB2x", handle, 0, pad) * max(cus, 1)
        data = ffi.from_buffer(block.ljust(8192, b"\0"))
        return call(
            c,
            "AMDXDNA_CONFIG_HWCTX",
            "amdxdna_drm_config_hwctx",
            handle=c.unconfigured[0] if context is None else context,
            param_type=param,
            param_val=address(data) if pointer is None else pointer,
            param_val_size=8 + 8 * cus if size is None else size,
        )

    return run


def twice(once: Callable[[Any], object]) -> Callable[[Any], object]:
    def run(c: Any) -> object:
        once(c)
        return once(c)

    return run


def execute(
    bos: tuple[str, ...] | list[int] = ("source", "instructions"), **fields: Any
) -> Callable[[Bench], object]:
    """EXEC_CMD of a good packet, one field of it wrong."""

    def run(c: Bench) -> object:
        c.raw(c.command, *c.start_npu(stream.copy(4096, 1)))
        handles = [getattr(c, bo).handle if isinstance(bo, str) else bo for bo in bos]
        array = ffi.new("uint32_t[]", handles or 1)
        values: dict[str, Any] = {
            "hwctx": c.hwctx,
            "cmd_handles": c.command.handle,
            "args": address(array),
            "cmd_count": 1,
            "arg_count": len(handles),
        }
        for name, value in fields.items():
            values[name] = getattr(c, value).handle if isinstance(value, str) else value
        args = call(c, "AMDXDNA_EXEC_CMD", "amdxdna_drm_exec_cmd", **values)
        return c.wait(c.syncobj, int(args.seq))

    return run


def wait_future(flags: int, count: int = 1, **fields: int) -> Callable[[Bench], object]:
    """TIMELINE_WAIT for a point that no command has yet; the timeout is in the past."""

    def run(c: Bench) -> object:
        handles, points = ffi.new("uint32_t[]", [c.syncobj]), ffi.new("uint64_t[]", [100])
        return call(
            c,
            "SYNCOBJ_TIMELINE_WAIT",
            "drm_syncobj_timeline_wait",
            handles=address(handles),
            points=address(points),
            count_handles=count,
            flags=flags,
            **fields,
        )

    return run


def get_info(param: int, size: int = 65536, pointer: int = 0) -> Callable[[Client], object]:
    def run(c: Client) -> object:
        big = ffi.new("char[]", 65536)
        if param == lib.DRM_AMDXDNA_QUERY_AIE_STATUS:
            status = ffi.cast("struct amdxdna_drm_query_aie_status *", big)
            status.buffer, status.buffer_size = address(big) + 4096, 32768
        return call(
            c,
            "AMDXDNA_GET_INFO",
            "amdxdna_drm_get_info",
            param=param,
            buffer_size=size,
            buffer=pointer or address(big),
        )

    return run


def get_array(param: int, size: int = 200, count: int = 1) -> Callable[[Client], object]:
    def run(c: Client) -> object:
        big = ffi.new("int64_t[]", 8192)
        big[0] = os.getpid() if param == lib.DRM_AMDXDNA_BO_USAGE else 0
        return call(
            c,
            "AMDXDNA_GET_ARRAY",
            "amdxdna_drm_get_array",
            param=param,
            element_size=size,
            num_element=count,
            buffer=address(big),
        )

    return run


def set_state(param: int, data: bytes = bytes(8), pointer: int = 0) -> Callable[[Client], object]:
    def run(c: Client) -> object:
        value = ffi.from_buffer(data)
        return call(
            c,
            "AMDXDNA_SET_STATE",
            "amdxdna_drm_set_state",
            param=param,
            buffer_size=8,
            buffer=pointer or address(value),
        )

    return run


def number(request: int, size: int = 16) -> Callable[[Client], object]:
    """An ioctl of another number."""
    return lambda c: c.node.ioctl(request, address(ffi.new("char[]", size)))


def _debug_buffer(c: Bench) -> object:
    return call(
        c,
        "AMDXDNA_CONFIG_HWCTX",
        "amdxdna_drm_config_hwctx",
        handle=c.hwctx,
        param_type=lib.DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF,
        param_val=_BAD_HANDLE,
    )


def _export(bo: str) -> Callable[[Ready], object]:
    return lambda c: os.close(c.export(getattr(c, bo).handle))


def _destroy(handle: int | None = None, **fields: int) -> Callable[[Bench], object]:
    return lambda c: call(
        c,
        "AMDXDNA_DESTROY_HWCTX",
        "amdxdna_drm_destroy_hwctx",
        handle=c.hwctx if handle is None else handle,
        **fields,
    )


def _after_destroy(c: Bench) -> object:
    c.destroy(c.hwctx)
    return execute()(c)


_NO_HEAP = [
    ("CREATE_BO flags=1", E.EINVAL, create_bo(SHARE, 4096, flags=1)),
    ("CREATE_BO type 0", E.EINVAL, create_bo(0, 4096)),
    ("CREATE_BO type 5", E.EINVAL, create_bo(5, 4096)),
    ("CREATE_BO SHARE size 0", E.ENOSPC, create_bo(SHARE, 0)),
    ("CREATE_BO SHARE size 100 (unaligned)", 0, create_bo(SHARE, 100)),
    ("CREATE_BO CMD size 0", E.ENOSPC, create_bo(CMD, 0)),
    ("CREATE_BO SHARE size 1<<62", E.ENOSPC, create_bo(SHARE, 1 << 62)),
    ("CREATE_BO DEV before any heap", E.EAGAIN, create_bo(DEV, 4096)),
    ("CREATE_BO DEV size 0", E.EINVAL, create_bo(DEV, 0)),
    ("CREATE_HWCTX before any heap", E.ENOENT, create_context()),
    ("CREATE_BO DEV_HEAP size 0", E.EINVAL, create_bo(DEV_HEAP, 0)),
    ("CREATE_BO DEV_HEAP 1 MiB (not multiple of 64M)", E.EINVAL, create_bo(DEV_HEAP, MIB)),
    ("CREATE_BO DEV_HEAP 48 MiB", E.EINVAL, create_bo(DEV_HEAP, 48 * MIB)),
    ("CREATE_BO DEV_HEAP 1 GiB (over 512M max)", E.ENOSPC, create_bo(DEV_HEAP, 1024 * MIB)),
    ("CREATE_BO SHARE vaddr=8 (bad pointer)", E.EINVAL, create_bo(SHARE, 4096, vaddr=_BAD_POINTER)),
    ("CREATE_BO SHARE userptr 8 KiB (root)", 0, user_bo()),
    ("CREATE_BO SHARE userptr unaligned", E.EINVAL, user_bo(16)),
    ("CREATE_BO SHARE userptr unmapped address", E.EFAULT, user_bo(where=0x1000)),
    ("CREATE_BO SHARE va_tbl with bad dmabuf fd", E.EBADF, user_bo(entries=0)),
    ("CREATE_BO DEV_HEAP 64 MiB", 0, create_bo(DEV_HEAP, HEAP_BYTES)),
]
_NOT_MAPPED = [
    ("CREATE_BO DEV with heap not yet mmapped", E.EAGAIN, create_bo(DEV, 4096)),
    ("CREATE_HWCTX with heap not yet mmapped", E.EAGAIN, create_context()),
    ("mmap heap, wrong offset 0", E.EOPNOTSUPP, map_heap(4096, 0)),
    ("mmap heap, offset 1<<45", E.EINVAL, map_heap(4096, 1 << 45)),
    ("mmap heap larger than BO", E.EINVAL, map_heap(128 * MIB)),
]
_BOS = [
    ("CREATE_BO DEV 128 MiB in 64 MiB heap", E.EAGAIN, create_bo(DEV, 128 * MIB)),
    ("CREATE_BO DEV 1 GiB (over max)", E.EINVAL, create_bo(DEV, 1024 * MIB)),
    ("GET_BO_INFO bad handle", E.ENOENT, info(_BAD_HANDLE)),
    ("GET_BO_INFO pad=1", E.EINVAL, info(pad=1)),
    ("GET_BO_INFO ext=1", E.EINVAL, info(ext=1)),
    ("SYNC_BO bad handle", E.ENOENT, sync("", size=4096)),
    ("SYNC_BO size beyond BO (clamped)", 0, sync("source", size=MIB)),
    ("SYNC_BO direction 7", 0, sync("source", size=4096, direction=7)),
    ("SYNC_BO FROM_DEVICE on a SHARE BO", E.EINVAL, sync("source", size=4096, direction=1)),
    ("SYNC_BO FROM_DEVICE on a DEV BO not attached", E.EINVAL, sync("instructions", size=4096, direction=1)),
    ("SYNC_BO TO_DEVICE on a DEV BO", 0, sync("instructions", size=4096)),
    ("GEM_CLOSE bad handle", E.EINVAL, lambda c: c.close_bo(_BAD_HANDLE)),
    ("PRIME export SHARE BO", 0, _export("source")),
    ("PRIME export DEV BO", E.EOPNOTSUPP, _export("instructions")),
]
_CONTEXTS = [
    ("CREATE_HWCTX ext=1", E.EINVAL, create_context(ext=1)),
    ("CREATE_HWCTX qos_p=NULL", E.EFAULT, create_context(null=True)),
    ("CREATE_HWCTX num_tiles 0", E.EINVAL, create_context(0)),
    ("CREATE_HWCTX num_tiles 3 (<1 column)", E.EINVAL, create_context(3)),
    ("CREATE_HWCTX num_tiles 36 (9 of 8 columns)", E.EINVAL, create_context(36)),
    ("CREATE_HWCTX impossible QoS (gops*fps)", E.EINVAL, create_context(qos={"gops": 1000000, "fps": 1000})),
    ("CREATE_HWCTX unknown priority 0x777", 0, create_context(qos={"priority": 0x777})),
    ("CREATE_HWCTX ok", 0, create_context()),
    ("CONFIG_HWCTX bad ctx handle", E.EINVAL, config(context=999)),
    (
        "CONFIG_HWCTX struct pad=1",
        E.EINVAL,
        lambda c: call(c, "AMDXDNA_CONFIG_HWCTX", "amdxdna_drm_config_hwctx", handle=c.hwctx, pad=1),
    ),
    ("CONFIG_HWCTX param_type 9", E.EINVAL, config(param=9)),
    ("CONFIG_HWCTX size 8192", E.E2BIG, config(size=8192)),
    ("CONFIG_HWCTX bad pointer", E.EFAULT, config(pointer=_BAD_POINTER)),
    ("CONFIG_HWCTX size 8 (too small for 1 CU)", E.EINVAL, config(size=8)),
    ("CONFIG_HWCTX num_cus 0", E.EINVAL, config(0)),
    ("CONFIG_HWCTX num_cus 33", E.EINVAL, config(33)),
    ("CONFIG_HWCTX header pad=1", E.EINVAL, config(head=1)),
    ("CONFIG_HWCTX cu pad=1", E.EINVAL, config(pad=1)),
    ("CONFIG_HWCTX cu_bo is a SHARE BO", E.EINVAL, config(bo="source")),
    ("CONFIG_HWCTX cu_bo bad handle", E.EINVAL, config(bo="")),
    ("CONFIG_HWCTX ok", 0, config()),
    ("CONFIG_HWCTX again", E.EINVAL, twice(config())),
    ("CONFIG_HWCTX attach debug BO bad handle", E.EINVAL, _debug_buffer),
    ("DESTROY_HWCTX pad=1", E.EINVAL, _destroy(pad=1)),
    ("DESTROY_HWCTX bad handle", E.EINVAL, _destroy(99)),
    ("DESTROY_HWCTX ok", 0, _destroy()),
    ("DESTROY_HWCTX twice", E.EINVAL, twice(_destroy())),
    ("EXEC on destroyed ctx", E.EINVAL, _after_destroy),
]
_EXEC = [
    ("EXEC bad hwctx", E.EINVAL, execute(hwctx=77)),
    ("EXEC type SUBMIT_DEPENDENCY", E.EINVAL, execute(type=1)),
    ("EXEC type SUBMIT_SIGNAL", E.EINVAL, execute(type=2)),
    ("EXEC cmd_count 0", E.EINVAL, execute(cmd_count=0)),
    ("EXEC cmd_count 2", E.EINVAL, execute(cmd_count=2)),
    ("EXEC cmd handle 0", E.EINVAL, execute(cmd_handles=0)),
    ("EXEC cmd handle bad", E.EINVAL, execute(cmd_handles=_BAD_HANDLE)),
    ("EXEC cmd handle is a DEV BO", E.EINVAL, execute(cmd_handles="instructions")),
    ("EXEC arg_count 4096", E.EINVAL, execute(arg_count=4096)),
    ("EXEC args bad pointer", E.EFAULT, execute(args=_BAD_POINTER)),
    ("EXEC ext=1", E.EINVAL, execute(ext=1)),
    ("EXEC arg BO bad handle", E.ENOENT, execute([_BAD_HANDLE])),
    ("EXEC same arg BO twice", E.EALREADY, execute(("source", "source"))),
    ("EXEC no arg BOs", 0, execute(())),
    ("EXEC ok", 0, execute()),
    ("TIMELINE_WAIT future point", E.ETIME, wait_future(lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT)),
    ("TIMELINE_WAIT bad syncobj", E.ENOENT, lambda c: c.wait(4242, 0, 0.1)),
    ("TIMELINE_WAIT future point, no WAIT_FOR_SUBMIT", E.EINVAL, wait_future(0)),
    ("TIMELINE_WAIT count 0", 0, wait_future(0, 0)),
    (
        "WAIT_CMD",
        E.EOPNOTSUPP,
        lambda c: call(c, "AMDXDNA_WAIT_CMD", "amdxdna_drm_wait_cmd", hwctx=c.hwctx, timeout=100),
    ),
]
_INFO_ERRNO = {4: E.ENODEV, 6: E.EOPNOTSUPP, 7: E.EOPNOTSUPP, 14: E.EOPNOTSUPP, 15: E.EOPNOTSUPP}
_QUERIES = [
    *((f"GET_INFO param {p} (64 KiB buffer)", _INFO_ERRNO.get(p, 0), get_info(p)) for p in range(16)),
    ("GET_INFO metadata bad pointer", E.EFAULT, get_info(1, 64, _BAD_POINTER)),
    ("GET_INFO metadata 4-byte buffer", 0, get_info(1, 4)),
    ("GET_INFO telemetry 16-byte buffer", E.EINVAL, get_info(10, 16)),
    *((f"GET_ARRAY param {p}", 0 if p in (0, 2, 6) else E.EOPNOTSUPP, get_array(p)) for p in range(8)),
    ("GET_ARRAY num_element 0", E.EINVAL, get_array(0, count=0)),
    ("GET_ARRAY element_size 8192", E.EINVAL, get_array(0, 8192)),
    ("unknown driver ioctl 0x50", E.EINVAL, number(0xC0106450)),
    ("unknown core ioctl", E.EINVAL, number(0xC010643E)),
    ("DRM_IOCTL_GET_CAP bad cap", E.EOPNOTSUPP, number(0xC010640C)),
]
_STATE = [
    ("SET_STATE power high", 0, set_state(0, b"\3" + bytes(7))),
    ("SET_STATE power turbo with a context", E.EINVAL, set_state(0, b"\4" + bytes(7))),
    ("SET_STATE power mode 9", E.EINVAL, set_state(0, b"\11" + bytes(7))),
    ("SET_STATE power pad=1", E.EINVAL, set_state(0, b"\0\1" + bytes(6))),
    ("SET_STATE power default", 0, set_state(0)),
    ("SET_STATE bad pointer", E.EFAULT, set_state(0, pointer=_BAD_POINTER)),
    ("SET_STATE param 1", E.EOPNOTSUPP, set_state(1)),
    ("SET_STATE param 99", E.EOPNOTSUPP, set_state(99)),
    ("SET_STATE force preempt", 0, set_state(3, b"\1" + bytes(7))),
    ("SET_STATE force preempt off", 0, set_state(3)),
    ("SET_STATE force preempt 2", E.EINVAL, set_state(3, b"\2" + bytes(7))),
]
_UNPRIVILEGED = [
    ("unprivileged: CREATE_BO DEV_HEAP", 0, create_bo(DEV_HEAP, HEAP_BYTES)),
    ("unprivileged: CREATE_BO SHARE 1M", 0, create_bo(SHARE, MIB)),
    ("unprivileged: CREATE_HWCTX", 0, create_context()),
    ("unprivileged, memlock 4096: userptr 8 KiB", E.ENOMEM, user_bo(size=8192)),
    ("unprivileged, memlock 4096: userptr 4 KiB", 0, user_bo(size=4096)),
    ("unprivileged: SET_STATE power", E.EACCES, set_state(0, b"\3" + bytes(7))),
]
LINES = [
    Line(group, *line)
    for group, lines in (
        ("bare", _NO_HEAP),
        ("heap not mapped", _NOT_MAPPED),
        ("unprivileged", _UNPRIVILEGED),
        ("ready", [*_BOS, *_CONTEXTS, *_EXEC, *_QUERIES, *_STATE]),
    )
    for line in lines
]

# The kernel WARNs about this one.
SYNC_AT_END = Line(
    "ready", "SYNC_BO offset == size (kernel WARNs)", E.EINVAL, sync("source", offset=4096, size=4096)
)


def check_line(line: Line, bench: Any) -> str:
    """Runs a line; what is wrong with it, or nothing."""
    got = 0
    try:
        line.call(bench)
    except OSError as failure:
        got = failure.errno or -1
    names = errno.errorcode
    return (
        ""
        if got == line.expected
        else (f"{line.name}: {names.get(got, got)} instead of {names.get(line.expected, line.expected)}")
    )


# Lines that succeed without changing anything, and lines that fail after a step that succeeded.
_ONLY_LOOKS = ("GET_", "TIMELINE_WAIT", "EXEC", "SYNC_BO", "PRIME")
_SPOILS = {"CONFIG_HWCTX again", "DESTROY_HWCTX twice", "EXEC on destroyed ctx"}


def _group(t: Target, group: str) -> None:
    wrong, bench = [], GROUPS[group](t)
    for line in (each for each in LINES if each.group == group):
        wrong.append(check_line(line, bench))
        # A heap takes a third of a second in the guest, so what a line left as it was serves the next.
        if wrong[-1] or line.name in _SPOILS or (not line.expected and not line.name.startswith(_ONLY_LOOKS)):
            t.close()
            bench = GROUPS[group](t)
    assert not any(wrong), "\n".join(filter(None, wrong))


@case(seconds=180)
def without_a_heap(t: Target) -> None:
    """Misuse of a device that was just opened."""
    _group(t, "bare")


@case(seconds=60)
def with_a_heap_not_mapped(t: Target) -> None:
    """Misuse before the heap is mapped."""
    _group(t, "heap not mapped")


@case(seconds=300)
def with_everything(t: Target) -> None:
    """Misuse of BOs, contexts, commands, queries and settings."""
    _group(t, "ready")


@case(seconds=180)
def unprivileged(t: Target) -> None:
    """What a user with a small locked-memory limit may not do."""
    if not t.kernel:
        raise Skip("one test a line, with the device's own idea of privileges")
    os.chmod("/dev/accel/accel0", 0o666)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
    join(t.in_child(lambda inner: _group(inner, "unprivileged"), user=1000))


@case(warns="WARNING: drivers/accel/amdxdna/amdxdna_gem")
def sync_at_the_end(t: Target) -> None:
    """SYNC_BO from a BO's end on."""
    assert not check_line(SYNC_AT_END, bench(t))
