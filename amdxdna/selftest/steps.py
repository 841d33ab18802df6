"""The steps of the self-test: each does one thing with an open device and checks what comes of it."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amdxdna import query
from amdxdna.errors import BadArgument, OutOfMemory, Unsupported
from amdxdna.selftest.probes import (
    WrongData,
    check_copy,
    copy_kernel,
    keeps_data,
    make_context,
    pattern,
)
from amdxdna.selftest.stopping import stopping

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.selftest.program import Program

MIB = 1 << 20
_SIZES = (4, 4096, MIB)
_CHAIN = 8
_NEEDS_PROGRAM = (
    "it takes a program compiled for this NPU; this package's own run on the emulated one only. Give "
    "one with --xclbin, --insts and --buffers"
)


class Skipped(Exception):
    """The step cannot be made here; the reason is its text."""


@dataclass
class Bench:
    """What the steps work with: the device, and a program of the user's, if one was given."""

    device: Device
    program: Program | None = None


def _model(bench: Bench) -> Device:
    if not bench.device.emulated:
        raise Skipped(_NEEDS_PROGRAM)
    return bench.device


def queries(bench: Bench) -> str:
    """Every query that any driver answers."""
    client = bench.device.client
    array = query.metadata(client)
    query.aie_version(client)
    query.clocks(client)
    query.power_mode(client)
    query.contexts(client)
    return f"firmware {query.firmware_version(client)}, {array.cols} columns, {array.rows} rows"


def buffers(bench: Bench) -> str:
    """A buffer of each kind keeps what is written, through a cache flush."""
    for kind, nbytes in (("dev", MIB), ("share", 4 * MIB), ("cmd", 4096)):
        keeps_data(bench.device, kind, nbytes)
    return f"dev, share and cmd buffers keep their data; the heap is {bench.device.heap.size >> 20} MiB"


def shared(bench: Bench) -> str:
    """A dma-buf, imported again, is the same memory."""
    data = pattern(4096, 2)
    with bench.device.alloc(4096) as first:
        try:
            fd = first.export_fd()
        except Unsupported as error:
            raise Skipped(error.meaning) from None
        try:
            with bench.device.import_fd(fd) as second:
                first.write(data)
                if second.read() != data:
                    raise WrongData(
                        "a dma-buf, imported again, is not the same memory",
                        call="PRIME",
                        remedy="Report it with `python -m amdxdna snapshot`",
                    )
        finally:
            os.close(fd)
    return "a buffer exported as a dma-buf and imported is the same memory"


def wrapped(bench: Bench) -> str:
    """The program's own memory as a buffer."""
    memory = mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes(len(memory))
    try:
        with bench.device.wrap(memory):
            return "the program's own memory can be used as a buffer"
    except (BadArgument, OutOfMemory, Unsupported) as error:
        raise Skipped(f"{error.meaning}; programs copy instead") from None


def contexts(bench: Bench) -> str:
    """Contexts can be made, and do not leak."""
    before = len(bench.device.contexts())
    for _ in range(3):
        make_context(bench.device)
    left = len(bench.device.contexts()) - before
    if left > 0:
        raise WrongData(
            f"{left} of 3 contexts are still there after they were destroyed",
            call="DESTROY_HWCTX",
            remedy="Report it with `python -m amdxdna snapshot`",
        )
    return "3 made and destroyed, none left over"


def copies(bench: Bench) -> str:
    """One command after the other; every byte compared."""
    device = _model(bench)
    for seed, nbytes in enumerate(_SIZES):
        with contextlib.closing(copy_kernel(device, nbytes)) as kernel:
            check_copy(device, kernel, nbytes, seed)
    return f"copies of {', '.join(map(str, _SIZES))} bytes, every byte compared"


def in_flight(bench: Bench) -> str:
    """Four commands at once, each with data of its own."""
    device = _model(bench)
    nbytes = 1 << 16
    with contextlib.ExitStack() as stack:
        kernel = stack.enter_context(contextlib.closing(copy_kernel(device, nbytes)))
        pairs = [[stack.enter_context(device.alloc(nbytes)) for _ in range(2)] for _ in range(4)]
        for seed, (source, _) in enumerate(pairs):
            source.write(pattern(nbytes, seed))
        stack.enter_context(stopping(device))
        runs = [(kernel.start(*pair, outputs=pair[1:]), pair[1], seed) for seed, pair in enumerate(pairs)]
        for run, target, seed in runs:
            run.wait()
            if target.read() != pattern(nbytes, seed):
                raise WrongData(
                    f"command {seed + 1} of four in flight has wrong data",
                    call="EXEC_CMD",
                    remedy="Run `python -m amdxdna selftest --loop` to see how often",
                )
    return "four at once, every byte compared"


def chained(bench: Bench) -> str:
    """A chain runs in order: each member works on what the one before wrote."""
    device = _model(bench)
    with contextlib.ExitStack() as stack:
        kernel = stack.enter_context(contextlib.closing(copy_kernel(device, 4096, addend=1)))
        cells = [stack.enter_context(device.alloc(4096)) for _ in range(_CHAIN + 1)]
        cells[0].write(bytes(4096))
        stack.enter_context(stopping(device))
        device.pool.chain([(kernel, (a, b)) for a, b in itertools.pairwise(cells)]).wait()
        if cells[-1].read() != _CHAIN.to_bytes(4, "little") * 1024:
            raise WrongData(
                f"a chain of {_CHAIN} commands has a wrong result",
                call="EXEC_CMD",
                remedy="Run `python -m amdxdna selftest --loop` to see how often",
            )
    return f"{_CHAIN} commands in order, the result compared"


def program(bench: Bench) -> str:
    """The user's own program completes."""
    if bench.program is None:
        raise Skipped("no --xclbin was given")
    return bench.program.run_once(bench.device)


STEPS: dict[str, Callable[[Bench], str]] = {
    "queries": queries,
    "buffers": buffers,
    "dma-buf": shared,
    "wrap": wrapped,
    "contexts": contexts,
    "copy": copies,
    "in flight": in_flight,
    "chain": chained,
    "program": program,
}
"""Name -> step: returns what it showed; raises XdnaError on failure, Skipped where it cannot be made."""
