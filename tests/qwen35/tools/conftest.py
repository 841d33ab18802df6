"""What the tools' tests share."""

from __future__ import annotations

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer repetitions of `accept` than for a person."""
    monkeypatch.setattr("qwen35.accept.ways.TRIALS", 2)
    monkeypatch.setattr("qwen35.model.probe.GRACE", 60.0)  # what else runs decides nothing
    monkeypatch.setattr("qwen35.accept.ways.RELOADS", 1)
    monkeypatch.setattr("qwen35.accept.answers.PROMPTS", ("one", "two"))
    monkeypatch.setattr("qwen35.accept.answers.NEW", 4)
