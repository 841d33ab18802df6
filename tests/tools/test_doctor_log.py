"""What doctor makes of the kernel log, a line at a time: why a start failed, and what happened since."""

from __future__ import annotations

from itertools import pairwise

import pytest

from amdxdna.doctor.diagnosis import Trouble, diagnose
from amdxdna.doctor.events import events, heaviest
from tests.support.doctor_rows import FAIL, WARN
from tests.support.doctor_states import FAILED, READY
from tests.support.fake_machine import PCI

LINES = {
    Trouble.SIGNATURE: (
        "Loading of unsigned module is rejected",
        "Lockdown: modprobe: unsigned module loading is restricted",
        "Loading of module with unavailable key is rejected",
    ),
    Trouble.BROKEN_MODULE: ("Skipping invalid relocation target", "Invalid relocation target"),
    Trouble.OTHER_KERNEL: (
        "amdxdna: Unknown symbol drm_gem_object_free (err -2)",
        "amdxdna: disagrees about version of symbol module_layout",
        "amdxdna: version magic '6.14.0' should be '6.15.0'",
    ),
    Trouble.FIRMWARE_MISSING: (
        "Direct firmware load for amdnpu/17f0_10/npu.sbin failed with error -2",
        "Direct firmware load for amdnpu/17f0_10/npu.dev.sbin failed with error -2",
        "aie2_init: failed to request_firmware amdnpu/1502_00/npu.sbin, ret -2",
    ),
    Trouble.PROTOCOL: (
        "Incompatible firmware protocol major 7 minor 2",
        "incompatible firmware protocol version major 7, minor 2",
        "Firmware minor version smaller than supported",
        "Unsupported firmware protocol 7.2",
        "firmware protocol 7.2 is not supported",
        "Firmware 5.0 below minimum 6.12",
        "aie2_init: start npu failed, ret -95",
    ),
    Trouble.FIRMWARE_REFUSED: (
        "aie2_psp_start: fw return error 0x3",
        "failed to validate fw, ret -22",
        "Invalid mbox magic 0x30ec000",
    ),
    Trouble.VIRTUAL: ("Running under hypervisor not supported",),
    Trouble.NO_IOMMU: ("Running without IOMMU not supported",),
    Trouble.NO_DOMAIN: ("Failed to alloc iommu domain",),
    Trouble.NOT_ALIVE: ("aie2_hw_start: firmware is not alive",),
    Trouble.POWER: (
        "failed to validate fw, ret -110",
        "failed to validate fw, ret -62",
        "PSP is not ready",
        "smu cmd 4 failed, 0xff",
        "smu cmd 4 timed out",
        "fw waitmode reg error, ret -110",
        "smu intr idle timed out",
        "Power on failed, ret -22",
    ),
    Trouble.NO_PASID: (
        "SVA bind device failed, ret -95",
        "Enable PASID failed, ret -19",
        "PASID unavailable",
        "SVA get pasid failed, ret -22",
    ),
    Trouble.UNKNOWN_DEVICE: (
        "Unknown device revision: 9",
        f"amdxdna {PCI}: probe with driver amdxdna failed with error -19",
        f"amdxdna: probing {PCI} failed with error -19",
    ),
}


@pytest.mark.parametrize(("trouble", "line"), [(t, line) for t, lines in LINES.items() for line in lines])
def test_what_a_line_means(trouble: Trouble, line: str) -> None:
    found = diagnose([f"  {line} "])
    assert found.troubles == ((trouble, line),) and found.first is trouble
    assert found.line(Trouble.BROKEN_MODULE, trouble) == line
    assert found.line(*(set(Trouble) - {trouble})) == ""


@pytest.mark.parametrize(
    "line",
    [
        "Direct firmware load for amdnpu/17f0_10/npu_7.sbin failed with error -2",  # npu.sbin is next
        "Direct firmware load for amdgpu/psp.bin failed with error -2",
        "start npu failed, ret -22",
        "start npu failed, ret -9",
        FAILED + "-22",
        "smu cmd 4 done",
        "nvidia: Unknown symbol drm_gem_object_free (err -2)",
        "unsigned module was loaded",
        "Running under hypervisor",
    ],
)
def test_lines_that_are_no_trouble(line: str) -> None:
    assert diagnose([line]) == diagnose([]) and diagnose([]).first is None


def test_the_most_fundamental_trouble_is_the_cause() -> None:
    """In the order in which one leads to the next, whatever stands first; each by its first line."""
    order = list(LINES)
    assert set(order) == set(Trouble)
    for earlier, later in pairwise(order):
        lines = [LINES[later][0], LINES[earlier][0], LINES[earlier][-1]]
        found = diagnose(lines)
        assert [trouble for trouble, _ in found.troubles] == [earlier, later]
        assert found.line(earlier) == LINES[earlier][0]


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (["PSP is not ready", FAILED + "-5"], Trouble.POWER),
        (["PSP is not ready", FAILED + "-5", "firmware is not alive"], Trouble.NOT_ALIVE),
        (["PSP is not ready", READY], None),
        ([READY, "SVA bind device failed, ret -95"], Trouble.NO_PASID),
        ([FAILED + "-19"], Trouble.UNKNOWN_DEVICE),
        ([FAILED + "-19", READY], None),
    ],
)
def test_only_the_last_start_counts(lines: list[str], first: Trouble | None) -> None:
    assert diagnose(lines).first is first


@pytest.mark.parametrize(
    ("line", "protocol"),
    [
        ("Incompatible firmware protocol major 7 minor 2", (7, 2)),
        ("Incompatible firmware protocol major 17, minor 12", (17, 12)),
        ("Firmware 5.3 below minimum 6.12", (5, 3)),
        ("Unsupported firmware protocol", None),
        ("PSP is not ready", None),
    ],
)
def test_the_protocol_that_was_refused(line: str, protocol: tuple[int, int] | None) -> None:
    assert diagnose([line]).protocol == protocol


HAPPENED = {
    "oops": (
        "RIP: 0010:aie2_cmdlist_fill_slot+0x26/0x130 [amdxdna]",
        "Workqueue: amdxdna_js drm_sched_run_job_work Oops: 0000",
        "Oops in amdxdna",
    ),
    "flr": (
        "not ready 65535ms after FLR; giving up",
        "not ready 65535ms after bus reset; giving up",
        "not ready after FLR",
        "Unable to change power state from D3cold to D0, device inaccessible",
    ),
    "resume": (
        "aie2_hw_resume: failed",
        "Start hardware failed, -22",
        "start hardware failed",
        "Resume failed: -22",
        "Resume firmware failed",
        "Hardware resume failed",
        "hw_start failed",
        "hwctx_resume failed",
        "power-cycle start failed",
        "resume failed after NPU reset",
        "amdxdna 0000:c5:00.1: PM: failed to resume: error -22",
        "amdxdna 0000:c5:00.1: PM: failed to restore async",
    ),
    "firmware silent": ("Wait for completion timeout", "wait for completion timeout"),
    "page faults": ("AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x1a]",),
    "hung commands": (
        "aie2_tdr_detect: TDR timeout detected",
        "Device isn't making progress... Count 243",
        "Firmware timeout state capture:",
        "NPU firmware unhealthy",
    ),
    "array errors": ("Row: 3, Col: 1, module 1, event ID 56, category 4",),
    "kernel warnings": ("WARNING: CPU: 3 PID: 9 at drivers/accel/amdxdna/aie2_ctx.c:411",),
    "injected faults": ("injected fault: context 0: status 0x3", "the device was removed"),
}
GRAVE = {"oops", "flr", "resume", "firmware silent"}


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind, lines in HAPPENED.items() for line in lines]
)
def test_what_happened(kind: str, line: str) -> None:
    (found,) = events([f" {line}"])
    assert (found.kind.name, found.count, found.line) == (kind, 1, line)
    assert found.status is (FAIL if kind in GRAVE else WARN)


REMEDIES = {
    "oops": ("Reboot", "maintainers"),
    "flr": ("off and on", "Do not reset it through sysfs"),
    "resume": ("sudo modprobe -r amdxdna; sudo modprobe amdxdna", "off and on"),
    "firmware silent": ("sudo modprobe -r amdxdna; sudo modprobe amdxdna", "off and on"),
    "page faults": ("another kernel", "instruction stream"),
    "hung commands": ("Start the program again", "If other programs hang too, switch the machine off and on"),
    "array errors": ("xclbin",),
    "kernel warnings": ("sudo dmesg",),
    "injected faults": ("--fault",),
}


def test_events_are_told_the_heaviest_first_each_with_its_remedies() -> None:
    lines = [lines[0] for lines in HAPPENED.values()]
    found = events(lines[::-1])
    assert [event.kind.name for event in found] == list(HAPPENED)
    for event in found:
        words = REMEDIES[event.kind.name]
        assert len(event.remedy) == len(words)
        assert all(word in step for word, step in zip(words, event.remedy, strict=True)), event.remedy
    # What fails weighs more than what stands before it and only warns.
    fault = "AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x1a]"
    silent = heaviest(events([fault, "Wait for completion timeout"]))
    storm = heaviest(events([fault] * 8 + ["TDR timeout detected"]))
    calm = heaviest(events(["NPU firmware unhealthy", "Row: 3, Col: 1, module 1, event ID 56"]))
    assert [each and each.kind.name for each in (silent, storm, calm, heaviest([]))] == [
        *("firmware silent", "page faults", "hung commands", None)
    ]


FAULT, LEFT_OUT = "[IO_PAGE_FAULT {}]", "amd_iommu_report_page_fault: {} callbacks suppressed"


@pytest.mark.parametrize(
    ("lines", "count", "status", "last"),
    [
        ([FAULT.format(n) for n in range(7)], 7, WARN, FAULT.format(6)),
        ([FAULT.format(n) for n in range(8)], 8, FAIL, FAULT.format(7)),
        ([FAULT.format(0), LEFT_OUT.format(6)], 7, WARN, FAULT.format(0)),
        (
            [FAULT.format(0), LEFT_OUT.format(3), FAULT.format(1), LEFT_OUT.format(3)],
            8,
            FAIL,
            FAULT.format(1),
        ),
        ([LEFT_OUT.format(5)], 5, WARN, LEFT_OUT.format(5)),
        # One hang has a line of each of these: it is counted once.
        (
            ["TDR timeout detected", "Firmware timeout state capture:"] * 3,
            3,
            WARN,
            "Firmware timeout state capture:",
        ),
        (["TDR timeout detected"] * 2 + ["NPU firmware unhealthy"], 2, WARN, "NPU firmware unhealthy"),
    ],
)
def test_how_often(lines: list[str], count: int, status: object, last: str) -> None:
    (found,) = events(lines)
    assert (found.count, found.status, found.line) == (count, status, last)


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        (["RIP: 0010:a [amdxdna]", "TDR timeout detected", READY], ["oops"]),
        (["WARNING: at amdxdna", "RIP: 0010:a [amdxdna]"], ["kernel warnings"]),
        (["WARNING: at amdxdna", "unrelated", "RIP: 0010:a [amdxdna]"], ["kernel warnings"]),
        (
            ["WARNING: at amdxdna", "RIP: 0010:a [amdxdna]", "RIP: 0010:a [amdxdna]"],
            ["oops", "kernel warnings"],
        ),
        (["not ready 1023ms after FLR; waiting"], []),
        (["RIP: 0010:a [amdgpu]"], []),
        (["the device was removed by hand"], []),
    ],
)
def test_which_events_are_there(lines: list[str], kinds: list[str]) -> None:
    assert [event.kind.name for event in events(lines)] == kinds


@pytest.mark.parametrize(
    ("line", "stood"),
    [
        ("TXN OP ID: 0x2b", "43"),
        ("TXN OP ID: 0x7fffffff", "2147483647"),
        ("TXN OP ID: 0xffffffff", None),
        ("TXN OP ID: 0x2b and more", None),
    ],
)
def test_the_operation_at_which_a_command_hung(line: str, stood: str | None) -> None:
    (found,) = events(["TDR timeout detected", line])
    assert len(found.remedy) == 2 + (stood is not None)
    assert stood is None or f"--at {stood}" in found.remedy[-1]
