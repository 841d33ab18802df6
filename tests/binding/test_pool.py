"""The context pool: sharing, eviction, counts, recovery."""

from __future__ import annotations

import errno
import gc
import os
import weakref

import numpy as np
import pytest

from amdxdna import errors
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.opening import open_node
from amdxdna.packet import State
from amdxdna.pool import ContextPool, PoolStats
from amdxdna.xclbin import Xclbin, writer
from tests.support.binding import COPY, ProxyNode, adder, copy_xclbin, hanging, promising
from tests.support.threads import in_threads


def buffers(device, addend=0):
    source, result = device.alloc(64), device.alloc(64)
    source.view("u4")[:] = np.arange(16) + addend
    return source, result


def check(kernel, pair, addend):
    source, result = pair
    result.view("u4")[:] = 0
    kernel.run(source, result, outputs=[result])
    np.testing.assert_array_equal(result.view("u4"), source.view("u4") + addend)


def test_kernels_of_one_xclbin_share_a_context(device, tmp_path):
    paths = [tmp_path / "one.xclbin", tmp_path / "two.xclbin"]
    for path in paths:
        path.write_bytes(writer.build([writer.PdiSpec(COPY)]))
    pair = buffers(device)
    for number, path in enumerate(paths * 2):
        kernel = device.pool.kernel(Xclbin.read(path), stream.copy(64, number))
        check(kernel, pair, number)
    assert device.pool.stats == PoolStats(loads=1, swaps=0, recoveries=0, resident=1)
    assert len(device.contexts()) == 1


def test_no_context_before_the_first_start(device):
    kernels = [adder(device, 64, i, variant=i) for i in range(3)]
    assert device.contexts() == () and device.pool.loads == 0
    check(kernels[1], buffers(device), 1)
    assert device.pool.loads == device.pool.resident == len(device.contexts()) == 1


@pytest.mark.parametrize("address", ["pasid", "iova"])
def test_three_xclbins_on_one_slot(open_emu, address):
    opened = open_emu(f"slots=1,address={address}")
    kernels = [adder(opened, 64, 10 * i, variant=i) for i in range(3)]
    pair = buffers(opened)
    heap = None
    for turn in range(4):
        for number, kernel in enumerate(kernels):
            check(kernel, pair, 10 * number)
            loads = turn * 3 + number + 1
            assert opened.pool.stats == PoolStats(loads, loads - 1, 0, 1)
        if turn == 0:
            heap = opened.bo_usage().heap
    assert opened.bo_usage().heap == heap  # the buffers stay: nothing is uploaded again
    assert "swaps" in str(opened.pool.stats)


def test_the_least_recently_used_goes(open_emu):
    opened = open_emu("slots=2")
    a, b, c = (adder(opened, 64, i, variant=i) for i in range(3))
    pair = buffers(opened)
    for kernel in (a, b, a, c):
        kernel.run(*pair)
    assert opened.pool.stats == PoolStats(3, 1, 0, 2)
    a.run(*pair)
    c.run(*pair)
    assert opened.pool.loads == 3  # b was given up, not a
    b.run(*pair)
    assert opened.pool.stats == PoolStats(4, 2, 0, 2)
    assert a.shared.context is None


def test_only_as_many_as_needed_are_given_up(open_emu):
    opened = open_emu("slots=4")
    kernels = [adder(opened, 64, i, variant=i) for i in range(5)]
    pair = buffers(opened)
    for kernel in kernels:
        kernel.run(*pair)
    assert opened.pool.stats == PoolStats(5, 1, 0, 4)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ("slots=3,held_slots=2", None),
        ("slots=1,minor=0", None),
        ("slots=1,minor=1", None),
        ("slots=1,minor=4", None),
        ("", 1),
    ],
)
def test_two_kernels_where_one_context_can_be(open_emu, options, most):
    opened = open_emu(options)
    if most is not None:
        opened.pool.max_contexts = most
    a, b = adder(opened, 64, 1), adder(opened, 64, 2, variant=1)
    pair = buffers(opened)
    for _ in range(2):
        check(a, pair, 1)
        check(b, pair, 2)
    assert opened.pool.stats == PoolStats(4, 3, 0, 1)


def test_slots_all_held_by_another_process(open_emu):
    full = open_emu("slots=2,held_slots=2")
    with pytest.raises(errors.NoFreeContext) as caught:
        adder(full, 64, 1).run(*buffers(full))
    ((pid, count),) = caught.value.holders
    assert pid != os.getpid() and count == 2
    assert full.pool.swaps == 0


def test_another_refusal_gives_up_one_context_at_most(open_emu):
    """The driver cannot tell it from a firmware with fewer contexts than it thinks."""
    opened = open_emu("slots=8,refuse=4-10:0x4000003")
    kernels = [adder(opened, 64, i, variant=i) for i in range(4)]
    pair = buffers(opened)
    for addend, kernel in enumerate(kernels[:3]):
        check(kernel, pair, addend)
    with pytest.raises(errors.NoFreeContext) as caught:
        kernels[3].run(*pair)
    assert not caught.value.certain
    assert opened.pool.stats == PoolStats(3, 1, 0, 2)


def test_a_refusal_with_no_context_open_is_no_full_device(open_emu):
    opened = open_emu("slots=8,refuse=1-3:0x4000003")
    kernel, pair = adder(opened, 64, 1), buffers(opened)
    with pytest.raises(errors.ContextRefused):
        kernel.run(*pair)
    check(kernel, pair, 1)
    assert opened.pool.stats == PoolStats(1, 0, 0, 1)


def test_a_firmware_with_fewer_contexts_than_the_driver_thinks():
    """Resource info promises 16; the firmware has two."""
    node = promising(16, slots=2)
    with Device.open(node) as opened:
        kernels = [adder(opened, 64, i, variant=i) for i in range(5)]
        pair = buffers(opened)
        for _ in range(2):
            for addend, kernel in enumerate(kernels):
                check(kernel, pair, addend)
        assert opened.pool.stats == PoolStats(10, 8, 0, 2)
        opened.pool.unload()
        held = [opened.context(copy_xclbin(i)) for i in range(2)]
        with pytest.raises(errors.NoFreeContext, match="2 of 16") as caught:
            opened.context(copy_xclbin(2))
        assert not caught.value.certain
        for context in held:
            context.close()


@pytest.mark.parametrize(("options", "delay", "count"), [("", 150_000, 1), (",tdr=0", 900_000, 3)])
def test_a_running_context_is_waited_for_not_torn_down(open_emu, options, delay, count):
    opened = open_emu(f"slots=1{options}")
    slow = adder(opened, 64, 1, delay_us=delay)
    other = adder(opened, 64, 2, variant=1)
    pair, second = buffers(opened), buffers(opened, 100)
    runs = [slow.start(*pair) for _ in range(count)]
    check(other, second, 2)
    for run in runs:
        assert run.wait().state == State.COMPLETED
    np.testing.assert_array_equal(pair[1].view("u4"), np.arange(16) + 1)
    assert opened.pool.stats == PoolStats(2, 1, 0, 1)


def test_an_idle_context_goes_before_a_running_one(open_emu, gate):
    opened = open_emu("slots=2")
    slow = gate.kernel(opened, 64)
    idle, third = adder(opened, 64, 2, variant=1), adder(opened, 64, 3, variant=2)
    pair, second = buffers(opened), buffers(opened)
    run = slow.start(*pair)
    check(idle, second, 2)
    check(third, second, 3)
    assert slow.shared.context is not None and idle.shared.context is None
    gate.open()
    run.wait()


def test_max_contexts_is_not_exceeded_when_all_are_busy(open_emu, monkeypatch, gate):
    monkeypatch.setattr("amdxdna.pool.EVICT_SECONDS", 0.1)
    opened = open_emu()
    opened.pool.max_contexts = 1
    busy, other = gate.kernel(opened, 64), adder(opened, 64, 2, variant=1)
    pair, second = buffers(opened), buffers(opened)
    run = busy.start(*pair)
    with pytest.raises(errors.NoFreeContext, match=r"1 contexts \(max_contexts\)"):
        other.start(*second)
    assert len(opened.contexts()) == 1
    gate.open()
    run.wait()
    check(other, second, 2)
    assert opened.pool.resident == 1


def test_a_kernel_that_cannot_be_made_is_not_counted(device):
    """A packet names 32 compute units; this xclbin has 33."""
    names = [f"COPY{i}" for i in range(33)]
    wide = Xclbin.read(
        writer.build(
            [writer.PdiSpec(COPY, tuple(range(0x100, 0x121)))],
            [writer.KernelSpec(n, 0x100 + i) for i, n in enumerate(names)],
        )
    )
    heap = device.bo_usage().heap

    def refused(file):
        with pytest.raises(errors.BadArgument, match="32"):
            device.pool.kernel(file, stream.copy(64, 1), name="COPY32")

    refused(wide)
    assert device.bo_usage().heap == heap
    last = device.pool.kernel(wide, stream.copy(64, 1), name="COPY31")
    refused(wide)
    last.close()
    assert device.bo_usage().heap == heap
    kept = weakref.ref(wide)
    del last, wide
    gc.collect()
    assert kept() is None  # the pool has let go of a file that has no kernels
    assert device.bo_usage().heap == heap


def test_unload_gives_idle_contexts_back(device):
    a, b = adder(device, 64, 1), adder(device, 64, 2, variant=1)
    pair = buffers(device)
    check(a, pair, 1)
    check(b, pair, 2)
    assert device.pool.unload() == 2
    assert device.contexts() == () and device.pool.resident == 0
    assert device.pool.swaps == 0
    check(a, pair, 1)
    assert device.pool.unload() == 1


def test_pdis_are_shed_as_many_as_are_asked_for(device):
    for kernel in (kernels := [adder(device, 64, n, variant=n) for n in range(3)]):
        kernel.run(*buffers(device))
    assert device.pool.shed_pdis(1) == 0 and device.pool.resident == 3  # those of contexts stay
    device.pool.unload()
    assert [device.pool.shed_pdis(nbytes) for nbytes in (32 << 10, (32 << 10) + 1, 1)] == [
        32 << 10,
        64 << 10,
        0,
    ]
    for number, kernel in enumerate(kernels):
        check(kernel, buffers(device), number)
    device.pool.unload()
    assert not device.pool.shed_context()  # none is there
    kernels[0].run(*buffers(device))
    assert device.pool.shed_context() and device.pool.resident == 0


@pytest.mark.parametrize("end", ["close", "pool", "abort"])
def test_every_context_is_tried_and_the_first_failure_told(end):
    tried = []

    def refuse(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX:
            tried.append(address)
            raise OSError((errno.EIO, errno.ETIME)[len(tried) - 1], "no")

    node = ProxyNode(open_node("emu:quiet,threads=1,tdr=600"), refuse)
    device = Device.open(node)
    kernels = [hanging(device, n) if end == "abort" else adder(device, 64, 1, variant=n) for n in range(2)]
    runs = [kernel.start(*buffers(device)) for kernel in kernels]
    with pytest.raises(errors.DeviceLost) as caught:
        {"close": device.close, "pool": device.pool.close, "abort": device.pool.abort}[end]()
    assert len(tried) == 2 and caught.value.errno == errno.EIO
    node.hook = lambda request, address: None
    device.close()
    assert node.closes == 1 and all(run.done for run in runs)


def test_abort_ends_what_hangs_and_nothing_else(open_emu):
    """Long before the driver's own time-out; kernels go on in fresh contexts, buffers are freed at once."""
    device = open_emu("tdr=600,threads=1")
    device.wait_seconds = 0
    good, pair = adder(device, 64, 1, variant=1), buffers(device)
    check(good, pair, 1)
    bad, one = hanging(device), device.alloc(64)
    runs = [bad.start(one) for _ in range(2)]
    assert len(device.pool.in_flight()) == 2
    assert device.pool.abort() == 1
    assert device.pool.in_flight() == set()
    for run in runs:
        with pytest.raises(errors.CommandAborted):
            run.wait()
    one.close()
    assert device.pool.resident == 1 and device.pool.abort() == 0
    check(good, pair, 1)
    check(adder(device, 64, 2), pair, 2)


def test_the_last_kernel_takes_context_and_pdi_along(device):
    before = device.bo_usage().heap
    a, b = adder(device, 64, 1), adder(device, 64, 2)
    pair = buffers(device)
    check(a, pair, 1)
    a.close()
    assert len(device.contexts()) == 1
    check(b, pair, 2)
    b.close()
    assert device.contexts() == () and device.pool.resident == 0
    assert device.bo_usage().heap == before
    check(adder(device, 64, 3), pair, 3)


def test_a_closed_pool_refuses(device):
    kernel = adder(device, 64, 1)
    pair = buffers(device)
    check(kernel, pair, 1)
    device.pool.close()
    assert device.contexts() == ()
    with pytest.raises(errors.Closed):
        kernel.run(*pair)
    with pytest.raises(errors.Closed):
        adder(device, 64, 1)


def test_an_unknown_kernel_name(device):
    before = device.bo_usage().heap
    with pytest.raises(errors.BadXclbin, match="COPY0"):
        device.pool.kernel(copy_xclbin(), stream.copy(64), name="NONE")
    assert device.bo_usage().heap == before


def test_operations_become_the_contexts_qos():
    seen = []

    def look(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX:
            create = ffi.cast("struct amdxdna_drm_create_hwctx *", address)
            seen.append(ffi.unpack(ffi.cast("uint32_t *", create.qos_p), 6))

    with Device.open(ProxyNode(open_node("emu:quiet"), look)) as opened:
        small = opened.pool.kernel(copy_xclbin(), stream.copy(64), ops=10)
        opened.pool.kernel(copy_xclbin(), stream.copy(64), ops=3_000_000_001)
        small.run(*buffers(opened))
        adder(opened, 64, 1, variant=3).run(*buffers(opened))
        most = 10**9 * ((1 << 32) - 1)
        opened.pool.kernel(copy_xclbin(1), stream.copy(64), ops=most).run(*buffers(opened))
        with pytest.raises(errors.BadArgument, match="ops"):
            opened.pool.kernel(copy_xclbin(2), stream.copy(64), ops=most + 1)
    # The rest (fps, bandwidth, latency, ...) is not asked for.
    assert seen == [[4, 0, 0, 0, 0, 0], [0] * 6, [(1 << 32) - 1, 0, 0, 0, 0, 0]]


def test_a_broken_context_is_given_up_like_any_other(open_emu):
    opened = open_emu("slots=1,tdr=0.2")
    bad, good = hanging(opened), adder(opened, 64, 1, variant=1)
    pair = buffers(opened)
    with pytest.raises(errors.CommandTimeout):
        bad.run(*pair)
    check(good, pair, 1)
    assert len(opened.contexts()) == 1


@pytest.mark.parametrize("slots", [1, 2])
def test_threads_fighting_for_slots(open_emu, slots):
    opened = open_emu(f"slots={slots}")
    kernels = [adder(opened, 64, i, variant=i) for i in range(3)]

    def work(number):
        pair = buffers(opened, number)
        for turn in range(12):
            check(kernels[(number + turn) % 3], pair, (number + turn) % 3)

    in_threads(4, work)
    assert opened.pool.resident <= slots
    assert opened.pool.loads == opened.pool.swaps + opened.pool.resident


def test_kernels_made_and_closed_in_threads(open_emu):
    opened = open_emu("slots=2")

    def work(number):
        pair = buffers(opened, number)
        for turn in range(6):
            kernel = adder(opened, 64, turn, variant=turn % 3)
            check(kernel, pair, turn)
            kernel.close()

    in_threads(3, work)
    assert opened.contexts() == ()


def test_a_pool_of_ones_own(open_emu):
    opened = open_emu()
    pool = ContextPool(opened.client, max_contexts=1)
    kernel = pool.kernel(copy_xclbin(), stream.copy(64, 4))
    check(kernel, buffers(opened), 4)
    assert pool.loads == 1 and opened.pool.loads == 0
    pool.close()
    assert opened.contexts() == ()
