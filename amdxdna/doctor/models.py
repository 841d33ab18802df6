"""The NPUs there are, by PCI device id and revision, and where each one's firmware lies.

Revisions from the device table of drivers/accel/amdxdna/amdxdna_pci_drv.c, firmware folders from the names in
Linux 7.3.4's module; names from the same driver's npu*_regs.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from amdxdna.sysfs import NPU_IDS


@dataclass(frozen=True)
class Model:
    """One kind of NPU: the driver's name for it, generation, product, firmware folders below amdnpu/."""

    name: str
    generation: str
    product: str
    folders: tuple[str, ...]


_NPU3 = Model("npu3", "AIE4", "a newer NPU", ())
_MODELS: dict[tuple[int, int | None], Model] = {
    (0x1502, None): Model("npu1", "XDNA1", "Phoenix / Hawk Point", ("1502_00",)),
    (0x17F0, 0x00): Model("npu2", "XDNA2", "early Strix", ("17f0_00",)),
    (0x17F0, 0x10): Model("npu4", "XDNA2", "Strix Point", ("17f0_10",)),
    (0x17F0, 0x11): Model("npu5", "XDNA2", "Strix Halo", ("17f0_11",)),
    (0x17F0, 0x20): Model("npu6", "XDNA2", "Krackan Point", ("17f0_20", "17f0_10")),
    **{(device, None): _NPU3 for device in NPU_IDS - {0x1502, 0x17F0}},
}


def model_of(device: int, revision: int) -> Model:
    """The kind of a PCI function that is an NPU; an unknown revision gives a model that says so."""
    found = _MODELS.get((device, revision)) or _MODELS.get((device, None))
    if found is not None:
        return found
    return Model("unknown", "XDNA2", f"unknown revision {revision:02x}", (f"{device:04x}_{revision:02x}",))
