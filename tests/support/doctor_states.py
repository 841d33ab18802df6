"""States of a machine in which its NPU cannot be used, and what doctor must say of each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from amdxdna.doctor.machine import Identity, NodeStat
from tests.support.fake_machine import PCI, FakeMachine

ERR = f"amdxdna {PCI}: [drm] *ERROR* "
FAILED = f"amdxdna {PCI}: probe with driver amdxdna failed with error "
READY = f"[drm] Initialized amdxdna_accel_driver 0.8.0 for {PCI} on minor 0"
Build = Callable[[FakeMachine], object]


@dataclass(frozen=True)
class State:
    """A state, the check that must name its cause, and what cause and remedies must say."""

    name: str
    build: Build
    cause: str
    says: str
    do: str


def emu(options: str) -> Build:
    def build(fake: FakeMachine) -> None:
        fake.good().emu += f",{options}"

    return build


def as_user(uid: int, *gids: int, node: NodeStat | None = None) -> Build:
    def build(fake: FakeMachine) -> FakeMachine:
        fake.identity = Identity(uid, frozenset(gids))
        fake.node_stat = node or fake.node_stat
        fake.emu += ",open=*:EACCES"
        return fake.good()

    return build


def unbound(*lines: str, release: str = "7.3.4-test") -> Build:
    """Driver loaded, start failed, with these messages."""

    def build(fake: FakeMachine) -> FakeMachine:
        fake.file("proc/sys/kernel/osrelease", release)
        return fake.npu(driver="").loaded().iommu().firmware().log(*lines)

    return build


def legacy(fake: FakeMachine) -> FakeMachine:
    """The module is AMD's legacy out-of-tree one."""
    fake.file("sys/module/amdxdna/taint", "OE\n")
    return fake.file("sys/module/amdxdna/parameters/timeout_in_sec", "2\n")


def started(*lines: str) -> Build:
    """The driver started well, and these messages came after."""

    def build(fake: FakeMachine) -> FakeMachine:
        return fake.good().log(READY, *lines)

    return build


STATES = [
    State("no NPU", lambda f: None, "npu", "this machine has no AMD NPU", "firmware setup"),
    State(
        "no NPU in a virtual machine",
        lambda f: f.virtual(),
        "npu",
        "virtual machine (QEMU Standard PC)",
        "host itself",
    ),
    State("no /sys", lambda f: shutil.rmtree(f.root / "sys"), "npu", "no PCI devices", "on the host"),
    State(
        "module not loaded",
        lambda f: f.npu(driver="").iommu().firmware(),
        "module",
        "amdxdna module is not loaded",
        "modprobe amdxdna",
    ),
    State(
        "kernel without the module",
        lambda f: (
            f.npu(driver="")
            .iommu()
            .firmware()
            .file("lib/modules/7.3.4-test/modules.dep", "kernel/drivers/gpu/drm/drm.ko:\n")
        ),
        "module",
        "built without it",
        "ordinary kernel",
    ),
    State(
        "kernel too old",
        lambda f: (
            f.npu(driver="")
            .iommu()
            .firmware()
            .file("proc/sys/kernel/osrelease", "6.8.0")
            .file("lib/modules/6.8.0/modules.dep", "kernel/x.ko:\n")
        ),
        "module",
        "came with Linux 6.14",
        "newer kernel",
    ),
    State(
        "blacklisted in modprobe.d",
        lambda f: (
            f.npu(driver="").iommu().firmware().file("etc/modprobe.d/npu.conf", "# no\nblacklist amdxdna\n")
        ),
        "module",
        "/etc/modprobe.d/npu.conf",
        "Remove",
    ),
    State(
        "blacklisted at boot",
        lambda f: (
            f.npu(driver="").iommu().firmware().file("proc/cmdline", "ro modprobe.blacklist=nouveau,amdxdna")
        ),
        "module",
        "kernel command line",
        "Remove",
    ),
    State(
        "unsigned module and Secure Boot",
        lambda f: f.npu(driver="").iommu().firmware().log("Loading of unsigned module is rejected"),
        "module",
        "unsigned",
        "mokutil",
    ),
    State(
        "module refused by its key",
        lambda f: (
            f.npu(driver="")
            .iommu()
            .firmware()
            .log("amdxdna: Loading of module with unavailable key is rejected: Key was rejected by service")
        ),
        "module",
        "unsigned",
        "mokutil",
    ),
    State(
        "module of another kernel",
        lambda f: (
            f.npu(driver="")
            .iommu()
            .firmware()
            .log("amdxdna: disagrees about version of symbol module_layout")
        ),
        "module",
        "another kernel",
        "dkms",
    ),
    State(
        "set aside for virtual machines",
        lambda f: f.npu(driver="vfio-pci").iommu().firmware(),
        "module",
        "vfio-pci: it is set aside",
        "unbind",
    ),
    State(
        "firmware missing",
        lambda f: (
            f.npu(driver="")
            .loaded()
            .iommu()
            .log(
                f"amdxdna {PCI}: Direct firmware load for amdnpu/17f0_10/npu.sbin failed with error -2",
                ERR + "aie2_init: failed to request_firmware amdnpu/17f0_10/npu.sbin, ret -2",
                FAILED + "-2",
            )
        ),
        "firmware",
        "missing: nothing in /lib/firmware/amdnpu/17f0_10",
        "linux-firmware",
    ),
    State(
        "firmware missing, log unreadable",
        lambda f: (f.npu(driver="").loaded().iommu(), (f.root / "dev/kmsg").unlink()),
        "firmware",
        "missing",
        "linux-firmware",
    ),
    State(
        "firmware not in the initramfs",
        unbound(ERR + "aie2_init: failed to request_firmware amdnpu/17f0_10/npu.sbin, ret -2", FAILED + "-2"),
        "firmware",
        "npu.sbin is there now",
        "initramfs",
    ),
    State(
        "new firmware, old driver",
        unbound(
            ERR + "aie2_check_protocol: Incompatible firmware protocol major 7 minor 2",
            ERR + "aie2_hw_start: firmware is not alive",
            ERR + "aie2_smu_exec: smu cmd 4 failed, 0xff",
            FAILED + "-22",
            release="6.17.0-19",
        ),
        "firmware",
        "npu.sbin (1.1.2.64) speaks protocol 7.2, which the driver of Linux 6.17.0-19 does not",
        "Linux 7.0 or newer",
    ),
    State(
        "new firmware, old driver, log unreadable",
        lambda f: (unbound(release="6.17.0-19")(f), (f.root / "dev/kmsg").unlink()),
        "firmware",
        "another protocol",
        "Linux 7.0",
    ),
    State(
        "old firmware, new driver",
        unbound(
            ERR + "aie2_hw_start: firmware is not alive",
            ERR + "aie2_init: start npu failed, ret -95",
            FAILED + "-95",
        ),
        "firmware",
        "speaks another protocol",
        "linux-firmware",
    ),
    State(
        "firmware older than AMD's legacy driver takes",
        lambda f: (
            unbound(ERR + "aie2_check_protocol: Firmware 5.0 below minimum 6.12", FAILED + "-22")(f),
            legacy(f).firmware("npu.dev.sbin", version="1.0.0.63"),
        ),
        "firmware",
        "npu.dev.sbin (1.0.0.63) speaks protocol 5.0",
        "linux-firmware",
    ),
    State(
        "AMD's legacy driver without its own firmware file",
        lambda f: (
            unbound(
                "amdxdna 0000:c5:00.1: Direct firmware load for amdnpu/17f0_10/npu.dev.sbin failed with "
                "error -2",
                ERR + "aie2_init: failed to request_firmware amdnpu/17f0_10/npu.dev.sbin, ret -2",
                FAILED + "-2",
            )(f),
            legacy(f),
        ),
        "firmware",
        "loads npu.dev.sbin and no other",
        "AMD's driver package",
    ),
    State(
        "no PASID for a driver that needs it",
        unbound(
            ERR + "aie2_init: Enable PASID failed, ret -19",
            ERR + "amdxdna_probe: Hardware init failed, ret -19",
            FAILED + "-19",
            release="6.18.15",
        ),
        "iommu",
        "gives the NPU no PASID, without which this driver does not start",
        "Linux 7.2 or newer",
    ),
    State(
        "firmware of another NPU",
        unbound(
            ERR + "aie2_get_mgmt_chann_info: Invalid mbox magic 0x30ec000",
            ERR + "aie2_hw_start: firmware is not alive",
            FAILED + "-22",
        ),
        "firmware",
        "refuses this firmware file",
        "Reinstall",
    ),
    State(
        "firmware does not start",
        unbound(
            ERR + "aie2_hw_start: firmware is not alive",
            ERR + "aie2_init: start npu failed, ret -62",
            FAILED + "-62",
        ),
        "firmware",
        "does not come to life",
        "off and on",
    ),
    State(
        "power controller silent",
        unbound(
            ERR + "aie2_smu_exec: smu cmd 4 failed, 0xff",
            ERR + "aie2_init: start npu failed, ret -22",
            FAILED + "-22",
        ),
        "module",
        "power controller does not answer",
        "off and on",
    ),
    State(
        "unknown revision",
        lambda f: (
            f.npu(revision=0x30, driver="").loaded().iommu().firmware(folder="17f0_30").log(FAILED + "-19")
        ),
        "module",
        "does not know revision 30",
        "newer kernel",
    ),
    State(
        "no IOMMU at probe",
        lambda f: (
            f.npu(driver="")
            .loaded()
            .firmware()
            .log(ERR + "amdxdna_iommu_init: Running without IOMMU not supported", FAILED + "-22")
        ),
        "iommu",
        "IOMMU is off",
        "firmware setup",
    ),
    State(
        "no IOMMU, by the command line",
        lambda f: f.npu(driver="").loaded().firmware().file("proc/cmdline", "ro amd_iommu=off"),
        "iommu",
        "IOMMU is off",
        "Remove amd_iommu=off",
    ),
    State(
        "force_iova without a fitting IOMMU",
        unbound(ERR + "amdxdna_iommu_init: Failed to alloc iommu domain", FAILED + "-95"),
        "iommu",
        "force_iova=1",
        "Load it without",
    ),
    State("start failed, nobody knows why", unbound(FAILED + "-5"), "module", "does not say why", "dmesg"),
    State(
        "start failed, log unreadable",
        lambda f: (unbound()(f), (f.root / "dev/kmsg").unlink()),
        "module",
        "reason is in the kernel log",
        "sudo",
    ),
    State(
        "node not passed to the container",
        lambda f: f.npu().node(present=False).iommu().container(),
        "node",
        "this container (docker) was not given it",
        "--device /dev/accel/accel0",
    ),
    State(
        "node missing",
        lambda f: f.npu().node(present=False).iommu(),
        "node",
        "missing from the file system",
        "udev",
    ),
    State("driver without a node", lambda f: f.npu().iommu(), "node", "made no accel node", "dmesg"),
    State(
        "not in the group",
        as_user(1001, 1001),
        "permission",
        "uid 1001 may not open /dev/accel/accel0: it belongs to uid 0 and group 992 (render), mode 660; "
        "this process is in the groups 1001",
        "usermod -aG render",
    ),
    State(
        "in the group since the last login",
        as_user(1000, 1000),
        "permission",
        "groups 1000",
        "log out and in",
    ),
    State(
        "node of root alone",
        as_user(1000, 1000, node=NodeStat(0o600, 0, 0)),
        "permission",
        "mode 600",
        "udev",
    ),
    State(
        "group id differs in the container",
        lambda f: as_user(1000, 1000, node=NodeStat(0o660, 0, 105))(f.container()),
        "permission",
        "group 105, which has no name here",
        "--group-add 105",
    ),
    State(
        "group not mapped in the container",
        lambda f: as_user(0 + 1000, 1000, node=NodeStat(0o660, 65534, 65534))(f.container()),
        "permission",
        "group 65534",
        "keep-groups",
    ),
    State(
        "node bind-mounted, device rules refuse",
        lambda f: emu("open=*:EPERM")(f.container()),
        "permission",
        "device rules refuse",
        "not as a volume: `--device /dev/accel/accel0`",
    ),
    State("sandboxed service", emu("open=*:EPERM"), "permission", "sandbox", "DeviceAllow"),
    State(
        "no PASID: IOMMU off",
        lambda f: (f.npu().node().firmware(), setattr(f, "emu", f.emu + ",open=*:ENODEV")),
        "iommu",
        "IOMMU is off",
        "AMD-Vi",
    ),
    State(
        "no PASID: passthrough",
        lambda f: (emu("open=*:ENODEV")(f), f.iommu("identity"), f.file("proc/cmdline", "ro iommu=pt")),
        "iommu",
        "passthrough",
        "Remove iommu=pt",
    ),
    State(
        "no PASID: virtual machine",
        lambda f: emu("open=*:EINVAL")(f.virtual()),
        "iommu",
        "virtual machine (QEMU Standard PC), whose IOMMU offers no PASID",
        "host itself",
    ),
    State("no PASID: nobody knows why", emu("open=*:EOPNOTSUPP"), "iommu", "EOPNOTSUPP", "BIOS"),
    State("second open refused", emu("open=*:EBUSY"), "driver", "one open a process", "end other programs"),
    State("contexts all taken", emu("slots=4,held_slots=4"), "contexts", "4 of 4 in use", "kill"),
    State("firmware refuses contexts", emu("refuse=*:0x4000003"), "answer", "refused the context", "dmesg"),
    State("commands fail", emu("fail=*"), "answer", "EXEC_CMD", "instruction stream"),
    State("commands hang", emu("hang=*,tdr=0.2"), "answer", "no progress", "Start again"),
    State(
        "module built with other flags",
        lambda f: (
            f.npu(driver="")
            .iommu()
            .firmware()
            .log(
                "module: x86/modules: Skipping invalid relocation target, existing value is nonzero,"
                " loc 000000006152724f, val ffffffffc081da7d"
            )
        ),
        "module",
        "broken module",
        "dkms install",
    ),
    State(
        "security processor does not answer",
        unbound(
            ERR + "aie2_psp_start: failed to validate fw, ret -110",
            ERR + "aie2_hw_start: failed to start psp, ret -110",
            FAILED + "-110",
        ),
        "module",
        "power controller does not answer",
        "off and on",
    ),
    State(
        "page faults without an end",
        started(
            *(
                f"amdxdna {PCI}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001a address=0xfffc{n}000 "
                "flags=0x0050]"
                for n in range(9)
            )
        ),
        "log",
        "IO_PAGE_FAULT), 9 times",
        "another kernel",
    ),
    State(
        "the driver crashed",
        started(
            "BUG: kernel NULL pointer dereference, address: 0000000000000050",
            "Workqueue: amdxdna_js drm_sched_run_job_work [gpu_sched]",
            "RIP: 0010:aie2_cmdlist_fill_slot+0x26/0x130 [amdxdna]",
            READY,
        ),
        "log",
        "aie2_cmdlist_fill_slot",
        "Reboot",
    ),
    State(
        "not back after a reset",
        started(f"amdxdna {PCI}: not ready 65535ms after FLR; giving up"),
        "log",
        "did not come back after a reset",
        "off and on",
    ),
    State(
        "gone from the bus",
        started(f"amdxdna {PCI}: Unable to change power state from D3cold to D0, device inaccessible"),
        "log",
        "did not come back after a reset",
        "off and on",
    ),
    State(
        "start failed at a runtime resume",
        started(ERR + "amdxdna_pm_resume_get: Resume failed: -22"),
        "log",
        "after it was asleep",
        "modprobe -r amdxdna",
    ),
    State(
        "firmware silent",
        started(ERR + "xdna_send_msg_wait: Wait for completion timeout"),
        "log",
        "did not answer the driver",
        "modprobe -r amdxdna",
    ),
    State(
        "driver that starts in no virtual machine",
        unbound(
            ERR + "aie2_init: Running under hypervisor not supported",
            ERR + "amdxdna_probe: Hardware init failed, ret -22",
            FAILED + "-22",
        ),
        "module",
        "runs in no virtual machine",
        "host itself",
    ),
    State(
        "revision that the driver reads from a fuse",
        unbound(
            ERR + "aie2_get_dev_revision: Unknown device revision: 9 (raw fuse: 0x90000)",
            ERR + "aie2_init: start npu failed, ret -22",
            FAILED + "-22",
        ),
        "module",
        "does not know revision",
        "newer kernel",
    ),
    State(
        "start failed at resume",
        started(ERR + "aie2_hw_resume: Start hardware failed, -22"),
        "log",
        "after it was asleep",
        "modprobe -r amdxdna",
    ),
    State(
        "firmware wedged",
        lambda f: (
            emu("refuse=*:0x2000003")(f),
            f.log(ERR + "aie2_send_mgmt_msg_wait: command opcode 0x2 failed, status 0x2000003"),
        ),
        "answer",
        "no hardware context left though none is open",
        "off and on",
    ),
    State(
        "node of root alone, in a container",
        lambda f: as_user(1000, 1000, node=NodeStat(0o600, 0, 0))(f.container()),
        "permission",
        "mode 600",
        "On the host, let udev",
    ),
]
