"""The binding on other drivers than Linux 7.3's: what each does differently must not become wrong answers."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from amdxdna import errors, losses, packet
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.driver import teardown
from amdxdna.emu.kernels import runner, stream
from amdxdna.emu.personality import PERSONALITIES
from amdxdna.opening import open_node
from amdxdna.packet import State
from amdxdna.reaper import reap
from tests.conformance import kit
from tests.support.binding import ProxyNode, adder, copy_xclbin, hanging, numbers

DRIVERS = tuple(PERSONALITIES)
STATUSES = (
    *(0x1000001, 0x1000002, 0x1000003, 0x1000004, 0x1000005, 0x1000006, 0x1000007, 0x1000008, 0x1000009),
    *(0x100000A, 0x100000C, 0x2000004, 0x3000002, 0x3000003, 0x4000001, 0x4000002),
)
"""Firmware statuses, with every low nibble that a state can be taken for."""


def opened(options: str) -> Device:
    return Device.open(f"emu:quiet,privileged=1,threads=1,{options}")


def test_what_each_driver_tells_of_itself():
    """DRM version and kernel: the in-tree driver's minor of that release (amdxdna_pci_drv.c), and AMD's."""
    told = {}
    for driver in DRIVERS:
        with opened(f"driver={driver}") as device:
            version = device.version
            release = device.node.text("proc/sys/kernel/osrelease")
            told[driver] = (
                version.major,
                version.minor,
                release,
                device.node.text("sys/module/amdxdna/taint"),
            )
    assert told == {
        "7.3": (0, 10, "7.3.4", ""),
        "7.2": (0, 10, "7.2.12", ""),
        "6.18": (0, 1, "6.18.15", ""),
        "6.18.5": (0, 1, "6.18.5", ""),
        "6.14": (0, 0, "6.14.11", ""),
        "oot-2026-08": (0, 16, "6.18.12", "OE"),
        "oot-2026-05": (0, 15, "6.18.12", "OE"),
        "oot-legacy": (1, 0, "6.18.12", "OE"),
        "oot-2025-12": (1, 0, "6.17.13", "OE"),
        "oot-2025-09": (1, 0, "6.16.12", "OE"),
        "oot-2025-06": (1, 0, "6.12.94", "OE"),
    }


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_failed_chain_names_its_member_and_never_reads_as_success(driver):
    with opened(f"driver={driver}") as device:
        good = adder(device, 64, 1)
        a, b = device.alloc(64), device.alloc(64)
        for status in STATUSES:
            bad = device.pool.kernel(copy_xclbin(), stream.fail(status))
            for position in (0, 1):
                calls = [(good, (a, b)), (good, (a, b))]
                calls[position] = (bad, (a, b))
                with pytest.raises(errors.CommandFailed) as caught:
                    device.pool.chain(calls).wait()
                assert type(caught.value) is errors.CommandFailed, hex(status)
                assert (caught.value.state, caught.value.index) == (State.ERROR, position), hex(status)
            bad.close()
        device.pool.chain([(good, (a, b)), (good, (b, a))]).wait()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_failed_single_command_never_reads_as_success(driver):
    with opened(f"driver={driver}") as device:
        for status in STATUSES:
            bad = device.pool.kernel(copy_xclbin(), stream.fail(status))
            with pytest.raises(errors.CommandFailed) as caught:
                bad.run()
            assert type(caught.value) is errors.CommandFailed, hex(status)
            assert caught.value.state == State.ERROR
            assert "member" not in str(caught.value)
            bad.close()
        good = adder(device, 4096, 3)
        source, target = numbers(device, 1024), device.alloc(4096)
        good.run(source, target, outputs=[target])
        np.testing.assert_array_equal(target.view("u4"), np.arange(1024, dtype="u4") + 3)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_hung_command_is_told_as_what_it_is_and_got_over(driver, monkeypatch):
    monkeypatch.setattr("amdxdna.pool.RECOVERY_SECONDS", 0.05)
    with opened(f"driver={driver},tdr=0.3") as device:
        good = adder(device, 64, 1)
        a, b = device.alloc(64), device.alloc(64)
        with pytest.raises(errors.CommandTimeout) as caught:
            hanging(device).run()
        text = str(caught.value)
        assert not caught.value.in_flight
        assert f"no progress for {device.profile.tdr_seconds:g} s" in text
        told = driver not in ("6.14", "6.18", "6.18.5")
        assert (caught.value.health is not None) is told
        assert ("stopped at operation 0" in text) is told
        assert "dropped the packet" not in text
        good.run(a, b)
        with pytest.raises(errors.CommandTimeout) as caught:
            device.pool.chain([(good, (a, b)), (hanging(device), ()), (good, (a, b))]).wait()
        named = driver in ("7.2", "7.3", "oot-2026-05", "oot-2026-08", "oot-legacy")
        assert caught.value.index == (1 if named else None)
        assert ("member 1 of 3" if named else "which member is not told") in str(caught.value)
        assert (caught.value.health is not None) is told
        good.run(a, b)


@pytest.mark.parametrize("driver", ["7.3", "6.18.5", "oot-2025-06"])
def test_a_wait_ends_on_a_driver_that_never_ends_a_hung_command(driver):
    with opened(f"driver={driver},tdr=0") as device:
        device.node.driver.idle_wait = 0.1  # not the two seconds that a context's end waits for its commands
        assert device.profile.tdr_seconds is None
        device.wait_seconds = 0.2
        good = adder(device, 64, 1)
        a, b = device.alloc(64), device.alloc(64)
        hung = hanging(device).start(a, b)
        with pytest.raises(errors.CommandInFlight) as caught:
            hung.wait()
        assert (caught.value.in_flight, hung.done) == (True, False)
        for part in ("0.2 s", "still in flight", "must not be used again", "never end a", "AMDXDNA_WAIT"):
            assert part in str(caught.value)
        # The driver lets go of its buffers when the pool gives the context up: the next start does that.
        device.wait_seconds = 60
        c, d = numbers(device, 16), device.alloc(64)
        good.run(c, d, outputs=[d])
        np.testing.assert_array_equal(d.view("u4"), np.arange(1, 17, dtype="u4"))
        assert hung.done
        assert device.pool.stats.recoveries == 1


@pytest.mark.parametrize("driver", ["6.18", "7.3"])
def test_a_dropped_kernel_that_hangs_for_ever_costs_no_context(driver):
    with opened(f"driver={driver},tdr=0,slots=1") as device:
        device.node.driver.idle_wait = 0.1
        device.wait_seconds = 0.2
        hanging(device).start()

        def gone() -> bool:
            gc.collect()
            reap()
            return device.contexts() == ()

        kit.until(gone, 60, "the context being given back")
        device.wait_seconds = 60
        a, b = numbers(device, 16), device.alloc(64)
        adder(device, 64, 2).run(a, b, outputs=[b])
        np.testing.assert_array_equal(b.view("u4"), np.arange(2, 18, dtype="u4"))


def test_a_long_wait_goes_on_while_commands_get_over(monkeypatch):
    """Each half of the limit sees the end of one command, and no more."""
    turns, halves, compute = threading.Semaphore(0), [], runner.compute

    def held(*arguments):
        assert turns.acquire(timeout=60)
        return compute(*arguments)

    def one_more(request, address):
        if request != lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT:
            return
        if ffi.cast("struct drm_syncobj_timeline_wait *", address).timeout_nsec:
            (hwctx,) = device.node.inner.client.contexts.values()
            turns.release()
            kit.until(lambda: hwctx.timeline.done == len(halves), 60, "the end of a command")
            halves.append(request)

    monkeypatch.setattr(runner, "compute", held)
    with Device.open(ProxyNode(open_node("emu:quiet,threads=1,tdr=0"), one_more)) as device:
        device.wait_seconds = 0.1
        kernel = adder(device, 64, 1, delay_us=1)
        a, b = device.alloc(64), device.alloc(64)
        runs = [kernel.start(a, b) for _ in range(4)]
        runs[-1].wait()
        assert len(halves) == 4
        assert all(run.state == State.COMPLETED for run in runs)


def test_the_wait_is_the_environments(monkeypatch):
    monkeypatch.setenv("AMDXDNA_WAIT", "3.5")
    with opened("slots=1") as device:
        assert device.wait_seconds == 3.5
        with pytest.raises(errors.BadArgument):
            device.wait_seconds = -1
    monkeypatch.setenv("AMDXDNA_WAIT", "soon")
    with pytest.raises(errors.BadArgument, match="AMDXDNA_WAIT=soon"):
        opened("slots=1")


def _forked() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


CHILDREN = {
    "subprocess": lambda: subprocess.run([sys.executable, "-S", "-c", ""], check=True),
    "system": lambda: os.system("true"),
    "fork": _forked,
    "posix_spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0),
}


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("driver", ["6.14", "6.18", "7.3"])
def test_a_child_process_costs_nothing(driver, child):
    with opened(f"driver={driver}") as device:
        kernels = [adder(device, 64, i, variant=i) for i in range(3)]
        a, b = numbers(device, 16), device.alloc(64)
        for _ in range(2):
            for i, kernel in enumerate(kernels):
                kernel.run(a, b, outputs=[b])
                np.testing.assert_array_equal(b.view("u4"), np.arange(i, 16 + i, dtype="u4"))
            CHILDREN[child]()
            device.pool.chain([(kernels[1], (a, b)), (kernels[1], (b, b))]).wait(None, [b])
            np.testing.assert_array_equal(b.view("u4"), np.arange(2, 18, dtype="u4"))
        lost = PERSONALITIES[driver].flush_destroys
        assert device.pool.stats.recoveries == (4 if lost else 0)
        CHILDREN[child]()
    with opened(f"driver={driver}") as again:
        adder(again, 64, 1).run(again.alloc(64), again.alloc(64))


class Dropping(ProxyNode):
    """A node whose driver drops every context just before some of the calls of one kind: another thread's
    child process has ended."""

    def __init__(self, driver: str, call: int, times: int) -> None:
        super().__init__(open_node(f"emu:quiet,privileged=1,threads=1,driver={driver}"), self._drop)
        self.call, self.left = call, times

    def _drop(self, request: int, address: int) -> None:
        if request == self.call and self.left:
            self.left -= 1
            teardown.flush(self.inner.client)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr("amdxdna.losses.LONGEST_PAUSE", 1e-3)


CONFIG, EXEC = lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX, lib.DRM_IOCTL_AMDXDNA_EXEC_CMD


@pytest.mark.parametrize("call", [CONFIG, EXEC], ids=["config", "exec"])
@pytest.mark.parametrize("driver", ["6.14", "6.18"])
def test_contexts_that_are_lost_while_they_are_made_or_used_are_made_again(driver, call, hasty):
    with Device.open(Dropping(driver, call, 0)) as device:
        kernel = adder(device, 64, 1)
        a, b = numbers(device, 16), device.alloc(64)
        for start in (lambda: kernel.start(a, b), lambda: device.pool.chain([(kernel, (a, b))] * 2)):
            device.node.left = losses.MOST - 1
            device.pool.unload()
            b.view("u4")[:] = 0
            start().wait(None, [b])
            np.testing.assert_array_equal(b.view("u4"), np.arange(1, 17, dtype="u4"))
            assert device.node.left == 0
        device.node.left = 3
        with device.context(copy_xclbin()) as context:
            assert context.handle and device.node.left == (0 if call == CONFIG else 3)


@pytest.mark.parametrize("call", [CONFIG, EXEC], ids=["config", "exec"])
def test_a_driver_that_drops_every_context_is_told_and_costs_nothing_more(call, hasty):
    with Device.open(Dropping("6.18", call, 1 << 30)) as device:
        kernel = adder(device, 64, 1)
        a, b = numbers(device, 16), device.alloc(64)
        handles = len(device.node.inner.client.syncobjs)
        for start in (kernel.start, lambda *pair: device.pool.chain([(kernel, pair), (kernel, pair)])):
            with pytest.raises(errors.ContextLost) as caught:
                start(a, b)
            for part in (f"{losses.MOST} times in a row", "child processes", "Linux 7.0"):
                assert part in str(caught.value)
            assert "bug in the caller" not in str(caught.value)
        device.node.left = 0
        kernel.run(a, b, outputs=[b])
        np.testing.assert_array_equal(b.view("u4"), np.arange(1, 17, dtype="u4"))
        device.pool.unload()
        reap()
        assert device.contexts() == () and len(device.node.inner.client.syncobjs) <= handles + 1


def test_a_configuration_that_is_wrong_is_no_lost_context():
    """EINVAL of a context that is there is told at once, on drivers that lose them too."""
    asked = []

    def refuse(request, address):
        if request == CONFIG:
            asked.append(1)
            raise OSError(errno.EINVAL, "no")

    with Device.open(ProxyNode(open_node("emu:quiet,threads=1,driver=6.18"), refuse)) as device:
        with pytest.raises(errors.BadArgument, match="CONFIG_HWCTX"):
            device.context(copy_xclbin())
        assert len(asked) == 1 and device.contexts() == ()


def test_the_number_of_a_lost_context_is_not_taken_for_another_ones():
    """The driver gives 255 numbers out in turn: an idle context that is lost must not run in a later one."""
    with opened("driver=6.18") as device:
        idle, busy = adder(device, 64, 1, variant=1), adder(device, 64, 2, variant=2)
        a, b = numbers(device, 16), device.alloc(64)
        idle.run(a, b)
        number = idle.shared.context.handle
        for _ in range(400):
            teardown.flush(device.node.client)
            busy.run(a, b)
            if busy.shared.context.handle == number:
                break
        assert busy.shared.context.handle == number
        idle.run(a, b, outputs=[b])
        np.testing.assert_array_equal(b.view("u4"), np.arange(1, 17, dtype="u4"))
        assert len(device.contexts()) == 2
        device.pool.unload()
        assert device.contexts() == ()


def test_the_number_of_a_lost_context_that_nobody_used_is_not_taken_for_another_ones():
    """Nothing tells of the loss before the number comes again: its first owner must not destroy the second's
    context, nor run in it, nor may what an object that is gone leaves behind."""
    with opened("driver=6.18") as device:
        lost, forgotten = device.context(copy_xclbin()), device.context(copy_xclbin())
        numbers_of_both = {lost.handle, forgotten.handle}
        teardown.flush(device.node.client)
        later = {}
        for _ in range(400):
            context = device.context(copy_xclbin())
            if context.handle in numbers_of_both:
                later[context.handle] = context
            else:
                context.close()
            if len(later) == 2:
                break
        assert set(later) == numbers_of_both
        with pytest.raises(errors.BadArgument):
            lost.run(packet.register_map(0, 15))
        lost.close()
        del forgotten
        gc.collect()
        reap()
        assert set(device.node.client.contexts) == numbers_of_both
        for context in later.values():
            context.close()
        assert device.contexts() == ()


def test_contexts_made_after_a_loss_are_kept_when_it_is_found():
    with opened("driver=6.18.5") as device:
        old = device.context(copy_xclbin())
        teardown.flush(device.node.client)
        new = device.context(copy_xclbin())
        old.close()
        assert list(device.node.client.contexts) == [new.handle]
        assert device.client.losses == 1
        new.close()
        assert device.contexts() == ()


def test_a_context_that_another_thread_makes_is_kept_when_one_is_lost_before_it_is_configured():
    made = []

    def lose(request, address):
        if request == CONFIG and not made:
            made.append(None)
            teardown.flush(device.node.inner.client)
            made[0] = device.context(copy_xclbin())

    with Device.open(ProxyNode(open_node("emu:quiet,threads=1,driver=6.18"), lose)) as device:
        with device.context(copy_xclbin()) as context:
            assert set(device.node.inner.client.contexts) == {made[0].handle, context.handle}
            made[0].close()
        assert device.contexts() == ()


def test_what_is_in_flight_in_a_new_context_goes_on_when_an_older_one_is_found_lost():
    with opened("driver=6.18.5") as device:
        first, second = adder(device, 64, 1, variant=1), adder(device, 64, 2, variant=2, delay_us=100_000)
        a, b, c = numbers(device, 16), device.alloc(64), device.alloc(64)
        first.run(a, b)
        teardown.flush(device.node.client)
        running = second.start(a, c)
        first.start(a, b).wait(None, [b])
        running.wait(None, [c])
        np.testing.assert_array_equal(c.view("u4"), np.arange(2, 18, dtype="u4"))
        second.run(a, c)
        assert device.pool.stats.recoveries == 1


def test_a_start_in_a_lost_context_that_a_handler_cuts_short_leaves_nothing_in_flight():
    """A handler's exception while the loss is dealt with, which makes no call that it could come out of."""
    destroy = lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX

    def interrupt(request, address):
        if request == destroy and armed:
            armed.clear()
            raise RuntimeError("a handler's")

    armed = []
    with Device.open(ProxyNode(open_node("emu:quiet,threads=1,driver=6.18"), interrupt)) as device:
        lost = device.context(copy_xclbin())
        teardown.flush(device.node.inner.client)
        other = device.context(copy_xclbin())
        armed.append(True)
        with pytest.raises(errors.BadArgument):
            lost.run(packet.register_map(0, 15))
        assert lost.in_flight() == set() and lost.idle()
        armed.clear()
        lost.close()
        other.close()
        assert device.contexts() == ()


@pytest.mark.parametrize("driver", ["oot-legacy", "oot-2025-12"])
def test_the_pool_evicts_where_a_full_device_is_enoent(driver):
    with opened(f"driver={driver},slots=16") as device:
        kernels = [adder(device, 64, i, variant=i) for i in range(34)]
        a, b = numbers(device, 16), device.alloc(64)
        for i, kernel in enumerate([*kernels, *kernels[:2]]):
            kernel.run(a, b, outputs=[b])
            np.testing.assert_array_equal(b.view("u4"), np.arange(i % 34, 16 + i % 34, dtype="u4"))
        assert (device.pool.resident, device.pool.swaps) == (32, 4)


def test_a_full_legacy_device_is_told_with_its_own_limit():
    with opened("driver=oot-legacy") as device:
        held = [device.context(copy_xclbin(i)) for i in range(32)]
        with pytest.raises(errors.NoFreeContext) as caught:
            device.context(copy_xclbin(32))
        assert caught.value.certain
        assert "all 32 hardware contexts" in str(caught.value)
        assert "heap" not in str(caught.value)
        for context in held:
            context.close()


@pytest.mark.parametrize(("driver", "most"), [("7.3", 512), ("6.18", 64), ("oot-legacy", 64)])
def test_a_full_heap_promises_what_the_driver_has(driver, most):
    with opened(f"driver={driver}") as device:
        device.alloc(48 << 20, "dev")
        if most > 64:
            device.alloc(48 << 20, "dev")
        with pytest.raises(errors.OutOfHeap) as caught:
            kept = [device.alloc(48 << 20, "dev") for _ in range(12)]
            del kept
        assert caught.value.limit == most << 20
        assert f"{most << 20} is the most it can have" in str(caught.value)


@pytest.mark.parametrize("driver", DRIVERS)
def test_read_only_memory_is_taken_or_refused_for_what_it_is(driver, tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(np.arange(1024, dtype="u4").tobytes())
    kind = PERSONALITIES[driver]
    with opened(f"driver={driver}") as device, path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
        if kind.user_pointers == "ro":
            with device.wrap(memory) as source:
                target = device.alloc(4096)
                adder(device, 4096, 5).run(source, target, outputs=[target])
                np.testing.assert_array_equal(target.view("u4"), np.arange(5, 1029, dtype="u4"))
            return
        with pytest.raises(errors.BadArgument) as caught:
            device.wrap(memory)
        assert "locked-memory" not in str(caught.value)


@pytest.mark.parametrize("driver", ["6.14", "6.18", "7.3", "oot-2025-06"])
def test_the_firmware_gets_every_buffer_of_a_packet_and_nothing_of_an_earlier_one(driver, monkeypatch):
    """Linux 6.18 copies nineteen argument words of a single command: more would be lost, and fewer would be
    followed by what an earlier packet left."""
    with opened(f"driver={driver}") as device:
        npu = device.node.driver.npu
        seen, submit = [], npu.submit

        def look(context, slots, *more):
            seen.append(slots[-1].buffers())
            return submit(context, slots, *more)

        monkeypatch.setattr(npu, "submit", look)
        kernel = adder(device, 64, 1)
        buffers = [device.alloc(64) for _ in range(10)]
        for count in (7, 10, 8, 2, 5):
            kernel.start(*buffers[:count]).wait()
            given = [address for address in seen[-1] if address]
            assert given == [buffer.address for buffer in buffers[:count]]


def test_doctor_and_info_name_the_kernel_of_the_driver_that_is_emulated(capsys):
    from amdxdna.cli import main

    release = os.uname().release
    for driver, kernel in (("6.18", "6.18.15"), ("oot-2025-12", "6.17.13")):
        device = f"emu:quiet,driver={driver}"
        main(["info", "--device", device])
        told = capsys.readouterr().out
        assert f"Linux {kernel}" in told and release not in told
        main(["doctor", "--device", device])
        told = " ".join(capsys.readouterr().out.split())
        assert f"on Linux {kernel} (emulated; this machine runs {release})" in told


def test_the_vm_suites_heap_growth_tells_drivers_apart():
    from tests.conformance.differences import LINUX_6_18
    from tests.vm.binding_side import heap_growth

    with opened("driver=7.3") as device:
        heap_growth(device)
    words = LINUX_6_18["binding.heap_growth"].words
    with opened("driver=6.18") as device, pytest.raises(errors.OutOfHeap, match=words):
        heap_growth(device)
