"""What the model's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qwen35 import host


@pytest.fixture(params=("portable", "avx2", "avx512", "avx512bf16"))
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The host math's instruction set, each that this processor has."""
    before = host.isa()
    try:
        host.set_isa(request.param)
    except ValueError:
        pytest.skip(f"no {request.param} on this processor")
    assert host.isa() == request.param
    yield request.param
    host.set_isa(before)
