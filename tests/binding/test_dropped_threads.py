"""Threads that drop what they make at random: results stay right, everything comes back. Forgotten nodes."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from amdxdna import buffer as buffer_module
from amdxdna import causes, errors, ioctl
from amdxdna import device as device_module
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.opening import open_node
from amdxdna.reaper import reap
from tests.support.binding import ProxyNode, adder, copy_xclbin

SECONDS = 60.0
"""After which a thread is taken to hang."""


class Worker(threading.Thread):
    """Makes, runs, closes and drops, as its seed says, until it has done `steps` things."""

    def __init__(self, device: Device, seed: int, steps: int) -> None:
        super().__init__(daemon=True)
        self.device, self.rng, self.steps = device, random.Random(seed), steps
        self.trouble: BaseException | None = None
        self.things: list[object] = []

    def run(self) -> None:
        try:
            for _ in range(self.steps):
                getattr(self, self.rng.choice(("kernel", "kernel", "context", "buffers", "drop", "cycle")))()
        except BaseException as error:
            self.trouble = error
        self.things.clear()

    def kernel(self) -> None:
        number = self.rng.randrange(6)
        kernel = adder(self.device, 4096, number, variant=number, delay_us=self.rng.choice((0, 0, 2000)))
        source, target = self.device.alloc(4096), self.device.alloc(4096)
        source.view("u4")[:] = np.arange(1024)
        source.to_device()
        if self.rng.random() < 0.3:
            kernel.start(source, target)  # dropped while it runs
            return
        kernel.run(source, target, outputs=[target])
        np.testing.assert_array_equal(target.view("u4"), np.arange(1024) + number)
        self.things.append((kernel, target))

    def context(self) -> None:
        try:
            context = self.device.context(copy_xclbin(self.rng.randrange(20, 23)))
        except errors.NoFreeContext:
            return  # the others have them all
        if self.rng.random() < 0.5:
            context.close()

    def buffers(self) -> None:
        share = self.device.alloc(8192)
        self.things += [share.sub(4096), self.device.alloc(4096, "dev")]

    def drop(self) -> None:
        while self.things and self.rng.random() < 0.8:
            self.things.pop(self.rng.randrange(len(self.things)))

    def cycle(self) -> None:
        knot: list[object] = [self.things.pop() if self.things else None]
        knot.append(knot)


@pytest.mark.parametrize("seed", range(3))
def test_threads(open_emu, seed):
    device = open_emu(f"slots=5,address={'iova' if seed % 2 else 'pasid'}")
    device.alloc(64, "dev").close()
    gc.collect()
    reap()
    before = device.bo_usage()
    workers = [Worker(device, 10 * seed + n, 60) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS)
    assert not any(worker.is_alive() for worker in workers)
    assert [worker.trouble for worker in workers] == [None] * 4
    end = time.monotonic() + SECONDS
    while device.contexts() or device.bo_usage() != before:
        assert time.monotonic() < end, (device.contexts(), device.bo_usage(), before)
        gc.collect()
        reap()
        time.sleep(0.01)
    assert device.pool.resident == 0


def _close_elsewhere(buffer) -> None:
    closer = threading.Thread(target=buffer.close)
    closer.start()
    closer.join(SECONDS)
    assert not closer.is_alive()


USES = {
    "to_device": lambda kernel, used, other: used.to_device(),
    "from_device": lambda kernel, used, other: used.from_device(64, 64),
    "read": lambda kernel, used, other: used.read(0, 64),
    "write": lambda kernel, used, other: used.write(b"abc"),
    "start": lambda kernel, used, other: kernel.start(used, other).wait(),
    "wait": lambda kernel, used, other: kernel.start(other, used, flush=False).wait(outputs=[used]),
}


@pytest.mark.parametrize("kind", ["whole", "part"])
@pytest.mark.parametrize("use", USES)
def test_a_mapping_lives_as_long_as_a_call_that_uses_it(device, monkeypatch, use, kind):
    """Another thread closes the buffer while its lines are being flushed, without the interpreter's lock."""
    kernel, other = adder(device, 4096, 1), device.alloc(4096)
    whole = device.alloc(1 << 20, flush=False)
    used = whole
    if kind == "part":
        used = whole.sub(8192)
        whole.close()
    start, mapped = used.host_address, []
    used.clean = False

    def flush(address: int, size: int) -> None:
        if start <= address < start + (1 << 20):
            _close_elsewhere(used)
            reap()
            with open("/proc/self/maps") as maps:
                spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
            mapped.append(any(first <= address < last for first, last in spans))
            if not mapped[-1]:
                return
        lib.xdna_flush(address, size)

    monkeypatch.setattr(buffer_module, "lib", SimpleNamespace(xdna_flush=flush))
    with contextlib.suppress(errors.Closed):
        USES[use](kernel, used, other)
    monkeypatch.undo()
    assert mapped == [True]
    with pytest.raises(errors.Closed):
        used.flush_for_start()
    kernel.run(other, other)


@pytest.mark.parametrize("request_name", ["CREATE_BO", "EXEC_CMD"])
def test_a_buffer_that_is_closed_while_a_start_makes_ready(request_name):
    """Its handle is nobody's then, or the new command buffer's."""
    victims = []

    def closing(request: int, address: int) -> None:
        if request != ioctl.REQUESTS[request_name] or not victims:
            return
        if request_name == "CREATE_BO":
            kind = ffi.cast("struct amdxdna_drm_create_bo *", address).type
            if kind != lib.AMDXDNA_BO_CMD:  # of what the context needs, which is made under a lock
                return
        _close_elsewhere(victims.pop())

    with Device.open(ProxyNode(open_node("emu:quiet,threads=1"), closing)) as device:
        kernel, other = adder(device, 4096, 1), device.alloc(4096)
        for chained in (False, True):
            victim = device.alloc(4096)
            victims.append(victim)
            with pytest.raises(errors.Closed):
                if chained:
                    device.pool.chain([(kernel, [victim, other]), (kernel, [other, other])])
                else:
                    kernel.start(victim, other)
            assert not victims
            kernel.run(other, other)


def test_a_device_that_is_closed_under_a_wait():
    armed = []

    def closing(request: int, address: int) -> None:
        if request == ioctl.REQUESTS["SYNCOBJ_TIMELINE_WAIT"] and armed:
            _close_elsewhere(armed.pop())

    with Device.open(ProxyNode(open_node("emu:quiet,threads=1"), closing)) as device:
        kernel, buffer = adder(device, 4096, 1), device.alloc(4096)
        kernel.run(buffer, buffer)  # a wait for a context's first command may need no call
        run = kernel.start(buffer, buffer)
        armed.append(device)
        with pytest.raises(errors.Closed):
            run.wait(outputs=[buffer])
        assert not armed


def test_the_watchdog_of_a_dropped_device_ends_at_once():
    before = set(threading.enumerate())
    device = Device.open("emu:quiet,tdr=120")
    kernel, buffer = adder(device, 64, 1), device.alloc(64)
    kernel.run(buffer, buffer)
    started = [thread for thread in threading.enumerate() if thread not in before]
    assert started
    device.close()
    del device, kernel, buffer
    gc.collect()
    reap()
    for thread in started:
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def single_open(monkeypatch):
    """Kernel nodes, emulated here, of a driver that gives a process one open at a time."""
    nodes: list[ProxyNode] = []

    def fake_open(where: str) -> ProxyNode:
        if any(not node.closes for node in nodes):
            raise causes.from_errno("open", 16, where)
        node = ProxyNode(open_node("emu:quiet,threads=1"))
        node.path = where
        nodes.append(node)
        return node

    monkeypatch.setattr(device_module, "open_node", fake_open)
    return nodes


def test_a_forgotten_kernel_node_is_closed_before_the_next_open(single_open, tmp_path):
    path = str(tmp_path / "accel0")
    for count in range(1, 6):
        device = Device.open(path)
        pair = device.alloc(64), device.alloc(64)
        adder(device, 64, 1).run(*pair)
        assert len(single_open) == count
        del device, pair
    device = Device.open(path)
    device.me = [device]  # only the cycle collector finds it
    gc.disable()
    try:
        del device
        again = Device.open(path)  # the same open, still there
        assert len(single_open) == 6 and not again.client.closed
        again.close()
    finally:
        gc.enable()
    gc.collect()
    reap()
    assert all(node.closes == 1 for node in single_open)


def test_another_node_that_is_garbage_is_closed_for_one_that_is_refused(single_open, tmp_path):
    device = Device.open(str(tmp_path / "accel0"))
    device.me = [device]
    gc.disable()
    try:
        del device
        with Device.open(str(tmp_path / "accel1")) as other:
            other.alloc(64)
    finally:
        gc.enable()
    assert [node.closes for node in single_open] == [1, 1]


def test_a_dropped_device_leaves_the_open_to_the_others(single_open, tmp_path):
    path = str(tmp_path / "accel0")
    first, second = Device.open(path), Device.open(path)
    assert first.pool is second.pool
    buffer = first.alloc(64)
    del first
    reap()
    buffer.write(b"still there")
    second.close()
    assert single_open[0].closes == 1
    with pytest.raises(errors.Closed):
        buffer.read()


def test_a_device_opened_again_while_buffers_live(single_open, tmp_path):
    path = str(tmp_path / "accel0")
    buffer = Device.open(path).alloc(64)
    reap()
    with Device.open(path) as again:
        assert again.client is buffer.client and len(single_open) == 1
        adder(again, 64, 1).run(buffer, again.alloc(64))
    assert single_open[0].closes == 1
