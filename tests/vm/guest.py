"""A virtual machine with Linux's own amdxdna driver on the emulated NPU function, and the line to its agent.

The function is served by a thread of this process, so that a test can configure it and look into it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amdxdna.emu.pci import qemu
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.function import Npu2Function
from amdxdna.emu.pci.vfio_user import Server
from qwen35.rootfs import archive, machine
from qwen35.rootfs.loaded import loaded_by
from qwen35.rootfs.python import APP, HOME, PythonRoot
from qwen35.rootfs.tree import Tree

from . import shared_addresses
from .debs import Rig

BDF = "0000:00:04.0"
BOOT_SECONDS = 150.0
AGENT = "tests.vm.agent"
_PATIENT = "nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
"""A guest that the host gives no processor for half a minute has no soft lockup to report."""
# A line of the kernel log that must fail the test in which it appears.
KERNEL_TROUBLE = re.compile(r"WARNING: |BUG: |Oops|general protection|Call Trace|refcount_t|use-after-free")

_AGENT_MAIN = f"cd /{APP} && PYTHONHOME={HOME} PYTHONPATH=/{APP} python3 -B -s -m {AGENT} {{modules}}"


class GuestLost(Exception):
    """The virtual machine ended or does not answer."""


class KernelTrouble(AssertionError):
    """The guest's kernel logged a warning or worse."""


@dataclass(frozen=True)
class Answer:
    """What the agent said: `value` holds the operation's own result, `log` the kernel's lines meanwhile."""

    value: dict[str, Any]
    log: list[str]
    seconds: float


def base_tree(rig: Rig, main: str) -> Tree:
    """The product's machine (busybox, the driver's modules, /init) that runs the shell lines `main`."""
    tree = Tree()
    machine.add_machine(tree, rig.busybox, rig.modules)
    machine.add_run(tree, f"{main}\necho 'the agent ended'")
    return tree


def packed(tree: Tree) -> bytes:
    """The initramfs of a tree that is whole."""
    machine.finish(tree)
    return b"".join(archive.newc(tree))


def test_archive(rig: Rig, checkout: Path, modules: list[str]) -> bytes:
    """The initramfs of the conformance guest: the agent, and what `modules` import."""
    tree = base_tree(rig, _AGENT_MAIN.format(modules=" ".join(modules)))
    root = PythonRoot(tree, checkout)
    root.interpreter()
    root.loaded(loaded_by([AGENT, *modules], checkout))
    return packed(tree)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass
class Machine:
    """A QEMU process from the unpacked tree, with the function it was given.

    `pasid`: processes share their addresses with the NPU (:mod:`.shared_addresses`). `options` are the
    firmware's after boot and unless a rebind says otherwise. `console` and `errors` are log files. Not
    thread-safe.
    """

    rig: Rig
    folder: Path
    initrd: Path
    memory: str = "1G"
    options: FirmwareOptions = field(default_factory=FirmwareOptions)
    log: Callable[[str], None] = lambda _: None
    pasid: bool = False
    boot_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.console = self.folder / "console.log"
        self.errors = self.folder / "qemu.log"
        self.function = Npu2Function(self.options, self.log)
        self.server = Server(self.folder / "npu.sock", self.function, self.log)
        self._thread = threading.Thread(target=self.server.serve, daemon=True, name="vfio-user")
        self._thread.start()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._buffer = b""
        self._ram = shared_addresses.new_ram(self.memory) if self.pasid else -1

    def boot(self, seconds: float = BOOT_SECONDS) -> Answer:
        """Starts the machine and waits for the agent's first line. Raises GuestLost."""
        began = time.monotonic()
        agent = self.folder / "agent.sock"
        agent.unlink(missing_ok=True)
        kernel = ["console=ttyS0 quiet panic=-1", _PATIENT, *qemu.KERNEL_ARGUMENTS]
        ram = None
        if self.pasid:
            kernel += shared_addresses.KERNEL_ARGUMENTS
            ram = f"/proc/self/fd/{self._ram}"
        else:
            kernel += [f"amdxdna.{option}" for option in qemu.MODULE_ARGUMENTS]
        command = [
            *self.rig.qemu_command,
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            *qemu.arguments(self.server.path, memory=self.memory, ram=ram),
            "-serial",
            f"file:{self.console}",
            "-chardev",
            f"socket,id=agent,path={agent},server=on,wait=off",
            "-serial",
            "chardev:agent",
            "-kernel",
            str(self.rig.vmlinuz),
            "-initrd",
            str(self.initrd),
            "-append",
            " ".join(kernel),
        ]
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                preexec_fn=_end_with_parent,
                pass_fds=[self._ram] if self.pasid else [],
            )
        self._line = self._connect(agent)
        answer = self._read(began + seconds)
        if self.pasid:
            found = self.request("shell", command=shared_addresses.SYMBOLS_COMMAND)
            self.function.memory.spaces = shared_addresses.share(self._ram, str(found.value["output"]))
        self.boot_seconds = time.monotonic() - began
        return answer

    def _connect(self, path: Path) -> socket.socket:
        assert self._process is not None
        for _ in range(400):
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                line.connect(str(path))
                return line
            except OSError:
                line.close()
                if self._process.poll() is not None:
                    break
                time.sleep(0.025)
        raise GuestLost(f"QEMU did not start: {self.errors.read_text(errors='replace')[-800:]}")

    def _read(self, deadline: float) -> Answer:
        assert self._line is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise GuestLost(f"no answer from the guest; {self.tail()}")
            self._line.settimeout(left)
            try:
                part = self._line.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError as error:
                raise GuestLost(f"{error}; {self.tail()}") from None
            if not part:
                raise GuestLost(f"the guest ended; {self.tail()}")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        value = json.loads(line)
        return Answer(value, value.pop("log", []), value.pop("seconds", 0.0))

    def request(self, op: str, *, timeout: float = 180.0, **arguments: Any) -> Answer:
        """One request to the agent. Raises GuestLost when no answer comes within `timeout` and some."""
        assert self._line is not None
        message = {"op": op, "timeout": timeout, "arguments": arguments}
        try:
            self._line.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise GuestLost(f"{error}; {self.tail()}") from None
        return self._read(time.monotonic() + timeout + 60)

    def rebind(self, options: FirmwareOptions | None = None) -> Answer:
        """Unbinds the driver, gives the function these options and binds it again."""
        self.request("unbind", bdf=BDF)
        self.function.configure(options or self.options)
        return self.request("bind", bdf=BDF)

    def tail(self) -> str:
        """The end of the console's and QEMU's logs."""
        parts = []
        for path in (self.console, self.errors):
            with contextlib.suppress(OSError):
                parts.append(path.read_text(errors="replace")[-1500:].strip())
        return "\n".join(parts) or "its console is empty"

    def close(self) -> None:
        """Ends the machine and the function. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._line is not None:
            self._line.close()
        self.server.close()
        self._thread.join(5)
        self.function.close()
        if self._ram >= 0:
            os.close(self._ram)
            self._ram = -1
        with contextlib.suppress(OSError):
            os.unlink(self.folder / "agent.sock")


def boot(make: Callable[[str], Machine]) -> Machine:
    """Boots a machine that `make(name of the attempt)` gives. Raises GuestLost.

    About one boot in a hundred hangs early, so one failure is forgiven, with a warning.
    """
    for attempt in ("1", "2"):
        machine = make(attempt)
        try:
            machine.boot()
            return machine
        except GuestLost as reason:
            machine.close()
            if attempt == "2":
                raise
            warnings.warn(f"the guest did not boot, trying again: {reason}", stacklevel=2)
        except BaseException:
            machine.close()
            raise
    raise AssertionError


def broke(lines: list[str], function: str | None) -> bool:
    """Whether the kernel's lines have a warning or worse, and `function` in the calls that led to it."""
    return (
        function is not None
        and any(re.search(rf"[ :]{re.escape(function)}\+0x", line) for line in lines)
        and any(KERNEL_TROUBLE.search(line) for line in lines)
    )


def check_log(lines: list[str], allowed: str | None = None) -> None:
    """Raises KernelTrouble for a warning or worse in the kernel's lines, unless it contains `allowed`."""
    trouble = [line for line in lines if KERNEL_TROUBLE.search(line)]
    if allowed is not None:
        trouble = [line for line in trouble if allowed not in line and "Call Trace" not in line]
    if trouble:
        raise KernelTrouble("the guest's kernel logged:\n" + "\n".join(lines[-40:]))
