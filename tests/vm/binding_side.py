"""The binding on Linux's own driver: each function is one test, run in the guest on a fresh Device."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from amdxdna import errors
from amdxdna.buffer import Buffer
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from tests.support.binding import adder, copy_xclbin, hanging

ERROR = 5
# What Linux's driver gives as the limit of this device; the modelled firmware has as many.
SLOTS = 16
REPORTS = True
WORDS = 1024
BYTES = 4 * WORDS


def _numbers(device: Device, count: int = WORDS) -> Buffer:
    buffer = device.alloc(4 * count)
    buffer.view("u4")[:] = np.arange(count)
    return buffer


def _works(device: Device, add: int = 1) -> None:
    source, target = _numbers(device), device.alloc(BYTES)
    adder(device, BYTES, add).run(source, target, outputs=[target])
    assert (target.view("u4") == np.arange(WORDS) + add).all()


def kernel_run(device: Device) -> None:
    """A kernel adds; the NPU behind the kernel's driver is the emulated one."""
    assert not device.node.emulated and device.info().emulated
    _works(device, 7)


def part_of_a_buffer(device: Device) -> None:
    """A kernel works on parts of one buffer."""
    whole = _numbers(device)
    adder(device, 1024, 5).run(whole.sub(0, 1024), whole.sub(2048, 1024), outputs=[whole])
    assert (whole.view("u4")[512:768] == np.arange(256) + 5).all()


def many_in_flight(device: Device) -> None:
    """More runs than the driver's queue holds, started one after the other."""
    kernel, source = adder(device, 64, 1, delay_us=20_000), _numbers(device, 16)
    targets = [device.alloc(64) for _ in range(9)]
    runs = [kernel.start(source, target) for target in targets]
    for run, target in zip(runs, targets, strict=True):
        run.wait(outputs=[target])
        assert (target.view("u4") == np.arange(16) + 1).all()


def chain(device: Device) -> None:
    """A chain runs in order, also one that takes several commands."""
    a, b, c = _numbers(device, 16), device.alloc(64), device.alloc(64)
    one, ten = adder(device, 64, 1), adder(device, 64, 10)
    device.pool.chain([(one, (a, b)), (ten, (b, c)), (one, (c, a))]).wait(outputs=[a])
    assert (a.view("u4") == np.arange(16) + 12).all()
    step, cells = adder(device, 4, 1), _numbers(device, 36)
    parts = [cells.sub(4 * i, 4) for i in range(36)]
    device.pool.chain([(step, (parts[i], parts[i + 1])) for i in range(35)]).wait(outputs=[cells])
    assert (cells.view("u4") == np.arange(36)).all()


def pool_swaps(device: Device) -> None:
    """More xclbins than slots take turns; every one keeps giving its own results."""
    kernels = [adder(device, 64, i, variant=i) for i in range(SLOTS + 2)]
    source, target = _numbers(device, 16), device.alloc(64)
    for _ in range(2):
        for i, kernel in enumerate(kernels):
            kernel.run(source, target, outputs=[target])
            assert (target.view("u4") == np.arange(16) + i).all()
    assert len(device.contexts()) == SLOTS
    # Two have to go in the first round, and two that are not there come back in the second.
    assert 4 <= device.pool.swaps <= len(kernels) + 2


def no_context_free(device: Device) -> None:
    """Out of contexts is its own error, not the driver's EINVAL."""
    held = []
    try:
        while len(held) < 40:
            held.append(device.context(copy_xclbin(len(held))))
    except errors.NoFreeContext as error:
        assert len(held) == SLOTS, str(error)
    else:
        raise AssertionError("no limit")
    for context in held:
        context.close()
    _works(device)


def failing_command(device: Device) -> None:
    """A failing command is an error with its state; the next one works. In a chain it names its index."""
    bad = device.pool.kernel(copy_xclbin(), stream.fail(0x3000002))
    source, target = _numbers(device, 16), device.alloc(64)
    try:
        bad.run(source, target)
    except errors.CommandFailed as error:
        assert error.state == ERROR, error
    else:
        raise AssertionError("no error")
    good = adder(device, 64, 1)
    try:
        device.pool.chain([(good, (source, target)), (bad, (source, target))]).wait()
    except errors.CommandFailed as error:
        assert error.index == 1, error
    else:
        raise AssertionError("no error")
    _works(device)


def hang_and_recovery(device: Device) -> None:
    """A hang is CommandTimeout, with a report where the driver makes one; the same kernels work at once."""
    hang, good = hanging(device), adder(device, 64, 1)
    source, target = _numbers(device, 16), device.alloc(64)
    good.run(source, target)
    try:
        hang.run(source, target)
    except errors.CommandTimeout as error:
        assert (error.health is not None) == REPORTS, error
    else:
        raise AssertionError("no error")
    good.run(source, target, outputs=[target])
    assert (target.view("u4") == np.arange(16) + 1).all()


def heap_growth(device: Device) -> None:
    """Device memory past one heap chunk, up to the limit, whose error says so."""
    first = device.alloc(60 << 20, "dev")  # kept: what is dropped makes room again
    later = device.alloc(30 << 20, "dev")
    later.view()[-1] = 9
    assert first.address + first.nbytes <= later.address
    _works(device)
    held = []
    try:
        while len(held) < 8:
            held.append(device.alloc(100 << 20, "dev"))
    except errors.OutOfHeap:
        pass
    else:
        raise AssertionError("no limit")


def shared_buffer(device: Device) -> None:
    """A buffer exported and imported is the same memory."""
    first = device.alloc(BYTES)
    fd = first.export_fd()
    second = device.import_fd(fd)
    os.close(fd)
    first.view()[:4] = (1, 2, 3, 4)
    assert list(second.view()[:4]) == [1, 2, 3, 4]
    second.close()
    assert list(first.view()[:4]) == [1, 2, 3, 4]


def wrapped_memory(device: Device) -> None:
    """A program's own array is a buffer without a copy."""
    array = np.zeros(2 * WORDS, "u4")
    start = -array.ctypes.data % 4096 // 4
    own = array[start : start + WORDS]
    own[:] = np.arange(WORDS)
    target = device.alloc(BYTES)
    with device.wrap(own) as wrapped:
        adder(device, BYTES, 3).run(wrapped, target, outputs=[target])
    assert (target.view("u4") == np.arange(WORDS) + 3).all()


TESTS: dict[str, Callable[[Device], None]] = {
    function.__name__: function
    for function in (
        *(kernel_run, part_of_a_buffer, many_in_flight, chain, pool_swaps, no_context_free, failing_command),
        *(hang_and_recovery, heap_growth, shared_buffer, wrapped_memory),
    )
}


def run(name: str, pasid: bool = False, reports: bool = True) -> None:
    """Runs one test on the kernel's node, found through sysfs.

    `pasid`: whether the NPU shares the process's addresses, or has its own. `reports`: whether the driver
    leaves a health report in a command that timed out.
    """
    global REPORTS
    REPORTS = reports
    with Device.open("auto") as device:
        TESTS[name](device)
        with device.alloc(64) as buffer:
            assert (buffer.address == buffer.host_address) == pasid
