"""`amdxdna snapshot FILE`: one JSON file with everything that a bug report about the NPU needs.

The file is a document ``amdxdna.snapshot`` version 1: ``created``, ``package``, ``system``, ``npus``,
``module``, ``iommu``, ``firmware_files``, ``doctor`` (the findings), ``info``, ``contexts``, ``sensors``,
``last_error``, ``telemetry``, each as in the command of that name or null, ``errors`` (what could not be
asked, and why) and ``kernel_log`` (lines about the NPU). Host and user names, home folders, serial numbers,
UUIDs and addresses are taken out; of the kernel command line only what concerns the NPU is in it. Names of
other users' processes are left out unless ``--process-names`` asks for them: ``process_names`` is "own" or
"all".

JSON on stdout with ``--json``: ``amdxdna.snapshot_file`` version 1: ``path``, ``bytes``, ``ok`` (doctor's).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amdxdna.cli import contexts as contexts_command
from amdxdna.cli import info as info_command
from amdxdna.cli.common import CommandError, Parser, document, print_json
from amdxdna.cli.device import add_machine, plain
from amdxdna.cli.errors import decode
from amdxdna.cli.screen import show, size, wrap
from amdxdna.doctor import Machine, examine
from amdxdna.doctor.scrub import Scrubber, words_starting
from amdxdna.errors import XdnaError
from amdxdna.files import read_regular
from amdxdna.output import write_whole

if TYPE_CHECKING:
    from amdxdna.device import Device

_COMMAND_LINE = (
    "iommu",
    "amd_iommu",
    "intel_iommu",
    "pci=",
    "amdxdna.",
    "module_blacklist",
    "modprobe.blacklist",
    "firmware_class.",
    "mem=",
    "memmap=",
)
_LOG_LINES = 400


def snapshot_main(argv: list[str]) -> int:
    """Exit status 0 once the file is written, whatever is wrong with the NPU."""
    parser = Parser(
        "snapshot",
        description="Writes what a bug report needs into one JSON file, without names of "
        "hosts and users, home folders, serial numbers and addresses. Processes of other users are in "
        "it by number only, unless --process-names is given.",
    )
    parser.add_argument("file", metavar="FILE", help='file to write, or "-" for stdout')
    add_machine(parser)
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")
    parser.add_argument(
        "--process-names", action="store_true", help="with the names of other users' processes on the NPU"
    )
    parser.add_json()
    options = parser.parse_args(argv)
    path = Path(options.file)
    if options.file != "-" and os.path.lexists(path) and not options.force:
        raise CommandError(f"{path} is there already", "Give another name, or --force to replace it")
    value = gather(options.device, Machine(options.root, name_others=options.process_names))
    data = json.dumps(value, indent=1) + "\n"
    if options.file == "-":
        sys.stdout.write(data)
        return 0
    try:
        write_whole(path, data.encode(), private=True)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}", "Name another file") from None
    ok = all(check["status"] != "fail" for check in value["doctor"])
    if options.json:
        print_json(document("snapshot_file", path=options.file, bytes=len(data), ok=ok))
    else:
        show(
            wrap(
                f"wrote {options.file} ({size(len(data))}). Names, home folders, serial numbers and "
                "addresses are taken out"
                + (
                    ""
                    if options.process_names
                    else ", and the names of other users' processes (--process-names keeps those)"
                )
                + "; look it through all the same before you publish it."
            )
        )
    return 0


def gather(spec: str, machine: Machine) -> dict[str, Any]:
    """The document, scrubbed."""
    report = examine(spec, machine)
    lines, unreadable, _ = machine.kernel_log()
    value: dict[str, Any] = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "process_names": "all" if machine.name_others else "own",
        "package": _package(),
        "system": system(machine),
        "npus": [
            {
                "address": npu.address,
                "device": f"{npu.device:04x}",
                "revision": f"{npu.revision:02x}",
                "name": npu.model.name,
                "driver": npu.driver,
            }
            for npu in machine.npus()
        ],
        "module": module(machine),
        "iommu": report["iommu"].facts,
        "firmware_files": [
            _file(machine, path) for npu in machine.npus() for path in machine.firmware_files(npu.model)
        ],
        "doctor": [finding.as_json() for finding in report.findings],
        **_device(spec, machine),
        "kernel_log": lines[-_LOG_LINES:],
    }
    if unreadable:
        value["errors"]["kernel_log"] = unreadable
    scrubbed: dict[str, Any] = Scrubber.of(machine).value(value)
    return document("snapshot", **scrubbed)


def _package() -> dict[str, Any]:
    from amdxdna import __version__

    return {
        "version": __version__,
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "settings": {key: value for key, value in os.environ.items() if key.startswith("AMDXDNA_")},
    }


def system(machine: Machine) -> dict[str, Any]:
    """Its part about the kernel and the distribution."""
    release = dict(line.partition("=")[::2] for line in machine.text("etc/os-release").splitlines())
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in machine.text("proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    memory = machine.text("proc/meminfo").partition("\n")[0].partition(":")[2].strip()
    return {
        "kernel": machine.release,
        "distribution": release.get("PRETTY_NAME", "").strip('"'),
        "processor": cpu,
        "memory": memory,
        "container": machine.container(),
        "virtual": machine.virtual(),
        "model": {
            key: machine.text(f"sys/class/dmi/id/{key}")
            for key in ("sys_vendor", "product_name", "bios_version", "bios_date")
        },
        "command_line": words_starting(machine.command_line, _COMMAND_LINE),
    }


def module(machine: Machine) -> dict[str, Any]:
    """Its part about the driver's module."""
    folder = "sys/module/amdxdna"
    return {
        "loaded": machine.driver_loaded,
        "taint": machine.text(f"{folder}/taint"),
        "srcversion": machine.text(f"{folder}/srcversion"),
        "parameters": {
            name: machine.text(f"{folder}/parameters/{name}")
            for name in machine.names(f"{folder}/parameters")
        },
    }


_MOST_BYTES = 64 << 20
"""More than a firmware image holds; a larger file is not hashed."""


def _file(machine: Machine, path: Path) -> dict[str, Any]:
    try:
        data = read_regular(path, _MOST_BYTES)
    except OSError as error:
        return {"path": machine.shown(path), "error": error.strerror}
    return {
        "path": machine.shown(path),
        "target": Path(os.path.realpath(path)).name,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _device(spec: str, machine: Machine) -> dict[str, Any]:
    """What the device itself tells; null, with the reason under ``errors``, where it does not."""
    from amdxdna import query
    from amdxdna.doctor.subject import Subject

    subject = Subject(machine, spec)
    errors: dict[str, str] = {}
    try:
        device = subject.device
        if device is None:
            errors["device"] = str(subject.error)
        parts: dict[str, Callable[[Device], Any]] = {
            "info": lambda d: info_command.gather(d, lenient=True),
            "contexts": lambda d: contexts_command.gather(d, lenient=True, machine=machine),
            "sensors": lambda d: [plain(sensor) for sensor in query.sensors(d.client)],
            "last_error": lambda d: decode(d.last_async_error()),
            "telemetry": lambda d: d.telemetry().data.rstrip(b"\0").hex(),
        }
        result: dict[str, Any] = {}
        for name, ask in parts.items():
            result[name] = None
            if device is not None:
                try:
                    result[name] = ask(device)
                except XdnaError as error:
                    errors[name] = str(error)
        return {**result, "errors": errors}
    finally:
        subject.close()
