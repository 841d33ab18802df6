"""`python -m amdxdna emulate --vfio-user SOCKET`: serves one emulated NPU to QEMU."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amdxdna.cli.common import CommandError, Parser, UsageError
from amdxdna.emu.pci import qemu
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.function import Npu2Function
from amdxdna.emu.pci.vfio_user import Server
from amdxdna.text import printable

# What the drivers want: Linux's newer ones 7, those up to 6.18 and AMD's of 2025 some 6 (npu4_regs.c).
PROTOCOLS = {"7": (7, 0), **{f"6.{minor}": (6, minor) for minor in (12, 15, 18, 19, 24)}}
# sun_path of a Unix socket address, less its terminator.
_LONGEST_SOCKET = 107


def parser() -> Parser:
    """The options of `emulate --vfio-user`."""
    parser = Parser(
        "emulate",
        description="Serves an emulated NPU2 (Strix) as a PCI function to QEMU over vfio-user.",
    )
    parser.add_argument(
        "--vfio-user", metavar="SOCKET", required=True, type=Path, help="Unix socket to listen on"
    )
    parser.add_argument(
        "--print-qemu-args",
        action="store_true",
        help="print the QEMU arguments and what the guest's kernel needs, and end",
    )
    parser.add_argument(
        "--memory",
        default="1G",
        metavar="SIZE",
        help="guest memory in the printed arguments (default %(default)s)",
    )
    parser.add_argument(
        "--protocol",
        choices=sorted(PROTOCOLS),
        default="7",
        help="firmware protocol: 7, or 6.x for the driver of Linux 6.18 and older ones (default %(default)s)",
    )
    parser.add_argument(
        "--slots", type=int, default=16, metavar="N", help="contexts at once, 1 to 31 (default %(default)s)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="threads a kernel uses, 0 for all cores (default %(default)s)",
    )
    parser.add_argument("--verbose", action="store_true", help="log every message of the driver to stderr")
    return parser


def qemu_command(socket: Path, memory: str) -> str:
    """The printed arguments: one shell line for QEMU, then what the guest itself needs, as comments."""
    lines = [
        shlex.join(qemu.arguments(socket, memory=memory)),
        "# on the guest's kernel command line: " + " ".join(qemu.KERNEL_ARGUMENTS),
        "# for the guest's module: modprobe amdxdna " + " ".join(qemu.MODULE_ARGUMENTS),
    ]
    return "\n".join(lines)


def vfio_user_main(argv: Sequence[str]) -> int:
    """Serves until SIGINT, SIGTERM or SIGHUP, client after client; the exit status."""
    options = parser().parse_args(argv)
    if not 1 <= options.slots <= 31:
        raise UsageError(
            f"--slots {options.slots}: a context needs a mailbox and a vector", "Give a number from 1 to 31"
        )
    if options.threads < 0:
        raise UsageError(f"--threads {options.threads}", "Give a number, 0 for all cores")
    if len(str(options.vfio_user.absolute()).encode()) > _LONGEST_SOCKET:
        raise UsageError(
            f"{options.vfio_user} is longer than a Unix socket's path can be ({_LONGEST_SOCKET} bytes)",
            "Name one in another folder",
        )
    if options.print_qemu_args:
        print(qemu_command(options.vfio_user, options.memory))
        return 0
    began = time.monotonic()

    def log(line: str) -> None:
        if options.verbose:
            print(f"{time.monotonic() - began:10.3f} {line}", file=sys.stderr, flush=True)

    firmware = FirmwareOptions(
        protocol=PROTOCOLS[options.protocol], slots=options.slots, threads=options.threads
    )
    where = printable(str(options.vfio_user))
    server: Server | None = None
    ended = False

    def end() -> None:
        nonlocal ended
        if ended and server is not None:
            raise KeyboardInterrupt  # it was told before, and does not come to its end
        ended = True
        if server is not None:
            server.close()

    with _ending(end):
        function = Npu2Function(firmware, log)
        try:
            server = Server(options.vfio_user, function, log)
            print(f"listening on {where}; end with Ctrl-C", flush=True)
            if not ended:
                server.serve()
        except KeyboardInterrupt:
            pass
        except OSError as error:
            if server is not None:
                raise
            raise CommandError(f"cannot listen on {where}: {error.strerror}", "Name another socket") from None
        finally:
            if server is not None:
                server.close()
            function.close()
    return 0


@contextmanager
def _ending(end: Callable[[], None]) -> Iterator[None]:
    """Calls `end` for each signal that asks the process to end, until the block ends. Ignored ones stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
                before[number] = handler
                signal.signal(number, lambda *_: end())
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
