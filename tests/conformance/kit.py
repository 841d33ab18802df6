"""What the conformance cases are written with: targets, the case registry, and raw calls on a node.

A case is a function of a :class:`Target`, marked with :func:`case`; it talks to the device through the seam
(:class:`amdxdna.node.Node`) and through nothing above it. The same function runs in the test process on the
emulated device and in a guest on Linux's own driver. Standard library and the extension only: an import
costs time in the guest.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from amdxdna._native import ffi, lib
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.node import Node

HEAP_BYTES = 64 << 20
HEAP_DEVICE = 0x4000000
INVALID = lib.AMDXDNA_INVALID_ADDR
NEW, COMPLETED, ERROR, ABORT, TIMEOUT = 1, 4, 5, 6, 8
START_CU, CHAIN, START_NPU = 0, 19, 20
CORE_TILES = 32
LIMIT = 60.0
"""Seconds after which a case gives up waiting for what must come."""
_MASK = 0xFFFFFFFF
_RESERVE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE


class Skip(Exception):
    """This case does not apply to this target; the text says why."""


@dataclass(frozen=True)
class Case:
    """One registered case.

    `options`: what the device must be (keys of both targets' options). `warns`: part of the kernel's
    WARNING that the case provokes on purpose. `breaks`: a function in the trace of a fault of the kernel's
    own, which the case meets now and then; that kernel is not used any more. `seconds`: longest it may take.
    `settle`: seconds between the case's end and the closing of what it opened, on Linux's own
    driver.
    """

    name: str
    function: Callable[[Target], None]
    options: dict[str, Any]
    warns: str | None
    breaks: str | None
    seconds: float
    settle: float

    @property
    def module(self) -> str:
        """The module that defines it."""
        return self.function.__module__


CASES: dict[str, Case] = {}


def case(
    *,
    warns: str | None = None,
    breaks: str | None = None,
    seconds: float = 3 * LIMIT,
    settle: float = 0.0,
    **options: Any,
) -> Callable[[Callable[[Target], None]], Callable[[Target], None]]:
    """Registers a case under `module.function`; see :class:`Case`."""

    def register(function: Callable[[Target], None]) -> Callable[[Target], None]:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        if name in CASES:
            raise ValueError(f"two conformance cases are called {name}")
        CASES[name] = Case(name, function, options, warns, breaks, seconds, settle)
        return function

    return register


@dataclass
class Target:
    """What a case runs on: `open_node` opens the device.

    `kernel`: whether that is Linux's own driver, which only cases about several processes, privileges and
    power may ask (a device in the test process has none of these). `tdr`: seconds after which its driver
    looks whether the device got on.
    """

    open_node: Callable[[], Node]
    kernel: bool
    tdr: float = 2.0
    clients: list[Client] = field(default_factory=list)

    def client(self) -> Client:
        """Opens the device; closed when the case ends."""
        client = Client(self.open_node())
        self.clients.append(client)
        return client

    def ready(self) -> Ready:
        """A client with a heap, a context and everything one command needs."""
        ready = Ready(self.open_node())
        self.clients.append(ready)
        return ready

    def close(self) -> None:
        """Closes what the case opened."""
        while self.clients:
            self.clients.pop().close()

    def needs_kernel(self, why: str) -> None:
        """Skips the case on a device that lives in the test process."""
        if not self.kernel:
            raise Skip(why)

    def in_child(self, function: Callable[[Target], None], *, user: int = 0) -> int:
        """Starts `function` in another process (as another user) and returns its process id."""
        self.needs_kernel("an in-process device has one process")
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        status = 1
        try:
            if user:
                os.setuid(user)
            inner = Target(self.open_node, self.kernel, self.tdr)
            function(inner)
            inner.close()
            status = 0
        except BaseException as error:
            print(f"in the child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)


def join(child: int) -> None:
    """Waits for a child of :meth:`Target.in_child`; AssertionError when it failed."""
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child process ended with wait status {status:#x}"


@contextlib.contextmanager
def fails(*numbers: int) -> Iterator[None]:
    """Expects OSError with one of these errno values."""
    expected = " or ".join(errno.errorcode.get(n, str(n)) for n in numbers)
    try:
        yield
    except OSError as error:
        got = errno.errorcode.get(error.errno or 0, str(error.errno))
        assert error.errno in numbers, f"{got} instead of {expected}"
    else:
        raise AssertionError(f"no error instead of {expected}")


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Polls; AssertionError when `condition` does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.01)


@dataclass
class Bo:
    """A buffer object: `device` is its address as packets carry it, `host` its mapping (0: not mapped)."""

    handle: int
    size: int
    device: int
    host: int
    offset: int

    def view(self) -> memoryview:
        """Its bytes, writable."""
        return memoryview(ffi.buffer(ffi.cast("char *", self.host), self.size)).cast("B")

    def words(self) -> memoryview:
        """Its 32-bit words, writable."""
        return self.view().cast("I")

    def flush(self) -> None:
        """Writes back and invalidates the cache lines: BOs are not snooped."""
        lib.xdna_flush(self.host, self.size)


class Client:
    """One open of the device, and its calls: each returns what the driver filled in, or raises OSError."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.mappings: list[tuple[int, int]] = []
        """(address, size) of what :meth:`close` unmaps."""

    def close(self) -> None:
        """Closes the node and removes this client's mappings, each page of them once: what is unmapped may be
        somebody else's mapping the next moment."""
        self.node.close()
        done = 0
        for address, length in sorted(self.mappings):
            start, end = max(address, done), address + length
            if start < end:
                self.node.munmap(start, end - start)
                done = end
        self.mappings = []

    def munmap(self, address: int, length: int) -> None:
        """Unmaps a range, which :meth:`close` leaves alone then."""
        self.node.munmap(address, length)
        end = address + length
        ranges = [(start, start + size) for start, size in self.mappings]
        left = [part for low, high in ranges for part in ((low, min(high, address)), (max(low, end), high))]
        self.mappings = [(low, high - low) for low, high in left if low < high]

    def ioctl(self, request: int, value: Any) -> None:
        """One request on a cffi struct."""
        self.node.ioctl(request, int(ffi.cast("uintptr_t", value)))

    # -- buffer objects

    def create_bo(self, kind: int, size: int, *, vaddr: int = 0, flags: int = 0) -> int:
        """CREATE_BO; the handle."""
        args = ffi.new(
            "struct amdxdna_drm_create_bo *", {"flags": flags, "vaddr": vaddr, "size": size, "type": kind}
        )
        self.ioctl(lib.DRM_IOCTL_AMDXDNA_CREATE_BO, args)
        return int(args.handle)

    def info(self, handle: int) -> Any:
        """GET_BO_INFO; the struct."""
        args = ffi.new("struct amdxdna_drm_get_bo_info *", {"handle": handle})
        self.ioctl(lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO, args)
        return args

    def map(self, offset: int, size: int, *, align: int = 0) -> int:
        """Maps BO memory, at a multiple of `align` when given; unmapped by :meth:`close`."""
        if not align:
            address = self.node.mmap(size, offset)
        else:
            space = lib.xdna_mmap(0, size + align, 0, _RESERVE, -1, 0)
            assert space > 0, "no address space"
            address = self.node.mmap(size, offset, address=-(-space // align) * align)
        self.mappings.append((address, size))
        return address

    def bo(self, size: int, kind: int = lib.AMDXDNA_BO_SHARE) -> Bo:
        """A mapped SHARE or CMD BO."""
        return self.open_bo(self.create_bo(kind, size), size)

    def open_bo(self, handle: int, size: int) -> Bo:
        """Maps the BO of a handle."""
        info = self.info(handle)
        host = self.map(info.map_offset, size)
        device = self.info(handle).xdna_addr
        return Bo(handle, size, host if device == INVALID else device, host, info.map_offset)

    def heap(self, size: int = HEAP_BYTES, *, at: int = 0) -> Bo:
        """The device heap, or a further chunk of it, mapped at `at` or else at a multiple of 64 MiB."""
        handle = self.create_bo(lib.AMDXDNA_BO_DEV_HEAP, size)
        info = self.info(handle)
        if at:
            host = self.node.mmap(size, info.map_offset, address=at)
            self.mappings.append((host, size))
        else:
            host = self.map(info.map_offset, size, align=HEAP_BYTES)
        return Bo(handle, size, info.xdna_addr, host, info.map_offset)

    def reserve(self, size: int) -> int:
        """Address space without memory, at a multiple of 64 MiB; unmapped by :meth:`close`."""
        space = lib.xdna_mmap(0, size + HEAP_BYTES, 0, _RESERVE, -1, 0)
        assert space > 0, "no address space"
        self.mappings.append((space, size + HEAP_BYTES))
        return -(-int(space) // HEAP_BYTES) * HEAP_BYTES

    def dev(self, size: int, data: bytes = b"") -> Bo:
        """A BO in the device heap, holding `data`."""
        handle = self.create_bo(lib.AMDXDNA_BO_DEV, size)
        info = self.info(handle)
        bo = Bo(handle, size, info.xdna_addr, info.vaddr, info.map_offset)
        bo.view()[: len(data)] = data
        bo.flush()
        return bo

    def close_bo(self, handle: int) -> None:
        """GEM_CLOSE."""
        self.ioctl(lib.DRM_IOCTL_GEM_CLOSE, ffi.new("struct drm_gem_close *", {"handle": handle}))

    def export(self, handle: int) -> int:
        """PRIME_HANDLE_TO_FD, read-write; a dma-buf descriptor that the caller closes."""
        args = ffi.new(
            "struct drm_prime_handle *", {"handle": handle, "flags": os.O_RDWR | os.O_CLOEXEC, "fd": -1}
        )
        self.ioctl(lib.DRM_IOCTL_PRIME_HANDLE_TO_FD, args)
        return int(args.fd)

    def import_fd(self, fd: int) -> int:
        """PRIME_FD_TO_HANDLE; the handle."""
        args = ffi.new("struct drm_prime_handle *", {"fd": fd})
        self.ioctl(lib.DRM_IOCTL_PRIME_FD_TO_HANDLE, args)
        return int(args.handle)

    def sync(
        self, handle: int, direction: int = lib.SYNC_DIRECT_TO_DEVICE, offset: int = 0, size: int = 4096
    ) -> None:
        """SYNC_BO."""
        self.ioctl(
            lib.DRM_IOCTL_AMDXDNA_SYNC_BO,
            ffi.new(
                "struct amdxdna_drm_sync_bo *",
                {"handle": handle, "direction": direction, "offset": offset, "size": size},
            ),
        )

    # -- contexts

    def context(self, *, tiles: int = CORE_TILES, priority: int = 0x200, **qos: int) -> tuple[int, int]:
        """CREATE_HWCTX; handle and syncobj."""
        quality = ffi.new("struct amdxdna_qos_info *", {"priority": priority, **qos})
        args = ffi.new(
            "struct amdxdna_drm_create_hwctx *",
            {"qos_p": int(ffi.cast("uintptr_t", quality)), "max_opc": 0x800, "num_tiles": tiles},
        )
        self.ioctl(lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, args)
        return int(args.handle), int(args.syncobj_handle)

    def destroy(self, context: int) -> None:
        """DESTROY_HWCTX."""
        self.ioctl(
            lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX,
            ffi.new("struct amdxdna_drm_destroy_hwctx *", {"handle": context}),
        )

    def configure(self, context: int, *cus: int) -> None:
        """CONFIG_HWCTX with one CU per PDI handle, function 0."""
        block = struct.pack("<H6x", len(cus)) + b"".join(struct.pack("<IB3x", cu, 0) for cu in cus)
        data = ffi.from_buffer(block)
        args = ffi.new(
            "struct amdxdna_drm_config_hwctx *",
            {
                "handle": context,
                "param_type": lib.DRM_AMDXDNA_HWCTX_CONFIG_CU,
                "param_val": int(ffi.cast("uintptr_t", data)),
                "param_val_size": len(block),
            },
        )
        self.ioctl(lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX, args)

    # -- commands

    def submit(self, context: int, command: int, *buffers: int) -> int:
        """EXEC_CMD of the packet in `command`; its sequence number."""
        handles = ffi.new("uint32_t[]", list(buffers))
        args = ffi.new(
            "struct amdxdna_drm_exec_cmd *",
            {
                "hwctx": context,
                "type": lib.AMDXDNA_CMD_SUBMIT_EXEC_BUF,
                "cmd_handles": command,
                "args": int(ffi.cast("uintptr_t", handles)),
                "cmd_count": 1,
                "arg_count": len(buffers),
            },
        )
        self.ioctl(lib.DRM_IOCTL_AMDXDNA_EXEC_CMD, args)
        return int(args.seq)

    def wait(self, syncobj: int, point: int, seconds: float = LIMIT) -> None:
        """SYNCOBJ_TIMELINE_WAIT; OSError ETIME after `seconds`."""
        handles, points = ffi.new("uint32_t[]", [syncobj]), ffi.new("uint64_t[]", [point])
        args = ffi.new(
            "struct drm_syncobj_timeline_wait *",
            {
                "handles": int(ffi.cast("uintptr_t", handles)),
                "points": int(ffi.cast("uintptr_t", points)),
                "timeout_nsec": time.monotonic_ns() + int(seconds * 1e9),
                "count_handles": 1,
                "flags": lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT,
            },
        )
        self.ioctl(lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, args)

    # -- queries

    def get_info(self, param: int, layout: str) -> Any:
        """GET_INFO into a struct of type `layout`."""
        result = ffi.new(f"struct {layout} *")
        args = ffi.new(
            "struct amdxdna_drm_get_info *",
            {
                "param": param,
                "buffer_size": ffi.sizeof(result[0]),
                "buffer": int(ffi.cast("uintptr_t", result)),
            },
        )
        self.ioctl(lib.DRM_IOCTL_AMDXDNA_GET_INFO, args)
        return result

    def get_array(self, param: int, layout: str, count: int) -> list[Any]:
        """GET_ARRAY of at most `count` elements; those the driver filled in."""
        result = ffi.new(f"struct {layout}[]", count)
        args = ffi.new(
            "struct amdxdna_drm_get_array *",
            {
                "param": param,
                "element_size": ffi.sizeof(f"struct {layout}"),
                "num_element": count,
                "buffer": int(ffi.cast("uintptr_t", result)),
            },
        )
        self.ioctl(lib.DRM_IOCTL_AMDXDNA_GET_ARRAY, args)
        filled = list(result)[: args.num_element]
        return [ffi.new(f"struct {layout} *", entry) for entry in filled]

    def contexts(self) -> list[Any]:
        """Every context of the device."""
        return self.get_array(lib.DRM_AMDXDNA_HW_CONTEXT_ALL, "amdxdna_drm_hwctx_entry", 64)


def header(opcode: int, words: int, state: int = NEW) -> int:
    """Word 0 of a packet whose payload has `words` words."""
    return state | words << 12 | opcode << 23


def state(command: Bo) -> int:
    """The state in a packet's header."""
    command.flush()
    return int(command.words()[0] & 15)


class Ready(Client):
    """A client with a heap, the copy kernel's PDI, source and destination, a command BO and one context."""

    def __init__(self, node: Node, size: int = 4096) -> None:
        super().__init__(node)
        self.heap_bo = self.heap(at=self.reserve(2 * HEAP_BYTES))
        self.pdi = self.dev(0x1000, pdi(Family.COPY))
        self.instructions = self.dev(0x1000)
        self.source = self.bo(size)
        self.destination = self.bo(size)
        self.command = self.bo(0x1000, lib.AMDXDNA_BO_CMD)
        self.source.view()[:] = bytes((7 * i + 3) & 0xFF for i in range(size))
        self.source.flush()
        self.destination.flush()
        self.hwctx, self.syncobj = self.new_context()

    def new_context(self) -> tuple[int, int]:
        """Another configured context; handle and syncobj."""
        hwctx, syncobj = self.context()
        self.configure(hwctx, self.pdi.handle)
        return hwctx, syncobj

    def load(self, program: bytes, bo: Bo | None = None) -> Bo:
        """Puts an instruction stream into `bo` (default: this client's)."""
        bo = bo or self.instructions
        bo.view()[: len(program)] = program
        bo.flush()
        return bo

    def pack(self, program: bytes, *buffers: int, command: Bo | None = None, code: Bo | None = None) -> Bo:
        """Writes a START_CU packet that runs `program` on buffers at these device addresses."""
        code = self.load(program, code)
        command = command or self.command
        words = [1, 3, 0, code.device & _MASK, code.device >> 32, len(program)]
        for address in buffers:
            words += [address & _MASK, address >> 32]
        return self.raw(command, header(START_CU, len(words)), *words)

    def raw(self, command: Bo, *words: int) -> Bo:
        """Writes these words, and zeros behind them, as the packet."""
        view = command.words()
        view[:] = memoryview(bytes(command.size)).cast("I")
        for i, word in enumerate(words):
            view[i] = word & _MASK
        command.flush()
        return command

    def start(
        self,
        program: bytes,
        *buffers: int,
        command: Bo | None = None,
        code: Bo | None = None,
        hwctx: int | None = None,
        arguments: tuple[int, ...] = (),
    ) -> int:
        """Packs and submits; the sequence number."""
        command = self.pack(program, *buffers, command=command, code=code)
        return self.submit(self.hwctx if hwctx is None else hwctx, command.handle, *arguments)

    def over(self, point: int, seconds: float = 0.0) -> bool:
        """Whether this point of the context's timeline is reached within `seconds`."""
        try:
            self.wait(self.syncobj, point, seconds)
        except OSError as error:
            assert error.errno == errno.ETIME, error
            return False
        return True

    def run(
        self,
        program: bytes,
        *buffers: int,
        command: Bo | None = None,
        seconds: float = LIMIT,
        context: tuple[int, int] | None = None,
    ) -> int:
        """Packs, submits and waits; the packet's state."""
        hwctx, syncobj = context or (self.hwctx, self.syncobj)
        seq = self.start(program, *buffers, command=command, hwctx=hwctx)
        self.wait(syncobj, seq, seconds)
        return state(command or self.command)

    def copy(self, context: tuple[int, int] | None = None, seconds: float = LIMIT) -> int:
        """Runs the copy kernel, source to destination plus one a word; the state.

        The result of a completed command is checked.
        """
        self.destination.view()[:] = bytes(self.destination.size)
        self.destination.flush()
        done = self.run(
            stream.copy(self.source.size, 1),
            self.source.device,
            self.destination.device,
            context=context,
            seconds=seconds,
        )
        if done == COMPLETED:
            self.check_copy(self.destination)
        return done

    def check_copy(self, destination: Bo) -> None:
        """AssertionError unless every word of `destination` is the source's plus one."""
        destination.flush()
        expected = [(word + 1) & _MASK for word in self.source.words()]
        assert list(destination.words()[: len(expected)]) == expected, "the copy kernel's result is wrong"


def in_time(t: Target, look: Callable[[Ready, bytes], bool]) -> Ready:
    """Has `look` run a program that takes a while, and see something meanwhile: the client on which it did.

    AssertionError where it did not. A look that came when the program was over tells nothing: there is
    another, on a new client, with one that takes longer, though less than any driver's time-out.
    """
    end, seconds = time.monotonic() + LIMIT / 2, 0.25
    while True:
        ready = t.ready()
        began = time.monotonic()
        if look(ready, stream.delay(round(seconds * 1e6))):
            return ready
        now = time.monotonic()
        assert now - began >= seconds, f"not seen while the command ran: {look.__doc__}"
        assert now < end, f"not seen, or this machine is too busy to see it in time: {look.__doc__}"
        ready.close()
        seconds = min(2 * seconds, 1.2)


def run_case(name: str, target: Target) -> None:
    """Runs a registered case on `target` and closes what it opened."""
    try:
        CASES[name].function(target)
        if target.kernel:
            time.sleep(CASES[name].settle)
    finally:
        target.close()
