"""Runs a program on the emulated NPU and writes every command packet it submits to a file, one a line.

    python -m tests.pyxrt_emulate FILE PROGRAM ARGUMENT...

A line is JSON: a packet's words, or those of a chain's members in a list. Addresses are replaced by names in
the order in which the program's packets show them, since each library puts its buffers elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TextIO

from amdxdna.emu.driver import jobs, packet
from amdxdna.emu.driver.bo import Bo
from amdxdna.emu.npu import Slot
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.seccomp.supervisor import Supervisor

_INSTRUCTIONS = 4
"""The first word of an address in MLIR_AIE's packets; the buffers' follow at 7, 9 ..."""
_BUFFERS = 7


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
            members = [lookup(handle) for handle in words[7:7 + 2 * count:2]]
            # Word 3 is the driver's answer; the binding marks it, to see whether it was written.
            told: object = [words[:3], words[4:7],
                            [self.named(self.words(each)) for each in members if each is not None]]
        else:
            told = self.named(words)
        print(json.dumps(told), file=self.file, flush=True)
        return self.parse(bo, lookup, fixed)

    @staticmethod
    def words(bo: Bo) -> list[int]:
        count = packet.header(bo) >> 12 & 0x7FF
        # The state in the low bits is the driver's.
        found = [int.from_bytes(bo.words()[4 * n:4 * n + 4], "little") for n in range(1 + count)]
        return [found[0] & ~15, *found[1:]]

    def named(self, words: list[int]) -> list[object]:
        told: list[object] = list(words)
        for at in (_INSTRUCTIONS, *range(_BUFFERS, len(words) - 1, 2)):
            address = words[at] | words[at + 1] << 32
            if address:
                told[at:at + 2] = [self.names.setdefault(address, f"buffer {len(self.names)}"), ""]
        return told


def main() -> int:
    file, *command = sys.argv[1:]
    with open(file, "w") as packets:
        jobs.packet.parse = Recorder(packets)  # type: ignore[assignment]
        status = Supervisor(EmuOptions.parse("quiet,threads=1"), "/dev/accel/accel0").run(command, os.environ)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
