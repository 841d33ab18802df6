"""XRT as a peer: Debian's pyxrt and xrt-smi on the same driver and the same modelled device as ours."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from amdxdna.elf import ControlElf
from amdxdna.elf.control import RESTORE, SAVE, TEXT
from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import Slot
from amdxdna.emu.pci.function import Npu2Function
from amdxdna.emu.xclbins import xclbin_bytes
from qwen35.rootfs.loaded import loaded_by
from qwen35.rootfs.python import APP, PythonRoot
from tests.support import pyxrt_files

from . import debs, guest, xrt_side
from .image import CHECKOUT

MEMORY = "1500M"
PROGRAM = stream.copy(4 * xrt_side.WORDS, 1)
ELFS = pyxrt_files.elf_files()
AGENT = f"PYTHONPATH=/{APP} python3.13 -B -s -m {guest.AGENT}"


@pytest.fixture(scope="module")
def machine(rig: debs.Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[guest.Machine]:
    """A guest of Debian's Python and XRT, with our binding beside it."""
    tree = debs.xrt_tree(rig.root)
    archive = guest.base_tree(rig, AGENT)
    archive.link("lib64", "usr/lib64")
    archive.tree(tree, wanted=lambda path: not path.startswith(("usr/share", "usr/sbin", "etc")))
    archive.file("copy.xclbin", xclbin_bytes("copy"))
    for name, data in ELFS.items():
        archive.file(f"{name}.elf", data)
    root = PythonRoot(archive, CHECKOUT)
    for path in loaded_by(
        [guest.AGENT, "tests.vm.xrt_side", "amdxdna.device", "amdxdna.xclbin"], CHECKOUT
    ).files.values():
        if path.is_relative_to(CHECKOUT):
            root.module(path)
    for path in sorted((CHECKOUT / "amdxdna").rglob("*.py")):
        root.module(path)
    folder = tmp_path_factory.mktemp("xrt")
    (folder / "initrd").write_bytes(guest.packed(archive))
    machine = guest.boot(lambda attempt: guest.Machine(rig, folder / attempt, folder / "initrd", MEMORY))
    yield machine
    machine.close()


@dataclass
class Recorder:
    """The commands that reach the firmware, and the packets they were made of, from guest memory."""

    function: Npu2Function
    slots: list[Slot] = field(default_factory=list)
    packets: list[list[int]] = field(default_factory=list)

    def __call__(self, context: int, slots: list[Slot]) -> None:
        self.slots += slots
        self.packets += [self.packet(slot) for slot in slots]

    def packet(self, slot: Slot) -> list[int]:
        """The START_CU packet of a slot: found by its payload, header and CU mask in front of it."""
        payload = struct.pack(f"<{len(slot.args)}I", *slot.args)
        memory = self.function.memory
        for start, end in memory.ranges():
            data = memory.read(start, end - start)
            at = data.find(payload)
            while at >= 0:
                words = list(struct.unpack_from(f"<{2 + len(slot.args)}I", data, max(at - 8, 0)))
                # The driver's own copy, in its command list, has another header.
                if words[0] >> 12 & 0x7FF == 1 + len(slot.args):
                    return words
                at = data.find(payload, at + 4)
        raise AssertionError("no packet with this payload is in the guest's buffers")


@dataclass
class CodeRecorder:
    """The commands for control code that reach the firmware, with the code that they name."""

    function: Npu2Function
    found: list[tuple[Slot, dict[str, bytes]]] = field(default_factory=list)

    def __call__(self, context: int, slots: list[Slot]) -> None:
        npu = self.function.firmware.npu
        assert npu is not None
        for slot in slots:
            named = {
                TEXT: (slot.instructions, slot.instruction_bytes),
                SAVE: (slot.save, slot.save_bytes),
                RESTORE: (slot.restore, slot.restore_bytes),
            }
            self.found.append(
                (slot, {part: npu.read(context, *place) for part, place in named.items() if place[1]})
            )


@pytest.fixture(scope="module")
def control(machine: guest.Machine) -> dict[str, tuple[dict[str, Any], CodeRecorder]]:
    """Both modules' runs of control code in ELF files."""
    done = {}
    for side in ("xrt", "ours"):
        machine.rebind()
        recorder = CodeRecorder(machine.function)
        machine.function.firmware.observer = recorder
        answer = machine.request(
            "call", target="tests.vm.xrt_side:control_code", arguments={"side": side}, timeout=400
        )
        machine.function.firmware.observer = None
        assert "error" not in answer.value, answer.value["error"]
        guest.check_log(answer.log)
        done[side] = answer.value["result"], recorder
    return done


def test_control_code_gives_the_same_results(control: dict[str, tuple[dict[str, Any], CodeRecorder]]) -> None:
    (theirs, _), (mine, _) = control["xrt"], control["ours"]
    assert list(mine) == [*xrt_side.FULL, *xrt_side.PARTIAL]
    for name, run in mine.items():
        assert run["state"] == theirs[name]["state"] == "ert_cmd_state.ERT_CMD_STATE_COMPLETED"
        assert run["result"] == theirs[name]["result"]
    # "full" reads from the second word on, and writes from the third on.
    words = struct.unpack("<16I", xrt_side.source()[:64])
    expected = [words[0], words[1], *((word + 1) & 0xFFFFFFFF for word in words[1:15])]
    assert mine["full"]["result"] == struct.pack("<16I", *expected).hex()
    # The parameters in the scratchpad: from the fourth word on, and eight more.
    words = struct.unpack("<19I", xrt_side.source()[:76])
    assert (
        mine["scratch"]["result"]
        == struct.pack("<16I", *((word + 8) & 0xFFFFFFFF for word in words[3:])).hex()
    )


def test_control_code_is_patched_the_same(control: dict[str, tuple[dict[str, Any], CodeRecorder]]) -> None:
    """Byte for byte: arguments' addresses where the file has places for them, all else as the file."""
    kinds = {}
    for side, (runs, recorder) in control.items():
        slots = dict(zip(runs, recorder.found, strict=True))
        kinds[side] = [
            (
                slot.type,
                slot.cu,
                len(slot.args),
                slot.instruction_bytes,
                slot.save_bytes,
                slot.restore_bytes,
                slot.properties,
            )
            for slot, _ in slots.values()
        ]
        for name, (_, parts) in slots.items():
            elf = ControlElf(ELFS[name])
            code = elf.code({"main": "main:seq"}.get(instance := xrt_side.FULL.get(name, ""), instance))
            assert parts.keys() == code.parts.keys() - {".ctrldata"}
            addresses = {
                str(index + (0 if elf.kernels else 3)): address
                for index, address in enumerate(runs[name]["addresses"])
            }
            for part, data in parts.items():
                expected = bytearray(code.parts[part])
                for (symbol, of), places in code.patches.items():
                    for place in places if of == part else ():
                        end = place.at + len(place.original)
                        # What is no argument's is the library's own buffer, wherever it lies.
                        expected[place.at : end] = (
                            place.value(addresses[symbol]) if symbol in addresses else data[place.at : end]
                        )
                assert data == bytes(expected), (side, name, part)
    assert kinds["ours"] == kinds["xrt"]


def test_control_scratchpads_as_user_pointers(machine: guest.Machine) -> None:
    """As IRON makes them, over the scratchpad's mapping: the emulated driver answers as Linux's."""
    answer = machine.request("call", target="tests.vm.xrt_side:heap_pointer", arguments={})
    assert "error" not in answer.value, answer.value["error"]
    assert answer.value["result"] == xrt_side.heap_pointer("emu:quiet,threads=1")


def run(machine: guest.Machine, side: str) -> tuple[dict[str, Any], Recorder]:
    """Runs the copy kernel through one library on a freshly probed device."""
    machine.rebind()
    recorder = Recorder(machine.function)
    machine.function.firmware.observer = recorder
    answer = machine.request(
        "call", target=f"tests.vm.xrt_side:{side}", arguments={"stream": PROGRAM.hex()}, timeout=400
    )
    machine.function.firmware.observer = None
    assert "error" not in answer.value, answer.value["error"]
    guest.check_log(answer.log)
    return answer.value["result"], recorder


def named(words: list[int], instructions: int, buffers: list[int]) -> list[object]:
    """A packet's words with the addresses in it replaced by what they are of."""
    names = {instructions: "instructions", **{address: f"buffer {i}" for i, address in enumerate(buffers)}}
    result: list[object] = list(words)
    for i in range(len(words) - 1):
        name = names.get(words[i] | words[i + 1] << 32)
        if name is not None:
            result[i : i + 2] = [name, ""]
    return result


@pytest.fixture(scope="module")
def both(machine: guest.Machine) -> dict[str, tuple[dict[str, Any], Recorder]]:
    """Both libraries' runs."""
    return {side: run(machine, side) for side in ("xrt", "ours")}


def test_same_results(both: dict[str, tuple[dict[str, Any], Recorder]]) -> None:
    """Both complete and give the kernel's result."""
    expected = struct.pack(
        f"<{xrt_side.WORDS}I",
        *((word + 1) & 0xFFFFFFFF for word in struct.unpack(f"<{xrt_side.WORDS}I", xrt_side.source())),
    )
    for side, (result, _) in both.items():
        assert bytes.fromhex(result["result"]) == expected, side
        assert result["state"].endswith("COMPLETED"), side


def test_same_xclbin(both: dict[str, tuple[dict[str, Any], Recorder]]) -> None:
    """Both read the same kernel names and UUID from the emulator's xclbin."""
    (theirs, _), (mine, _) = both["xrt"], both["ours"]
    assert theirs["kernels"] == mine["kernels"] == ["MLIR_AIE"]
    assert theirs["uuid"] == mine["uuid"]


def test_same_packets(both: dict[str, tuple[dict[str, Any], Recorder]]) -> None:
    """Word for word the same command packet, but for where the buffers happen to lie."""
    packets = {}
    for side, (result, recorder) in both.items():
        (words,) = recorder.packets
        (slot,) = recorder.slots
        instructions = slot.stream()[0]
        packets[side] = named(words, result.get("instructions", instructions), result["buffers"])
    assert packets["ours"] == packets["xrt"]
    assert packets["ours"][2:8] == [3, 0, "instructions", "", len(PROGRAM), "buffer 0"]


def test_same_slots(both: dict[str, tuple[dict[str, Any], Recorder]]) -> None:
    """The driver makes the same firmware command of both."""
    kinds = {
        side: (slot.type, slot.cu, len(slot.args), slot.properties)
        for side, (_, recorder) in both.items()
        for slot in recorder.slots
    }
    assert kinds["ours"] == kinds["xrt"]


def test_smi_and_our_query_agree(machine: guest.Machine) -> None:
    """`xrt-smi examine` and our device query: name, firmware, geometry, power mode."""
    queried = machine.request("call", target="tests.vm.xrt_side:info", arguments={})
    assert "error" not in queried.value, queried.value["error"]
    mine = queried.value["result"]
    answer = machine.request(
        "shell",
        timeout=400,
        command=(
            "xrt-smi examine -d 0000:00:04.0 -r all -f JSON -o /tmp/smi.json --force >/tmp/smi.txt 2>&1;"
            " cat /tmp/smi.json"
        ),
    )
    assert answer.value["status"] == 0, answer.value["output"]
    report = json.loads(answer.value["output"])
    text = json.dumps(report)
    (device,) = report["devices"]
    assert "NPU Strix" in text
    assert mine["firmware"] in text
    assert f"{mine['rows']}x{mine['columns']}" in text
    assert device["interface_type"] == "pcie"
