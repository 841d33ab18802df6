"""The part of an image that a system which runs has already: busybox, the driver's modules, and /init."""

from __future__ import annotations

from pathlib import Path

from qwen35.rootfs.modules import modules_in_order
from qwen35.rootfs.python import HOME
from qwen35.rootfs.tree import Tree

__all__ = ["ANSWER", "BUNDLE", "RUN", "SHELL", "WHOLE", "add_machine", "add_run", "finish"]

FIRMWARE = "lib/firmware/amdnpu"
# What a driver asks for, newest name first (npu4_regs.c and npu5_regs.c of Linux 6.14 to 7.3).
_FIRMWARE_FILES = ("17f0_10/npu_7.sbin", "17f0_10/npu.sbin", "17f0_10/npu.dev.sbin")
_APPLETS = (
    "sh",
    "mount",
    "mkdir",
    "cat",
    "echo",
    "insmod",
    "poweroff",
    "dmesg",
    "ls",
    "sleep",
    "setsid",
    "cttyhack",
    "stty",
    "printf",
    "grep",
    "dd",
    "vi",
    "ps",
    "free",
    "df",
)
RUN = "etc/run"
WHOLE = "etc/whole"
"""The last file: what has it was unpacked to its end."""
BUNDLE = "bundle"
ANSWER = "ANSWER"
"""On the kernel's command line: the serial port that gets RUN's output and, behind a NUL, its status."""
SHELL = "exec setsid cttyhack sh"

_INIT = f"""#!/bin/sh
export PATH=/bin:/usr/bin HOME=/root PYTHONHOME={HOME} {{environment}}
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
if [ -n "${ANSWER}" ]; then
    stty -F /dev/console -onlcr
    stty -F "${ANSWER}" raw -echo
    exec 3>"${ANSWER}"
else
    exec 3>&1
fi
cd /root
if [ ! -e /{WHOLE} ]; then
    read _ kib _ < /proc/meminfo
    echo "image: memory was short and the root was cut off: the machine has $((kib / 1024)) MiB," \\
         "{{least}} or more are needed" >&2
    status=1
else
    echo 0 > /proc/sys/kernel/printk_ratelimit
    for module in $(cat /lib/modules/order); do
        options=
        for word in $(cat /proc/cmdline); do
            case $word in "${{{{module%%.*}}}}".*) options="$options ${{{{word#*.}}}}" ;; esac
        done
        insmod /lib/modules/$module $options || echo "image: module $module was not loaded" >&2
    done
    if [ -n "${ANSWER}" ]; then
        # Through pipes, so that a program does not take the ports for a terminal.
        {{{{ {{{{ sh /{RUN}; echo $? > /tmp/status; }}}} 2>&4 | cat >&3; }}}} 4>&1 | cat >&2
        read -r status < /tmp/status
    else
        sh /{RUN}
        status=$?
    fi
fi
# This waits until the console has sent what it has.
[ -z "${ANSWER}" ] || stty -F /dev/console -onlcr
[ -z "${ANSWER}" ] || printf '\\0status %s\\n' "$status" >&3
poweroff -f
"""


def add_machine(
    tree: Tree,
    busybox: Path,
    modules: Path,
    firmware: Path | None = None,
    *,
    least: int = 0,
    environment: str = "",
) -> None:
    """Busybox, the driver's modules, its firmware, and an /init that runs /etc/run and powers off.

    `modules`: a kernel's folder of them. `firmware`: the folder amdnpu of linux-firmware; without it there
    are placeholders, which do where the NPU is emulated (the driver only reads them, and the PSP that would
    check them is the emulator's). `least`: MiB of memory that /init says are needed. Module options are taken
    from the kernel's command line (amdxdna.force_iova=1). Raises OSError, QwenError.
    """
    tree.kind = "busybox"
    for folder in ("proc", "sys", "dev", "tmp", "root", "etc"):
        tree.folder(folder)
    tree.device("dev/console", 5, 1)
    tree.device("dev/null", 1, 3)
    init = _INIT.format(environment=environment, least=least)
    tree.file("init", init.encode(), 0o755)
    tree.copy(busybox, "bin/busybox")
    for applet in _APPLETS:
        tree.link(f"bin/{applet}", "busybox")
    tree.kind = "modules"
    order = []
    for name, image in modules_in_order(modules, "amdxdna"):
        tree.file(f"lib/modules/{name}", image)
        order.append(name)
    tree.file("lib/modules/order", "\n".join(order).encode())
    tree.kind = "firmware"
    if firmware is not None:
        tree.tree(firmware, FIRMWARE)
    for name in _FIRMWARE_FILES if firmware is None else ():
        tree.file(f"{FIRMWARE}/{name}", bytes(4096))


def add_run(tree: Tree, lines: str) -> None:
    """What /init runs: shell lines."""
    tree.kind = "busybox"
    tree.file(RUN, f"{lines}\n".encode(), 0o755)


def finish(tree: Tree) -> None:
    """Has /init and its shell written first, and a file last by which it knows that nothing is missing.

    To be called when everything else is there.
    """
    tree.kind = "busybox"
    if "init" in tree:
        tree.first(
            [
                "init",
                "bin/busybox",
                *(f"bin/{applet}" for applet in _APPLETS),
                "dev/console",
                "dev/null",
                "proc",
                "sys",
                "tmp",
                "root",
            ]
        )
    tree.file(WHOLE, b"")
