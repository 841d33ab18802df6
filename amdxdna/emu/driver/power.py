"""SET_STATE: power mode and preemption (aie2_pci.c, aie2_pm.c)."""

from __future__ import annotations

import errno
from typing import Any

from amdxdna._native import lib
from amdxdna.emu.driver import clocks, minors
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.objects import Client


def set_state(client: Client, args: Any) -> None:
    """SET_STATE: the power mode, and preemption from its minor on; EOPNOTSUPP for anything else."""
    with client.device.lock:
        if args.param == lib.DRM_AMDXDNA_SET_POWER_MODE:
            _power_mode(client, args.buffer)
        elif (
            args.param in (lib.DRM_AMDXDNA_SET_FORCE_PREEMPT, lib.DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT)
            and client.device.kind.level >= minors.PREEMPTION
        ):
            _preempt(client, args.param, args.buffer)
        else:
            raise error(errno.EOPNOTSUPP)


def _power_mode(client: Client, address: int) -> None:
    device = client.device
    mode, *pad = client.user.read(address, 8)
    if any(pad) or mode > lib.POWER_MODE_TURBO:
        raise error(errno.EINVAL)
    if mode in (lib.POWER_MODE_LOW, lib.POWER_MODE_MEDIUM) and not device.kind.all_power_modes:
        raise error(errno.EOPNOTSUPP)
    if mode == device.power_mode:
        return
    if mode == lib.POWER_MODE_TURBO and device.npu.contexts:
        raise error(errno.EINVAL)
    device.power_mode = mode
    device.level = {
        lib.POWER_MODE_DEFAULT: device.default_level,
        lib.POWER_MODE_LOW: 0,
        lib.POWER_MODE_MEDIUM: clocks.TOP // 2,
    }.get(mode, clocks.TOP)


def _preempt(client: Client, param: int, address: int) -> None:
    state, *pad = client.user.read(address, 8)
    if state > 1 or any(pad):
        raise error(errno.EINVAL)
    if param == lib.DRM_AMDXDNA_SET_FORCE_PREEMPT:
        client.device.force_preempt = state
    else:
        client.device.frame_boundary_preempt = state
