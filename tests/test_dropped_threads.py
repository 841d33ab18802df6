"""Threads that drop what they make at random: results stay right, everything comes back. Forgotten nodes."""

from __future__ import annotations

import gc
import random
import threading
import time

import numpy as np
import pytest

from amdxdna import device as device_module
from amdxdna import errors
from amdxdna.device import Device
from amdxdna.opening import open_node
from amdxdna.reaper import reap
from tests.binding import ProxyNode, adder, copy_xclbin

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


@pytest.fixture
def single_open(monkeypatch):
    """Kernel nodes, emulated here, of a driver that gives a process one open at a time."""
    nodes: list[ProxyNode] = []

    def fake_open(where: str) -> ProxyNode:
        if any(not node.closes for node in nodes):
            raise errors.from_errno("open", 16, where)
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
