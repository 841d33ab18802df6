"""Which device a bundle runs on: the emulator's kernels must never reach real firmware.

A bundle that `export` wrote holds kernels of the emulated NPU. Their device images are markers, and what real
firmware does with one is unknown, so the device is asked for its firmware version first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qwen35.bundle.sizes import REAL_BUNDLE
from qwen35.errors import ModelError

if TYPE_CHECKING:
    from amdxdna import Device
    from qwen35.bundle import Bundle

__all__ = ["open_device"]

_PUBLISHED = f"for this NPU use a compiled bundle such as {REAL_BUNDLE}"


def open_device(bundle: Bundle, spec: str | int | None, note: Callable[[str], None] | None = None) -> Device:
    """Opens the device `spec` names (as Device.open) for a bundle's kernels; the caller closes it.

    "auto" with emulated kernels falls back to the emulated NPU, which `note` is told. Raises ModelError where
    the device cannot run the bundle's kernels, before gigabytes of weights are read, and the binding's
    XdnaError.
    """
    from amdxdna import Device

    automatic = spec is None or spec == "auto"
    device = Device.open(spec)
    try:
        if bundle.emulated == _is_emulated(device, bundle.emulated):
            return device
    except BaseException:
        device.close()
        raise
    where = device.node.path
    device.close()
    if not bundle.emulated:
        found = "no NPU was found" if automatic and where == "emu" else f"{where} is an emulated one"
        raise ModelError(
            f"the bundle's kernels are compiled for an NPU and {found}, which does not run compiled code",
            str(bundle.path),
            "see python -m amdxdna doctor, or export a checkpoint for the emulated NPU",
        )
    if not automatic:
        raise ModelError(
            f"the bundle's kernels are the emulated NPU's and {where} is a real one",
            str(bundle.path),
            f"use --device emu, or {_PUBLISHED}",
        )
    if note is not None:
        note(f"{where} is left alone: this bundle's kernels are the emulated NPU's; {_PUBLISHED}")
    return Device.open("emu")


def _is_emulated(device: Device, certain: bool) -> bool:
    """Whether the emulated NPU answers.

    A driver that does not tell its firmware raises XdnaError where the answer must be `certain`.
    """
    from amdxdna import query
    from amdxdna.errors import XdnaError

    try:
        return query.firmware_version(device.client).emulated
    except XdnaError:
        if certain:
            raise
        return False
