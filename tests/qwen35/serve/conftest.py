"""What the server's tests share: clients, and the built-in model behind a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qwen35 import Qwen35


@pytest.fixture
def http() -> Iterator[Any]:
    """Asks as a program without a library of ours does."""
    httpx = pytest.importorskip("httpx")
    with httpx.Client(timeout=120, limits=httpx.Limits(max_connections=64)) as client:
        yield client


def connected(url: str) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Any]:
    """A client of the module's `server`."""
    with connected(server.url) as made:
        yield made


@pytest.fixture(scope="package")
def builtin() -> Iterator[tuple[Any, Qwen35]]:
    """The built-in model, and a client of its server."""
    from tests.support.serving import serving

    with Qwen35.load(None, 2048, "emu:threads=1,quiet") as model, serving(model) as running:
        yield connected(running.url), model
