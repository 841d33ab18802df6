"""`python -m qwen35 image OUT`: a root that holds the main job and nothing else, to boot or to embed.

`tree` holds the files of it, `python` puts Python and the packages in as far as they are used (`loaded` finds
that out, `elf` says what of a shared object is read), `machine` what a running system has already (busybox,
kernel modules, /init). `archive` writes the tree, `boot` starts it in QEMU on the emulated NPU.
"""

from __future__ import annotations

from qwen35.rootfs.cli import image_main

__all__ = ["image_main"]
