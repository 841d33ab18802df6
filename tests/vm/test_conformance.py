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
    except guest.GuestLost:
        said = machine.console.read_text(errors="replace").splitlines()
        guests.lose()
        if guest.broke(said, case.breaks):
            pytest.skip(f"the kernel crashed in {case.breaks}")
        raise
    if guest.broke(answer.log, case.breaks):
        guests.lose()
        pytest.skip(f"the kernel used freed memory in {case.breaks}")
    if "skip" in answer.value:
        pytest.skip(answer.value["skip"])
    assert "error" not in answer.value, answer.value["error"] + "\n" + "\n".join(answer.log)
    guest.check_log(answer.log, case.warns)
    kit.until(lambda: machine.function.firmware.contexts == 0, kit.LIMIT, "the firmware losing every context")
