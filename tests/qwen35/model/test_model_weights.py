"""Weights on their way from the bundle to the device's buffers."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from amdxdna.device import Device
from qwen35.bundle import Bundle, BundleError
from qwen35.errors import ModelError
from qwen35.model import weights as module
from qwen35.model.weights import Weights
from tests.support.model_bundle import bundle_path

NAMES = ["l0.g.in", "head2", "l3.g.down1", "l0.g.o", "l1.g.gu"]


@pytest.fixture
def bundle():
    return Bundle.open(bundle_path("tied"))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("piece", [1000, 16 << 20])
def test_buffers_hold_the_tensors(monkeypatch, bundle, device, threads, piece):
    monkeypatch.setattr(module, "PIECE", piece)
    steps = []
    found = Weights.load(
        bundle,
        device,
        NAMES,
        way="copy",
        threads=threads,
        progress=lambda done, total: steps.append((done, total)),
    )
    total = sum(bundle.tensors.info(name).nbytes for name in NAMES)
    for name in NAMES:
        assert np.array_equal(found.bytes(name), bundle.tensors.bytes(name))
        assert found[name].clean and not found.bytes(name).flags.writeable
    assert found.nbytes == total and found.way == "copy" and "read into" in found.report
    assert steps[-1] == (total, total) and [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert "l0.g.in" in found and "l0.h.ln1" not in found
    found.close()
    found.close()
    assert "l0.g.in" not in found


def test_a_driver_without_read_only_memory_is_read_into(bundle, device):
    # the emulated driver answers as stock 7.3 does
    assert Weights.load(bundle, device, NAMES).way == "copy"
    with pytest.raises(ModelError):
        Weights.load(bundle, device, NAMES, way="map")


@pytest.mark.parametrize(
    ("driver", "rule"),
    [
        (
            "7.3",
            "Linux's driver gives the NPU writable memory only, and mapped weights are read-only (EFAULT)",
        ),
        (
            "6.18",
            "6.18's driver gives the NPU writable memory only, and mapped weights are read-only (ENOMEM)",
        ),
        ("6.14", "driver does not give the NPU a program's own memory (EINVAL)"),
        ("oot-2025-12", "gives the NPU writable memory only, and mapped weights are read-only (ENOMEM)"),
        ("oot-2026-08,memlock=8192,privileged=0", "gives the NPU read-only memory too, but refused this: "),
    ],
)
def test_a_refused_mapping_names_the_drivers_rule(bundle, driver, rule):
    with Device.open(f"emu:quiet,threads=1,driver={driver}") as device:
        with pytest.raises(ModelError) as caught:
            Weights.load(bundle, device, NAMES, way="map")
        assert rule in str(caught.value)
        assert str(caught.value).endswith("(--weights map): use --weights copy, or auto")
        assert len(str(caught.value).splitlines()) == 1
        Weights.load(bundle, device, NAMES, way="auto").close()


def test_a_driver_that_takes_read_only_memory(monkeypatch, bundle, device):
    wrapped = []

    def wrap(address, nbytes):
        wrapped.append((address, nbytes))
        return device.alloc(nbytes)

    store = bundle.tensors
    monkeypatch.setattr(device, "wrap", wrap)
    found = Weights.load(bundle, device, NAMES, way="map")
    assert found.way == "map" and "user-pointer" in found.report
    ((address, nbytes),) = wrapped
    info = store.info(NAMES[0])
    assert address == store.bytes(NAMES[0]).__array_interface__["data"][0] - info.offset
    assert nbytes % 4096 == 0 and 0 <= nbytes - store.nbytes < 4096
    base = found[NAMES[0]].address - info.offset
    for name in NAMES:
        assert found[name].address - base == store.info(name).offset
        assert found[name].nbytes == store.info(name).nbytes and found[name].clean
    found.close()


def test_a_file_that_ends_early(bundle, device):
    path = bundle.tensors.path
    data = path.read_bytes()
    try:
        with open(path, "r+b") as file:
            file.truncate(bundle.tensors.info("head2").offset + 10)
        with pytest.raises(BundleError, match="ended while it was read"):
            Weights.load(bundle, device, ["head2"], way="copy")
    finally:
        path.write_bytes(data)
    assert Weights.load(bundle, device, ["head2"], way="copy").nbytes


def test_the_disk_reads_ahead_of_what_is_copied(monkeypatch, bundle, device):
    """Every byte behind the first piece is asked for before it is read, and none far ahead."""
    monkeypatch.setattr(module, "PIECE", 4096)
    asked, reads, advise, read = [], [], os.posix_fadvise, os.preadv

    def advised(descriptor, start, size, advice):
        if advice == os.POSIX_FADV_WILLNEED:
            asked.append((start, size))
        advise(descriptor, start, size, advice)

    def filled(descriptor, views, offset):
        reads.append((offset, len(views[0])))
        assert 0 <= len(asked) - len(reads) + 1 <= 4, "asked for behind, or too far ahead"
        return read(descriptor, views, offset)

    monkeypatch.setattr(os, "posix_fadvise", advised)
    monkeypatch.setattr(os, "preadv", filled)
    Weights.load(bundle, device, NAMES, way="copy", threads=1).close()
    assert len(reads) > 20 and asked == reads[1:]


def test_a_file_system_that_takes_no_advice_is_read_all_the_same(monkeypatch, bundle, device):
    def refused(*arguments):
        raise OSError(errno.EINVAL, "no advice")

    monkeypatch.setattr(os, "posix_fadvise", refused)
    found = Weights.load(bundle, device, NAMES, way="copy", release=False)
    assert all(np.array_equal(found.bytes(name), bundle.tensors.bytes(name)) for name in NAMES)
    found.close()
