"""The emulated NPU's xclbins: one a kernel family, each with one PDI that names the family."""

from __future__ import annotations

from functools import cache

from amdxdna.emu.kernels.families import Family, pdi

KERNEL_NAME = "MLIR_AIE"
COLUMNS = 8


@cache
def xclbin_bytes(family: Family | str) -> bytes:
    """The xclbin of `family` (a Family, or its name: "gemm", "gemv", "copy"): 1 PDI, 1 CU, 8 columns.

    The same family always gives the same bytes. Raises ValueError for a name that is no family.
    """
    from amdxdna.xclbin.writer import KernelSpec, PdiSpec, build

    if isinstance(family, str):
        try:
            family = Family[family.upper()]
        except KeyError:
            known = ", ".join(f.label for f in Family)
            raise ValueError(f"kernel family {family!r} is unknown; known: {known}") from None
    return build([PdiSpec(pdi(family))], [KernelSpec(KERNEL_NAME)], columns=COLUMNS)
