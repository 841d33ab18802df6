"""Fixtures of the tests of amdxdna.pyxrt."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from amdxdna.pyxrt import devices
from tests.support import pyxrt_files
from tests.support.pyxrt_debian import debian
from tests.vm import debs


@pytest.fixture(params=["pasid", "iova"])
def emu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Device 0 is an emulated NPU of its own."""
    monkeypatch.setenv(devices.DEVICE, f"emu:quiet,threads=1,address={request.param},slots=6")
    yield
    gc.collect()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the xclbins, streams and ELF files of pyxrt_files."""
    pyxrt_files.write(tmp_path)
    pyxrt_files.write_elfs(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def theirs() -> list[str]:
    """The command line's beginning for a script under XRT's module."""
    try:
        return debian()
    except debs.Unavailable as reason:
        pytest.skip(f"no XRT from Debian's archive: {reason}")
