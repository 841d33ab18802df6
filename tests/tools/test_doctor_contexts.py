"""doctor's findings about contexts, and which of two NPUs it examines."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from amdxdna import query
from amdxdna.device import Device
from amdxdna.device_info import ContextInfo
from amdxdna.doctor import Status, examine
from tests.support.binding import adder, copy_xclbin, promising
from tests.support.fake_machine import PCI, FakeMachine, node_path

SECOND = "0000:c6:00.1"


@pytest.fixture
def fake(tmp_path):
    return FakeMachine(tmp_path).good()


@pytest.mark.parametrize(
    ("taken", "status", "says"),
    [
        (8, Status.OK, "8 of 16 in use"),
        (13, Status.WARN, "few are left: 13 of 16"),
        (16, Status.OK, "16 of 16 in use"),
        (20, Status.OK, "20, more than the 16 that the driver counts on, in use"),
        (31, Status.OK, "the device gives another"),
        (32, Status.FAIL, "all hardware contexts are taken: 32, more"),
    ],
)
def test_a_device_that_holds_more_than_the_driver_says(fake, taken, status, says):
    node = promising(16, 32)
    with Device.open(node) as device:
        keep = [device.context(copy_xclbin(n)) for n in range(taken)]
        machine = replace(fake.machine(), open=lambda spec: Device(_shared(device)))
        found = examine("auto", machine)["contexts"]
        assert found.status is status and says in found.meaning, found.meaning
        assert found.facts["taken"] == taken == len(device.contexts())
        if taken < 32:  # as the finding says, the pool works
            adder(device, 64, 1, variant=40).run(device.alloc(64), device.alloc(64))
            assert device.pool.swaps == 0
        for context in keep:
            context.close()


def _shared(device):
    """The client of `device`, opened once more."""
    device.client.references += 1
    return device.client


def entry(pid: int) -> ContextInfo:
    return ContextInfo(1, pid, 0, 8, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("pids", "advice"),
    [
        ((0, 0, 4711), "`kill 4711`"),
        ((4711, 4712, 0, -1), "`kill 4711 4712`"),
        ((0, 0), None),
        ((-1,), None),
        ((os.getpid(), os.getpid()), None),
    ],
)
def test_whom_it_advises_to_end(fake, monkeypatch, pids, advice):
    """Process id 0 is the kernel's word for nobody; `kill 0` would end the reader's own session."""
    fake.emu = "threads=1,quiet,slots=2,held_slots=2"
    monkeypatch.setattr(query, "contexts", lambda client: tuple(map(entry, pids)))
    found = examine("auto", fake.machine())["contexts"]
    assert found.status is Status.FAIL
    told = " ".join(found.remedy)
    if advice is None:
        assert "kill" not in told and "End the programs" in told
    else:
        assert advice in told


def test_inside_a_container_no_process_is_named_for_killing(fake):
    """The driver's process ids are the host's; here they are somebody else's."""
    fake.emu = "threads=1,quiet,slots=2,held_slots=2"
    found = examine("auto", fake.container().machine())["contexts"]
    assert found.status is Status.FAIL and "kill" not in " ".join(found.remedy)
    assert "of the host" in found.meaning


@pytest.fixture
def two(fake):
    """A second NPU, which has the lower node: accel0 is the second function's, accel1 the first's."""
    folder = f"sys/bus/pci/devices/{SECOND}"
    for name, value in (("vendor", 0x1022), ("device", 0x17F0), ("revision", 0x11)):
        fake.file(f"{folder}/{name}", f"{value:#x}\n")
    fake.link(f"{folder}/driver", "sys/bus/pci/drivers/amdxdna")
    fake.file(f"{folder}/iommu_group/type", "identity\n")
    (fake.root / "sys/class/accel/accel0").rename(fake.root / "sys/class/accel/accel1")
    fake.file("dev/accel/accel1")
    return fake.link("sys/class/accel/accel0/device", folder)


@pytest.mark.parametrize(
    ("spec", "address", "product", "node"),
    [
        ("auto", SECOND, "Strix Halo", "accel0"),
        ("0", SECOND, "Strix Halo", "accel0"),
        ("1", PCI, "Strix Point", "accel1"),
        ("PATH0", SECOND, "Strix Halo", "accel0"),
        ("PATH1", PCI, "Strix Point", "accel1"),
    ],
)
def test_which_of_two_npus(two, spec, address, product, node):
    spec = node_path(two.root, f"accel{spec[-1]}") if spec.startswith("PATH") else spec
    report = examine(spec, two.machine())
    assert report["npu"].facts["address"] == address and product in report["npu"].meaning
    assert "one of 2" in report["npu"].meaning
    assert two.opened == [node_path(two.root, node)]
    assert report["node"].meaning == f"/dev/accel/{node}"


def test_of_two_npus_without_nodes_the_first_is_meant(fake):
    (fake.root / "sys/class/accel/accel0/device").unlink()
    (fake.root / "sys/class/accel/accel0").rmdir()
    for name, value in (("vendor", 0x1022), ("device", 0x17F0), ("revision", 0x11)):
        fake.file(f"sys/bus/pci/devices/{SECOND}/{name}", f"{value:#x}\n")
    found = examine("auto", fake.machine())["npu"]
    assert found.facts["address"] == PCI and "Strix Point" in found.meaning and "one of 2" in found.meaning


def test_the_log_of_the_other_npu_is_not_held_against_this_one(two):
    failed = f"amdxdna {SECOND}: [drm] *ERROR* aie2_smu_exec: smu cmd 4 failed, 0xff"
    ready = f"[drm] Initialized amdxdna_accel_driver 0.10.0 for {PCI} on minor 1"
    two.log(ready, failed)
    good, bad = (examine(spec, two.machine()) for spec in ("1", "0"))
    from amdxdna.doctor.subject import Subject

    troubles = [Subject(two.machine(), spec).diagnosis.troubles for spec in ("0", "1")]
    assert troubles[0] and not troubles[1]
    assert good.ok, [(f.check, f.meaning) for f in good.findings if f.status is Status.FAIL]
    assert bad["npu"].facts["address"] == SECOND


def test_the_faults_of_the_other_npu_are_not_this_ones(two):
    two.log(
        *[f"amdxdna {SECOND}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001a address=0x8000 flags=0x0050]"]
        * 9
    )
    assert [examine(spec, two.machine())["log"].status for spec in "10"] == [Status.OK, Status.FAIL]


def test_no_such_npu(two):
    report = examine("2", two.machine())
    assert report["node"].status is Status.FAIL and "there are 2, from 0" in report["node"].meaning
