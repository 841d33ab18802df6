"""The QEMU arguments with which a guest gets the emulated NPU.

What they must be was found by trying (QEMU 11.1, Linux 7.3): guest RAM has to be a shared memfd, since the
function reads and writes it in place; the driver needs an IOMMU, and only Intel's with caching-mode tells
a vfio-user device of the guest's mappings; scalable-mode, AMD's IOMMU and KVM do not work with it.
"""

from __future__ import annotations

import json
import os

# What the guest's kernel needs on its command line: the IOMMU on, and huge pages for the heap, without which
# its 64 MiB become 16,384 single mappings ("always" would give the smallest buffer 2 MiB too:
# Documentation/admin-guide/mm/transhuge.rst). The check of the timer's interrupt fails now and then where the
# host is busy, and the boot hangs.
KERNEL_ARGUMENTS = ("intel_iommu=on", "transparent_hugepage_shmem=within_size", "no_timer_check")
# Module options for the guest's amdxdna: no PASID in QEMU's IOMMU, so user memory goes through IOVAs.
MODULE_ARGUMENTS = ("force_iova=1",)


def arguments(
    socket: str | os.PathLike[str],
    *,
    memory: str = "1G",
    processors: int = 1,
    slot: int = 4,
    ram: str | None = None,
) -> list[str]:
    """Machine, memory, IOMMU and device arguments; firmware, disks and consoles are the caller's.

    `socket`: where the vfio-user server listens. `slot`: the device's number on bus 0 (0000:00:04.0).
    `ram`: a file of `memory` bytes that becomes the guest's RAM, instead of one that QEMU makes.
    """
    backend = (
        f"memory-backend-memfd,id=ram,size={memory},share=on"
        if ram is None
        else f"memory-backend-file,id=ram,size={memory},share=on,mem-path={ram}"
    )
    device = {
        "driver": "vfio-user-pci",
        "id": "npu",
        "addr": f"{slot:x}.0",
        "rombar": 0,
        "socket": {"type": "unix", "path": os.path.abspath(socket)},
    }
    return [
        "-machine",
        "q35,accel=tcg,memory-backend=ram",
        "-cpu",
        "max",
        "-smp",
        str(processors),
        "-m",
        memory,
        "-object",
        backend,
        "-device",
        "intel-iommu,intremap=off,caching-mode=on",
        "-device",
        json.dumps(device),
    ]
