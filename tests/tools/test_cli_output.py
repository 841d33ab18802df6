"""What stderr shows while something takes long."""

from __future__ import annotations

import io

import pytest

from qwen35.cli import output
from qwen35.cli.output import Progress
from tests.support.terminal import Terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


def test_a_line_after_half_a_second_and_gone_at_the_end(clock: list[float]) -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress("picture", 1, 24)
    assert stream.getvalue() == ""
    clock[0] += 0.6
    progress("picture", 6, 24)
    progress("picture", 7, 24)  # within a tenth of a second
    assert stream.getvalue() == "\r\x1b[Kqwen35: picture 25%"
    clock[0] += 0.2
    progress("prompt", 2048, 2600)
    assert stream.getvalue().endswith("\r\x1b[Kqwen35: prompt 2,048 of 2,600 tokens")
    progress("prompt", 2600, 2600)
    assert stream.getvalue().endswith("tokens\r\x1b[K")
    before = stream.getvalue()
    progress.close()
    assert stream.getvalue() == before


@pytest.mark.parametrize(("stream", "enabled"), [(io.StringIO(), True), (Terminal(), False)])
def test_nothing_in_a_file_or_when_quiet(clock: list[float], stream: io.StringIO, enabled: bool) -> None:
    progress = Progress(stream, enabled)
    clock[0] += 5
    progress("picture", 5, 24)
    progress.close()
    assert stream.getvalue() == ""
