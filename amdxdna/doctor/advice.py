"""Remedies that several checks give."""

from __future__ import annotations

import re

from amdxdna.doctor.machine import Machine

EMULATED = 'Or use the emulated device: --device emu (device "emu" in programs)'
READABLE = "Run doctor with sudo, or as a user who may read that"
LOG = "Look at `sudo dmesg | grep amdxdna`"
UPDATE_FIRMWARE = (
    "Install or update your distribution's linux-firmware package (the folder amdnpu/), then "
    "reboot: the NPU takes new firmware only from a fresh start"
)


def memlock(machine: Machine) -> tuple[str, ...]:
    """Where to raise the locked-memory limit: what applies to this process first."""
    shell = (
        "In a login shell: put `* - memlock unlimited` into /etc/security/limits.d/99-npu.conf, log out "
        "and in; check with `ulimit -l`"
    )
    if where := limits_file(machine):
        shell = (
            f"{where} already sets it to unlimited, and this session is older or is no login's: log "
            "out and in (over SSH too, with UsePAM yes), and start from there again"
        )
    service = (
        "In a systemd service: `LimitMEMLOCK=infinity` in its [Service] section, then "
        "`systemctl daemon-reload` and restart it"
    )
    container = "In a container: start it with `--ulimit memlock=-1:-1`"
    if machine.container():
        return container, service, shell
    unit = machine.unit()
    if unit.startswith("user@"):
        return (
            f"This process belongs to the user manager ({unit}), whose limit its programs inherit: "
            f"`LimitMEMLOCK=infinity` under [Service] by `sudo systemctl edit {unit}`, then log out and in",
            shell,
            container,
        )
    if unit:
        return (f"{service} (`sudo systemctl edit {unit}`)", shell, container)
    if machine.environ.get("INVOCATION_ID") and not machine.environ.get("XDG_SESSION_ID"):
        return service, shell, container
    return shell, service, container


_MEMLOCK_ROW = re.compile(
    r"^\s*(\S+)\s+(-|soft|hard)\s+memlock\s+(unlimited|infinity|-1)\s*(#.*)?$", re.MULTILINE
)


def limits_file(machine: Machine) -> str:
    """The PAM file that gives this user unlimited locked memory; empty for none."""
    user, groups = machine.user_name(), {machine.group_name(gid) for gid in machine.who().gids}
    meant = {"*", user, *(f"@{group}" for group in groups if group)}
    names = [
        f"etc/security/limits.d/{name}"
        for name in machine.names("etc/security/limits.d")
        if name.endswith(".conf")
    ]
    for path in (*reversed(names), "etc/security/limits.conf"):
        rows = _MEMLOCK_ROW.findall(machine.text(path))
        if any(who in meant for who, _, _, _ in rows):
            return f"/{path}"
    return ""


def iommu_off(machine: Machine) -> tuple[str, ...]:
    """How to get an IOMMU with PASID."""
    words = [
        word
        for word in machine.command_line
        if word in ("amd_iommu=off", "iommu=off", "intel_iommu=off", "iommu=soft")
    ]
    if words:
        return (
            f"Remove {' and '.join(words)} from the kernel command line (the boot loader's "
            "configuration) and reboot",
        )
    if machine.virtual():
        return (
            "Use the NPU on the host itself: virtual machines offer no PASID",
            "For tests only, with a virtual IOMMU: load the driver with `modprobe amdxdna force_iova=1`",
        )
    return ("Enable IOMMU (AMD-Vi) in the firmware setup, next to SVM or under NBIO/AMD CBS, and reboot",)
