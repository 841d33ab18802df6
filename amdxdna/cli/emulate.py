"""`python -m amdxdna emulate`: a program on an emulated NPU, or the NPU of a virtual machine."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import CannotStart, CommandError, Parser, UsageError, document
from amdxdna.cli.screen import tell
from amdxdna.entry import descriptor_fault

if TYPE_CHECKING:
    import argparse

    from amdxdna.emu.npu.schedule import Totals
    from amdxdna.emu.options import EmuOptions

_DESCRIPTION = """\
Runs COMMAND, and whatever it starts, on an emulated NPU: /dev/accel/accel0 and its sysfs entries are there
for it, and open, ioctl, mmap, fork, dup and exit behave as with the driver. Needs no device, no privileges
and no change to the program; its processes and threads share the one device. What they read from
/dev/kmsg (dmesg does) is the emulated driver's log."""

_EPILOG = """\
Ends when every process of COMMAND has ended, with COMMAND's exit status (128 + N when signal N killed it,
127 where there is no such program, 126 where it cannot be run). Programs that need more rights than this
user (setuid) do not get them.
With --json an amdxdna.emulate document goes to stderr at the end:

  {"schema": "amdxdna.emulate", "version": 1, "status": 0, "signal": null, "node": "/dev/accel/accel0",
   "options": {"slots": 16, ...}, "opens": 1, "ioctls": 42, "calls_seen": 812, "log": ["..."],
   "timed": null}

With --timed, "timed" has seconds, the NPU's own time; commands, chains, loads (changes of context or PDI);
late, the chains that took longer to compute, by late_seconds; and overslept, the seconds by which threads
woke up too late."""


def parser() -> Parser:
    """The options of `emulate -- COMMAND`."""
    from amdxdna.emu.options import OPTIONS

    p = Parser(
        "emulate",
        usage="amdxdna emulate [options] -- COMMAND [ARGUMENT...]\n"
        "       amdxdna emulate --vfio-user SOCKET [--print-qemu-args] [options]",
        description=_DESCRIPTION,
        epilog=f"{_EPILOG}\n\nOptions of the device (-O, --fault; emu:KEY=VALUE,... of --device elsewhere; "
        f"AMDXDNA_EMU gives defaults):\n{OPTIONS}",
    )
    add_device_options(p)
    p.add_argument(
        "--vfio-user",
        metavar="SOCKET",
        help="serve the NPU to QEMU instead: see python -m amdxdna emulate --vfio-user SOCKET --help",
    )
    p.add_json()
    return p


_NODE = "/dev/accel/accel0"


def add_device_options(p: Parser) -> None:
    """Options that describe the emulated device."""
    group = p.add_argument_group("the device")
    add = group.add_argument
    add("--slots", metavar="N", help="hardware contexts (default 16)")
    add("--minor", metavar="N", help="DRM minor that the driver reports (default: the driver's, 10)")
    add("--address", metavar="MODE", help="pasid: packets carry host addresses (default); iova: the driver's")
    add(
        "--fault",
        action="append",
        default=[],
        metavar="KIND=N",
        help="hang=3, fail=2:0x3000002, chain_corrupt=*, refuse=1, open=1:EACCES, ...; repeatable",
    )
    add("--threads", metavar="N", help="threads a kernel computes on; 0: one a core (default)")
    add("--instant", action="store_true", help="kernels compute nothing and return at once")
    add(
        "--timed",
        nargs="?",
        const="",
        metavar="MODEL",
        help="commands take the wall time of real hardware, by a model (default: a Ryzen AI 9 HX 370's); the "
        "end tells how much NPU time that was",
    )
    add("--slow", metavar="US", help="every command takes US microseconds more")
    add(
        "--options",
        "-O",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="any option of the emulated device, as in emu:KEY=VALUE,...; "
        "python -m amdxdna emulate --help lists them",
    )
    add(
        "--device-path",
        default=_NODE,
        metavar="PATH",
        help="where the program finds the node (default %(default)s)",
    )


def device_options(given: argparse.Namespace) -> list[str]:
    """The options of :func:`add_device_options` that the command line has."""
    names = ("slots", "minor", "address", "fault", "threads", "instant", "timed", "slow", "options")
    found = [f"--{name}" for name in names if getattr(given, name) not in (None, False, [])]
    return [*found, *(["--device-path"] if given.device_path != _NODE else [])]


def emulator_options(given: argparse.Namespace) -> EmuOptions:
    """The device that the command line describes, on top of AMDXDNA_EMU. Raises UsageError."""
    from amdxdna.emu.options import EmuOptions
    from amdxdna.errors import BadArgument

    parts = [
        f"{key}={getattr(given, key)}"
        for key in ("slots", "minor", "address", "threads")
        if getattr(given, key) is not None
    ]
    if given.timed is not None:
        parts.append(f"timed={given.timed}" if given.timed else "timed")
    if given.instant:
        parts.append("instant")
    if given.slow is not None:
        parts.append(f"slow=*:{given.slow}")
    try:
        return EmuOptions.parse(",".join([*parts, *given.options, *given.fault]))
    except BadArgument as error:
        raise UsageError(f"{error.call}: {error.meaning}", error.remedy) from None


def check_node_path(path: str) -> None:
    """Raises UsageError for a path that cannot be the node's."""
    if not os.path.isabs(path) or os.path.normpath(path) != path or path == "/":
        raise UsageError(
            f"--device-path {path}: not a plain absolute path", "Give one such as /dev/accel/accel0"
        )


def split(argv: list[str], name: str) -> tuple[list[str], list[str]]:
    """The command line's own words, and the program with its arguments: what follows the first ``--``.

    Raises UsageError when no program is named and no help is asked for.
    """
    own = argv[: argv.index("--")] if "--" in argv else argv
    command = argv[len(own) + 1 :]
    if not command and not {"-h", "--help"} & set(own):
        raise UsageError(
            f"{name}: no command", f"Give it after --: python -m amdxdna {name} -- PROGRAM ARGUMENT..."
        )
    return own, command


def cannot_start(command: list[str], failed: OSError) -> CommandError:
    """What is said when the program could not be started."""
    from amdxdna.emu.seccomp.folders import NoFolder
    from amdxdna.emu.seccomp.spawn import CannotConfine

    if isinstance(failed, CannotConfine) and not descriptor_fault(failed):
        return CommandError(
            f"the kernel refuses the seccomp filter: {failed.strerror}",
            "Linux 5.14 or newer is needed, and nobody else may answer this program's calls already (emulate "
            "in emulate)",
        )
    if isinstance(failed, NoFolder):
        return CommandError(str(failed.strerror), "Set TMPDIR to one that can")
    return CannotStart(command[0], failed)


def wait_status(status: int) -> tuple[int, int | None]:
    """(exit status, signal) of a wait status; a killed program's exit status is 128 + the signal."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def tell_killed(name: str, number: int | None) -> None:
    """One line about a program that a signal ended."""
    if number is not None:
        tell([f"amdxdna: {name}: killed by {signal.Signals(number).name}"])


def options_json(options: EmuOptions) -> dict[str, Any]:
    """The options of a device as JSON; faults as (kind, first, last, value)."""
    from dataclasses import asdict

    return asdict(options)


def emulate_main(argv: list[str]) -> int:
    """Runs `emulate` with `argv`; the exit status."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    if any(word == "--vfio-user" or word.startswith("--vfio-user=") for word in own):
        from amdxdna.cli.vfio_user import vfio_user_main

        return vfio_user_main(argv)
    own, command = split(argv, "emulate")
    given = parser().parse_args(own)
    check_node_path(given.device_path)
    options = emulator_options(given)

    from amdxdna.emu.seccomp.supervisor import Supervisor

    supervisor = Supervisor(options, given.device_path)
    try:
        status = supervisor.run(command, os.environ)
    except OSError as failed:
        raise cannot_start(command, failed) from None
    code, killed = wait_status(status)
    tell_killed(command[0], killed)
    schedule = supervisor.driver.npu.schedule
    totals = None if schedule is None else schedule.totals()
    if given.json:
        import json
        from dataclasses import asdict

        print(
            json.dumps(
                document(
                    "emulate",
                    status=code,
                    signal=killed,
                    node=supervisor.node,
                    options=options_json(options),
                    opens=supervisor.opens,
                    ioctls=supervisor.ioctls,
                    calls_seen=supervisor.seen,
                    log=list(supervisor.driver.messages),
                    timed=None if totals is None else asdict(totals),
                )
            ),
            file=sys.stderr,
        )
    elif totals is not None:
        tell([f"amdxdna: emulate: timed={options.timed}: {timed_line(totals)}"])
    return code


def timed_line(totals: Totals) -> str:
    """What a timed NPU did, in a line."""
    commands = "1 command" if totals.commands == 1 else f"{totals.commands:,} commands"
    told = f"{totals.seconds * 1e3:,.1f} ms of the NPU for {commands}"
    if totals.late:
        told += (
            f"; {totals.late:,} of {totals.chains:,} took longer to compute, "
            f"by {totals.late_seconds * 1e3:,.1f} ms in all: the times do not hold"
        )
    return told
