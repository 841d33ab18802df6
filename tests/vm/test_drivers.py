"""Other drivers than the pinned kernel's in IOVA mode: conformance, the binding, failures and the main job.

One guest a column of :mod:`tests.conformance.differences`, each with what that driver does otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from qwen35.rootfs.python import APP
from tests.conformance import kit, suite
from tests.conformance.differences import COLUMNS, table

from . import guest, image
from .binding_side import TESTS
from .conftest import CHECKOUT, Driver
from .failures_side import STATUSES, told_wrong
from .test_main_job import PROMPT, QUESTION, built_in, in_guest, on_host

assert suite.MODULES and built_in


def call(driver: Driver, target: str, timeout: float = 400, **arguments: Any) -> guest.Answer:
    """Calls a function in the guest."""
    return driver.machine.request("call", timeout=timeout, target=target, arguments=arguments)


def skip_what_is_not_run(driver: Driver, name: str) -> None:
    """Skips what the driver's column only notes."""
    difference = driver.differences.get(name)
    if difference is not None and difference.words is None:
        pytest.skip(f"{driver.name}: {difference.does}")


def settle(driver: Driver, name: str, answer: guest.Answer, warns: str | None = None) -> None:
    """Holds an answer against the driver's column."""
    if "skip" in answer.value:
        pytest.skip(answer.value["skip"])
    error = answer.value.get("error")
    expected = driver.differences.get(name)
    if expected is None:
        assert error is None, f"{error}\n" + "\n".join(answer.log)
    else:
        assert error is not None, f"{driver.name} does what the suite says: take {name} out of the table"
        assert expected.words is not None and expected.words in error, error
    guest.check_log(answer.log, warns)


@pytest.fixture
def clean(driver: Driver) -> Iterator[Driver]:
    """The driver, freshly probed; contexts that the firmware still has afterwards fail the test."""
    driver.probe()
    yield driver
    kit.until(
        lambda: driver.machine.function.firmware.contexts == 0, kit.LIMIT, "the firmware losing every context"
    )


@pytest.mark.parametrize("name", kit.CASES)
def test_conformance(name: str, driver: Driver) -> None:
    """A case of the suite, in a process of its own, on a freshly probed device."""
    case = kit.CASES[name]
    if case.breaks is not None:
        pytest.skip(f"the kernel may crash in {case.breaks}, and this guest serves many tests")
    skip_what_is_not_run(driver, name)
    driver.probe(**case.options)
    answer = call(driver, "tests.vm.guest_side:run", case.seconds, name=name)
    settle(driver, name, answer, case.warns)
    kit.until(
        lambda: driver.machine.function.firmware.contexts == 0, kit.LIMIT, "the firmware losing every context"
    )


@pytest.mark.parametrize("name", TESTS)
def test_binding(name: str, clean: Driver) -> None:
    """The binding and its context pool."""
    skip_what_is_not_run(clean, f"binding.{name}")
    answer = call(clean, "tests.vm.binding_side:run", name=name, pasid=True, reports=not clean.older)
    settle(clean, f"binding.{name}", answer)


@pytest.mark.parametrize("position", [None, 0, 1], ids=["single", "first", "second"])
def test_no_failure_is_read_as_success(position: int | None, clean: Driver) -> None:
    """Each firmware status, alone and in a chain: an error, which never names a member that did not fail."""
    answer = call(clean, "tests.vm.failures_side:statuses", positions=[position])
    assert "error" not in answer.value, answer.value["error"]
    assert len(answer.value["result"]) == len(STATUSES)
    assert told_wrong(answer.value["result"], position) == {}


def test_subprocesses(clean: Driver) -> None:
    """Contexts survive subprocess.run, a shell and a fork, or are replaced."""
    answer = call(clean, "tests.vm.failures_side:subprocesses")
    assert "error" not in answer.value, answer.value["error"]
    guest.check_log(answer.log)


def test_children_that_start_beside_commands(clean: Driver) -> None:
    """Contexts that go between any two calls, as another thread's children end, cost no wrong result.

    Not on 6.18: that driver can dereference NULL where a submit meets the end of its context (seen on .5).
    """
    if clean.older:
        pytest.skip("this driver may crash the kernel when a child ends beside a submit")
    answer = call(clean, "tests.vm.failures_side:children_beside", children=30)
    assert "error" not in answer.value, answer.value["error"]
    found = answer.value["result"]
    assert (found["losses"], found["told"]) == (0, 0), found
    guest.check_log(answer.log)


def test_same_token_ids(clean: Driver, image_bundle: Any) -> None:
    """The model gives the token ids that the emulated device in process gives."""
    program = f"/{APP}/tests/vm/token_ids.py"
    out, _ = in_guest(clean.machine, ["python3", program, f"/{image.BUNDLE}", "auto", PROMPT, "16"])
    here = json.loads(on_host(["-m", "tests.vm.token_ids", str(image_bundle), "emu", PROMPT, "16"]))
    assert json.loads(out)["ids"] == here["ids"]


def test_main_job(built_in: None, clean: Driver) -> None:
    """A question to the built-in model: the emulated device's answer."""
    options = ["--prompt", QUESTION, "--greedy", "--max-new", "12", "--quiet"]
    out, _ = in_guest(clean.machine, ["python3", "-m", "qwen35", *options])
    assert out == on_host(["-m", "qwen35", *options, "--device", "emu"])
    assert out.strip()


def test_table() -> None:
    """README's table of differences is the one that is held here, and names cases that there are."""
    for column in COLUMNS.values():
        for name in column:
            kind, _, rest = name.partition(".")
            assert rest in TESTS if kind == "binding" else name in kit.CASES, name
    text = (CHECKOUT / "tests/conformance/README.md").read_text()
    assert "\n".join(table()) in text, "write the output of python -m tests.conformance.differences there"
