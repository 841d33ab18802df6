"""The conformance suite on Linux's own driver."""

from __future__ import annotations

import pytest

from tests.conformance import kit, suite

from . import guest
from .conftest import Guests, Probe

assert suite.MODULES


@pytest.mark.parametrize("name", kit.CASES)
def test_case(name: str, probe: Probe, guests: Guests) -> None:
    """One case in a process of its own in the guest, on a freshly probed device."""
    case = kit.CASES[name]
    machine = probe(**case.options)
    try:
        answer = machine.request(
            "call", timeout=case.seconds, target="tests.vm.guest_side:run", arguments={"name": name}
        )
    except guest.GuestLost as lost:
        guests.lose()
        if case.breaks is not None and case.breaks in str(lost):
            pytest.skip(f"the kernel crashed in {case.breaks}")
        raise
    if "skip" in answer.value:
        pytest.skip(answer.value["skip"])
    assert "error" not in answer.value, answer.value["error"] + "\n" + "\n".join(answer.log)
    if case.breaks is not None and any(case.breaks in line for line in answer.log):
        guests.lose()
        return
    guest.check_log(answer.log, case.warns)
    kit.until(lambda: machine.function.firmware.contexts == 0, kit.LIMIT, "the firmware losing every context")
