"""The memory behind BOs: what a copy that fails leaves behind."""

from __future__ import annotations

import errno
import os

import pytest

from amdxdna.emu.driver import store
from tests.support.descriptors import descriptors


def test_a_failed_export_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    source = store.apart(8192, "source")
    os.pwrite(source.file.fd, b"data", 0)

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    before = descriptors()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(os, "sendfile", full)
        store.dmabuf_of(source)
    assert descriptors() <= before
    with pytest.raises(OSError):
        store.apart(-1, "impossible")
    assert descriptors() <= before
    copy = store.dmabuf_of(source)
    assert os.pread(copy.file.fd, 8, 0) == b"data\0\0\0\0"
    copy.release()
    source.release()
