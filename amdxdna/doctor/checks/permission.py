"""May this process open the node?"""

from __future__ import annotations

import errno

from amdxdna.doctor.finding import Finding, fail, ok, skip
from amdxdna.doctor.subject import Subject
from amdxdna.sysfs import absent

_OVERFLOW = 65534  # what ids outside a user namespace are shown as


def permission(subject: Subject) -> Finding:
    """Owner, group and mode of the node against this process's ids, by number."""
    if subject.emulated:
        return skip("the emulated device asks for none")
    path, machine = subject.path, subject.machine
    if path is None or absent(path):
        return skip("there is no node")
    try:
        node = machine.stat(path)
    except OSError as error:
        return fail(
            f"{machine.shown(path)} cannot be looked at: {error.strerror}",
            "Allow this process to see /dev/accel",
        )
    who = machine.who()
    facts = {
        "uid": who.uid,
        "gids": sorted(who.gids),
        "node_uid": node.uid,
        "node_gid": node.gid,
        "mode": f"{node.mode:03o}",
        "container": machine.container(),
    }
    group = machine.group_name(node.gid)
    owner = f"group {node.gid}" + (f" ({group})" if group else ", which has no name here")
    if machine.may_open(path, node):
        refused = subject.error
        if refused is not None and refused.errno == errno.EPERM:
            return _sandboxed(subject, facts)
        if refused is None or refused.errno != errno.EACCES:
            return ok(
                f"uid {who.uid} may open {machine.shown(path)} ({owner}, mode {node.mode:03o})", facts=facts
            )
    text = (
        f"uid {who.uid} may not open {machine.shown(path)}: it belongs to uid {node.uid} and {owner}, "
        f"mode {node.mode:03o}; this process is in the groups {', '.join(map(str, sorted(who.gids)))}"
    )
    return fail(text, *_remedy(subject, node.gid, node.mode, group), facts=facts)


def _sandboxed(subject: Subject, facts: dict[str, object]) -> Finding:
    allowed = "the file's permissions allow it, but"
    if subject.machine.container():
        shown = subject.machine.shown(subject.path or subject.machine.dev)
        return fail(
            f"{allowed} the container's device rules refuse the node",
            f"Pass it as a device, not as a volume: `--device {shown}`",
            facts=facts,
        )
    return fail(
        f"{allowed} a sandbox refuses the node",
        "In a systemd service: `DeviceAllow=char-accel rw` (and no PrivateDevices=yes)",
        "Look at the audit log for SELinux or AppArmor (`sudo ausearch -m avc`)",
        facts=facts,
    )


def _remedy(subject: Subject, gid: int, mode: int, group: str) -> tuple[str, ...]:
    machine = subject.machine
    in_container = machine.container()
    if gid == _OVERFLOW:
        return (
            "The node's group is not mapped into this user namespace: with podman add `--group-add "
            "keep-groups`, with LXC or Incus map the host's group id",
            "Or run the container as root of the host",
        )
    if in_container and (gid == 0 or mode & 0o060 != 0o060):
        # A group id would not help: the node lets no group in, or only root's.
        shown = machine.shown(subject.path) if subject.path else "/dev/accel/accel0"
        return (
            f'On the host, let udev give the node to a group (`SUBSYSTEM=="accel", GROUP="render", '
            f'MODE="0660"` in /etc/udev/rules.d/70-npu.rules), or once `sudo chmod 666 {shown}`',
            "Then start the container with `--group-add` and that group's number on the host",
        )
    if in_container:
        return (
            f"Start the container with `--group-add {gid}`: group ids count, not names, and the host's "
            "differs from the container's",
        )
    if mode & 0o060 != 0o060 or gid == 0:
        return (
            'Let udev give it to a group: `SUBSYSTEM=="accel", GROUP="render", MODE="0660"` in '
            "/etc/udev/rules.d/70-npu.rules, then `sudo udevadm control --reload; sudo udevadm trigger "
            "-s accel`",
            "Then join that group (`sudo usermod -aG render $USER`), log out and in",
        )
    name = group or str(gid)
    if machine.listed_in(gid):
        return (
            f"You are in the group {name} already, but this session is older: log out and in (or try "
            f"`newgrp {name}`)",
        )
    return (
        f"Join the group: `sudo usermod -aG {name} $USER`, then log out and in",
        f"A systemd service needs `SupplementaryGroups={name}`",
    )
