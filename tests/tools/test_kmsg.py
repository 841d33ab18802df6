"""The kernel log, and what a failed command takes from it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amdxdna import Device, Xclbin, kmsg
from amdxdna.emu import xclbins
from amdxdna.emu.kernels import stream
from amdxdna.errors import BadArgument, CommandFailed
from amdxdna.kmsg import KERNEL_LOG, as_text, newest, records
from amdxdna.xclbin.writer import PdiSpec, build
from tests.conformance.kit import until


def test_records_of_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(
        b"6,1,2500000,-;first\n SUBSYSTEM=x\n3,2,3000001,c;amdxdna: second; third\nno record\n"
        b"4,3,99999999999999999999999,-;late \xff\n6,4,5000000;three\n6,5;two\n6,6,7,-;" + b"x" * 3000
    )
    found = records(path)
    assert found[:3] == [(2.5, "first"), (3.000001, "amdxdna: second; third"), (0.0, "no record")]
    assert found[3:6] == [(1e12, "late \ufffd"), (5.0, "three"), (0.0, "two")]
    assert found[6:] == [(7e-6, "x" * (2048 - 8))]
    assert as_text(found, "amdxdna") == "3.000001 amdxdna: second; third"


def test_the_newest_part_of_a_long_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    lines = [f"6,{i},{i},-;usb 1-1: new high-speed USB device number {i}\n" for i in range(30_000)]
    path.write_text("".join(lines))  # past 1 MiB, and no line ends where a read does
    found, left_out = newest(path)
    assert not left_out and [text for _, text in found] == [line.partition(";")[2][:-1] for line in lines]
    path.write_text("".join(lines * 4))
    found, left_out = newest(path)
    assert left_out and 30_000 < len(found) < 120_000
    assert found[-1] == (29_999e-6, lines[-1].partition(";")[2][:-1])
    assert {text.partition(": ")[0] for _, text in found} == {"usb 1-1"}
    kept = sum(map(len, (lines * 4)[-len(found) :]))
    assert (4 << 20) - len(lines[-1]) < kept <= 4 << 20
    assert newest("/dev/zero") == ([], True)  # which does not end, and has no line
    os.mkfifo(tmp_path / "fifo")
    assert newest(tmp_path / "fifo") == ([], False)  # to which nobody writes: it does not wait


def around(log: str | None, since: float, before: float) -> tuple[list[str], list[tuple[float, str]]]:
    later, earlier = kmsg.around(log, since, before)
    return later, [(round(seconds, 3), line) for seconds, line in earlier]


def test_only_what_was_said_about_a_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(CLOCK_MONOTONIC=1, clock_gettime=lambda _: 1000.0)
    monkeypatch.setattr("amdxdna.kmsg.time", clock)
    log = "950.000000 old\n958.500000 earlier\n959.992000 context 1: bad\n990.000000 other\n995.000000 other"
    assert around(log, 960.0, 2.0) == (["context 1: bad", "other", "other"], [(1.49, "earlier")])
    # Half a second of the thousand since the boot may be the log's clock being behind, and no more.
    assert around(log, 996.0, 2.0) == ([], [(0.99, "other")])
    assert around(log, 997.4, 2.0) == ([], [(2.39, "other")])
    assert around(log, 999.0, 2.0) == ([], [])
    # An hour ahead, as after a suspend: the newest line is of now.
    assert around("4500.000000 old\n4597.500000 earlier\n4600.000000 bad", 999.0, 2.0) == (
        ["bad"],
        [(1.49, "earlier")],
    )
    assert [around(text, 2.0, 2.0) for text in (None, "", "x y", "nonsense")] == [([], [])] * 4


def test_a_failed_command_says_what_is_known(open_emu: Any) -> None:
    device = open_emu()
    kernel = device.pool.kernel(Xclbin.read(xclbins.xclbin_bytes("copy")), stream.copy(4096, addend=1))
    buffer = device.alloc(4096)
    with pytest.raises(CommandFailed, match="argument 1 is missing"):
        kernel.run(buffer)
    compiled = device.pool.kernel(Xclbin.read(build([PdiSpec(b"compiled code" * 8)])), stream.copy(4096))
    with pytest.raises(CommandFailed, match="not made for the emulated NPU: compiled AIE code is not"):
        compiled.run(buffer, buffer)


@pytest.mark.parametrize(
    ("numbers", "end"),
    [
        ((7, 7, 8), "context 7: another word | context 8: another word"),
        ((7, 7, 8, 9, 10), "context 7: another word | context 8: another word | 2 more"),
    ],
)
def test_what_was_said_of_a_command_is_told_however_late_it_is_waited_for(
    open_emu: Any, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...], end: str
) -> None:
    monkeypatch.setattr("amdxdna.run.JUST_NOW", 0.0)
    device = open_emu()
    kernel = device.pool.kernel(Xclbin.read(xclbins.xclbin_bytes("copy")), stream.copy(4096, addend=1))
    buffer = device.alloc(4096)
    run = kernel.start(buffer)
    until(lambda: "argument 1" in (device.node.text(KERNEL_LOG) or ""), 60, "the driver's word")
    time.sleep(0.01)
    # Of another's commands, for all that anybody can tell.
    for number in numbers:
        device.node.driver.log(f"context {number}: another word")
    with pytest.raises(CommandFailed) as caught:
        run.wait()
    told = str(caught.value)
    assert re.search(rf"since the submit\): .*argument 1 is missing.* \| {re.escape(end)}\.", told), told


def test_what_was_said_before_a_submit_is_told_as_that(
    open_emu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_emu()
    kernel = device.pool.kernel(Xclbin.read(xclbins.xclbin_bytes("copy")), stream.copy(4096, addend=1))
    buffer = device.alloc(4096)
    said = f"{time.monotonic() - 1:.6f} an older word\n{time.monotonic() - 0.5:.6f} the newest word"
    monkeypatch.setattr("amdxdna.run.JUST_NOW", 600.0)  # whatever else has the machine
    monkeypatch.setattr(device.node.driver, "kernel_log", lambda: said)
    with pytest.raises(CommandFailed, match=r"may be behind, \d+\.\d s before the submit\): the newest word"):
        kernel.run(buffer)


def test_arrays_are_no_buffers(open_emu: Any) -> None:
    device = open_emu()
    kernel = device.pool.kernel(Xclbin.read(xclbins.xclbin_bytes("copy")), stream.copy(64, addend=1))
    with pytest.raises(BadArgument, match=r"a ndarray is no buffer.*device\.alloc.*device\.wrap"):
        kernel.run(np.zeros(16, np.int32), device.alloc(64))


def test_outputs_of_a_start_are_readable_after_its_wait(open_emu: Any) -> None:
    device: Device = open_emu()
    kernel = device.pool.kernel(Xclbin.read(xclbins.xclbin_bytes("copy")), stream.copy(4096, addend=1))
    source, target = device.alloc(4096), device.alloc(4096)
    source.view("i4")[:] = range(1024)
    run = kernel.start(source, target, outputs=[target])
    assert list(run.outputs) == [target]
    run.wait()
    assert list(target.view("i4")[:3]) == [1, 2, 3]
