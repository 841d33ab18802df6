"""Findings of doctor about firmware, permission and IOMMU: what they name and advise, in order.

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
    node,
    off,
    opens,
)
from tests.support.doctor_states import ERR, legacy, unbound
from tests.support.fake_machine import PCI, FakeMachine

FOLDER = f"sys/bus/pci/devices/{PCI}"
FROM_DISTRIBUTION = "linux-firmware package (the folder amdnpu/)"

ROWS = {
    "firmware": [
        Row(good, SKIP, ("emulated",), spec="emu:quiet"),
        Row(lambda f: f, SKIP, ("no NPU",)),
        Row(
            good,
            OK,
            ("the driver started the NPU",),
            facts={"files": ["/lib/firmware/amdnpu/17f0_10/npu.sbin"], "running": ""},
        ),
        Row(
            lambda f: f.good().file(f"{FOLDER}/fw_version", "1.1.2.65\n"),
            OK,
            ("version 1.1.2.65 is running",),
        ),
        Row(off, OK, ("npu.sbin (1.1.2.64) is there; no driver has loaded it yet",)),
        Row(lambda f: f.npu(0x17F2, driver=""), OK, ("not known where",), facts={"files": []}),
        Row(
            lambda f: f.npu(revision=0x20, driver=""),
            WARN,
            ("no NPU firmware in /lib/firmware/amdnpu/17f0_20/ or amdnpu/17f0_10/",),
            (FROM_DISTRIBUTION,),
        ),
        Row(lambda f: f.npu(driver="vfio-pci").loaded(), SKIP, ("vfio-pci has the NPU",)),
        Row(
            lambda f: legacy(f.npu(driver="").loaded().iommu().firmware()),
            FAIL,
            ("npu.dev.sbin and no other", "/lib/firmware/amdnpu/17f0_10/"),
            ("AMD's driver package, of the driver's own release", "linux-firmware's files"),
        ),
        Row(
            lambda f: f.npu(driver="").loaded().iommu(),
            FAIL,
            ("missing: nothing in /lib/firmware/amdnpu/17f0_10/",),
            (FROM_DISTRIBUTION,),
            {"files": []},
        ),
        Row(
            failed(NO_FILE),
            FAIL,
            ("did not find the firmware when it started", f"npu.sbin is there now ({NO_FILE})"),
            (RELOAD, "update-initramfs -u", ".zst or .xz"),
        ),
        Row(
            failed(REFUSED, release="6.17.0"),
            FAIL,
            ("npu.sbin (1.1.2.64) speaks protocol 7.2, which the driver of Linux 6.17.0 does not",),
            ("Linux 7.0 or newer", "has version 1.0", "reboot"),
            {"files": ["/lib/firmware/amdnpu/17f0_10/npu.sbin"], "protocol": [7, 2]},
        ),
        Row(
            failed(REFUSED, release="6.99.0"),
            FAIL,
            ("protocol 7.2",),
            ("firmware is newer than the driver", "1.0", "reboot"),
        ),
        Row(
            failed(ERR + "aie2_init: start npu failed, ret -95", release="7.0.0"),
            FAIL,
            ("speaks another protocol",),
            ("older than the driver (which wants protocol 6.12", FROM_DISTRIBUTION),
            {"files": ["/lib/firmware/amdnpu/17f0_10/npu.sbin"], "protocol": None},
        ),
        Row(
            failed(ERR + "aie2_check_protocol: Firmware 5.3 below minimum 6.12", release="6.17.0"),
            FAIL,
            ("protocol 5.3",),
            ("older than the driver", FROM_DISTRIBUTION),
        ),
        Row(
            failed(ERR + "Invalid mbox magic 0x30ec000"),
            FAIL,
            ("refuses this firmware file", "Invalid mbox magic 0x30ec000)"),
            ("Reinstall linux-firmware", DMESG),
        ),
        Row(
            failed(NOT_ALIVE),
            FAIL,
            ("does not come to life", "firmware is not alive)"),
            ("off and on", FROM_DISTRIBUTION, DMESG),
        ),
        Row(unbound(release="6.17.0"), FAIL, ("speaks another protocol",), ("Linux 7.0", "1.0", "reboot")),
        Row(unbound(release="7.0.0"), OK, ("nothing says that it is the trouble",)),
        Row(failed(PASID, release="6.17.0"), OK, ("nothing says that it is the trouble",)),
        Row(lambda f: f.npu(0x17F2, driver="").loaded().iommu(), OK, ("not known where",)),
    ],
    "permission": [
        Row(good, SKIP, ("emulated",), spec="emu:quiet"),
        Row(off, SKIP, ("no node",)),
        Row(lambda f: f.npu().node(present=False), SKIP, ("no node",)),
        Row(
            node(0o660, 0, 992, 1000, 1000, 992, errors=""),
            OK,
            ("uid 1000 may open /dev/accel/accel0 (group 992 (render), mode 660)",),
            facts={
                "uid": 1000,
                "gids": [992, 1000],
                "node_uid": 0,
                "node_gid": 992,
                "mode": "660",
                "container": "",
            },
        ),
        Row(node(0o600, 7, 992, 7, errors=""), OK, ("uid 7 may open",)),
        Row(node(0o006, 0, 992, 7, errors=""), OK, ("uid 7 may open", "mode 006")),
        Row(node(0o000, 7, 992, 0, errors=""), OK, ("uid 0 may open", "mode 000")),
        # The first class that fits decides, as in the kernel: an owner without rights does not fall back on
        # the group's. Reading alone is not enough, nor writing alone.
        Row(
            node(0o060, 7, 992, 7, 992),
            FAIL,
            ("uid 7 may not open",),
            ("usermod -aG render", "SupplementaryGroups=render"),
        ),
        Row(node(0o640, 0, 992, 7, 992), FAIL, ("mode 640",), ('MODE="0660"', "usermod -aG render")),
        Row(node(0o620, 0, 992, 7, 992), FAIL, ("mode 620",), ('MODE="0660"', "usermod -aG render")),
        # The permissions allow it, the kernel does not (an access list, say).
        Row(node(0o666, 0, 992, 7), FAIL, ("uid 7 may not open",), ("usermod -aG render", "=render")),
        Row(
            node(0o660, 0, 105, 7, 8, 9),
            FAIL,
            ("belongs to uid 0 and group 105, which has no name here, mode 660", "in the groups 8, 9"),
            ("usermod -aG 105 $USER", "SupplementaryGroups=105"),
        ),
        Row(
            node(0o660, 0, 992, 1000),
            FAIL,
            ("(render)",),
            ("group render already, but this session is older",),
        ),
        Row(
            node(0o660, 0, 0, 7),
            FAIL,
            ("group 0 (root)",),
            ('SUBSYSTEM=="accel", GROUP="render"', "usermod -aG render"),
        ),
        Row(node(0o660, 0, 65534, 7), FAIL, ("group 65534",), ("keep-groups", "root of the host")),
        Row(
            lambda f: node(0o660, 0, 105, 7)(f.container()),
            FAIL,
            ("group 105",),
            ("`--group-add 105`",),
        ),
        Row(
            lambda f: node(0o660, 0, 0, 7)(f.container()),
            FAIL,
            ("group 0 (root)",),
            ("`sudo chmod 666 /dev/accel/accel0`", "--group-add"),
        ),
        Row(
            lambda f: node(0o640, 0, 105, 7)(f.container()),
            FAIL,
            ("mode 640",),
            ("On the host, let udev", "--group-add"),
        ),
        Row(
            lambda f: node(0o666, 0, 992, 7, errors="EPERM")(f.container()),
            FAIL,
            ("container's device rules refuse",),
            ("`--device /dev/accel/accel0`",),
        ),
        Row(
            node(0o666, 0, 992, 7, errors="EPERM"),
            FAIL,
            ("a sandbox refuses",),
            ("DeviceAllow=char-accel rw", "ausearch"),
        ),
        Row(node(0o666, 0, 992, 7, errors="ENODEV"), OK, ("uid 7 may open",)),
    ],
    "iommu": [
        Row(good, OK, ("PASID",), facts={"mode": "pasid"}, spec="emu:quiet"),
        Row(good, OK, ("IOVA or carveout",), facts={"mode": "iova"}, spec="emu:quiet,address=iova"),
        Row(
            good,
            OK,
            ("PASID",),
            facts={
                "units": ["ivhd0"],
                "domain": "DMA-FQ",
                "virtual": "",
                "force_iova": False,
                "mode": "pasid",
            },
        ),
        *(
            Row(
                lambda f, v=value: opens("address=iova")(
                    f.file("sys/module/amdxdna/parameters/force_iova", v)
                ),  # type: ignore[misc]
                OK,
                (says,),
            )
            for value, says in (
                ("Y\n", "force_iova=1"),
                ("1", "force_iova=1"),
                ("N", "carveout"),
                ("0", "carveout"),
            )
        ),
        Row(
            failed(NO_DOMAIN),
            FAIL,
            ("force_iova=1 is set", "Failed to alloc iommu domain)"),
            (RELOAD, "AMD-Vi"),
        ),
        Row(
            failed(NO_IOMMU),
            FAIL,
            ("the IOMMU is off, so the NPU cannot reach", "Running without IOMMU not supported)"),
            ("AMD-Vi",),
        ),
        Row(
            lambda f: f.npu(driver="").loaded().file("proc/cmdline", "ro iommu=soft amd_iommu=off quiet"),
            FAIL,
            ("the IOMMU is off, so the NPU cannot reach a program's memory",),
            ("Remove iommu=soft and amd_iommu=off from the kernel command line",),
        ),
        *(
            Row(
                lambda f, w=word: f.npu(driver="").loaded().file("proc/cmdline", w),
                FAIL,
                (),
                (f"Remove {word} from",),
            )  # type: ignore[misc]
            for word in ("amd_iommu=off", "iommu=off", "intel_iommu=off", "iommu=soft")
        ),
        Row(
            lambda f: f.npu(driver="").loaded().virtual(),
            FAIL,
            ("this virtual machine (QEMU Standard PC) has no IOMMU",),
            ("on the host itself", "`modprobe amdxdna force_iova=1`"),
        ),
        Row(
            failed(PASID),
            FAIL,
            ("the IOMMU is on, but gives the NPU no PASID", "Enable PASID failed, ret -19)"),
            ("Linux 7.2 or newer", "BIOS", "pci=noats"),
        ),
        Row(
            lambda f: failed(PASID)(f.virtual()),
            FAIL,
            ("this virtual machine (QEMU Standard PC) gives the NPU no PASID",),
            ("Linux 7.2", "BIOS", "pci=noats"),
        ),
        *(
            Row(
                opens(f"open=*:{name}"),
                FAIL,
                (f"(open: {name})", "on, but without PASID"),
                ("BIOS", "pci=noats", DMESG),
            )
            for name in ("ENODEV", "EOPNOTSUPP", "EINVAL", "ENOSPC")
        ),
        Row(opens("open=*:EIO"), OK, ("it is on (ivhd0, domain DMA-FQ)", "known once the node is open")),
        Row(
            lambda f: opens("open=*:ENODEV")(f.virtual()),
            FAIL,
            ("virtual machine (QEMU",),
            ("host itself", "force_iova=1"),
        ),
        Row(
            lambda f: (opens("open=*:ENODEV")(f), f.iommu("identity")),
            FAIL,
            ("passthrough mode",),
            ("iommu.passthrough=0", "newer kernel"),
        ),
        Row(
            lambda f: (
                opens("open=*:ENODEV")(f),
                f.iommu("identity").file("proc/cmdline", "iommu.passthrough=1"),
            ),
            FAIL,
            ("passthrough mode",),
            ("Remove iommu.passthrough=1 from", "newer kernel"),
        ),
        Row(
            lambda f: (opens("open=*:ENODEV")(f), shutil.rmtree(f.root / "sys/class/iommu")),
            FAIL,
            ("the IOMMU is off",),
            ("AMD-Vi",),
        ),
        Row(lambda f: f, SKIP, ("no NPU",)),
        Row(lambda f: f.npu(driver=""), WARN, ("the driver will not be able to start",), ("AMD-Vi",)),
        Row(off, OK, ("it is on (ivhd0, domain DMA-FQ)",)),
        Row(lambda f: (off(f), (f.root / FOLDER / "iommu_group/type").unlink()), OK, ("domain not shown",)),
        Row(lambda f: f, SKIP, ("needs an open device",), spec="emu:quiet,open=*:EIO"),
    ],
}


@pytest.mark.parametrize(("check", "row"), cases(ROWS))
def test_findings(check: str, row: Row, tmp_path: Path) -> None:
    row.check(check, FakeMachine(tmp_path))
