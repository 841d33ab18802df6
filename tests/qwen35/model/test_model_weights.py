"""Weights on their way from the bundle to the device's buffers."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

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
    held = device.bo_usage().total
    found.close()
    found.close()
    assert "l0.g.in" not in found and device.bo_usage().total <= held - total


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


def test_the_report_says_how_much_came_how_and_how_fast():
    for way, how in (
        ("copy", "read into the device's buffers"),
        ("map", "mapped for the device (user-pointer buffer)"),
    ):
        found = Weights({}, way, 2_345_600_000, 0.5).report
        assert found == f"2,346 MB of weights {how} in 0.50 s (4.7 GB/s)"
    assert "in 0.00 s" in Weights({}, "copy", 0, 0.0).report


@pytest.mark.parametrize(
    ("release", "free", "dropped"),
    [(True, None, True), (False, 0, False), (None, None, True), (None, -1, True), (None, 0, False)],
)
def test_pages_behind_the_copies_go_where_memory_is_short(
    monkeypatch, bundle, device, release, free, dropped
):
    """`free` over three times the weights: those of the file, of the buffers, and as many for others."""
    total, asked = sum(bundle.tensors.info(name).nbytes for name in NAMES), []
    monkeypatch.setattr(module.meminfo, "available", lambda: None if free is None else 3 * total + free)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *given: asked.append(given))
    Weights.load(bundle, device, NAMES, way="copy", release=release).close()
    gone = sorted(given[:2] for given in asked if given[2] == os.POSIX_FADV_DONTNEED)
    infos = sorted((bundle.tensors.info(name) for name in NAMES), key=lambda info: info.offset)
    assert gone == ([(info.offset, info.nbytes) for info in infos] if dropped else [])


@pytest.mark.parametrize("trial", ["wrong", KeyboardInterrupt])
def test_mapped_buffers_that_are_not_used_are_given_back(monkeypatch, bundle, device, trial):
    """What the trial finds is why weights are copied; an interrupted one goes on."""
    made = []

    def wrap(address, nbytes):
        made.append(device.alloc(nbytes))
        return made[-1]

    def tried(buffers):
        if trial is KeyboardInterrupt:
            raise trial
        return trial

    profile = replace(device.profile, user_pointers="ro")
    monkeypatch.setattr(type(device), "profile", property(lambda self: profile))
    monkeypatch.setattr(device, "wrap", wrap)
    held = device.bo_usage().total
    if trial is KeyboardInterrupt:
        with pytest.raises(trial):
            Weights.load(bundle, device, NAMES, trial=tried)
    else:
        found = Weights.load(bundle, device, NAMES, trial=tried)
        assert (found.way, found.why) == ("copy", "wrong")
        found.close()
    assert made and device.bo_usage().total == held
    assert Weights.load(bundle, device, NAMES).why == "not tried"


def test_a_file_that_ends_early(bundle, device):
    path = bundle.tensors.path
    data, held = path.read_bytes(), device.bo_usage().total
    try:
        with open(path, "r+b") as file:
            file.truncate(bundle.tensors.info("head2").offset + 10)
        with pytest.raises(BundleError, match="ended while it was read"):
            Weights.load(bundle, device, ["head2"], way="copy")
        assert device.bo_usage().total == held
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
