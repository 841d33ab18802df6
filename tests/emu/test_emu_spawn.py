"""Starting a program under a filter: what is said when that goes wrong."""

from __future__ import annotations

import os
import signal

import pytest

from amdxdna.cli.emulate import cannot_start
from amdxdna.emu.seccomp import spawn
from tests.support.descriptors import descriptors


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL before it began"),
        (lambda: os._exit(3), "ended with status 3 before it began"),
    ],
    ids=["killed", "exited"],
)
def test_a_child_that_ends_early(end: object, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "_exec", lambda *arguments: end())  # type: ignore[operator]
    before = descriptors()
    with pytest.raises(spawn.EndedEarly) as caught:
        spawn.spawn(["true"], os.environ)
    assert descriptors() <= before
    assert str(cannot_start(["true"], caught.value)) == f"true cannot be started: it {told}"
