"""The binding and its context pool on Linux's own driver, on a freshly probed device."""

from __future__ import annotations

import pytest

from . import guest
from .binding_side import TESTS


@pytest.mark.parametrize("name", TESTS)
def test_binding(name: str, image_guest: guest.Machine) -> None:
    image_guest.rebind()
    answer = image_guest.request("call", timeout=120, target="tests.vm.binding_side:run",
                                 arguments={"name": name})
    assert "error" not in answer.value, answer.value["error"] + "\n" + "\n".join(answer.log)
    guest.check_log(answer.log)
    assert image_guest.function.firmware.contexts == 0, "the program left contexts behind"
