"""What doctor reads of the machine, file by file, and of the open device."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amdxdna._native import lib
from amdxdna.device import Device
from amdxdna.doctor import Finding, Machine, Report, examine
from amdxdna.doctor.advice import memlock
from amdxdna.doctor.checks import CHECKS
from amdxdna.doctor.machine import UNLIMITED, Identity
from amdxdna.doctor.models import model_of
from amdxdna.doctor.scrub import Scrubber
from amdxdna.doctor.subject import Subject
from amdxdna.errors import Closed
from amdxdna.opening import open_node
from tests.support.binding import ProxyNode
from tests.support.doctor_rows import FAIL, OK, SKIP, WARN, Row, cases, finding, opens
from tests.support.doctor_states import ERR
from tests.support.fake_machine import FakeMachine, node_path

MIB = 1 << 20


@pytest.fixture
def fake(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({}, {}, ""),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({"proc/self/cgroup": "0::/lxc/web"}, {}, "lxc"),
        ({"proc/self/cgroup": "0::/kubepods/besteffort/pod1"}, {}, "kubepods"),
        ({"proc/self/cgroup": "0::/user.slice/dockerlike"}, {}, ""),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({}, {"container": "flatpak"}, "flatpak"),
        ({".dockerenv": "", "run/systemd/container": "x"}, {}, "docker"),
    ],
)
def test_kinds_of_container(
    files: dict[str, str], environ: dict[str, str], kind: str, fake: FakeMachine
) -> None:
    fake.environ = environ
    for path, text in files.items():
        fake.file(path, text)
    assert fake.machine().container() == kind


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"proc/cpuinfo": "flags : fpu hypervisor\n"}, "of an unknown kind"),
        ({"proc/cpuinfo": "flags : fpu hypervisor\n", "sys/class/dmi/id/product_name": "KVM\n"}, "KVM"),
        (
            {"proc/cpuinfo": "model name : hypervisor\nflags : fpu\n", "sys/class/dmi/id/sys_vendor": "QEMU"},
            "",
        ),
        ({"proc/cpuinfo": "flags : fpu nohypervisors\n"}, ""),
    ],
)
def test_virtual_machines(files: dict[str, str], kind: str, fake: FakeMachine) -> None:
    for path, text in files.items():
        fake.file(path, text)
    assert fake.machine().virtual() == kind


@pytest.mark.parametrize(
    ("release", "kernel"),
    [("7.3.4-test", (7, 3)), ("6.14", (6, 14)), ("10.0-rc1", (10, 0)), ("7", (0, 0)), ("", (0, 0))],
)
def test_kernel_versions(release: str, kernel: tuple[int, int], fake: FakeMachine) -> None:
    machine = fake.file("proc/sys/kernel/osrelease", release + "\n").machine()
    assert machine.kernel == kernel and machine.release == (release or "unknown")


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/npu.service\n", "npu.service"),
        ("12:pids:/x\n0::/system.slice/a.service/b.service", "b.service"),
        ("0::/user.slice/user@7.service/app.slice/code.service", "user@7.service"),
        ("0::/user.slice/session-3.scope", ""),
        ("", ""),
    ],
)
def test_systemd_units(cgroup: str, unit: str, fake: FakeMachine) -> None:
    assert fake.file("proc/self/cgroup", cgroup).machine().unit() == unit


def test_names_of_users_groups_and_processes(fake: FakeMachine) -> None:
    fake.file("etc/group", "root:x:0:\nbad\nvideo:x:44:bob,jane\nrender:x:992:janet\nshort:x:7\n")
    fake.file("etc/passwd", "root:x:0:0\njane:x:1000:1000\nbad\n")
    machine = fake.machine()
    assert [machine.group_name(gid) for gid in (0, 44, 992, 7, 9)] == ["root", "video", "render", "short", ""]
    assert [machine.listed_in(gid) for gid in (0, 44, 992, 7, 9)] == [False, True, False, False, False]
    assert machine.user_name() == "jane"
    nobody = replace(machine, identity=Identity(5, frozenset()))
    assert nobody.user_name() == "" and not nobody.listed_in(44)
    for pid, user in ((3, 1000), (4, 0)):
        fake.file(f"proc/{pid}/comm", f"name{pid}\n").file(
            f"proc/{pid}/status", f"Name: x\nUid:\t1\t{user}\t1\t1\n"
        )
    fake.file("proc/-1/comm", "no").file("proc/0/comm", "no")
    told = [
        [replace(machine, name_others=each).process_name(pid) for pid in (-1, 0, 3, 4, 5)]
        for each in (True, False)
    ]
    assert told == [["", "", "name3", "name4", ""], ["", "", "name3", "", ""]]


def test_where_firmware_is_looked_for(fake: FakeMachine) -> None:
    """The folder that the kernel was told first, then those of fw_get_filesystem_firmware() in order; in each
    the plain file before packed ones."""
    fake.file("sys/module/firmware_class/parameters/path", "/opt/fw\n")
    folders = [
        *("opt/fw", "lib/firmware/updates/7.3.4-test", "lib/firmware/updates", "lib/firmware/7.3.4-test"),
        "lib/firmware",
    ]
    wanted = [
        f"{folder}/amdnpu/17f0_10/{name}{ending}"
        for name in ("npu_7.sbin", "npu.sbin")
        for folder in folders
        for ending in ("", ".zst", ".xz")
    ]
    for path in [
        *reversed(wanted),
        "lib/firmware/amdnpu/17f0_10/npu.sbin.gz",
        "lib/firmware/amdnpu/17f0_11/npu.sbin",
    ]:
        fake.file(path)
    machine = fake.machine()
    assert [machine.shown(p) for p in machine.firmware_files(model_of(0x17F0, 0x10))] == [
        "/" + p for p in wanted
    ]
    assert machine.shown(Path("/elsewhere")) == "/elsewhere"
    fake.file("sys/module/amdxdna/taint", "OE")
    assert machine.firmware_names() == ("npu.dev.sbin", "npu_7.sbin", "npu.sbin")
    fake.file("sys/module/amdxdna/parameters/timeout_in_sec", "2")
    assert machine.firmware_names() == ("npu.dev.sbin",)
    fake.file("sys/module/amdxdna/taint", "")
    assert machine.firmware_names() == ("npu_7.sbin", "npu.sbin")


@pytest.mark.parametrize(
    ("device", "revision", "model"),
    [
        (0x1502, 0x00, ("npu1", "XDNA1", "Phoenix / Hawk Point", ("1502_00",))),
        (0x1502, 0x01, ("npu1", "XDNA1", "Phoenix / Hawk Point", ("1502_00",))),
        (0x17F0, 0x00, ("npu2", "XDNA2", "early Strix", ("17f0_00",))),
        (0x17F0, 0x10, ("npu4", "XDNA2", "Strix Point", ("17f0_10",))),
        (0x17F0, 0x11, ("npu5", "XDNA2", "Strix Halo", ("17f0_11",))),
        (0x17F0, 0x20, ("npu6", "XDNA2", "Krackan Point", ("17f0_20", "17f0_10"))),
        (0x17F0, 0x0A, ("unknown", "XDNA2", "unknown revision 0a", ("17f0_0a",))),
        *(
            (device, 0, ("npu3", "AIE4", "a newer NPU", ()))
            for device in (0x17F1, 0x17F2, 0x17F3, 0x1B0A, 0x1B0B, 0x1B0C)
        ),
    ],
)
def test_models(device: int, revision: int, model: tuple[str, str, str, tuple[str, ...]]) -> None:
    """Device table and firmware folders of drivers/accel/amdxdna (amdxdna_pci_drv.c, npu*_regs.c)."""
    found = model_of(device, revision)
    assert (found.name, found.generation, found.product, found.folders) == model


LIMITS = "/etc/security/limits"
SHELL, SERVICE, CONTAINER = "In a login shell: put", "In a systemd service: `LimitMEMLOCK", "In a container"


@pytest.mark.parametrize(
    ("files", "environ", "order"),
    [
        ({}, {}, (SHELL, SERVICE, CONTAINER)),
        ({".dockerenv": ""}, {}, (CONTAINER, SERVICE, SHELL)),
        (
            {"proc/self/cgroup": "0::/user@7.service/code.service"},
            {},
            ("systemctl edit user@7.service", SHELL, CONTAINER),
        ),
        (
            {"proc/self/cgroup": "0::/system.slice/npu.service"},
            {},
            ("systemctl edit npu.service`", SHELL, CONTAINER),
        ),
        ({}, {"INVOCATION_ID": "1"}, (SERVICE, SHELL, CONTAINER)),
        ({}, {"INVOCATION_ID": "1", "XDG_SESSION_ID": "3"}, (SHELL, SERVICE, CONTAINER)),
        (
            {"etc/security/limits.d/a.conf": "* - memlock unlimited"},
            {},
            (f"{LIMITS}.d/a.conf already", SERVICE, CONTAINER),
        ),
        ({"etc/security/limits.d/a.old": "* - memlock unlimited"}, {}, (SHELL, SERVICE, CONTAINER)),
        ({"etc/security/limits.d/a.conf": "* - memlock 65536"}, {}, (SHELL, SERVICE, CONTAINER)),
        ({"etc/security/limits.d/a.conf": "* - nofile unlimited"}, {}, (SHELL, SERVICE, CONTAINER)),
        ({"etc/security/limits.conf": "@video hard memlock -1"}, {}, (SHELL, SERVICE, CONTAINER)),
        (
            {"etc/security/limits.conf": "@render hard memlock infinity"},
            {},
            (f"{LIMITS}.conf already", SERVICE, CONTAINER),
        ),
        # The last of the folder's files is the one that counts, and the folder before the file.
        (
            {f"etc/security/limits.{name}": "jane - memlock -1" for name in ("d/1.conf", "d/2.conf", "conf")},
            {},
            ("/etc/security/limits.d/2.conf already", SERVICE, CONTAINER),
        ),
    ],
)
def test_where_to_raise_the_locked_memory_limit(
    files: dict[str, str], environ: dict[str, str], order: tuple[str, ...], fake: FakeMachine
) -> None:
    fake.environ = environ
    for path, text in files.items():
        fake.file(path, text)
    told = memlock(fake.machine())
    assert all(word in step for word, step in zip(order, told, strict=True)), told


@pytest.mark.parametrize(
    ("limits", "uid", "spec", "status", "says", "facts"),
    [
        ((UNLIMITED, UNLIMITED), 7, "auto", OK, "unlimited", (None, None)),
        ((64 * MIB, UNLIMITED), 7, "auto", OK, "64 MiB: enough for a heap", (64 * MIB, None)),
        (
            (64 * MIB - 1, 64 * MIB - 1),
            7,
            "auto",
            WARN,
            "63 MiB (at most 63 MiB): enough",
            (64 * MIB - 1,) * 2,
        ),
        (
            (MIB - 1, 64 * MIB),
            7,
            "auto",
            WARN,
            "1023 KiB (at most 64 MiB; `ulimit -l 65536` raises",
            (MIB - 1, 64 * MIB),
        ),
        (
            (MIB, UNLIMITED),
            7,
            "auto",
            WARN,
            "1 MiB (at most unlimited; `ulimit -l unlimited` raises",
            (MIB, None),
        ),
        ((MIB, MIB), 7, "emu:quiet", OK, "1 MiB: limits only wrapped memory", (MIB, MIB)),
        ((MIB, MIB), 0, "auto", OK, "1 MiB, which does not bind root", (MIB, MIB)),
    ],
)
def test_locked_memory(
    limits: tuple[int, int],
    uid: int,
    spec: str,
    status: object,
    says: str,
    facts: tuple[int | None, ...],
    fake: FakeMachine,
) -> None:
    fake.memlock, fake.identity = limits, Identity(uid, frozenset({uid}))
    found = finding(fake, "memlock", spec)
    assert found.status is status and says in found.meaning, found.meaning
    assert found.facts == dict(zip(("soft", "hard"), facts, strict=True))
    assert len(found.remedy) == (3 if status is WARN else 0)


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("jane's Ryzen, JANE, janet, x_jane", "<user>'s Ryzen, <user>, janet, x_jane"),
        ("from Jane Doe at box.lan and BOX", "from <user> at <host> and <host>"),
        ("/home/ada/x, (/Users/ada), /var/home/ada/y", "~/x, (~), ~/y"),
        ("/mnt/home/ada/x", "/mnt/home/<user>/x"),
        ("/root/x and /root, /mnt/root/y", "~/x and ~, /mnt/root/y"),
        ("id 01234567-89ab-CDEF-0123-456789abcdef.", "id <uuid>."),
        ("at aa:bb:cc:dd:ee:0F", "at <mac>"),
        ("mail a.b+c@d-e.org now", "mail <address> now"),
        ("Serial Number: XY1, s/n=Z2", "Serial Number <removed> s/n <removed>"),
        ("npu root render amdxdna daemon bob", "npu root render amdxdna daemon bob"),
        ("0000:c5:00.1 and 1022:17f0", "0000:c5:00.1 and 1022:17f0"),
    ],
)
def test_what_is_taken_out_of_a_public_report(text: str, scrubbed: str, fake: FakeMachine) -> None:
    users = ("root:x:0:0::", "daemon:x:999:1:A B:", "jane:x:1000:1000:Jane Doe,,,:", "npu:x:1001:1:npu:")
    fake.file("etc/passwd", "".join(f"{user}/:/x\n" for user in users))
    fake.file("proc/sys/kernel/hostname", "box.lan\n").environ = {"USER": "jane", "SUDO_USER": "r"}
    scrubber = Scrubber.of(fake.machine())
    assert scrubber.text(text) == scrubbed
    assert scrubber.value({text: [(text, 3, None)]}) == {scrubbed: [[scrubbed, 3, None]]}
    assert Scrubber({}).text("jane") == "jane"


# -- reports

A, B, C = (Finding(name, FAIL, name, symptom=name != "c") for name in "abc")


@pytest.mark.parametrize(
    ("findings", "cause"),
    [((A, B, C), C), ((A, B), A), ((Finding("w", WARN, "w"), Finding("s", SKIP, "s")), None), ((), None)],
)
def test_the_cause_is_the_first_failure_that_is_no_symptom(
    findings: tuple[Finding, ...], cause: Finding | None
) -> None:
    report = Report(findings)
    assert report.cause is cause and report.ok == (cause is None)
    assert all(report[each.check] is each for each in findings)


def test_a_finding_in_a_document() -> None:
    assert Finding("a", WARN, "b", ("c", "d"), True, {"e": 1}).as_json() == {
        "check": "a",
        "status": "warn",
        "meaning": "b",
        "remedy": ["c", "d"],
        "symptom": True,
        "facts": {"e": 1},
    }


# -- the open device

ROWS = {
    "contexts": [
        Row(opens("open=*:EACCES"), SKIP, ("needs an open device",)),
        Row(opens("slots=16,held_slots=11"), OK, ("11 of 16 in use (process 2147483646: 11)",)),
        Row(opens("slots=16,held_slots=12"), WARN, ("few are left: 12 of 16",), ("end what is not needed",)),
        Row(opens("slots=2"), OK, ("0 of 2 in use",), facts={"limit": 2, "taken": 0, "holders": {}}),
        Row(
            opens("minor=3"),
            OK,
            ("0 of an unknown number in use",),
            facts={"limit": None, "taken": 0, "holders": {}},
        ),
        Row(
            opens("slots=3,held_slots=3"),
            FAIL,
            ("all hardware contexts are taken: 3 of 3", "CREATE_HWCTX EINVAL"),
            ("End the programs that hold them (`kill 2147483646`)", "`python -m amdxdna contexts --watch`"),
            {"limit": 3, "taken": 3, "holders": {"2147483646": 3}},
        ),
    ],
    "answer": [
        Row(lambda f: f, SKIP, ("needs an open device",)),
        Row(opens("open=*:EIO"), FAIL, ("the node cannot be opened: ",), ("",), symptom=True),
        Row(
            lambda f: f, FAIL, ("the emulated device cannot be opened: ",), ("",), spec="emu:quiet,open=*:EIO"
        ),
        Row(
            opens("quiet"),
            OK,
            (
                "firmware ",
                " answers; heap and buffers work; a context can be made; a copy was run",
            ),
        ),
        Row(
            opens("slots=2,held_slots=2"),
            FAIL,
            (" answers, heap and buffers work, but ",),
            ("",),
            symptom=True,
        ),
        Row(
            opens("refuse=*:0x4000003"),
            FAIL,
            ("heap and buffers work, but then: ", "CREATE_HWCTX failed"),
            ("",),
        ),
        Row(
            lambda f: opens("refuse=*:0x2000003")(
                f.log(ERR + "old 0x2000003", ERR + "status 0x2000003", ERR + "later")
            ),
            FAIL,
            (f"none is open ({ERR}status 0x2000003): it is stuck",),
            ("Switch the machine off and on", "sudo modprobe -r amdxdna; sudo modprobe amdxdna"),
        ),
        Row(opens("lose=1"), FAIL, ("a context can be made, but then: EXEC_CMD failed",), ("", "off and on")),
        Row(opens("fail=*"), FAIL, ("but then: EXEC_CMD failed",), ("",)),
        Row(
            opens("corrupt=*"), FAIL, ("a copy that the NPU completed has wrong data",), ("selftest --loop",)
        ),
    ],
}


@pytest.mark.parametrize(("check", "row"), cases(ROWS))
def test_findings(check: str, row: Row, fake: FakeMachine) -> None:
    row.check(check, fake)


def test_a_device_that_makes_no_buffer(fake: FakeMachine) -> None:
    def refuse(request: int, address: Any) -> int | None:
        return -12 if request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO else None

    machine = replace(
        fake.good().machine(), open=lambda _: Device.open(ProxyNode(open_node("emu:quiet"), refuse))
    )
    subject = Subject(machine)
    try:
        found = CHECKS["iommu"](subject)
        assert found.status is FAIL and found.meaning.startswith("no buffer could be made: ")
        assert len(found.remedy) == 1
    finally:
        subject.close()


@pytest.mark.parametrize(
    ("spec", "node"),
    [("auto", "accel0"), ("", "accel0"), ("0", "accel0"), ("1", None), ("/x/y", "/x/y"), ("emu:quiet", None)],
)
def test_the_node_that_is_meant(spec: str, node: str | None, fake: FakeMachine) -> None:
    subject = Subject(fake.good().machine(), spec)
    wanted = None if node is None else node if node.startswith("/") else node_path(fake.root, node)
    assert (subject.path and str(subject.path)) == wanted
    assert subject.emulated == spec.startswith("emu")


def test_a_node_that_sys_does_not_show(fake: FakeMachine) -> None:
    fake.file("dev/accel/accel0").file("dev/accel/other").file("dev/accel/accel1")
    fake.file("sys/class/accel/accel0/device/vendor", "0x8086")
    assert str(Subject(fake.machine()).path) == node_path(fake.root, "accel1")
    assert Subject(fake.machine(), "0").path is None
    (fake.root / "dev/accel/accel1").unlink()
    assert Subject(fake.machine()).path is None


def test_a_device_is_opened_once_and_closed(fake: FakeMachine) -> None:
    subject = Subject(fake.good().machine())
    device = subject.device
    assert device is not None and subject.device is device and subject.error is None
    subject.close()
    subject.close()
    with pytest.raises(Exception, match="closed"):
        device.alloc(64)
    assert len(fake.opened) == 1 and re.fullmatch(r".*/dev/accel/accel0", fake.opened[0])


def test_what_was_opened_for_the_checks_is_closed(fake: FakeMachine) -> None:
    opened: list[Device] = []

    def opens(spec: str) -> Device:
        opened.append(Device.open("emu:quiet"))
        return opened[-1]

    assert examine(machine=replace(fake.good().machine(), open=opens))["answer"].status is OK
    (device,) = opened
    with pytest.raises(Closed):
        device.alloc(64)


def test_what_may_not_be_read_is_unknown_and_the_other_checks_go_on(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        report = examine(machine=Machine(tmp_path))
    finally:
        os.seteuid(0)
    assert len(report.findings) == len(CHECKS)
    assert report["module"].meaning == "unknown: /sys/bus/pci/drivers cannot be read (permission denied)"
    assert report["npu"].status is FAIL and report["npu"].meaning.startswith("unknown: /sys/bus/pci/devices")
