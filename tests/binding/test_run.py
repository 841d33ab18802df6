"""Runs: results, waiting, flushing, failures and what follows them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from struct import unpack_from
from types import SimpleNamespace

import numpy as np
import pytest

from amdxdna import errors, packet
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.stream import Fail
from amdxdna.opening import open_node
from amdxdna.packet import State
from tests.support.binding import ProxyNode, adder, copy_xclbin, flushes, hanging, numbers
from tests.support.threads import in_threads


@pytest.mark.parametrize("nbytes", [4, 64, 4096, 100_000])
def test_a_run_computes(device, nbytes):
    source, result = numbers(device, nbytes // 4), device.alloc(nbytes)
    run = adder(device, nbytes, 7).start(source, result)
    assert run.wait(outputs=[result]) is run
    assert run.done and run.state is State.COMPLETED and "COMPLETED" in repr(run)
    np.testing.assert_array_equal(result.view("u4"), np.arange(nbytes // 4) + 7)


def test_sub_buffers_and_the_same_buffer_twice(device):
    whole = numbers(device, 1024)
    kernel = adder(device, 1024, 1)
    kernel.run(whole.sub(0, 1024), whole.sub(2048, 1024))
    np.testing.assert_array_equal(whole.view("u4")[512:768], np.arange(256) + 1)
    kernel.run(whole, whole)
    np.testing.assert_array_equal(whole.view("u4")[:256], np.arange(256) + 1)


def test_the_submit_lists_every_bo_once(open_emu):
    lists = []

    def look(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD:
            cmd = ffi.cast("struct amdxdna_drm_exec_cmd *", address)
            handles = ffi.cast("uint32_t *", cmd.args)
            lists.append(sorted(handles[i] for i in range(cmd.arg_count)))

    with Device.open(ProxyNode(open_node("emu:quiet"), look)) as opened:
        whole, other = opened.alloc(4096), opened.alloc(4096)
        kernel = adder(opened, 64, 1)
        kernel.run(whole.sub(0, 64), whole.sub(64, 64), other, whole)
        (handles,) = lists
        assert len(handles) == len(set(handles)) == 3
        assert {whole.handle, other.handle} < set(handles)


def test_the_wait_has_an_absolute_deadline_on_the_contexts_timeline():
    waits = []

    def look(request, address):
        if request == lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT:
            wait = ffi.cast("struct drm_syncobj_timeline_wait *", address)
            waits.append(
                (
                    wait.count_handles,
                    ffi.cast("uint32_t *", wait.handles)[0],
                    ffi.cast("uint64_t *", wait.points)[0],
                    wait.timeout_nsec,
                    wait.flags,
                )
            )

    with Device.open(ProxyNode(open_node("emu:quiet"), look)) as opened:
        kernel = adder(opened, 64, 1)
        a, b = opened.alloc(64), opened.alloc(64)
        kernel.run(a, b)
        waits.clear()
        kernel.run(a, b)
        kernel.run(a, b, timeout=5.0)
        opened.wait_seconds = 0
        kernel.run(a, b)
        syncobj = kernel.shared.context.syncobj
    assert [*dict.fromkeys(w[:3] for w in waits)] == [(1, syncobj, 1), (1, syncobj, 2), (1, syncobj, 3)]
    # Not for ever, nor for the caller's whole limit: Python must look for signals in between.
    assert all(time.monotonic_ns() - 60e9 < w[3] < time.monotonic_ns() + 2e9 for w in waits)
    assert waits[0][4] == lib.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT


@pytest.mark.parametrize("count", range(packet.MAX_BUFFERS + 1))
def test_a_kernels_packet_is_as_any(device, count):
    """And 0 behind it, as far as any driver reads."""
    addresses = [0x7F0000001000 + n for n in range(count)]
    made = SimpleNamespace(packet=bytearray(256))
    adder(device, 64, 1).fill(made, addresses)
    instructions, nbytes = unpack_from("<QI", made.packet, 16)
    whole = packet.start_cu(0, instructions, nbytes, addresses)
    assert bytes(made.packet) == whole.ljust(256, b"\0")


# Flushing


@pytest.fixture
def flushed(monkeypatch):
    return flushes(monkeypatch)


def test_only_what_is_not_clean_is_flushed(device, flushed):
    kernel = adder(device, 4096, 1)
    weights, source, result = (device.alloc(4096) for _ in range(3))
    kernel.run(source, result)
    flushed.clear()
    weights.view()[:] = 1
    weights.to_device()
    source.view()
    flushed.clear()
    kernel.run(source, result, weights)
    assert flushed == [(source.host_address, 4096)]
    kernel.run(source, result, weights)  # a view is out: the binding cannot know whether it was written
    assert flushed == [(source.host_address, 4096)] * 2
    flushed.clear()
    kernel.run(source, result, flush=False)
    assert flushed == []
    kernel.run(weights, result, outputs=[result])
    assert flushed == [(result.host_address, 4096)]


def test_a_buffer_without_views_is_flushed_once(device, flushed):
    kernel = adder(device, 64, 1)
    source, result = device.alloc(64), device.alloc(64)
    source.clean = False
    flushed.clear()
    kernel.start(source, result).wait()
    assert source.clean
    kernel.run(source, result)
    assert [address for address, _ in flushed].count(source.host_address) == 1


# Arguments


def test_refused_arguments(device, open_emu):
    kernel = adder(device, 64, 1)
    good = device.alloc(64)
    with pytest.raises(errors.BadArgument, match="11 buffers"):
        kernel.start(*[good] * 11)
    with pytest.raises(errors.BadArgument, match="another device"):
        kernel.start(good, open_emu("slots=9").alloc(64))
    closed = device.alloc(64)
    closed.close()
    with pytest.raises(errors.Closed, match="buffer"):
        kernel.start(good, closed)
    kernel.run(*[good] * 10)
    kernel.close()
    kernel.close()
    with pytest.raises(errors.Closed, match="kernel"):
        kernel.start(good, good)


@pytest.mark.parametrize("insts", [b"", b"abc"])
def test_refused_instruction_streams(device, insts):
    with pytest.raises(errors.BadArgument, match="instruction stream"):
        device.pool.kernel(copy_xclbin(), insts)


# Waiting


def test_several_in_flight_and_the_fifth_blocks(device):
    kernel = adder(device, 64, 1, delay_us=30_000)
    results = [device.alloc(64) for _ in range(5)]
    source = numbers(device, 16)
    first = kernel.start(source, results[0])  # point 0, which a timeline wait takes for the newest
    rest = [kernel.start(source, result) for result in results[1:4]]
    last = kernel.start(source, results[4])
    assert first.done  # its place went to the fifth
    for run in (last, *rest, first):
        run.wait()
    for result in results:
        np.testing.assert_array_equal(result.view("u4"), np.arange(16) + 1)


def test_a_wait_that_times_out_can_be_repeated(device, gate):
    source, result = numbers(device, 16), device.alloc(64)
    run = gate.kernel(device, 64).start(source, result)
    for timeout in (0, 0.01, -1):
        with pytest.raises(errors.WaitTimeout) as caught:
            run.wait(timeout)
        assert isinstance(caught.value, TimeoutError)
    assert not run.done and run.state is State.NEW and "in flight" in repr(run)
    gate.open()
    run.wait(60)
    np.testing.assert_array_equal(result.view("u4"), np.arange(16) + 1)
    run.wait(0)


class Interrupt(Exception):
    pass


def test_a_signal_handlers_exception_leaves_the_run_waitable(gate):
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))

    def waits(request, address):
        if request == lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT and not gate.reached.is_set():
            assert gate.reached.wait(60)
            timer.start()

    def handler(signum, frame):
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with Device.open(ProxyNode(open_node("emu:quiet,threads=1"), waits)) as device:
            source, result = numbers(device, 16), device.alloc(64)
            run = gate.kernel(device, 64).start(source, result)
            with pytest.raises(Interrupt):
                run.wait(60)
            assert not run.done
            gate.open()
            run.wait(60)
            np.testing.assert_array_equal(result.view("u4"), np.arange(16) + 1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_exception_right_after_the_submit_is_not_lost(gate):
    """A handler may raise when the driver already has the command: close() must still wait for it."""
    armed = []

    def interrupt(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD and armed:
            armed.pop()
            node.inner.ioctl(request, address)
            raise Interrupt

    node = ProxyNode(open_node("emu:quiet"), interrupt)
    with Device.open(node) as opened:
        source, result = numbers(opened, 16), opened.alloc(64)
        view = result.view("u4")
        kernel = gate.kernel(opened, 64)
        adder(opened, 64, 2).run(source, result)
        view[:] = 0
        armed.append(True)
        with pytest.raises(Interrupt):
            kernel.start(source, result)
        assert not kernel.shared.context.idle()
        gate.open(after=0.3)
    np.testing.assert_array_equal(view, np.arange(16) + 1)


def test_a_refused_submit_costs_no_command_buffer():
    refusing = []

    def refuse(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD and refusing:
            raise OSError(refusing[0], "no")

    with Device.open(ProxyNode(open_node("emu:quiet"), refuse)) as opened:
        kernel = adder(opened, 64, 1)
        a, b = numbers(opened, 16), opened.alloc(64)
        kernel.run(a, b)
        usage = opened.bo_usage().total
        refusing.append(12)
        for _ in range(10):
            with pytest.raises(errors.OutOfMemory):
                kernel.start(a, b)
        refusing.clear()
        kernel.run(a, b)
        assert opened.bo_usage().total == usage


def test_command_buffers_are_used_again(device):
    kernel = adder(device, 64, 1)
    a, b = numbers(device, 16), device.alloc(64)
    kernel.run(a, b)
    usage = device.bo_usage().total
    for _ in range(100):
        kernel.run(a, b)
    assert device.bo_usage().total == usage
    for run in [kernel.start(a, b) for _ in range(4)]:
        run.wait()
    assert device.bo_usage().total <= usage + 3 * 4096


def test_dropped_runs_are_collected_and_keep_their_buffers(device):
    kernel = adder(device, 64, 1, delay_us=2000)
    source = numbers(device, 16)
    keep = device.alloc(64)
    kernel.run(source, keep)
    usage = device.bo_usage().total
    for _ in range(30):
        kernel.start(source, device.alloc(64))
    kernel.run(source, keep)
    gc.collect()
    device.alloc(64).close()
    assert device.bo_usage().total <= usage + 10 * 4096
    np.testing.assert_array_equal(keep.view("u4"), np.arange(16) + 1)


def test_closing_the_device_waits_for_runs(open_emu):
    opened = open_emu()
    source, result = numbers(opened, 16), opened.alloc(64)
    view = result.view("u4")
    view[:] = 0
    run = adder(opened, 64, 1, delay_us=100_000).start(source, result)
    opened.close()
    np.testing.assert_array_equal(view, np.arange(16) + 1)
    assert run.wait().state is State.COMPLETED


def test_runs_from_many_threads(device):
    kernels = [adder(device, 256, i) for i in range(3)]

    def work(number):
        source, result = numbers(device, 64, 1000 * number), device.alloc(256)
        for turn in range(25):
            addend = turn % 3
            kernels[addend].run(source, result, outputs=[result])
            assert np.array_equal(result.view("u4"), np.arange(64) + 1000 * number + addend), turn

    in_threads(4, work)


def test_many_threads_wait_for_one_run(device, gate):
    source, result = numbers(device, 16), device.alloc(64)
    run = gate.kernel(device, 64).start(source, result)
    states = []

    def wait(number):
        try:
            states.append(run.wait((None, 0.01, 60, None)[number]).state)
        except errors.WaitTimeout:
            states.append("timeout")
            gate.open()

    in_threads(4, wait)
    assert sorted(states, key=str) == [State.COMPLETED] * 3 + ["timeout"]


# Failures


def test_a_failed_command(device):
    kernel = device.pool.kernel(copy_xclbin(), stream.program([Fail(0x3000002)]))
    a, b = numbers(device, 16), device.alloc(64)
    adder(device, 64, 1).run(a, b)
    run = kernel.start(a, b)
    for _ in range(2):
        with pytest.raises(errors.CommandFailed) as caught:
            run.wait()
    assert type(caught.value) is errors.CommandFailed
    assert caught.value.state == State.ERROR == run.state
    # The packet's payload was overwritten: the next run through the same buffer has to write it anew.
    good = adder(device, 64, 1)
    good.run(a, b)
    np.testing.assert_array_equal(b.view("u4"), np.arange(16) + 1)
    assert device.pool.stats.loads == 1 and device.pool.stats.recoveries == 0


def test_instructions_of_another_family(device):
    kernel = device.pool.kernel(copy_xclbin(), stream.gemv(8, 8))
    with pytest.raises(errors.CommandFailed, match="instruction stream"):
        kernel.run(*[device.alloc(4096) for _ in range(3)])


def test_a_hang_reports_health_and_the_pool_recovers(open_emu, gate):
    opened = open_emu("tdr=0.2")
    hang = hanging(opened)
    good = adder(opened, 64, 2)
    a, b = numbers(opened, 16), opened.alloc(64)
    good.run(a, b)
    gate.kernel(opened, 64).start(a, b)
    run = hang.start(a, b)
    behind = good.start(a, b)
    gate.open()
    with pytest.raises(errors.CommandTimeout) as caught:
        run.wait()
    health = caught.value.health
    assert isinstance(health, packet.Health)
    assert str(health) in str(caught.value) and "context PC" in str(caught.value)
    with pytest.raises(errors.CommandAborted):
        behind.wait()
    broken = hang.shared.context
    assert broken.broken
    b.view("u4")[:] = 0
    good.run(a, b)
    np.testing.assert_array_equal(b.view("u4"), np.arange(16) + 2)
    assert good.shared.context is not broken
    assert (opened.pool.stats.loads, opened.pool.stats.recoveries, opened.pool.swaps) == (2, 1, 0)
    assert len(opened.contexts()) == 1


def test_nothing_is_submitted_within_half_a_second_of_a_timeout(open_emu, monkeypatch):
    from amdxdna import pool

    slept = []
    opened = open_emu("tdr=0.2")
    kernel, good = hanging(opened), adder(opened, 64, 1)
    a, b = numbers(opened, 16), opened.alloc(64)
    with pytest.raises(errors.CommandTimeout):
        kernel.run(a, b)
    now = kernel.shared.context.broken_at + 0.1
    monkeypatch.setattr(pool, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: now))
    good.run(a, b)
    assert slept == [pytest.approx(0.4)]


@pytest.mark.parametrize("dropped", [False, True])
def test_a_command_buffer_outlives_its_time_out_until_the_context_is_destroyed(dropped):
    """The driver may write to it until then; after that nothing is kept of it."""
    seen: list[object] = []

    def look(request, address):
        if request == lib.DRM_IOCTL_GEM_CLOSE:
            seen.append(ffi.cast("struct drm_gem_close *", address).handle)
        elif request == lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX:
            seen.append("destroyed")
        elif request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD:
            commands.append(ffi.cast("struct amdxdna_drm_exec_cmd *", address).cmd_handles)

    commands: list[int] = []
    with Device.open(ProxyNode(open_node("emu:quiet,threads=1,tdr=0.2"), look)) as opened:
        context = opened.context(copy_xclbin())
        code = opened.alloc(64, "dev")
        code.write(stream.hang())
        before = opened.bo_usage().total
        run = context.run(packet.start_cu(0, code.address, len(stream.hang()), []), [code])
        with pytest.raises(errors.CommandTimeout):
            run.wait()
        opened.alloc(64).close()
        (handle,) = commands
        assert handle not in seen and "destroyed" not in seen
        if dropped:
            del context, run
            gc.collect()
            opened.alloc(64).close()
        else:
            context.close()
        assert seen.index("destroyed") < seen.index(handle)
        assert opened.bo_usage().total <= before


def test_a_dropped_packet_gets_a_fresh_context(device):
    """A dead channel shows as state NEW; the pool replaces the context."""
    good = adder(device, 64, 1)
    a, b = numbers(device, 16), device.alloc(64)
    good.run(a, b)
    with pytest.raises(errors.CommandRejected):
        good.shared.context.run(bytes(64)).wait()
    good.run(a, b)
    assert device.pool.stats.recoveries == 1


def test_failures_by_injected_faults(open_emu):
    opened = open_emu("fail=2,hang=4,tdr=0.2")
    kernel = adder(opened, 64, 1)
    a, b = numbers(opened, 16), opened.alloc(64)
    kernel.run(a, b)
    with pytest.raises(errors.CommandFailed):
        kernel.run(a, b)
    kernel.run(a, b)
    with pytest.raises(errors.CommandTimeout):
        kernel.run(a, b)
    kernel.run(a, b, outputs=[b])
    np.testing.assert_array_equal(b.view("u4"), np.arange(16) + 1)


def test_waiting_lets_other_threads_run(device, gate):
    """The interpreter lock is free while a wait blocks."""
    run = gate.kernel(device, 64).start(numbers(device, 16), device.alloc(64))
    waiting = threading.Event()

    def move():
        waiting.wait(60)
        for _ in range(20):
            time.sleep(0.005)
        gate.open()

    thread = threading.Thread(target=move)
    thread.start()
    waiting.set()
    run.wait(60)
    thread.join()


@pytest.mark.parametrize("timeout", [float("inf"), 1e30, 1e10, 9223372036.8])
def test_any_timeout_is_a_deadline(device, timeout):
    pair = numbers(device, 16), device.alloc(64)
    adder(device, 64, 1, delay_us=2000).start(*pair).wait(timeout)
    np.testing.assert_array_equal(pair[1].view("u4"), np.arange(16) + 1)


@pytest.mark.parametrize("timeout", [-1.0, -1e30, float("-inf")])
def test_a_timeout_in_the_past_is_none_to_wait(device, timeout, gate):
    run = gate.kernel(device, 64).start(numbers(device, 16), device.alloc(64))
    with pytest.raises(errors.WaitTimeout):
        run.wait(timeout)
    gate.open()
    run.wait()
