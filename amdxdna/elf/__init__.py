"""Control code in ELF files: read and patched here, loaded for a run by :mod:`amdxdna.controlcode`.

`sections` reads any ELF file, `control` what of it is for the NPU, `patch` writes addresses into it.
"""

from amdxdna.elf.control import Code, ControlElf, ElfKernel
from amdxdna.elf.patch import Kind, Patch

__all__ = ["Code", "ControlElf", "ElfKernel", "Kind", "Patch"]
