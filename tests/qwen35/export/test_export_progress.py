"""Progress of a long write: when it says something, and what."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from qwen35.export import progress
from qwen35.export.progress import Progress


class Screen(io.StringIO):
    def __init__(self, tty: bool) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    time = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: time[0]))
    return time


@pytest.mark.parametrize(
    ("tty", "quiet", "steps", "said"),
    [
        # (seconds since the start, MB more)
        (False, False, [(5, 10), (9.9, 10)], ""),
        (False, False, [(1, 100)], ""),  # over before there was anything to say
        (
            False,
            False,
            [(10, 20), (19, 20), (20, 10), (30, 50)],
            "w:  20%  20 of 100 MB  2 MB/s  0:40 left\n"
            "w:  50%  50 of 100 MB  2 MB/s  0:20 left\n"
            "w: 100%  100 of 100 MB  3 MB/s  0:00 left\n",
        ),
        (
            False,
            False,
            [(10, 20), (11, 80)],
            "w:  20%  20 of 100 MB  2 MB/s  0:40 left\nw: 100%  100 of 100 MB  9 MB/s  0:00 left\n",
        ),
        (
            True,
            False,
            [(0.1, 1), (0.2, 1), (0.3, 98)],
            "\rw:   2%  2 of 100 MB  10 MB/s  0:10 left\rw: 100%  100 of 100 MB  333 MB/s  0:00 left\n",
        ),
        (True, False, [(0.1, 1)], ""),
        (True, True, [(10, 20), (30, 80)], ""),
        (False, True, [(10, 20), (30, 80)], ""),
    ],
)
def test_what_is_said(
    tty: bool, quiet: bool, steps: list[tuple[float, int]], said: str, now: list[float]
) -> None:
    screen = Screen(tty)
    with Progress("w", 100_000_000, quiet=quiet, stream=screen) as made:
        for seconds, megabytes in steps:
            now[0] = 100 + seconds
            made.add(megabytes * 1_000_000)
    assert made.done == sum(megabytes for _, megabytes in steps) * 1_000_000
    assert screen.getvalue() == said


@pytest.mark.parametrize(
    ("total", "added", "said"),
    [
        (0, (0, 60), ["w: 0 MB  0 MB/s", "w: 60 MB  30 MB/s"]),
        (
            20_000_000_000,
            (1, 19_999),
            [
                "w:   0%  1 of 20,000 MB  1 MB/s  5:33:19 left",
                "w: 100%  20,000 of 20,000 MB  10,000 MB/s  0:00 left",
            ],
        ),
    ],
)
def test_a_line_covers_the_one_before(
    now: list[float], total: int, added: tuple[int, int], said: list[str]
) -> None:
    """A total that is not known has no share and no end."""
    screen = Screen(True)
    with Progress("w", total, stream=screen) as made:
        for seconds, megabytes in enumerate(added, 1):
            now[0] = 100 + seconds
            made.add(megabytes * 1_000_000)
    first, last = screen.getvalue().rstrip("\n").split("\r")[1:]
    assert [first, last.rstrip()] == said and len(last) >= len(first)
