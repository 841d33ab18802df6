"""What the subcommands that open a device share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from amdxdna.cli.common import Parser
from amdxdna.cli.screen import tell
from amdxdna.errors import Unsupported, XdnaError

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.device_info import ContextInfo, Sensor
    from amdxdna.doctor import Machine

T = TypeVar("T")


def add_device(parser: Parser) -> None:
    """Adds ``--device``."""
    parser.add_argument(
        "--device",
        metavar="D",
        default="auto",
        help='node, index, "npu", or "emu[:options]" for the emulated one (default: the NPU, or the '
        "emulated one where there is none)",
    )


def _folder(text: str) -> Path:
    if not os.path.isdir(text):
        what = "not a folder" if os.path.lexists(text) else "no such folder"
        raise argparse.ArgumentTypeError(f"{text}: {what}")
    return Path(text)


def add_machine(parser: Parser) -> None:
    """Adds ``--device`` and ``--root``, for commands that look at the machine."""
    parser.add_argument(
        "--device",
        metavar="D",
        default="auto",
        help='node, index, "npu", or "emu[:options]" for the emulated one (default: the NPU)',
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        type=_folder,
        default=Path("/"),
        help="look at the copy of /sys, /proc, /dev, /etc and /lib below DIR",
    )


def open_device(spec: str) -> Device:
    """Opens the device, and says so on stderr when it is the emulated one without being asked for.

    Raises the errors of :meth:`amdxdna.device.Device.open`.
    """
    from amdxdna.device import Device

    device = Device.open(spec)
    if device.node.emulated and not spec.startswith("emu"):
        tell(["no NPU here: this is the emulated device (python -m amdxdna doctor says why)"])
    return device


class Answers:
    """Asks for what a driver may be too old for; ``unavailable`` maps a name to why there is no value."""

    def __init__(self, *, lenient: bool = False) -> None:
        self.unavailable: dict[str, str] = {}
        self._catch = XdnaError if lenient else Unsupported

    def ask(self, name: str, call: Callable[[], T]) -> T | None:
        """The answer, or None when the driver has none. Other failures raise, unless lenient."""
        try:
            return call()
        except self._catch as error:
            self.unavailable[name] = error.meaning
            return None


def process_names(
    contexts: tuple[ContextInfo, ...], emulated: bool, machine: Machine | None = None
) -> dict[int, str]:
    """Process id -> name, where it can be told: a container has process ids of its own."""
    if machine is None:
        from amdxdna import doctor

        machine = doctor.Machine()
    if machine.container() and not emulated:
        return {}
    return {pid: name for pid in {context.pid for context in contexts} if (name := machine.process_name(pid))}


def sensor_value(sensor: Sensor) -> tuple[float, str]:
    """A reading and its unit. The driver says milliwatts both as "mW" and as ten to the power -3."""
    prefix = {-3: "m", -6: "u", 3: "k"}.get(sensor.unitm, "")
    if prefix and sensor.units.startswith(prefix) and len(sensor.units) > 1:
        return sensor.value * 10.0**sensor.unitm, sensor.units[1:]
    return sensor.value * 10.0**sensor.unitm, sensor.units


def plain(record: Any) -> Any:
    """A query's record as JSON types."""
    return None if record is None else asdict(record)
