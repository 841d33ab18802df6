"""What is dropped without close() comes back: contexts, kernels, devices, models, and what they hold."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import re
from collections.abc import Iterator

import numpy as np
import pytest

from amdxdna import errors, packet
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.stream import Fail
from amdxdna.opening import open_node
from amdxdna.reaper import collect, reap
from amdxdna.xclbin import Xclbin, writer
from qwen35 import Qwen35
from tests.support.binding import COPY, ProxyNode, adder, copy_xclbin, hanging
from tests.support.dropping import begin, time_out, until
from tests.support.program import python
from tests.support.threads import in_threads

MIB = 1 << 20


@pytest.fixture
def no_cycles() -> Iterator[None]:
    """The cycle collector is off: what goes then goes by reference count."""
    gc.collect()
    reap()
    gc.disable()
    yield
    gc.enable()


def test_contexts_dropped_with_a_command_under_way(open_emu, no_cycles):
    device = open_emu("slots=4")
    heap = device.bo_usage().heap
    for number in range(20):
        context = device.context(copy_xclbin())
        run, _, target = begin(device, context, 3000, number)
        del context, run
    until(lambda: not device.contexts())
    np.testing.assert_array_equal(target.view("u4"), np.arange(1024) + 19)
    del target, _
    reap()
    assert device.bo_usage().heap == heap


def test_a_dropped_context_whose_command_hangs(open_emu):
    """Its end is the driver's time-out. Nothing blocks until then."""
    device = open_emu("tdr=600")
    insts = device.alloc(64, "dev")
    insts.write(stream.hang())
    before = device.bo_usage()
    context = device.context(copy_xclbin())
    run = context.run(packet.start_cu(0, insts.address, len(stream.hang()), []), [insts])
    del context, run
    assert len(device.contexts()) == 1
    time_out(device)
    until(lambda: not device.contexts())
    assert device.bo_usage() == before
    source, target = device.alloc(64), device.alloc(64)
    adder(device, 64, 1).run(source, target)


def test_pdis_outlive_a_dropped_context():
    """The driver configures a context again from them whenever it resumes the device."""
    events: list[tuple[str, int]] = []
    pdi = []

    def look(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX:
            config = ffi.cast("struct amdxdna_drm_config_hwctx *", address)
            cus = ffi.cast("struct amdxdna_hwctx_param_config_cu *", config.param_val)
            pdi.append(int(cus.cu_configs[0].cu_bo))
        elif request == lib.DRM_IOCTL_GEM_CLOSE:
            events.append(("close", int(ffi.cast("struct drm_gem_close *", address).handle)))
        elif request == lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX:
            events.append(("destroy", 0))

    with Device.open(ProxyNode(open_node("emu:quiet"), look)) as device:
        for cyclic in (False, True):
            events.clear()
            pdi.clear()
            context = device.context(copy_xclbin())
            run, *_ = begin(device, context, 20_000)
            if cyclic:
                context.me = context
            del context, run
            gc.collect()
            until(lambda: ("close", pdi[0]) in events)
            assert events.index(("destroy", 0)) < events.index(("close", pdi[0]))


def test_kernels(open_emu, no_cycles):
    device = open_emu("slots=4")
    source, target = device.alloc(4096), device.alloc(4096)
    heap = device.bo_usage().heap
    for number in range(20):
        adder(device, 4096, number, variant=number).run(source, target)
    reap()
    assert device.pool.stats.resident == 0 and device.contexts() == ()
    assert device.pool.swaps == 0  # none had to make room: each was gone before the next
    assert device.bo_usage().heap == heap


def test_kernels_dropped_while_they_run(open_emu, no_cycles):
    device = open_emu("slots=4")
    results = []
    for number in range(10):
        source, target = device.alloc(4096), device.alloc(4096)
        source.view("u4")[:] = np.arange(1024)
        adder(device, 4096, number, variant=number, delay_us=5000).start(source, target)
        results.append(target)
    until(lambda: not device.contexts())
    for number, target in enumerate(results):
        np.testing.assert_array_equal(target.view("u4"), np.arange(1024) + number)


def test_a_chain_dropped_while_it_runs(open_emu, no_cycles):
    device = open_emu()
    source, target = device.alloc(4096), device.alloc(4096)
    kernels = [adder(device, 4096, n, delay_us=5000) for n in range(5)]
    device.pool.chain([(kernel, (source, target)) for kernel in kernels])
    source.view("u4")[:] = np.arange(1024)
    source.to_device()
    kernels.clear()
    until(lambda: not device.contexts())
    np.testing.assert_array_equal(target.view("u4"), np.arange(1024) + 4)


def test_runs_that_are_kept_hold_no_context(open_emu, no_cycles, gate):
    gate.addend = 9
    device = open_emu("slots=2")
    pair = device.alloc(64), device.alloc(64)
    runs = [adder(device, 64, n, variant=n).run(*pair) for n in range(6)]
    late = gate.kernel(device, 64).start(*pair)
    reap()
    assert len(device.contexts()) == 1
    gate.open()
    assert late.wait().done and all(run.done for run in runs)


def test_a_finished_run_keeps_no_context(open_emu, no_cycles):
    device = open_emu("slots=2")
    runs = []
    for _ in range(4):
        context = device.context(copy_xclbin())
        run, *_ = begin(device, context, 0)
        runs.append(run.wait())
    del context, run
    reap()
    assert device.contexts() == () and all(run.done and run.wait() is run for run in runs)


@pytest.mark.parametrize("how", ["fails", "hangs", "rejected", "closed", "full"])
def test_an_error_keeps_nothing(no_cycles, how):
    """An exception's traceback holds the frames it came through; nothing here may hold the exception."""
    node = ProxyNode(open_node("emu:quiet,threads=1,tdr=0.2,slots=1"))

    def use() -> None:
        device = Device.open(node)
        pair = device.alloc(64), device.alloc(64)
        kernel = {
            "fails": lambda: device.pool.kernel(copy_xclbin(), stream.program([Fail(0x3000002)])),
            "hangs": lambda: hanging(device),
        }.get(how, lambda: adder(device, 64, 1))()
        with pytest.raises(errors.XdnaError):
            if how == "rejected":
                device.context(copy_xclbin()).run(bytes(64)).wait()
            elif how == "closed":
                kernel.close()
                kernel.run(*pair)
            elif how == "full":
                context = device.context(copy_xclbin(1))
                kernel.run(*pair)
                del context
            else:
                run = kernel.start(*pair)
                for _ in range(2):
                    with pytest.raises(errors.CommandFailed):
                        run.wait()
                run.wait()

    use()
    until(lambda: node.closes)


def test_a_kernel_that_shares_its_context_leaves_it(open_emu, no_cycles):
    device = open_emu()
    first, second = adder(device, 64, 1), adder(device, 64, 2)
    pair = device.alloc(64), device.alloc(64)
    first.run(*pair)
    del first
    reap()
    assert device.pool.resident == 1
    second.run(*pair)
    assert device.pool.loads == 1
    lock = second.shared.lock
    del second
    reap()
    assert device.pool.resident == 0

    def take(_):
        assert lock.acquire(blocking=False)  # whoever gave the context back holds it no longer

    in_threads(1, take)


def test_many_dropped_at_once(open_emu):
    device = open_emu()
    kernels = [adder(device, 64, 1, variant=n) for n in range(1500)]
    del kernels
    reap()
    pair = device.alloc(64), device.alloc(64)
    adder(device, 64, 1).run(*pair)


@pytest.mark.parametrize("closed", ["nothing", "kernel", "buffers"])
def test_devices(no_cycles, closed):
    node = ProxyNode(open_node("emu:quiet,threads=1"))
    device = Device.open(node)
    kernel, source, target = adder(device, 4096, 1), device.alloc(4096), device.alloc(4096)
    kernel.run(source, target)
    if closed == "kernel":
        kernel.close()
    if closed == "buffers":
        source.close()
    del device
    reap()
    assert node.closes == 0
    if closed == "nothing":
        kernel.run(source, target)  # what was made through it still works
    del kernel
    reap()
    assert node.closes == 0 and len(node.inner.client.contexts) == 0
    del source, target
    reap()
    assert node.closes == 1 and not node.inner.client.handles


def test_a_device_that_is_left_with_its_pool(no_cycles):
    node = ProxyNode(open_node("emu:quiet,threads=1"))
    pool = Device.open(node).pool
    kernel = pool.kernel(copy_xclbin(), stream.copy(64, 1))
    reap()
    assert node.closes == 0 and pool.kernel(copy_xclbin(), stream.copy(64, 2)).shared is kernel.shared
    del kernel, pool
    with Device.open("emu:quiet,threads=1"):
        assert node.closes == 1  # an open gives back what was dropped


def test_a_devices_pool_stays_the_same(open_emu):
    device = open_emu()
    device.pool.max_contexts = 3
    gc.collect()
    assert device.pool.max_contexts == 3


def test_a_device_dropped_with_a_command_under_way(no_cycles, gate):
    node = ProxyNode(open_node("emu:quiet,threads=1"))
    device = Device.open(node)
    source, target = device.alloc(4096), device.alloc(4096)
    source.view("u4")[:] = np.arange(1024)
    view = target.view("u4", writable=False)
    gate.kernel(device, 4096).start(source, target)
    del device, source, target
    reap()
    assert node.closes == 0
    gate.open()
    until(lambda: node.closes)
    np.testing.assert_array_equal(view, np.arange(1024) + 1)


def test_models_in_a_notebook(no_cycles):
    for _ in range(10):
        model = Qwen35.load(device="emu:slots=16,threads=1")
        str(model.chat("What is a dog?", max_new=1))
    client = model.device.client
    del model
    reap()
    assert client.node.client.contexts == {}
    gc.collect()


def test_buffers_of_every_kind(open_emu, no_cycles):
    device = open_emu()
    keep = device.alloc(64, "dev")
    before = device.bo_usage()
    pages = mmap.mmap(-1, 8192)
    share = device.alloc(8192)
    fd = share.export_fd()
    things = [
        share,
        device.alloc(4096, "dev"),
        device.alloc(4096, "cmd"),
        device.wrap(pages),
        device.import_fd(fd),
        share.sub(4096),
    ]
    assert device.bo_usage().total > before.total
    del things, share
    reap()
    assert device.bo_usage() == before
    pages.close()  # nothing holds the memory any more
    os.close(fd)
    keep.close()


# Short of something


@pytest.mark.parametrize("count", [1, 3])
def test_garbage_goes_before_good_contexts(open_emu, count):
    """Contexts that only the cycle collector can find fill the device."""
    device = open_emu(f"slots={count + 1}")
    pair = device.alloc(64), device.alloc(64)
    good = adder(device, 64, 1)
    good.run(*pair)
    gc.disable()
    try:
        for number in range(count):
            context = device.context(copy_xclbin(number))
            context.me = context
        del context
        other = adder(device, 64, 2, variant=9)
        other.run(*pair)
    finally:
        gc.enable()
    assert device.pool.stats.swaps == 0 and device.pool.resident == 2


def test_garbage_goes_before_anybody_is_blamed(open_emu):
    device = open_emu("slots=2")
    gc.disable()
    try:
        for number in range(6):
            context = device.context(copy_xclbin(number))
            context.me = context
    finally:
        gc.enable()


def test_a_slot_whose_command_still_runs_is_waited_for(open_emu):
    device = open_emu("slots=1")
    context = device.context(copy_xclbin())
    run, *_ = begin(device, context, 100_000)
    del context, run
    device.context(copy_xclbin(1)).close()


def test_the_text_says_whose_contexts_they_are(open_emu):
    device = open_emu("slots=3")
    keep = [device.context(copy_xclbin(n)) for n in range(3)]
    with pytest.raises(errors.NoFreeContext) as caught:
        device.context(copy_xclbin(3))
    assert "this process holds 3" in str(caught.value) and "other programs" not in str(caught.value)
    mixed = open_emu("slots=3,held_slots=2")
    keep.append(mixed.context(copy_xclbin()))
    with pytest.raises(errors.NoFreeContext) as caught:
        mixed.context(copy_xclbin(1))
    text = str(caught.value)
    assert "this process holds 1" in text and "process 2147483646: 2" in text and "other programs" in text
    others = open_emu("slots=2,held_slots=2")
    for each in keep:
        each.close()
    with pytest.raises(errors.NoFreeContext) as caught:
        others.context(copy_xclbin(1))
    assert "this process" not in str(caught.value)


WHOSE = """
import os
from amdxdna import errors, query
from amdxdna.device import Device
from tests.support.binding import copy_xclbin

query.contexts = lambda client: ()  # a driver that lists none

def text():
    with Device.open("emu:quiet,threads=1,slots=1") as device:
        keep = device.context(copy_xclbin())
        try:
            device.context(copy_xclbin(1))
        except errors.NoFreeContext as error:
            print(error, flush=True)

closed = Device.open("emu:quiet,threads=1")
kept = closed.context(copy_xclbin())
closed.close()
text()
device = Device.open("emu:quiet,threads=1")
mine = device.context(copy_xclbin()), device.context(copy_xclbin(1))
child = os.fork()
if not child:
    text()
    os._exit(0)
os.waitpid(child, 0)
text()
"""


def test_the_text_counts_this_process_own_contexts_of_open_devices():
    """Not those that went with their device, nor, in a child, the parent's."""
    said = python("-c", WHOSE)
    assert said.returncode == 0 and not said.stderr, said.stderr
    assert re.findall(r"this process holds (\d+)", said.stdout) == ["1", "1", "3"], said.stdout


def one_heap(request, address):
    """A driver that gives a process one heap of 64 MiB, as Linux 6.18's does."""
    if request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO:
        bo = ffi.cast("struct amdxdna_drm_create_bo *", address)
        if bo.type == lib.AMDXDNA_BO_DEV_HEAP:
            heaps.append(bo.size)
            if len(heaps) > 1:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


heaps: list[int] = []


def large(number: int, nbytes: int) -> Xclbin:
    """A copy xclbin whose PDI takes `nbytes`."""
    return Xclbin.read(
        writer.build([writer.PdiSpec(COPY + bytes(nbytes - len(COPY)))], [writer.KernelSpec(f"COPY{number}")])
    )


def test_pdis_of_idle_xclbins_do_not_hold_the_heap():
    heaps.clear()
    with Device.open(ProxyNode(open_node("emu:quiet,threads=1,slots=16"), one_heap)) as device:
        pair = device.alloc(4096), device.alloc(4096)
        pair[0].view("u4")[:] = np.arange(1024)
        kernels = [device.pool.kernel(large(n, MIB), stream.copy(4096, n)) for n in range(80)]
        for _ in range(2):
            for number, kernel in enumerate(kernels):
                kernel.run(*pair, outputs=[pair[1]])
                np.testing.assert_array_equal(pair[1].view("u4"), np.arange(1024) + number)
        keep = device.alloc(55 * MIB, "dev")  # nearly all that the heap has: contexts make room, too
        kernels[3].run(*pair, outputs=[pair[1]])
        np.testing.assert_array_equal(pair[1].view("u4"), np.arange(1024) + 3)
        keep.close()
        with pytest.raises(errors.OutOfHeap):
            device.alloc(65 * MIB, "dev")


def test_a_heap_without_room_for_a_contexts_own_buffers():
    heaps.clear()
    with Device.open(ProxyNode(open_node("emu:quiet,threads=1"), one_heap)) as device:
        pair = device.alloc(64), device.alloc(64)
        first, second = (device.pool.kernel(large(n, 8 * MIB), stream.copy(64, n)) for n in range(2))
        first.run(*pair)
        second.run(*pair)
        device.pool.unload()
        room = device.alloc(64 * MIB - 16 * MIB - 64 * 1024 - 96 * 1024, "dev")  # 96 KiB of 128 are left
        second.run(*pair)  # the first one's PDI goes
        assert device.pool.resident == 1
        device.pool.unload()
        rest = device.alloc(8 * MIB, "dev")
        with pytest.raises(errors.OutOfHeap) as caught:
            first.run(*pair)
        assert caught.value.call.startswith("CREATE_") and caught.value.size == 64 * MIB
        rest.close()
        first.run(*pair)
        room.close()


def test_memory_that_is_garbage_goes_before_a_buffer_is_refused():
    refuse = [False]

    def full(request, address):
        if request == lib.DRM_IOCTL_GEM_CLOSE:
            refuse[0] = False
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO and refuse[0]:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with Device.open(ProxyNode(open_node("emu:quiet"), full)) as device:
        gc.collect()
        reap()
        cycle: list[object] = [device.alloc(4096)]
        cycle.append(cycle)
        del cycle
        refuse[0] = True
        device.alloc(4096)
        refuse[0] = True
        gc.collect()
        reap()
        refuse[0] = True
        with pytest.raises(errors.OutOfMemory):
            device.alloc(4096)


# Where nobody may work


def test_a_child_gives_nothing_of_the_parents_back(open_emu, gate):
    gate.addend = 2
    device = open_emu()
    pair = device.alloc(64), device.alloc(64)
    kernel = adder(device, 64, 1)
    kernel.run(*pair)
    context = device.context(copy_xclbin(1))
    run, *_ = begin(device, context, 1, gate.addend)
    del context
    child = os.fork()
    if not child:
        status = 1
        try:
            del run, kernel, pair
            gc.collect()
            reap()
            collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(device.contexts()) == 2
    gate.open()
    assert run.wait().done
    kernel.run(*pair)


def test_a_hung_kernel_is_dropped(open_emu):
    device = open_emu("tdr=0.3,slots=1")
    hanging(device).start()
    pair = device.alloc(64), device.alloc(64)
    adder(device, 64, 1, variant=1).run(*pair)  # the slot is had when the driver has reset it
    assert len(device.contexts()) == 1
