"""Which variant of the C kernels runs.

The best one the CPU has, unless AMDXDNA_EMU_ISA names another: portable, avx2 (with FMA), avx512 (VNNI and
VBMI), avx512bf16 (the same with bf16 products in the GEMM).
"""

from __future__ import annotations

import os
from functools import cache

from .. import _kernels

VARIABLE = "AMDXDNA_EMU_ISA"


def variants() -> list[str]:
    """Names of all variants, slowest first; a name's place plus one is the C functions' `isa`."""
    names: list[str] = []
    while (name := _kernels.lib.emu_isa_name(len(names))) != _kernels.ffi.NULL:
        names.append(_kernels.ffi.string(name).decode())
    return names


def supported() -> list[str]:
    """Names of the variants this CPU runs."""
    return [name for index, name in enumerate(variants()) if _kernels.lib.emu_isa_supported(index)]


@cache
def chosen() -> int:
    """The C functions' `isa` of the variant to use, decided once a process.

    Raises ValueError when AMDXDNA_EMU_ISA names a variant that does not exist or that this CPU lacks.
    """
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return _kernels.lib.emu_isa_default() + 1
    if asked not in supported():
        raise ValueError(f"{VARIABLE}={asked}: this CPU runs {', '.join(supported())}")
    return variants().index(asked) + 1
