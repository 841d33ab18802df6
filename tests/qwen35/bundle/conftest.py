"""Fixtures of the bundle's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.published import write


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A bundle of the published model's shape."""
    return write(tmp_path)
