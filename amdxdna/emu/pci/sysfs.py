"""What sysfs says of the emulated NPU's PCI function, whose XRT reads some of."""

from __future__ import annotations

from amdxdna.emu.pci.registers import CLASS_SIGNAL_PROCESSING, DEVICE_NPU2, REVISION_STRIX, VENDOR_AMD

FUNCTION = "0000:c5:00.1"
"""Where Strix parts have it. In domain 0: to XRT a domain is a number, and it loses any text."""


def attributes(function: str) -> dict[str, str]:
    """Files of the function's folder, but for those of the driver: name -> text."""
    ids = f"{VENDOR_AMD:04X}:{DEVICE_NPU2:04X}"
    return {
        "vendor": f"{VENDOR_AMD:#06x}",
        "device": f"{DEVICE_NPU2:#06x}",
        "revision": f"{REVISION_STRIX:#04x}",
        "class": f"{CLASS_SIGNAL_PROCESSING:#08x}",
        "subsystem_vendor": f"{VENDOR_AMD:#06x}",
        "subsystem_device": f"{DEVICE_NPU2:#06x}",
        "enable": "1",
        "numa_node": "-1",
        "vbnv": "NPU Strix",
        "device_type": "0",
        "uevent": f"DRIVER=amdxdna\nPCI_CLASS={CLASS_SIGNAL_PROCESSING:X}\nPCI_ID={ids}\n"
        f"PCI_SUBSYS_ID={ids}\nPCI_SLOT_NAME={function}",
    }
