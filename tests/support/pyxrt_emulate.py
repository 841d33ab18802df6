"""Runs a program on the emulated NPU and writes every command packet it submits to a file, one a line.

    python -m tests.support.pyxrt_emulate FILE PROGRAM ARGUMENT...

A line is JSON: a packet's words, or those of a chain's members in a list; behind a packet for control code,
the code, what saves and restores, and the control packets it names. Addresses are replaced by names in the
order in which the program's packets show them, since each library puts its buffers elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TextIO

from amdxdna.emu.driver import jobs, packet
from amdxdna.emu.driver.bo import DEV, DEV_HEAP, Bo
from amdxdna.emu.npu import Slot
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.seccomp.supervisor import Supervisor

_INSTRUCTIONS = 4
"""The first word of an address in MLIR_AIE's packets; the buffers' follow at 7, 9 ..."""
_BUFFERS = 7
_CONTROL = {20: (2,), 21: (2, 4, 6), 22: (2, 4, 6)}
"""By opcode, the words where the addresses of control code are."""
_SIZES = {20: (4,), 21: (8, 9, 10), 22: (8, 9, 10)}
_ARGUMENT = {20: 6, 21: 12, 22: 12}
_APERTURE = 0x80000000
_MOST_SHOWN = 4096
"""Bytes of control packets; what is larger is data, or a scratchpad whose content is nobody's."""
_PDI = 64


class Recorder:
    """Stands in for the driver's parser of packets."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.parse = packet.parse
        self.names: dict[int, str] = {}
        self.client: object = None

    def __call__(self, bo: Bo, lookup: Callable[[int], Bo | None], fixed: int = 0) -> list[Slot]:
        client = getattr(lookup, "__self__", None)
        if client is not self.client:  # the next program: its buffers are others
            self.client, self.names = client, {}
        words = self.words(bo)
        if packet.is_chain(bo):
            count = words[1]
            members = [lookup(handle) for handle in words[7 : 7 + 2 * count : 2]]
            # Word 3 is the driver's answer; the binding marks it, to see whether it was written.
            told: object = [
                words[:3],
                words[4:7],
                [self.named(self.words(each)) for each in members if each is not None],
            ]
        else:
            told = self.named(words)
        print(json.dumps(told), file=self.file, flush=True)
        return self.parse(bo, lookup, fixed)

    @staticmethod
    def words(bo: Bo) -> list[int]:
        count = packet.header(bo) >> 12 & 0x7FF
        # The state in the low bits is the driver's.
        found = [int.from_bytes(bo.words()[4 * n : 4 * n + 4], "little") for n in range(1 + count)]
        return [found[0] & ~15, *found[1:]]

    def named(self, words: list[int]) -> list[object]:
        told: list[object] = list(words)
        opcode = words[0] >> 23 & 31
        if opcode in _CONTROL:
            return self.control(opcode, words, told)
        for at in (_INSTRUCTIONS, *range(_BUFFERS, len(words) - 1, 2)):
            address = words[at] | words[at + 1] << 32
            if address:
                told[at : at + 2] = [self.names.setdefault(address, f"buffer {len(self.names)}"), ""]
        return told

    def control(self, opcode: int, words: list[int], told: list[object]) -> list[object]:
        """A packet for control code with what its addresses point to."""
        named: list[Bo] = []
        for at, size in zip(_CONTROL[opcode], _SIZES[opcode], strict=True):
            address = words[at] | words[at + 1] << 32
            if address:
                told[at : at + 2] = [self.name(address)[0], ""]
                told.append(self.patched(self.read(address, words[size]), named))
        at = _ARGUMENT[opcode]
        if words[at + 1]:
            told[at : at + 2] = [self.name(words[at] | words[at + 1] << 32)[0], ""]
        for bo in dict.fromkeys(named):
            if bo.kind == DEV:
                told.append(self.read(bo.dev_address, _PDI).hex())
            elif bo.size <= _MOST_SHOWN:
                told.append(self.patched(self.read(bo.user_address, bo.size).rstrip(b"\0"), []))
        return told

    def name(self, address: int) -> tuple[str, Bo | None]:
        """A name for a place in a buffer, and the buffer; "" where there is none."""
        for bo in self.client.handles.values():  # type: ignore[attr-defined]
            start = bo.dev_address if bo.kind in (DEV, DEV_HEAP) else bo.user_address
            if bo.kind != DEV_HEAP and start <= address < start + bo.size:
                # Runs share PDIs in our module, and each has its own in XRT's: told by what is in them.
                if bo.kind == DEV:
                    return f"heap + {address - start}", bo
                known = self.names.setdefault(start, f"buffer {len(self.names)}")
                return f"{known} + {address - start}", bo
        return "", None

    def read(self, address: int, size: int) -> bytes:
        """Memory of the program's, or of the device heap."""
        for chunk in self.client.heap.chunks:  # type: ignore[attr-defined]
            if chunk.dev_address <= address < chunk.dev_address + chunk.size:
                address += chunk.user_address - chunk.dev_address
                break
        return self.client.user.read(address, size)  # type: ignore[attr-defined,no-any-return]

    def patched(self, data: bytes, named: list[Bo]) -> list[object]:
        """Words with names for the addresses among them, as descriptors and LOADPDI have them."""
        words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
        told: list[object] = list(words)
        at = 0
        while at < len(words) - 1:
            low, high = words[at], words[at + 1]
            for address, rest in (
                (((high & 0xFFFF) << 32 | low & ~3) - _APERTURE, high & 0xFFFF0000),
                (high << 32 | low, 0),
            ):
                name, bo = self.name(address)
                if bo is not None:
                    named.append(bo)
                    told[at : at + 2] = [name, f"{low & 3} {rest:#x}"]
                    at += 1
                    break
            at += 1
        return told


def main() -> int:
    file, *command = sys.argv[1:]
    with open(file, "w") as packets:
        jobs.packet.parse = Recorder(packets)  # type: ignore[assignment]
        status = Supervisor(EmuOptions.parse("quiet,threads=1"), "/dev/accel/accel0").run(command, os.environ)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
