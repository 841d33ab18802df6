"""What cannot be seen of a machine is told as that, and never taken for what is not there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from amdxdna.doctor.machine import NodeStat
from amdxdna.errors import NoDevice
from amdxdna.opening import resolve
from tests.support.doctor_rows import (
    DMESG,
    FAIL,
    NO_FILE,
    NO_IOMMU,
    OK,
    REFUSED,
    SKIP,
    Row,
    cases,
    failed,
    finding,
    good,
    off,
    opens,
)
from tests.support.doctor_states import FAILED, Build, unbound
from tests.support.fake_machine import PCI, FakeMachine


@pytest.fixture
def fake(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


LOOP = "cannot be read (too many levels of symbolic links)"
ACCEL, UNITS, DRIVERS = "sys/class/accel", "sys/class/iommu", "sys/bus/pci/drivers"
FUNCTIONS, FIRMWARE = "sys/bus/pci/devices", "lib/firmware/amdnpu"
WITHOUT_NPU = f"unknown: /{FUNCTIONS} {LOOP}"


def hides(*paths: str, of: Build = good) -> Build:
    """A machine of which these paths cannot be seen."""

    def build(fake: FakeMachine) -> FakeMachine:
        of(fake)
        return fake.hide(*paths)

    return build


def unbound_without_files(*lines: str) -> Build:
    return lambda f: f.npu(driver="").loaded().iommu().log(*lines).hide(FIRMWARE)


HIDDEN = {
    "npu": [
        Row(hides(FUNCTIONS, ACCEL, of=lambda f: f), FAIL, (WITHOUT_NPU,), ("sudo", "emu")),
        Row(
            hides(f"{FUNCTIONS}/{PCI}/vendor", of=off),
            FAIL,
            (f"unknown: /{FUNCTIONS}/{PCI}/v",),
            ("sudo", "emu"),
        ),
    ],
    "module": [
        Row(hides(FUNCTIONS, of=lambda f: f), SKIP, ("not known whether there is an NPU (amdxdna is not",)),
        Row(hides(DRIVERS, of=lambda f: f), SKIP, (f"unknown: /{DRIVERS} {LOOP}",)),
        Row(
            hides(DRIVERS, of=off), FAIL, (f"whether it is loaded is unknown: /{DRIVERS} {LOOP}",), ("sudo",)
        ),
        Row(hides(DRIVERS), OK, ("loaded and has the NPU",)),
        Row(
            hides("sys/module/amdxdna/taint"),
            OK,
            ("loaded and has the NPU",),
            facts={"out_of_tree": None, "srcversion": ""},
        ),
        # Neither the firmware's absence nor the IOMMU's is the cause, for all that is known.
        Row(hides(UNITS, of=unbound(FAILED + "-5")), FAIL, ("does not say why",), ("dmesg", "modprobe")),
        Row(unbound_without_files(FAILED + "-5"), FAIL, ("does not say why",), ("dmesg", "modprobe")),
    ],
    "node": [
        Row(hides(ACCEL, of=lambda f: f.npu()), FAIL, (f"unknown: /{ACCEL} {LOOP}",), ("sudo",)),
        Row(hides("dev/accel", of=lambda f: f.npu()), FAIL, (f"unknown: /dev/accel {LOOP}",), ("sudo",)),
        Row(hides("dev/accel"), FAIL, ("/dev/accel/accel0 cannot be looked at",), symptom=True),
        Row(hides(FUNCTIONS, of=lambda f: f), FAIL, (WITHOUT_NPU,), ("sudo",)),
        Row(hides(ACCEL), OK, ("/dev/accel/accel0",)),
    ],
    "firmware": [
        Row(hides(FUNCTIONS, of=lambda f: f), SKIP, (WITHOUT_NPU,)),
        Row(
            hides(FIRMWARE, of=lambda f: f.npu(driver="")),
            SKIP,
            (f"is unknown: /{FIRMWARE} {LOOP}",),
            ("sudo",),
        ),
        Row(
            unbound_without_files(NO_FILE, FAILED + "-2"),
            FAIL,
            (f"is unknown: /{FIRMWARE} {LOOP}; the driver says: ", "failed to request_firmware"),
            ("sudo",),
        ),
        # Another protocol is not for a kernel of an unknown age to blame on the firmware's.
        Row(
            lambda f: failed(REFUSED)(f).file("proc/sys/kernel/osrelease", ""),
            FAIL,
            ("do not understand each other",),
            ("older than the driver", "linux-firmware"),
        ),
    ],
    "permission": [
        Row(hides("dev/accel"), FAIL, ("/dev/accel/accel0 cannot be looked at",), ("/dev/accel",))
    ],
    "iommu": [
        Row(hides(FUNCTIONS, of=lambda f: f), SKIP, (WITHOUT_NPU,)),
        Row(hides(UNITS, of=off), SKIP, (f"whether it is on is unknown: /{UNITS} {LOOP}",), ("sudo",)),
        Row(hides(UNITS, of=unbound(FAILED + "-5")), SKIP, ("whether it is on is unknown",), ("sudo",)),
        Row(hides(UNITS, of=failed(NO_IOMMU)), FAIL, ("the IOMMU is off",), ("AMD-Vi",)),
        Row(
            hides(UNITS, of=opens("open=*:ENODEV")),
            FAIL,
            (f"(open: ENODEV); whether the IOMMU is on is unknown: /{UNITS} {LOOP}",),
            ("BIOS", "pci=noats", DMESG),
        ),
        Row(hides(UNITS), OK, ("PASID",)),
    ],
    "log": [Row(hides(FUNCTIONS, of=lambda f: f), SKIP, (WITHOUT_NPU,))],
}


@pytest.mark.parametrize(("check", "row"), cases(HIDDEN))
def test_what_cannot_be_seen_is_not_taken_for_what_is_not_there(
    check: str, row: Row, fake: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stat(path: Path) -> NodeStat:
        os.stat(path)
        return fake.node_stat

    machine = fake.machine
    monkeypatch.setattr(fake, "machine", lambda: replace(machine(), stat=stat))
    row.check(check, fake)


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (hides(FUNCTIONS, of=lambda f: f), FUNCTIONS),
        (hides(f"{FUNCTIONS}/{PCI}/device", of=off), f"{FUNCTIONS}/{PCI}/device"),
        (hides(ACCEL), ACCEL),
        (hides(f"{ACCEL}/accel0/device"), f"{ACCEL}/accel0/device/driver"),
        (hides(DRIVERS, of=off), DRIVERS),
    ],
)
def test_an_open_says_what_could_not_be_seen(build: Build, path: str, fake: FakeMachine) -> None:
    build(fake)
    with pytest.raises(NoDevice) as caught:
        resolve("npu", fake.root / "sys", fake.root / "dev")
    assert f"whether there is an NPU to open is not known: {fake.root}/{path} {LOOP}" in str(caught.value)
    assert "/dev/accel/accel0" in caught.value.remedy


def test_what_is_blacklisted_is_this_module_by_its_whole_name(fake: FakeMachine) -> None:
    off(fake)
    found = []
    for line in (
        "blacklist amdxdna2",
        "blacklist amdxdna-x",
        "install amdxdna /bin/trueish",
        "blacklist amdxdna # not yet",
        "blacklist amdxdna",
        "install amdxdna /usr/bin/false",
        "install amdxdna /bin/true",
    ):
        fake.file("etc/modprobe.d/npu.conf", f"# first\n{line}\n# last\n")
        found.append("blacklisted" in finding(fake, "module").meaning)
    assert found == [False] * 3 + [True] * 4
