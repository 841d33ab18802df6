"""What is dropped comes back on every driver that the emulated one can be."""

from __future__ import annotations

import numpy as np
import pytest

from amdxdna.emu.kernels import stream
from amdxdna.emu.personality import PERSONALITIES
from tests.support.binding import adder, copy_xclbin
from tests.support.dropping import begin, until
from tests.support.xclbins import distinct


@pytest.mark.parametrize("driver", PERSONALITIES)
def test_dropped(open_emu, driver):
    """More contexts than the driver gives, and more PDIs than its heap holds, one after the other."""
    device = open_emu(f"driver={driver}")
    source, target = device.alloc(4096), device.alloc(4096)
    source.view("u4")[:] = np.arange(1024)
    for number in range(40):
        context = device.context(copy_xclbin(number))
        run, *_ = begin(device, context, 1000, number)
        del context, run
    kernels = [
        device.pool.kernel(distinct(number, 1 << 20), stream.copy(4096, number)) for number in range(70)
    ]
    for number, kernel in enumerate(kernels):
        kernel.run(source, target, outputs=[target])
        np.testing.assert_array_equal(target.view("u4"), np.arange(1024) + number)
    del kernel, kernels
    for number in range(40):
        adder(device, 4096, number, variant=number).run(source, target, outputs=[target])
    np.testing.assert_array_equal(target.view("u4"), np.arange(1024) + 39)
    del _
    until(lambda: not device.contexts() and not device.client.device_bytes)
    assert device.pool.resident == 0
