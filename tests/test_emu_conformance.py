"""The conformance suite, which Linux's own driver passes in the guest, on the emulated device."""

from __future__ import annotations

import functools

import pytest

from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from tests.conformance import kit, suite

assert suite.MODULES
SLOW = {"timeouts"}  # two seconds a hang
KERNEL_OPTIONS = {"protocol"}  # of the modelled firmware that only the PCI function speaks


def _cases() -> list[object]:
    cases = []
    for name, case in kit.CASES.items():
        if KERNEL_OPTIONS & set(case.options):
            continue
        for address in ("pasid", "iova"):
            slow = name.partition(".")[0] in SLOW
            if slow and address == "iova":
                continue  # nothing there depends on addresses
            marks = [pytest.mark.slow] if slow else []
            cases.append(pytest.param(name, address, id=f"{name}-{address}", marks=marks))
    return cases


@pytest.mark.parametrize(("name", "address"), _cases())
def test_case(name: str, address: str) -> None:
    options = EmuOptions(address=address, threads=1, quiet=True, privileged=True, **kit.CASES[name].options)
    target = kit.Target(functools.partial(EmuNode, options), kernel=False)
    try:
        kit.run_case(name, target)
    except kit.Skip as reason:
        pytest.skip(str(reason))
