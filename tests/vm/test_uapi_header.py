"""Our header of the interface against the header of the kernel that the guest runs."""

from __future__ import annotations

from pathlib import Path

from tests.support.uapi_checks import check_header

from . import debs


def test_header(rig: debs.Rig, tmp_path: Path) -> None:
    check_header(rig.uapi_header.parents[1], tmp_path)
