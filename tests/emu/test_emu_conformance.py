"""The conformance suite, which Linux's own driver passes in the guest, on the emulated device."""

from __future__ import annotations

import functools
import traceback

import pytest

from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.personality import PERSONALITIES
from tests.conformance import columns, differences, kit, suite

assert suite.MODULES
SLOW = {"timeouts"}
TDR = 0.5
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
    slow = {"tdr": TDR} if name.partition(".")[0] in SLOW else {}
    given = {**slow, **kit.CASES[name].options}
    options = EmuOptions(address=address, threads=1, quiet=True, privileged=True, **given)
    target = kit.Target(functools.partial(EmuNode, options), kernel=False, tdr=TDR)
    try:
        kit.run_case(name, target)
    except kit.Skip as reason:
        pytest.skip(str(reason))


def test_every_driver_has_a_column() -> None:
    assert set(columns.COLUMNS) == set(PERSONALITIES)
    assert not {name for column in columns.COLUMNS.values() for name in column} - set(kit.CASES)


@pytest.mark.parametrize("driver", [name for name in PERSONALITIES if name != "7.3"])
def test_other_drivers_differ_as_their_columns_say(driver: str) -> None:
    column = columns.COLUMNS[driver]
    wrong = {}
    for name, case in kit.CASES.items():
        if KERNEL_OPTIONS & set(case.options) or name.partition(".")[0] in SLOW:
            continue
        options = EmuOptions(
            **{"driver": driver, "threads": 1, "quiet": True, "privileged": True, **case.options}
        )
        target = kit.Target(functools.partial(EmuNode, options), kernel=False)
        try:
            kit.run_case(name, target)
        except kit.Skip:
            continue
        except (AssertionError, OSError) as error:
            measured = differences.LINUX_6_18_OLDER.get(name) if driver.startswith("6.18") else None
            said = "".join(traceback.format_exception(error))
            if name not in column or (measured and measured.words and measured.words not in said):
                wrong[name] = said
        else:
            if name in column:
                wrong[name] = f"no difference, though the column says: {column[name]}"
    assert not wrong
