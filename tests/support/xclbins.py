"""Xclbins that tests make."""

from __future__ import annotations

from amdxdna.xclbin import Xclbin, writer
from tests.support.binding import COPY


def distinct(number: int, nbytes: int = 40_000) -> Xclbin:
    """A copy xclbin with a PDI like no other's."""
    data = COPY + number.to_bytes(4, "little") + bytes(nbytes - len(COPY) - 4)
    return Xclbin.read(writer.build([writer.PdiSpec(data)], [writer.KernelSpec("COPY")]))


PDI_A = bytes(range(256)) * 5

PDI_B = b"second configuration" * 9


def two_pdis() -> bytes:
    return writer.build(
        [writer.PdiSpec(PDI_A, (0x901, 0x903)), writer.PdiSpec(PDI_B, (0x902,))],
        [
            writer.KernelSpec("FIRST", 0x901, "one"),
            writer.KernelSpec("SECOND", 0x902, "two", 1),
            writer.KernelSpec("THIRD", 0x903, "three"),
        ],
        columns=4,
        start_columns=(0, 4),
        ops_per_cycle=1024,
        inference_fingerprint=77,
    )
