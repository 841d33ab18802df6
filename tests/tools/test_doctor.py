"""doctor against injected states: the right cause first, and something to do about it."""

from __future__ import annotations

import os

import pytest

from amdxdna.doctor import Status, examine
from amdxdna.doctor.checks import CHECKS
from amdxdna.doctor.machine import Identity
from tests.support.descriptors import descriptors
from tests.support.doctor_states import ERR, FAILED, READY, STATES, emu, started, unbound
from tests.support.fake_machine import PCI, FakeMachine, node_path


@pytest.fixture
def fake(tmp_path):
    return FakeMachine(tmp_path)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_cause_first(state, fake):
    state.build(fake)
    report = examine("auto", fake.machine())
    cause = report.cause
    assert cause is not None, [f.meaning for f in report.findings]
    assert cause.check == state.cause, [(f.check, f.status.value, f.meaning) for f in report.findings]
    assert state.says in cause.meaning
    assert state.do in " ".join(cause.remedy), cause.remedy
    assert [f.check for f in report.findings] == list(CHECKS)
    for finding in report.findings:
        assert finding.meaning and not finding.meaning.endswith(".")
        assert finding.remedy or finding.status not in (Status.FAIL, Status.WARN) or finding.symptom


def test_all_well(fake):
    report = examine("auto", fake.good().machine())
    assert report.ok and report.cause is None
    assert {f.check: f.status.value for f in report.findings} == dict.fromkeys(CHECKS, "ok")
    assert report["npu"].meaning == f"Strix Point (npu4, XDNA2), 1022:17f0 revision 10, at {PCI}"
    assert report["node"].meaning == "/dev/accel/accel0"
    assert "copy was run and its data checked" in report["answer"].meaning
    assert report["iommu"].facts["mode"] == "pasid"
    assert fake.opened == [node_path(fake.root)]


@pytest.mark.parametrize(
    ("device", "revision", "status", "says"),
    [
        (0x1502, 0x00, "warn", "Phoenix / Hawk Point (npu1, XDNA1)"),
        (0x17F0, 0x00, "ok", "npu2"),
        (0x17F0, 0x10, "ok", "Strix Point"),
        (0x17F0, 0x11, "ok", "Strix Halo"),
        (0x17F0, 0x20, "ok", "Krackan Point"),
        (0x17F0, 0x99, "warn", "unknown revision 99"),
        (0x17F2, 0x10, "warn", "AIE4"),
    ],
)
def test_kinds_of_npu(device, revision, status, says, fake):
    found = examine("auto", fake.npu(device, revision).node().iommu().machine())["npu"]
    assert (found.status.value, says in found.meaning) == (status, True), found
    assert found.facts["revision"] == f"{revision:02x}"


def test_an_xdna1_npu_is_told_plainly(fake):
    report = examine("auto", fake.npu(0x1502, 0).node().iommu().machine())
    assert "XDNA1 NPU, the first generation" in report["npu"].meaning
    assert "cannot run on it" in report["npu"].remedy[0]
    assert report.ok


@pytest.mark.parametrize(
    ("minor", "status", "missing"),
    [
        (0, "warn", "contexts of all processes"),
        (3, "warn", "how many contexts there can be"),
        (4, "ok", "telemetry"),
        (8, "ok", None),
    ],
)
def test_driver_minors(minor, status, missing, fake):
    emu(f"minor={minor}")(fake)
    report = examine("auto", fake.machine())
    found = report["driver"]
    assert found.status.value == status
    assert (missing in found.meaning) if missing else "too old" not in found.meaning
    assert report.ok
    assert f"0.{minor}" in found.meaning and "7.3.4-test" in found.meaning


@pytest.mark.parametrize(
    ("driver", "status", "says"),
    [
        ("7.3", "ok", ("Linux's driver", "end after 2 s", "up to 512 MiB")),
        ("6.18.5", "warn", ("Linux 6.18's driver", "after 60 s", "can read as completed", "up to 64 MiB")),
        ("oot-legacy", "ok", ("AMD's legacy out-of-tree driver of 2026", "end after 6 s")),
        ("oot-2025-06", "warn", ("before September 2025", "go as chains of one")),
    ],
)
def test_what_is_known_of_the_driver(driver, status, says, fake):
    emu(f"driver={driver}")(fake)
    report = examine("auto", fake.machine())
    found = report["driver"]
    assert found.status.value == status and report.ok
    assert all(part in found.meaning for part in says), found.meaning
    assert found.facts["profile"]["version"] == found.facts["version"]


@pytest.mark.parametrize(
    ("forced", "options", "says"),
    [
        (False, "address=pasid", "PASID"),
        (True, "address=iova", "force_iova=1"),
        (False, "address=iova", "IOVA or carveout"),
    ],
)
def test_address_modes(forced, options, says, fake):
    emu(options)(fake)
    fake.file("sys/module/amdxdna/parameters/force_iova", "Y" if forced else "N")
    assert says in examine("auto", fake.machine())["iommu"].meaning


MIB = 1 << 20
UNLIMITED = (1 << 64) - 1


@pytest.mark.parametrize(
    ("limits", "uid", "where", "status", "says", "first"),
    [
        ((UNLIMITED, UNLIMITED), 1000, "", "ok", "unlimited", ""),
        ((8 * MIB, 8 * MIB), 1000, "", "warn", "8 MiB (at most 8 MiB)", "limits.d"),
        ((64 << 10, UNLIMITED), 1000, "", "warn", "`ulimit -l unlimited`", "limits.d"),
        ((8 * MIB, 8 * MIB), 1000, "container", "warn", "8 MiB", "--ulimit memlock=-1:-1"),
        ((8 * MIB, 8 * MIB), 1000, "service", "warn", "8 MiB", "LimitMEMLOCK=infinity"),
        ((2954 * MIB, 2954 * MIB), 1000, "", "ok", "2954 MiB", ""),
        ((8 * MIB, 8 * MIB), 0, "", "ok", "does not bind root", ""),
        ((8 * MIB, 8 * MIB), 0, "container", "warn", "8 MiB", "--ulimit"),
    ],
)
def test_memlock(limits, uid, where, status, says, first, fake):
    fake.good().memlock = limits
    fake.identity = Identity(uid, frozenset({992}))
    if where == "container":
        fake.container()
    elif where == "service":
        fake.environ["INVOCATION_ID"] = "1"
    report = examine("auto", fake.machine())
    found = report["memlock"]
    assert found.status.value == status and says in found.meaning, found
    if first:
        assert first in found.remedy[0]
        assert len(found.remedy) == 3
    assert report.ok


def test_holders_are_named(fake):
    emu("slots=6,held_slots=5")(fake)
    pid = 2147483646
    fake.file(f"proc/{pid}/comm", "flm\n")
    found = examine("auto", fake.machine())["contexts"]
    assert found.status is Status.WARN
    assert f"5 of 6 in use (flm ({pid}): 5)" in found.meaning
    assert found.facts == {"limit": 6, "taken": 5, "holders": {str(pid): 5}}


def test_process_ids_of_the_host_are_not_looked_up_in_a_container(fake):
    emu("held_slots=1")(fake.container())
    fake.file("proc/2147483646/comm", "innocent\n")
    assert "process 2147483646 of the host: 1" in examine("auto", fake.machine())["contexts"].meaning


def test_other_users_contexts_are_counted_though_not_listed(fake, monkeypatch):
    emu("slots=4,held_slots=3")(fake)
    monkeypatch.setattr("amdxdna.query.contexts", lambda client: ())
    found = examine("auto", fake.machine())["contexts"]
    assert "3 of 4 in use (not listed: 3)" in found.meaning


def test_symptoms_point_to_the_cause(fake):
    unbound(
        ERR + "aie2_check_protocol: Incompatible firmware protocol major 7 minor 2",
        FAILED + "-22",
        release="6.17.0",
    )(fake)
    report = examine("auto", fake.machine())
    assert report["module"].symptom and "see firmware" in report["module"].meaning
    assert report["firmware"].facts["protocol"] == [7, 2]
    assert report["answer"].status is Status.SKIP


def test_only_the_last_start_counts(fake):
    """An old failure in the log is not blamed once the driver has started, nor for what failed later."""
    old = (ERR + "aie2_check_protocol: Incompatible firmware protocol major 7 minor 2", FAILED + "-22")
    fake.good().log(*old, f"[drm] Initialized amdxdna_accel_driver 0.10.0 for {PCI} on minor 0")
    assert examine("auto", fake.machine()).ok


def test_a_later_failure_replaces_an_earlier(fake):
    unbound(
        ERR + "aie2_check_protocol: Incompatible firmware protocol major 7 minor 2",
        FAILED + "-22",
        ERR + "aie2_smu_exec: smu cmd 4 timed out",
        FAILED + "-110",
    )(fake)
    assert examine("auto", fake.machine()).cause.check == "module"


def test_a_missing_first_choice_of_firmware_is_no_failure(fake):
    """Linux 7 asks for npu_7.sbin, then for npu.sbin: only the last refusal matters."""
    unbound(
        f"amdxdna {PCI}: Direct firmware load for amdnpu/17f0_10/npu_7.sbin failed with error -2",
        ERR + "aie2_smu_exec: smu cmd 4 timed out",
        FAILED + "-110",
    )(fake)
    assert examine("auto", fake.machine()).cause.check == "module"


@pytest.mark.parametrize("name", ["npu.sbin.zst", "npu_7.sbin.xz", "npu.sbin"])
def test_firmware_files_are_found(name, fake):
    fake.npu(driver="").iommu().firmware(name)
    found = examine("auto", fake.machine())["firmware"]
    assert found.status is Status.OK and f"{name} (1.1.2.64)" in found.meaning
    assert found.facts["files"] == [f"/lib/firmware/amdnpu/17f0_10/{name}"]


def test_the_emulated_device_is_examined_without_the_machine(fake):
    report = examine("emu:quiet,threads=1,slots=2", fake.virtual().machine())
    assert report.ok
    skipped = [f.check for f in report.findings if f.status is Status.SKIP]
    assert skipped == ["module", "node", "firmware", "permission", "log"]


@pytest.mark.parametrize(
    ("spec", "says"), [("1", "there is no NPU 1; there are 1"), ("path", "there is no /dev/x")]
)
def test_a_device_that_is_not_there(spec, says, fake):
    fake.good()
    report = examine(str(fake.root / "dev/x") if spec == "path" else spec, fake.machine())
    assert says in report["node"].meaning
    assert report.cause.check == "node"


def test_the_second_node(fake):
    fake.npu().node("accel1").iommu()
    report = examine("auto", fake.machine())
    assert report.ok and report["node"].meaning == "/dev/accel/accel1"


def test_a_container_that_sees_the_node_but_not_sys(fake):
    fake.container().file("dev/accel/accel0")
    report = examine("auto", fake.machine())
    assert report.ok and fake.opened == [node_path(fake.root)]
    assert report["npu"].status is Status.WARN and "/sys" in report["npu"].meaning


def test_another_makers_node_is_not_taken_for_an_npu(fake):
    fake.file("dev/accel/accel0").file("sys/class/accel/accel0/device/vendor", "0x8086")
    report = examine("auto", fake.machine())
    assert report.cause.check == "npu" and fake.opened == []


def test_a_node_of_another_driver(fake):
    fake.npu().node("accel1").iommu().file("dev/accel/accel0")
    found = examine(node_path(fake.root), fake.machine())["node"]
    assert found.status is Status.WARN and "/dev/accel/accel1" in found.remedy[0]


def test_out_of_tree_builds_are_told(fake):
    fake.good().file("sys/module/amdxdna/taint", "OE\n")
    report = examine("auto", fake.machine())
    assert "out-of-tree" in report["module"].meaning and report["module"].facts["out_of_tree"]


def test_real_firmware_is_given_no_command_of_ours(fake, monkeypatch):
    fake.good()
    monkeypatch.setattr("amdxdna.device_info.EMULATED_BUILD", 64)
    monkeypatch.setattr("amdxdna.kernel.Kernel.start", lambda *_, **__: pytest.fail("a command was started"))
    found = examine("auto", fake.machine())["answer"]
    assert found.status is Status.OK and "no command was run" in found.meaning
    assert found.facts["ran"] is False


def test_this_machine():
    """On the machine of the test itself every check ends with a finding, whatever it is."""
    report = examine("auto")
    assert [f.check for f in report.findings] == list(CHECKS)


def test_nothing_is_left_open(fake):
    before = descriptors()
    for _ in range(3):
        examine("auto", fake.machine())
    assert len(descriptors() - before) <= 1


FAULT = "amdxdna {}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001a address=0x8000 flags=0x0050]"
OTHERS_FAULT = "nvme 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0 address=0x0 flags=0x0]"
# Linux 7.3's aie2_ctx.c. printk's TAB is written so by /dev/kmsg.
HANG = [
    ERR + "aie2_tdr_detect: TDR timeout detected",
    *(
        ERR + "aie2_set_cmd_timeout: " + text
        for text in (
            "Firmware timeout state capture:",
            "\\x09Version: 1.0",
            "\\x09Report size: 0x30",
            "\\x09Context ID: 1",
            "\\x09DPU PC: 0x1a0",
            "\\x09TXN OP ID: 0x2b",
            "\\x09Context PC: 0x0",
            "\\x09Fatal error type: 0x0",
            "\\x09Timed out sub command ID: 0",
        )
    ),
]


@pytest.mark.parametrize(
    ("lines", "status", "says"),
    [
        (
            [f"amdxdna {PCI}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x1a address=0x8000 flags=0x50]"],
            "warn",
            "refused accesses of the NPU (IO_PAGE_FAULT) (amdxdna",
        ),
        (
            [ERR + "injected fault: context 0: status 0x3"] * 2,
            "warn",
            "the faults that it was asked for, 2 times",
        ),
        ([ERR + "the device was removed"], "warn", "the faults that it was asked for"),
        (HANG * 3, "warn", "hung and the driver reset their contexts, 3 times (amdxdna"),
        ([f"amdxdna {PCI}: aie2_tdr_work: Device isn't making progress... Count 243"], "warn", "hung"),
        (
            [
                ERR + "aie2_error_backtrack: Row: 3, Col: 1, module 1, event ID 56, category 4",
                *[ERR + "aie2_error_backtrack: Row: 2, Col: 0, module 2, event ID 60, category 4"] * 2,
            ],
            "warn",
            "reported errors",
        ),
        (
            [
                "WARNING: drivers/accel/amdxdna/aie2_ctx.c:411 at aie2_hwctx_fini+0x9c/0xb0 [amdxdna], CPU#3",
                "Modules linked in: amdxdna gpu_sched",
                "RIP: 0010:aie2_hwctx_fini+0x9c/0xb0 [amdxdna]",
            ],
            "warn",
            "a kernel WARNING",
        ),
        (
            [
                "WARNING: CPU: 3 PID: 9 at drivers/accel/amdxdna/aie2_ctx.c:411 aie2_hwctx_fini+0x9c",
                "RIP: 0010:aie2_hwctx_fini+0x9c/0xb0 [amdxdna]",
                "RIP: 0010:aie2_hwctx_fini+0xa0/0xb0 [amdxdna]",
            ],
            "fail",
            "crashed",
        ),
        (
            [
                f"amdxdna {PCI}: not ready 1023ms after FLR; waiting",
                f"amdxdna {PCI}: ready 2047ms after FLR",
            ],
            "ok",
            "no fault",
        ),
        (
            [FAULT.format(PCI), "amd_iommu_report_page_fault: 311 callbacks suppressed"],
            "fail",
            "(IO_PAGE_FAULT), 312 times (amdxdna",
        ),
        (
            [
                FAULT.format(PCI),
                OTHERS_FAULT,
                "amd_iommu_report_page_fault: 311 callbacks suppressed",
            ],
            "warn",
            "(IO_PAGE_FAULT) (amdxdna",
        ),
        (
            [OTHERS_FAULT] * 20,
            "ok",
            "no fault",
        ),
        (["RIP: 0010:amdgpu_vm_ptes_update+0x26/0x130 [amdgpu]"], "ok", "no fault"),
    ],
)
def test_what_the_log_says_since_the_start(lines, status, says, fake):
    started(*lines)(fake)
    found = examine("auto", fake.machine())["log"]
    assert (found.status.value, says in found.meaning) == (status, True), found.meaning


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ([], "insts FILE --at 43"),
        ([READY, HANG[0]], ""),
        ([HANG[5].replace("0x2b", "0xffffffff")], "--at 43"),
    ],
)
def test_where_a_hung_command_stood(end, said, fake):
    started(*HANG, *end)(fake)
    told = " ".join(examine("auto", fake.machine())["log"].remedy)
    assert said in told and ("--at" in told) == bool(said)


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ("6.8.0-41-generic", "came with Linux 6.14"),
        ("6.13.12-arch1", "came with Linux 6.14"),
        ("6.14.0-rc1", "built without it"),
        ("6.14.0", "built without it"),
        ("7.3.4+deb13-amd64", "built without it"),
    ],
)
def test_which_kernels_have_the_driver(release, says, fake):
    """Linux 6.13 has no amdxdna, 6.14 has it."""
    fake.npu(driver="").iommu().firmware().file("proc/sys/kernel/osrelease", release)
    fake.file(f"lib/modules/{release}/modules.dep", "kernel/drivers/gpu/drm/drm.ko:\n")
    found = examine("auto", fake.machine())["module"]
    assert (found.status.value, says in found.meaning) == ("fail", True), found.meaning


@pytest.mark.parametrize(
    ("release", "outside", "named"),
    [
        ("7.3.4", False, "npu_7.sbin (1.1.7.7)"),
        ("7.3.4", True, "npu.dev.sbin (9.9.9.9)"),
    ],
)
def test_which_of_several_firmware_files_is_named(release, outside, named, fake):
    """The one that this driver asks for first; the others are listed after it."""
    fake.npu(driver="").iommu().file("proc/sys/kernel/osrelease", release)
    fake.firmware("npu.sbin", version="1.0.0.1").firmware("npu_7.sbin", version="1.1.7.7")
    fake.firmware("npu.dev.sbin", version="9.9.9.9")
    if outside:
        fake.file("sys/module/amdxdna/taint", "OE\n")
    found = examine("auto", fake.machine())["firmware"]
    assert found.status is Status.OK and found.meaning.startswith(named), found.meaning
    assert os.path.basename(found.facts["files"][0]) == named.partition(" ")[0]


REFUSED = ERR + "aie2_check_protocol: Incompatible firmware protocol major 7 minor 2"
NOT_FOUND = ERR + "aie2_init: failed to request_firmware amdnpu/17f0_10/npu_7.sbin, ret -2"


@pytest.mark.parametrize(
    ("release", "lines", "other", "version", "says"),
    [
        ("7.3.4", [NOT_FOUND, FAILED + "-2"], "npu_7.sbin", "1.1.7.7", "though npu_7.sbin is there now"),
        (
            "7.3.4",
            [FAILED + "-5"],
            "npu_7.sbin",
            "1.1.7.7",
            "npu_7.sbin (1.1.7.7), npu.sbin (1.1.2.64) is there;",
        ),
        (
            "6.17.0",
            [REFUSED, FAILED + "-22"],
            "npu.sbin.zst",
            "1.0.0.1",
            "npu.sbin (1.1.2.64), npu.sbin.zst (1.0.0.1) speaks",
        ),
        (
            "6.17.0",
            [FAILED + "-22"],
            "npu.sbin.zst",
            "1.0.0.1",
            "npu.sbin (1.1.2.64), npu.sbin.zst (1.0.0.1) speaks",
        ),
    ],
)
def test_which_firmware_files_a_failed_start_is_told_with(release, lines, other, version, says, fake):
    """One where the driver's first choice is meant, all where any of them may be the one it took."""
    unbound(*lines, release=release)(fake)
    fake.firmware(other, version=version)
    assert says in examine("auto", fake.machine())["firmware"].meaning


def test_what_came_before_the_last_good_start_is_over(fake):
    started(f"amdxdna {PCI}: not ready 65535ms after FLR; giving up", *HANG, READY)(fake)
    assert examine("auto", fake.machine())["log"].status is Status.OK


def test_a_log_that_may_not_be_read_is_no_fault(fake):
    fake.good()
    (fake.root / "dev/kmsg").unlink()
    found = examine("auto", fake.machine())["log"]
    assert found.status is Status.SKIP and found.remedy


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b""), os.mkfifo], ids=["empty", "fifo"])
def test_an_empty_log_tells_nothing(make, fake):
    fake.good()
    (fake.root / "dev/kmsg").unlink()
    make(fake.root / "dev/kmsg")
    found = examine("auto", fake.machine())["log"]
    assert found.status is Status.SKIP and "empty" in found.meaning


def test_faults_at_the_end_of_a_long_log_are_found(fake):
    others = ["usb 1-1: new high-speed USB device using xhci_hcd"] * 90_000
    fake.good().log(*others, *HANG)
    assert examine("auto", fake.machine())["log"].status is Status.WARN
    fake.log(*others)
    found = examine("auto", fake.machine())["log"]
    assert found.status is Status.OK and "oldest part was not read" in found.meaning


def test_an_emulated_device_that_cannot_be_opened_is_a_failure(fake):
    report = examine("emu:open=*:EACCES,quiet", fake.machine())
    assert report.cause is not None and report.cause.check == "answer"
    assert "emulated device cannot be opened" in report.cause.meaning


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"etc/security/limits.d/99-npu.conf": "* - memlock unlimited\n"}, "99-npu.conf already sets it"),
        (
            {"etc/security/limits.conf": "jane hard memlock unlimited\njane soft memlock unlimited\n"},
            "limits.conf already sets it",
        ),
        ({"etc/security/limits.conf": "@render - memlock -1 # for the NPU\n"}, "limits.conf already sets it"),
        (
            {"etc/security/limits.conf": "bob - memlock unlimited\n#* - memlock unlimited\n"},
            "In a login shell: put",
        ),
        ({"proc/self/cgroup": "0::/system.slice/npu-server.service"}, "systemctl edit npu-server.service"),
        (
            {"proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice/code.service"},
            "user manager (user@1000.service)",
        ),
        ({"proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope"}, "In a login shell: put"),
    ],
)
def test_where_the_locked_memory_limit_comes_from(files, says, fake):
    fake.good().memlock = (8 * MIB, 8 * MIB)
    for path, text in files.items():
        fake.file(path, text)
    assert says in examine("auto", fake.machine())["memlock"].remedy[0]
