"""The emulated NPU's xclbins: one a kernel family, each with one PDI that names the family."""

from __future__ import annotations

from functools import cache

from amdxdna.emu.kernels.families import Family, pdi

KERNEL_NAME = "MLIR_AIE"
COLUMNS = 8


@cache
def xclbin_bytes(family: Family | str, key: str = "") -> bytes:
    """The xclbin of `family` (a Family, or its name: "gemm", "gemv", "copy"); 1 PDI, 1 CU, 8 columns.

    The same arguments always give the same bytes. Files of one family with different keys differ in the name
    of their CU's instance, so that they get hardware contexts of their own. Raises ValueError for a name that
    is no family.
    """
    from amdxdna.xclbin.writer import KernelSpec, PdiSpec, build

    if isinstance(family, str):
        try:
            family = Family[family.upper()]
        except KeyError:
            known = ", ".join(f.label for f in Family)
            raise ValueError(f"kernel family {family!r} is unknown; known: {known}") from None
    kernel = KernelSpec(KERNEL_NAME, instance=key.upper()) if key else KernelSpec(KERNEL_NAME)
    return build([PdiSpec(pdi(family))], [kernel], columns=COLUMNS)
