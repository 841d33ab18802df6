"""A chat on a driver that gives every context up when a child process of the program ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amdxdna.emu.driver import teardown
from qwen35 import GREEDY, Qwen35
from tests.support.models import export

QUESTIONS = ("one two three", "four five", "six seven eight")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("tied"), "tied")


def chat(bundle: Path, device: str, between: Callable[[Any], object]) -> Iterator[str]:
    with Qwen35.load(bundle, 4096, device) as model:
        talk = model.conversation()
        for question in QUESTIONS:
            yield str(talk.ask(question, max_new=12, sampling=GREEDY))
            between(model.device)


def _fork(device: Any) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


BETWEEN: dict[str, Callable[[Any], object]] = {
    "subprocess.run": lambda device: subprocess.run([sys.executable, "-S", "-c", ""], check=True),
    "fork": _fork,
    "lost contexts": lambda device: teardown.flush(device.node.client),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("driver", ["6.14", "6.18", "6.18.5"])
def test_a_chat_goes_on(bundle: Path, driver: str, between: str) -> None:
    expected = list(chat(bundle, "emu:threads=1,quiet", lambda device: None))
    lost: list[int] = []

    def happen(device: Any) -> None:
        lost.append(device.pool.resident)
        BETWEEN[between](device)
        assert not device.contexts()

    assert list(chat(bundle, f"emu:threads=1,quiet,driver={driver}", happen)) == expected
    assert all(lost)
