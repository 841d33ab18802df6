"""doctor and the device commands on Linux's own driver: a good guest, and the failures that it can have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amdxdna.emu.pci import psp, qemu
from amdxdna.emu.pci.firmware import FirmwareOptions
from tests.conformance import kit
from tests.support.recovery_side import SCENARIOS, SLOTS

from . import debs, guest
from .test_firmware_faults import psp_fault

SIDE = "tests.vm.doctor_side"


def call(machine: guest.Machine, target: str, **arguments: Any) -> Any:
    """Calls a function in the guest; its result."""
    answer = machine.request("call", timeout=300, target=target, arguments=arguments)
    assert "error" not in answer.value, answer.value["error"] + "\n" + "\n".join(answer.log)
    return answer.value["result"]


def shell(machine: guest.Machine, command: str) -> str:
    """Runs a shell command in the guest; its output."""
    answer = machine.request("shell", command=command)
    assert answer.value["status"] == 0, answer.value
    return str(answer.value["output"])


def rebound(machine: guest.Machine, **options: Any) -> guest.Machine:
    """The machine after a fresh probe, good or not."""
    machine.rebind(FirmwareOptions(**options))
    return machine


@pytest.fixture
def machine(image_guest: guest.Machine) -> Iterator[guest.Machine]:
    """The guest, freshly probed, and again good afterwards."""
    yield rebound(image_guest)
    rebound(image_guest)


def finding(report: dict[str, Any], check: str) -> str:
    """A finding as one text."""
    found = report["findings"][check]
    return " ".join([found["status"], found["meaning"], *found["remedy"]])


def test_a_good_machine(machine: guest.Machine) -> None:
    """Everything works; a copy runs, since the NPU says that it is a modelled one."""
    report = call(machine, f"{SIDE}:doctor")
    assert report["cause"] is None, report
    statuses = {check: found["status"] for check, found in report["findings"].items()}
    assert {check: status for check, status in statuses.items() if status != "ok"} == {}, statuses
    assert "virtual machine" in finding(report, "npu")
    assert "force_iova=1" in finding(report, "iommu")
    assert report["findings"]["answer"]["facts"]["ran"] is True


def test_firmware_missing(machine: guest.Machine) -> None:
    """No file in /lib/firmware/amdnpu."""
    call(machine, "os:rename", src="/lib/firmware/amdnpu", dst="/lib/firmware/away")
    try:
        report = call(rebound(machine), f"{SIDE}:doctor")
    finally:
        call(machine, "os:rename", src="/lib/firmware/away", dst="/lib/firmware/amdnpu")
    assert report["cause"] == "firmware"
    assert "missing: nothing in /lib/firmware/amdnpu/17f0_10/" in finding(report, "firmware")
    assert "see firmware" in finding(report, "module")


def test_firmware_that_came_too_late(machine: guest.Machine) -> None:
    """The file is there, but was not when the driver started."""
    call(machine, "os:rename", src="/lib/firmware/amdnpu", dst="/lib/firmware/away")
    rebound(machine)
    call(machine, "os:rename", src="/lib/firmware/away", dst="/lib/firmware/amdnpu")
    report = call(machine, f"{SIDE}:doctor")
    assert report["cause"] == "firmware"
    assert "is there now" in finding(report, "firmware") and "initramfs" in finding(report, "firmware")


@pytest.mark.parametrize("protocol", [(5, 0), (6, 11), (8, 0)])
def test_protocol(protocol: tuple[int, int], machine: guest.Machine) -> None:
    """Firmware whose protocol the driver does not speak."""
    report = call(rebound(machine, protocol=protocol), f"{SIDE}:doctor")
    assert report["cause"] == "firmware"
    assert "do not understand each other" in finding(report, "firmware")


def test_firmware_refused(machine: guest.Machine) -> None:
    """The PSP takes the file for damaged."""
    machine.request("unbind", bdf=guest.BDF)
    machine.function.configure(FirmwareOptions())
    psp_fault(psp.VALIDATE, 0xFFFF0007)(machine.function)
    machine.request("bind", bdf=guest.BDF)
    report = call(machine, f"{SIDE}:doctor")
    assert report["cause"] == "firmware"
    assert "refuses this firmware file" in finding(report, "firmware")


def test_wrong_permissions(machine: guest.Machine) -> None:
    """A user who is not in the node's group: told by number."""
    shell(machine, "/bin/busybox chmod 660 /dev/accel/accel0; /bin/busybox chown 0:992 /dev/accel/accel0")
    report = call(machine, f"{SIDE}:doctor", uid=1000)
    assert report["cause"] == "permission"
    assert "uid 1000 may not open /dev/accel/accel0" in finding(report, "permission")
    assert "group 992" in finding(report, "permission")
    assert "node cannot be opened" in finding(report, "answer")


def test_module_not_loaded(machine: guest.Machine) -> None:
    """The module is taken out, then loaded without force_iova: no PASID in a virtual machine."""
    machine.request("unbind", bdf=guest.BDF)
    shell(machine, "/bin/busybox rmmod amdxdna")
    try:
        report = call(machine, f"{SIDE}:doctor")
        assert report["cause"] == "module"
        assert "not loaded" in finding(report, "module")
        shell(machine, "/bin/busybox insmod /lib/modules/amdxdna.ko*")
        report = call(machine, f"{SIDE}:doctor")
        assert report["cause"] == "iommu"
        assert "virtual machine" in finding(report, "iommu")
        assert report["findings"]["answer"]["symptom"] is True
    finally:
        shell(
            machine,
            "/bin/busybox rmmod amdxdna; /bin/busybox insmod /lib/modules/amdxdna.ko* "
            + " ".join(qemu.MODULE_ARGUMENTS),
        )


def test_all_contexts_taken(machine: guest.Machine) -> None:
    """No slot at all."""
    report = call(rebound(machine, slots=0), f"{SIDE}:doctor")
    assert report["cause"] in ("contexts", "answer"), report
    assert "context" in finding(report, report["cause"])


def test_no_iommu(
    rig: debs.Rig, image_guest: guest.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that was booted without the IOMMU."""
    arguments = [word for word in qemu.KERNEL_ARGUMENTS if not word.startswith("intel_iommu")]
    monkeypatch.setattr(qemu, "KERNEL_ARGUMENTS", ("intel_iommu=off", *arguments))
    machine = guest.boot(
        lambda attempt: guest.Machine(rig, tmp_path / attempt, image_guest.initrd, image_guest.memory)
    )
    try:
        report = call(machine, f"{SIDE}:doctor")
    finally:
        machine.close()
    assert report["cause"] == "iommu"
    assert "has no IOMMU" in finding(report, "iommu")
    assert "Remove intel_iommu=off" in finding(report, "iommu")
    assert "see iommu" in finding(report, "module")


def test_selftest_and_bench(machine: guest.Machine) -> None:
    """Every step on the real driver, with its data checked, and measurements."""
    ran = call(machine, f"{SIDE}:command", words=["selftest", "--json"])
    steps = {step["name"]: step["status"] for step in json.loads(ran["out"])["steps"]}
    assert ran["status"] == 0, ran["out"]
    assert [name for name, status in steps.items() if status != "ok"] == ["program"], ran["out"]
    ran = call(machine, f"{SIDE}:command", words=["bench", "--seconds", "0.05", "--json"])
    assert ran["status"] == 0 and len(json.loads(ran["out"])["measures"]) == 9, ran


def test_info_contexts_and_snapshot(machine: guest.Machine) -> None:
    """The real driver's answers fit the documents."""
    info = json.loads(call(machine, f"{SIDE}:command", words=["info", "--json"])["out"])
    assert info["path"] == "/dev/accel/accel0" and info["npu"]["name"] == "npu4" and info["unavailable"] == {}
    assert info["address_mode"] == "iova" and info["array"]["cols"] == 8
    contexts = json.loads(call(machine, f"{SIDE}:command", words=["contexts", "--json"])["out"])
    assert (contexts["limit"], contexts["contexts"]) == (info["resources"]["npu_task_max"], [])
    found = json.loads(call(machine, f"{SIDE}:command", words=["snapshot", "-"])["out"])
    assert found["module"]["parameters"]["force_iova"] == "Y"
    assert any("Initialized amdxdna" in line for line in found["kernel_log"])


@pytest.mark.parametrize("name", SCENARIOS)
def test_recovery(name: str, machine: guest.Machine) -> None:
    """The scenarios of tests/binding/test_recovery.py, with Linux's own driver between the processes."""
    # The driver takes 16 for the limit, whatever the firmware has.
    rebound(machine, slots=16 if name == "pressure" else SLOTS)
    answer = machine.request(
        "call", timeout=400, target="tests.support.recovery_side:run", arguments={"name": name}
    )
    assert "error" not in answer.value, answer.value["error"] + "\n" + "\n".join(answer.log)
    guest.check_log(answer.log)
    kit.until(lambda: machine.function.firmware.contexts == 0, kit.LIMIT, "the firmware losing every context")
