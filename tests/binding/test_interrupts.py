"""Ctrl-C between the driver's answer and this side's bookkeeping: what was made is given back."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from amdxdna._native import lib
from amdxdna.device import Device
from amdxdna.opening import open_node
from amdxdna.reaper import reap
from amdxdna.selftest.probes import make_context
from tests.support.binding import ProxyNode, adder, copy_xclbin


class Interrupt(BaseException):
    """What a signal handler raises."""


class Interrupted:
    """A device whose calls of one kind, while armed, are answered and then interrupted."""

    def __init__(self, request: int, options: str = "quiet"):
        self.armed = False
        self.node = ProxyNode(open_node("emu:" + options), self._hook)
        self.request = request

    def _hook(self, request: int, address: int) -> None:
        if self.armed and request == self.request:
            self.armed = False
            self.node.inner.ioctl(request, address)
            raise Interrupt

    def open(self) -> Device:
        return Device.open(self.node)


@pytest.mark.parametrize("kind", ["share", "cmd", "dev"])
def test_a_bo_is_closed(kind):
    source = Interrupted(lib.DRM_IOCTL_AMDXDNA_CREATE_BO)
    with source.open() as device:
        device.alloc(64, kind).close()
        before = device.bo_usage()
        source.armed = True
        with pytest.raises(Interrupt):
            device.alloc(64, kind)
        reap()
        assert device.bo_usage() == before


@pytest.mark.parametrize("kind", ["share", "cmd", "dev"])
def test_a_bo_of_which_nothing_is_told_is_closed(kind):
    """An exception of any kind out of GET_BO_INFO."""
    source = Interrupted(lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO)
    with source.open() as device:
        device.alloc(64, kind).close()
        before = len(source.node.inner.client.handles)
        source.armed = True
        with pytest.raises(Interrupt):
            device.alloc(64, kind)
        assert len(source.node.inner.client.handles) == before


def test_an_import_whose_size_is_not_learned_is_closed(monkeypatch):
    source = Interrupted(0)
    with source.open() as device:
        own = device.alloc(4096)
        fd = own.export_fd()
        own.close()
        before = len(source.node.inner.client.handles)

        def interrupted(*arguments):
            raise Interrupt

        with monkeypatch.context() as patch, pytest.raises(Interrupt):
            patch.setattr(os, "lseek", interrupted)
            device.import_fd(fd)
        os.close(fd)
        assert len(source.node.inner.client.handles) == before


def test_the_heap_is_mapped_at_the_next_try():
    source = Interrupted(lib.DRM_IOCTL_AMDXDNA_CREATE_BO)
    with source.open() as device:
        source.armed = True
        with pytest.raises(Interrupt):
            device.alloc(64, "dev")
        assert not source.armed
        device.alloc(64, "dev")
        assert device.bo_usage().total == device.heap.size == 64 << 20


@pytest.mark.parametrize("at", [lib.DRM_IOCTL_AMDXDNA_CREATE_BO, lib.DRM_IOCTL_AMDXDNA_GET_BO_INFO])
def test_a_user_pointer_bo_is_closed(at):
    source = Interrupted(at)
    with source.open() as device, mmap.mmap(-1, 8192) as memory:
        before = device.bo_usage()
        source.armed = True
        with pytest.raises(Interrupt):
            device.wrap(memory)
        assert device.bo_usage() == before
        device.wrap(memory).close()


def test_an_import_is_closed_and_the_buffer_it_shares_is_not():
    source = Interrupted(lib.DRM_IOCTL_PRIME_FD_TO_HANDLE)
    with source.open() as device:
        own = device.alloc(4096)
        own.write(b"mine")
        fd = own.export_fd()
        source.armed = True
        with pytest.raises(Interrupt):
            device.import_fd(fd)
        os.close(fd)
        assert own.read(0, 4) == b"mine"
        result = device.alloc(4096)
        adder(device, 4096, 0).run(own, result, outputs=[result])
        assert result.read(0, 4) == b"mine"


def test_a_context_takes_no_slot():
    source = Interrupted(lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, "slots=1,quiet")
    with source.open() as device:
        source.armed = True
        with pytest.raises(Interrupt):
            device.context(copy_xclbin())
        assert device.contexts() == ()
        with device.context(copy_xclbin()):
            pass
        reap()
        assert not source.node.inner.client.syncobjs


def test_a_context_made_to_see_whether_it_can_be_takes_no_slot():
    source = Interrupted(lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, "slots=1,quiet")
    with source.open() as device:
        source.armed = True
        with pytest.raises(Interrupt):
            make_context(device)
        assert device.contexts() == ()
        make_context(device)
        assert not source.node.inner.client.syncobjs


def test_a_submitted_commands_buffers_are_given_back():
    source = Interrupted(lib.DRM_IOCTL_AMDXDNA_EXEC_CMD)
    with source.open() as device:
        kernel = adder(device, 64, 1)
        a, b = device.alloc(64), device.alloc(64)
        kernel.run(a, b)
        before = device.bo_usage()
        for _ in range(5):
            source.armed = True
            with pytest.raises(Interrupt):
                kernel.start(a, device.alloc(64))
            kernel.run(a, b, outputs=[b])
        reap()
        assert device.bo_usage().total <= before.total + 2 * 4096
        np.testing.assert_array_equal(b.view("u4"), a.view("u4") + 1)
