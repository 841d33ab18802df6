"""`amdxdna info`: driver, firmware, device and array.

JSON: ``amdxdna.info`` version 1: ``path``, ``emulated``, ``kernel``, ``npu`` (PCI function or null),
``driver`` (``name``, ``version`` "0.10"), ``profile`` (what is known of the driver: the fields of
:class:`amdxdna.profile.DriverProfile`, and ``rows`` for a reader), ``firmware`` "1.1.2.64", ``array``,
``clocks`` [{name, mhz}], ``power_mode``, ``address_mode`` "pasid"|"iova", ``resources``, ``contexts_open``,
``contexts_limit`` (null: not told), ``preemption``, and ``unavailable``: for each field that is null, why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import Parser, document, print_json
from amdxdna.cli.device import Answers, add_device, open_device, plain
from amdxdna.cli.screen import not_available, pairs, show

if TYPE_CHECKING:
    from amdxdna.device import Device


def info_main(argv: list[str]) -> int:
    """Exit status 0, or 1 when the device cannot be opened or does not answer."""
    parser = Parser("info", description="What the driver and the firmware tell about the device.")
    add_device(parser)
    parser.add_json()
    options = parser.parse_args(argv)
    with open_device(options.device) as device:
        facts = gather(device)
    if options.json:
        print_json(document("info", **facts))
    else:
        show(pairs(_rows(facts)))
    return 0


def gather(device: Device, lenient: bool = False) -> dict[str, Any]:
    """The document's fields. `lenient`: what fails becomes null too, with the error as its reason."""
    from amdxdna import query

    client, answers = device.client, Answers(lenient=lenient)
    firmware = answers.ask("firmware", lambda: query.firmware_version(client))
    clocks = answers.ask("clocks", lambda: query.clocks(client))
    mode = answers.ask("power_mode", lambda: device.power_mode)
    preemption = answers.ask("preemption", lambda: query.preemption(client))
    use = answers.ask("contexts_open", lambda: query.context_use(client))
    from amdxdna.doctor import Machine

    return {
        "path": device.path,
        "emulated": firmware is not None and firmware.emulated,
        "kernel": device.profile.release or Machine().release,
        "npu": None if device.node.emulated else _npu(device.path, answers),
        "driver": {"name": device.version.name, "version": str(device.version)},
        "profile": {**device.profile.as_json(), "rows": [list(row) for row in device.profile.rows()]},
        "firmware": None if firmware is None else str(firmware),
        "array": plain(answers.ask("array", device.metadata)),
        "clocks": None if clocks is None else [plain(clock) for clock in clocks],
        "power_mode": None if mode is None else mode.name.lower(),
        "address_mode": answers.ask("address_mode", lambda: address_mode(device)),
        "resources": plain(answers.ask("resources", device.resources)),
        "contexts_open": None if use is None else use.taken,
        "contexts_limit": None if use is None else use.limit,
        "preemption": None if preemption is None else {"forced": preemption[0], "at_frames": preemption[1]},
        "unavailable": answers.unavailable,
    }


def address_mode(device: Device) -> str:
    """ "pasid": packets carry the program's own addresses; "iova": addresses that the driver gives."""
    with device.alloc(4096) as buffer:
        return "pasid" if buffer.address == buffer.host_address else "iova"


def _npu(path: str, answers: Answers) -> dict[str, str] | None:
    from amdxdna.doctor.models import model_of
    from amdxdna.sysfs import find_nodes

    for node in find_nodes():
        if node.path == path:
            model = model_of(node.device, node.revision)
            return {
                "address": node.pci,
                "device": f"{node.device:04x}",
                "revision": f"{node.revision:02x}",
                "name": model.name,
                "generation": model.generation,
                "product": model.product,
            }
    answers.unavailable["npu"] = "/sys does not show the node's PCI function"
    return None


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What the screen shows, in reading order."""
    missing = facts["unavailable"]

    def text(name: str, value: str) -> str:
        return not_available(missing.get(name, "no answer")) if facts[name] is None else value

    rows = [("device", facts["path"] + (" (the emulated NPU)" if facts["emulated"] else ""))]
    npu = facts["npu"]
    if npu is not None or "npu" in missing:
        rows.append(
            (
                "NPU",
                text(
                    "npu",
                    ""
                    if npu is None
                    else f"{npu['product']} ({npu['name']}, "
                    f"{npu['generation']}), 1022:{npu['device']} revision {npu['revision']}, at "
                    f"{npu['address']}",
                ),
            )
        )
    rows.append(
        ("driver", f"{facts['driver']['name']} {facts['driver']['version']}, Linux {facts['kernel']}")
    )
    rows += [(f"  {what}", how) for what, how in facts["profile"]["rows"]]
    rows.append(("firmware", text("firmware", str(facts["firmware"]))))
    rows += _array(facts["array"]) if facts["array"] else [("array", text("array", ""))]
    rows.append(
        ("clocks", text("clocks", ", ".join(f"{c['name']} {c['mhz']} MHz" for c in facts["clocks"] or ())))
    )
    rows.append(("power mode", text("power_mode", str(facts["power_mode"]))))
    rows.append(
        (
            "addresses",
            text(
                "address_mode",
                "the program's own (PASID)"
                if facts["address_mode"] == "pasid"
                else "given by the driver (IOVA)",
            ),
        )
    )
    resources = facts["resources"] or {}
    rows.append(
        (
            "contexts",
            text("contexts_open", f"{facts['contexts_open']} in use")
            if facts["contexts_limit"] is None
            else f"{facts['contexts_open']} of {facts['contexts_limit']} in use",
        )
    )
    rows.append(
        ("TOPS", text("resources", f"{resources.get('npu_tops_curr')} of {resources.get('npu_tops_max')}"))
    )
    preemption = facts["preemption"] or {}
    rows.append(
        (
            "preemption",
            text(
                "preemption",
                ", ".join(
                    [
                        name
                        for key, name in (("forced", "forced"), ("at_frames", "at frame boundaries"))
                        if preemption.get(key)
                    ]
                    or ["by default"]
                ),
            ),
        )
    )
    return rows


def _array(array: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (
            "array",
            f"AIE {'.'.join(map(str, array['version']))}, {array['cols']} columns, {array['rows']} rows, "
            f"{array['col_size']} bytes of status a column",
        )
    ]
    for kind, name in (("core", "core tiles"), ("mem", "memory tiles"), ("shim", "shim tiles")):
        tile = array[kind]
        rows.append(
            (
                f"  {name}",
                f"{tile['row_count']} a column from row {tile['row_start']}: "
                f"{tile['dma_channel_count']} DMA channels, {tile['lock_count']} locks each",
            )
        )
    return rows
