"""Findings of doctor about the NPU, its module and node, the driver and its log: what they name and advise.

A remedy is looked for by the command, path or name in it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.doctor_rows import (
    DMESG,
    FAIL,
    NO_DOMAIN,
    NO_FILE,
    NO_IOMMU,
    NOT_ALIVE,
    OK,
    PASID,
    REFUSED,
    RELOAD,
    SKIP,
    WARN,
    Row,
    cases,
    failed,
    good,
    off,
    opens,
    unreadable,
)
from tests.support.doctor_states import ERR, legacy, unbound
from tests.support.fake_machine import PCI, FakeMachine

FOLDER = f"sys/bus/pci/devices/{PCI}"

ROWS = {
    "npu": [
        Row(lambda f: f, OK, ("emulated NPU of this package",), spec="emu:quiet"),
        Row(
            lambda f: f.npu(0x1502, 0),
            WARN,
            ("Phoenix / Hawk Point (npu1, XDNA1), 1022:1502 revision 00, at " + PCI, "first generation"),
            ("FastFlowLM",),
            {
                "address": PCI,
                "device": "1502",
                "revision": "00",
                "name": "npu1",
                "generation": "XDNA1",
                "count": 1,
            },
        ),
        Row(lambda f: f.npu(0x17F2, 0x10), WARN, ("npu3, AIE4",), ("commands will not",)),
        Row(lambda f: f.npu(0x17F0, 0x99), WARN, ("unknown revision 99", "error -19"), ("newer kernel",)),
        Row(lambda f: f.npu().virtual(), OK, ("Strix Point", "virtual machine (QEMU Standard PC)")),
        Row(
            lambda f: f.file("dev/accel/accel0"),
            WARN,
            ("though there is a node",),
            ("pass the host's /sys in",),
            {"count": 0, "virtual": "", "container": ""},
        ),
        Row(
            lambda f: shutil.rmtree(f.root / "sys"),
            FAIL,
            ("no PCI devices",),
            ("on the host", "--device emu"),
        ),
        Row(
            lambda f: f.virtual().container(),
            FAIL,
            ("virtual machine (QEMU Standard PC) and it has no NPU",),
            ("on the host itself", "--device emu"),
            {"count": 0, "virtual": "QEMU Standard PC", "container": "docker"},
        ),
        Row(lambda f: f, FAIL, ("has no AMD NPU",), ("lspci -d 1022:", "--device emu")),
    ],
    "module": [
        Row(good, SKIP, ("emulated device needs none",), spec="emu:quiet"),
        Row(lambda f: f, SKIP, ("no NPU to drive (amdxdna is not loaded)",)),
        Row(lambda f: f.loaded(), SKIP, ("no NPU to drive (amdxdna is loaded)",)),
        Row(
            lambda f: f.npu(driver="vfio-pci"),
            FAIL,
            ("another driver, vfio-pci: it is set aside for virtual machines",),
            (f"`echo {PCI} > /sys/bus/pci/drivers/vfio-pci/unbind`",),
        ),
        Row(lambda f: f.npu(driver="other"), FAIL, ("another driver, other",), ("drivers/other/unbind",)),
        Row(
            lambda f: off(f).log("Loading of unsigned module is rejected"),
            FAIL,
            ("refuses unsigned modules", "(Loading of unsigned module is rejected)"),
            ("mokutil --import", "Secure Boot"),
        ),
        Row(
            lambda f: off(f).log("module: x86/modules: Skipping invalid relocation target"),
            FAIL,
            ("broken module",),
            ("`dkms install`",),
        ),
        Row(
            lambda f: off(f).log("amdxdna: version magic '6.1' should be '7.3'"),
            FAIL,
            ("another kernel (amdxdna: version magic '6.1' should be '7.3')",),
            ("dkms autoinstall",),
        ),
        *(
            Row(
                lambda f, p=path, t=text: off(f).file(p, t),
                FAIL,
                (f"blacklisted ({where})",),
                ("Remove that line",),
            )  # type: ignore[misc]
            for path, text, where in (
                (
                    "proc/cmdline",
                    "ro module_blacklist=amdxdna",
                    "module_blacklist=amdxdna on the kernel command line",
                ),
                (
                    "proc/cmdline",
                    "modprobe.blacklist=a,amdxdna",
                    "modprobe.blacklist=a,amdxdna on the kernel command line",
                ),
                ("etc/modprobe.d/a.conf", "blacklist  amdxdna", "/etc/modprobe.d/a.conf"),
                ("run/modprobe.d/b.conf", "x\n install amdxdna /bin/false", "/run/modprobe.d/b.conf"),
                ("lib/modprobe.d/c.conf", "install amdxdna /bin/true", "/lib/modprobe.d/c.conf"),
            )
        ),
        *(
            Row(
                lambda f, p=path, t=text: off(f).file(p, t),
                FAIL,
                ("not loaded (Linux 7.3.4-test)",),
                ("`sudo modprobe amdxdna`", DMESG),
            )  # type: ignore[misc]
            for path, text in (
                ("proc/cmdline", "ro blacklist=amdxdna module_blacklist=amdgpu"),
                ("etc/modprobe.d/a.conf", "# blacklist amdxdna\nblacklist nouveau"),
                ("etc/modprobe.d/a.conf.old", "blacklist amdxdna"),
                ("lib/modules/7.3.4-test/modules.dep", "kernel/drivers/accel/amdxdna/amdxdna.ko.zst:\n"),
                ("lib/modules/7.3.4-test/modules.builtin", "kernel/drivers/accel/amdxdna/amdxdna.ko\n"),
                ("lib/modules/other/modules.dep", "kernel/a.ko:\n"),
            )
        ),
        Row(
            lambda f: off(f).file("lib/modules/7.3.4-test/modules.dep", "kernel/a.ko:\n"),
            FAIL,
            ("this kernel was built without it",),
            ("CONFIG_DRM_ACCEL_AMDXDNA",),
        ),
        *(
            Row(failed(line), FAIL, (f"see {where}",), symptom=True)
            for where, line in (
                ("firmware", NO_FILE),
                ("firmware", REFUSED),
                ("firmware", ERR + "Invalid mbox magic 0x30ec000"),
                ("firmware", NOT_ALIVE),
                ("iommu", NO_IOMMU),
                ("iommu", NO_DOMAIN),
                ("iommu", PASID),
            )
        ),
        Row(lambda f: f.npu(driver="").loaded().iommu(), FAIL, ("see firmware",), symptom=True),
        Row(unbound(release="6.17.0"), FAIL, ("see firmware",), symptom=True),
        Row(lambda f: f.npu(driver="").loaded().firmware(), FAIL, ("see iommu",), symptom=True),
        Row(
            failed(ERR + "aie2_init: Running under hypervisor not supported"),
            FAIL,
            ("runs in no virtual machine (amdxdna",),
            ("host itself",),
        ),
        Row(
            failed(ERR + "aie2_smu_exec: smu cmd 4 timed out"),
            FAIL,
            ("power controller does not answer (amdxdna", "smu cmd 4 timed out)"),
            ("off and on", "BIOS"),
        ),
        Row(
            failed(ERR + "Unknown device revision: 9"),
            FAIL,
            ("does not know revision 10 (amdxdna",),
            ("newer kernel",),
        ),
        Row(
            unreadable(unbound()),
            FAIL,
            ("there is no kernel log to read",),
            ("sudo, or look at `sudo dmesg",),
        ),
        Row(failed(), FAIL, ("does not say why",), (DMESG, RELOAD)),
        Row(good, OK, ("loaded and has the NPU",), facts={"out_of_tree": False, "srcversion": ""}),
        Row(
            lambda f: legacy(f.good()).file("sys/module/amdxdna/srcversion", "ABC\n"),
            OK,
            ("out-of-tree build",),
            facts={"out_of_tree": True, "srcversion": "ABC"},
        ),
    ],
    "node": [
        Row(good, SKIP, ("emulated",), spec="emu:quiet"),
        Row(off, SKIP, ("no driver has an NPU",)),
        Row(lambda f: f.npu().iommu(), FAIL, ("made no accel node",), (DMESG,)),
        Row(good, FAIL, ("there is no NPU 3; there are 1, from 0",), ("smaller index",), spec="3"),
        Row(good, OK, ("/dev/accel/accel0",), facts={"path": "/dev/accel/accel0", "listed": True}),
        Row(
            lambda f: f.good().file("dev/accel/accel7"),
            WARN,
            ("/dev/accel/accel7 is no node of the amdxdna driver",),
            ("/dev/accel/accel0",),
            {"path": "/dev/accel/accel7", "listed": False},
            "NODE accel7",
        ),
        Row(
            lambda f: f.file("dev/accel/accel0"),
            OK,
            ("/dev/accel/accel0",),
            facts={"path": "/dev/accel/accel0", "listed": False},
        ),
        Row(good, FAIL, ("there is no /dev/accel/accel8",), ("/dev/accel/accel0",), spec="NODE accel8"),
        Row(lambda f: f, FAIL, ("there is no /dev/accel/accel8",), spec="NODE accel8"),
        Row(
            lambda f: f.npu().node("accel1", present=False).container(),
            FAIL,
            ("the driver has /dev/accel/accel1", "this container (docker)"),
            ("`--device /dev/accel/accel1`",),
        ),
        Row(
            lambda f: f.npu().node(present=False),
            FAIL,
            ("/dev/accel/accel0", "missing from the file system"),
            ("udevadm trigger -s accel",),
        ),
    ],
    "driver": [
        Row(
            lambda f: off(f).file("proc/sys/kernel/osrelease", "6.13.9"),
            WARN,
            ("Linux 6.13.9: the driver came with Linux 6.14",),
            ("newer kernel",),
            {"kernel": "6.13.9"},
        ),
        Row(
            lambda f: off(f).file("proc/sys/kernel/osrelease", "6.14.0"),
            SKIP,
            ("Linux 6.14.0; no driver to ask",),
        ),
        Row(
            lambda f: off(f).file("proc/sys/kernel/osrelease", "odd"), SKIP, ("Linux odd; no driver to ask",)
        ),
        Row(
            lambda f: f.npu(driver="").loaded().file("proc/sys/kernel/osrelease", "6.8.0"),
            SKIP,
            ("no driver to ask",),
        ),
        Row(opens("open=*:EBUSY"), FAIL, ("Linux 7.3.4-test; ",), ("",)),
        Row(opens("open=*:EACCES"), SKIP, ("told once its node can be opened",)),
        Row(opens("open=*:EIO"), SKIP, ("told once its node can be opened",)),
        Row(lambda f: f, SKIP, ("told once its node can be opened",), spec="emu:quiet,open=*:EACCES"),
        Row(lambda f: f, SKIP, ("no driver to ask",), spec="emu:quiet,open=*:EIO"),
        Row(
            opens("minor=3"),
            WARN,
            (
                "interface 0.3 on Linux 7.3.4 (emulated; this machine runs 7.3.4-test)",
                "too old to tell: how many",
            ),
            ("A newer kernel",),
        ),
    ],
    "log": [
        Row(good, SKIP, ("emulated",), spec="emu:quiet"),
        Row(lambda f: f, SKIP, ("no NPU that it could tell of",)),
        Row(unreadable(good), SKIP, ("no kernel log to read (No such file or directory)",), ("sudo",)),
        Row(good, OK, ("no fault since the driver started",), facts={"events": [], "left_out": False}),
        Row(
            lambda f: f.good().log(
                *[ERR + "Row: 1, Col: 2, module 0, event ID 5"] * 2, ERR + "aie2_hw_resume: " + "x" * 300
            ),
            FAIL,
            ("could not start the NPU again", "; also 2 x array errors"),
            (RELOAD, "Switch the machine off and on"),
        ),
    ],
}


@pytest.mark.parametrize(("check", "row"), cases(ROWS))
def test_findings(check: str, row: Row, tmp_path: Path) -> None:
    row.check(check, FakeMachine(tmp_path))
