"""The binding and its context pool on Linux's own driver, on a freshly probed device."""

from __future__ import annotations

import pytest

from . import guest
from .binding_side import TESTS
from .failures_side import STATUSES, told_wrong


@pytest.mark.parametrize("name", TESTS)
def test_binding(name: str, image_guest: guest.Machine) -> None:
    image_guest.rebind()
    answer = image_guest.request(
        "call", timeout=120, target="tests.vm.binding_side:run", arguments={"name": name}
    )
    assert "error" not in answer.value, answer.value["error"] + "\n" + "\n".join(answer.log)
    guest.check_log(answer.log)
    assert image_guest.function.firmware.contexts == 0, "the program left contexts behind"


@pytest.mark.parametrize("position", [None, 0, 1], ids=["single", "first", "second"])
def test_no_failure_is_read_as_success(position: int | None, image_guest: guest.Machine) -> None:
    """Each firmware status, alone and in a chain: an error, which never names a member that did not fail."""
    image_guest.rebind()
    answer = image_guest.request(
        "call", timeout=240, target="tests.vm.failures_side:statuses", arguments={"positions": [position]}
    )
    assert "error" not in answer.value, answer.value["error"]
    assert len(answer.value["result"]) == len(STATUSES)
    assert told_wrong(answer.value["result"], position) == {}
