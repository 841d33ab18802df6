"""Boots an image in QEMU on the emulated NPU, with Linux's own driver, and brings its answer here."""

from __future__ import annotations

import ctypes
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from amdxdna.emu.pci import qemu
from amdxdna.text import printable
from qwen35.errors import QwenError
from qwen35.rootfs.machine import ANSWER

__all__ = ["Machine", "boot", "by_hand", "guest_memory"]

_MIB = 1 << 20
#: MiB in which a guest of the minimal image answers, a picture's question too: kernel, 64 MiB of the driver's
#: heap, Python and the built-in model. A guest needs room for what an image has beyond that one.
LEAST_MIB = 384
_USUAL_BYTES, _USUAL_PACKED = 64 * _MIB, 30 * _MIB
# sun_path of a Unix socket address, less its terminator.
_LONGEST_SOCKET = 107
# What of a guest's console says why it ended.
_TELLING = re.compile(r"panic|unpacking failed|out of memory|image: |error", re.IGNORECASE)
_KERNEL_ARGUMENTS = ("console=ttyS0", "quiet", "panic=-1")


@dataclass(frozen=True)
class Machine:
    """What boots an image: `qemu`, the program's first words, and a kernel."""

    qemu: list[str]
    kernel: Path


def guest_memory(unpacked: int, packed: int) -> int:
    """MiB of memory for a guest of an image of `unpacked` bytes, `packed` in its file."""
    # Twice what is unpacked: a model's weights go to the device's buffers too, and the kernel gives the root
    # no more than half of the memory.
    more = 2 * max(0, unpacked - _USUAL_BYTES) + max(0, packed - _USUAL_PACKED)
    return LEAST_MIB + -(-more // (16 * _MIB)) * 16


def arguments(
    machine: Machine,
    initrd: Path,
    memory: int,
    npu: str | os.PathLike[str],
    serial: Sequence[str],
    kernel: Sequence[str] = (),
) -> list[str]:
    """QEMU's command; `serial`: its arguments for the serial ports, `kernel`: words more for the kernel."""
    options = [f"amdxdna.{option}" for option in qemu.MODULE_ARGUMENTS]
    return [
        *machine.qemu,
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        *qemu.arguments(npu, memory=f"{memory}M"),
        *serial,
        "-kernel",
        str(machine.kernel),
        "-initrd",
        str(initrd),
        "-append",
        " ".join((*_KERNEL_ARGUMENTS, *qemu.KERNEL_ARGUMENTS, *options, *kernel)),
    ]


def by_hand(machine: Machine, initrd: Path, memory: int) -> str:
    """The shell lines that boot an image with its console on the terminal."""
    npu = f"{initrd.absolute()}.npu"
    if len(os.fsencode(npu)) > _LONGEST_SOCKET:
        npu = os.path.join(tempfile.gettempdir(), "qwen35-image.npu")
    command = arguments(machine, initrd.absolute(), memory, npu, ["-serial", "mon:stdio"])
    npu = shlex.quote(npu)
    return (
        f"rm -f {npu}; {shlex.quote(sys.executable)} -m amdxdna emulate --vfio-user {npu} &\n"
        f"while [ ! -S {npu} ]; do sleep 0.1; done; {shlex.join(command)}; kill $!; rm -f {npu}"
    )


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def boot(machine: Machine, initrd: Path, memory: int, seconds: float) -> int:
    """Boots the image and copies its output and its errors to this process's; the guest's exit status.

    Raises QwenError where the guest does not get so far within `seconds`, with the end of its console.
    """
    from amdxdna.emu.pci.firmware import FirmwareOptions
    from amdxdna.emu.pci.function import Npu2Function
    from amdxdna.emu.pci.vfio_user import Server

    with tempfile.TemporaryDirectory(prefix="qwen35-boot-") as folder:

        def log(_: str) -> None:
            pass

        function = Npu2Function(FirmwareOptions(), log)
        server = Server(Path(folder) / "npu.sock", function, log)
        thread = threading.Thread(target=server.serve, daemon=True, name="vfio-user")
        thread.start()
        try:
            return _run(machine, initrd, memory, server.path, seconds)
        finally:
            server.close()
            thread.join(5)
            function.close()


def _run(machine: Machine, initrd: Path, memory: int, npu: str | os.PathLike[str], seconds: float) -> int:
    here: list[socket.socket] = []
    there: list[socket.socket] = []
    serial = []
    for name in ("console", "answer"):
        pair = socket.socketpair()
        here.append(pair[0])
        there.append(pair[1])
        serial += ["-chardev", f"socket,id={name},fd={pair[1].fileno()}", "-serial", f"chardev:{name}"]
    command = arguments(machine, initrd, memory, npu, serial, [f"{ANSWER}=/dev/ttyS1"])
    try:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                preexec_fn=_end_with_parent,
                pass_fds=[s.fileno() for s in there],
            )
            for end in there:
                end.close()
            try:
                answer = _Answer(here[0], here[1], time.monotonic() + seconds)
                answer.copy()
            finally:
                process.kill()
                process.wait()
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
    finally:
        for end in (*here, *there):
            end.close()
    if answer.status is not None:
        return answer.status
    told = [line.strip() for line in answer.console.decode(errors="replace").splitlines() if line.strip()]
    reasons = (
        [line for line in said.splitlines() if "warning:" not in line]
        or [line for line in told if _TELLING.search(line)]
        or told[-3:]
        or ["its console is empty: more memory (--memory) may help"]
    )
    raise QwenError(
        f"the guest did not answer within {seconds:g} s"
        if answer.late
        else "the guest ended before it answered",
        "",
        printable("; ".join(reasons)[-600:]),
    )


class _Answer:
    """Copies what comes out of a guest: its console to stderr, its answer to stdout until the status."""

    def __init__(self, console: socket.socket, answer: socket.socket, deadline: float) -> None:
        self._console, self._answer = console, answer
        self._deadline = deadline
        self._held = b""
        self.console = b""
        self.status: int | None = None
        self.late = False

    def copy(self) -> None:
        """Until the status has come, the guest has ended or the time is up."""
        open_ends = [self._console, self._answer]
        while open_ends and self.status is None:
            left = self._deadline - time.monotonic()
            ready = select.select(open_ends, [], [], max(0.0, left))[0]
            if not ready and left <= 0:
                self.late = True
                return
            for end in ready:
                try:
                    data = end.recv(1 << 16)
                except OSError:
                    data = b""
                if not data:
                    open_ends.remove(end)
                elif end is self._console:
                    self._told(data)
                else:
                    self._answered(data)
        # What of the console is here: it was sent before the status.
        while self._console in open_ends and select.select([self._console], [], [], 0)[0]:
            if not (data := self._console.recv(1 << 16)):
                break
            self._told(data)

    def _told(self, data: bytes) -> None:
        self.console = (self.console + data)[-65536:]
        sys.stderr.write(data.decode(errors="replace"))
        sys.stderr.flush()

    def _answered(self, data: bytes) -> None:
        self._held += data
        at = self._held.rfind(b"\0")
        if at >= 0 and (end := re.fullmatch(rb"\0status (\d+)\n", self._held[at:])):
            self.status = int(end[1])
            self._held, data = b"", self._held[:at]
        elif at >= 0 and len(self._held) - at < len(b"\0status 255\n"):
            data, self._held = self._held[:at], self._held[at:]
        else:
            data, self._held = self._held, b""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
