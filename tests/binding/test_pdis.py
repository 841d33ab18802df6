"""Where PDIs are put: the firmware must not meet one at an address where it has seen another."""

from __future__ import annotations

import random

import numpy as np
import pytest

from amdxdna import pdis
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.opening import open_node
from tests.support.binding import ProxyNode
from tests.support.xclbins import distinct

MIB = 1 << 20


class Watch:
    """A device that notes which PDI the firmware is given at which address; `stale`: it had seen another."""

    def __init__(self) -> None:
        self.seen: dict[int, bytes] = {}
        self.stale = self.configured = 0
        self.node = ProxyNode(open_node("emu:quiet,threads=1,slots=4"), self._look)
        self.device = Device.open(self.node)
        self.pair = self.device.alloc(4096), self.device.alloc(4096)
        self.pair[0].view("u4")[:] = np.arange(1024)

    def _look(self, request: int, address: int) -> None:
        if request != lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX:
            return
        config = ffi.cast("struct amdxdna_drm_config_hwctx *", address)
        cus = ffi.cast("struct amdxdna_hwctx_param_config_cu *", config.param_val)
        bo = self.node.inner.client.handles[cus.cu_configs[0].cu_bo]
        heap = self.device.heap
        start = bo.dev_address - heap.device
        data = bytes(heap.memory[start : start + 40_000])
        self.configured += 1
        self.stale += self.seen.get(bo.dev_address, data) != data
        self.seen[bo.dev_address] = data

    def kernel(self, number: int):
        return self.device.pool.kernel(distinct(number), stream.copy(4096, number))

    def run(self, kernel, number: int) -> None:
        kernel.run(*self.pair, outputs=[self.pair[1]])
        np.testing.assert_array_equal(self.pair[1].view("u4"), np.arange(1024) + number)


@pytest.fixture
def watch():
    found = Watch()
    with found.device:
        yield found


def test_kernels_opened_and_closed(watch):
    for number in range(60):
        kernel = watch.kernel(number)
        watch.run(kernel, number)
        kernel.close()
    assert watch.configured == 60 and watch.stale == 0
    assert watch.device.heap.size == 64 * MIB and watch.device.client.device_bytes == 0


def test_a_mix_of_kernels_that_come_and_go(watch):
    rng = random.Random(11)
    open_kernels: dict[int, object] = {}
    for _ in range(300):
        number = rng.randrange(24)
        if number in open_kernels and rng.random() < 0.4:
            open_kernels.pop(number).close()
            continue
        kernel = open_kernels.get(number) or open_kernels.setdefault(number, watch.kernel(number))
        watch.run(kernel, number)
    assert watch.configured > 60 and watch.stale == 0


def test_the_same_pdi_may_come_back_to_its_place(watch):
    places = set()
    for _ in range(5):
        kernel = watch.kernel(1)
        watch.run(kernel, 1)
        kernel.close()
        places |= set(watch.seen)
    assert len(places) == 1


def test_instructions_do_not_count(watch):
    """Only what the firmware configures from."""
    kernel = watch.kernel(1)  # whose own instructions have their place now
    code = watch.device.alloc(40_000, "dev")
    address = code.address
    code.close()
    watch.run(kernel, 1)
    assert list(watch.seen) == [address]


def test_a_heap_without_another_place(watch, monkeypatch):
    """Then the place seen longest ago is taken; nothing is enlarged or pushed out for it."""
    keep = watch.device.alloc(33 * MIB, "dev", flush=False)
    for number in range(40):
        kernel = watch.kernel(number)
        watch.run(kernel, number)
        kernel.close()
    assert watch.device.heap.size == 64 * MIB and watch.stale > 0
    keep.close()
    monkeypatch.setattr(pdis, "TRIES", 3)
    before = watch.configured
    for number in range(100, 140):
        kernel = watch.kernel(number)
        watch.run(kernel, number)
        kernel.close()
    assert watch.configured == before + 40
