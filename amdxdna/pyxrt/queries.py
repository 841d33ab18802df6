"""What `pyxrt.device.get_info` answers: texts, most of them JSON with every value a string."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import amdxdna
from amdxdna import query
from amdxdna.device import Device
from amdxdna.errors import XdnaError
from amdxdna.pyxrt.calls import message, refuse

# XRT's numbers of the queries that no NPU answers, as its texts give them.
_REFUSED = {
    1: "No such query request (185)",
    2: "bad any_cast",
    3: "No such query request (72)",
    6: "No such query request (70)",
    7: "No such query request (180)",
}
_POWER = {0: "default", 1: "powersaver", 2: "balanced", 3: "performance", 4: "turbo"}


def attribute(device: Device, name: str) -> str:
    """A file of the NPU's PCI function in sysfs; "" where there is none."""
    return device.node.text(f"sys/class/accel/{os.path.basename(device.path)}/device/{name}") or ""


def answer(device: Device, key: int) -> str:
    """The answer to query `key`. Raises RuntimeError for what no NPU answers, XdnaError."""
    if key in _REFUSED:
        refuse(_REFUSED[key])
    maker = _ANSWERS.get(key)
    return "NA" if maker is None else maker(device)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=4).replace("{}", "{\n}") + "\n"


def _bdf(device: Device) -> str:
    for line in attribute(device, "uevent").splitlines():
        key, _, value = line.partition("=")
        if key == "PCI_SLOT_NAME":
            return value
    return ""


def _name(device: Device) -> str:
    return attribute(device, "vbnv")


def _sensors(device: Device) -> dict[str, Any]:
    """The power sensors, or why there are none."""
    try:
        found = query.sensors(device.client)
    except XdnaError as error:
        said = message(error).splitlines()[0]
        return {"error_msg": said, "": said}
    return {"power_rails": [{"id": each.label, "power": {"watts": str(each.value)}} for each in found]}


def _platform(device: Device) -> str:
    mode = query.power_mode(device.client)
    return _json(
        {
            "platforms": [
                {
                    "static_region": {"name": _name(device), "total_columns": str(device.metadata().cols)},
                    "status": {"power_mode": _POWER.get(int(mode), "unknown")},
                    "electrical": _sensors(device),
                }
            ]
        }
    )


def _pcie(device: Device) -> str:
    plain = {name: attribute(device, name).removeprefix("0x") for name in ("device", "revision")}
    return _json(
        {
            "vendor": attribute(device, "vendor"),
            **plain,
            "sub_device": attribute(device, "subsystem_device"),
            "sub_vendor": attribute(device, "subsystem_vendor"),
        }
    )


def _host(device: Device) -> str:
    version = device.node.text("sys/module/amdxdna/version") or "unknown"
    return _json(
        {
            "version": amdxdna.__version__,
            "branch": "",
            "hash": "",
            "build_hash_date": "",
            "drivers": [{"name": "amdxdna", "version": version, "hash": "unknown"}],
        }
    )


_ANSWERS: dict[int, Callable[[Device], str]] = {
    0: _bdf,
    4: lambda device: "0",
    5: _name,
    8: lambda device: _json(_sensors(device)),
    9: lambda device: _json({"thermals": _sensors(device)}),
    10: lambda device: _json({"fans": _sensors(device)}),
    11: lambda device: _json({"error_msg": "No such query request (28)"}),
    12: _platform,
    13: _pcie,
    14: _host,
    17: lambda device: _json({"dynamic_regions": ""}),
    18: lambda device: _json({}),
}
