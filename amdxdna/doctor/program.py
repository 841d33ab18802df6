"""A program of the user's: an xclbin, an instruction stream, and how large its buffers are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amdxdna.errors import BadArgument
from amdxdna.packet import MAX_BUFFERS

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.device import Device
    from amdxdna.kernel import Kernel
    from amdxdna.xclbin import Xclbin

_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LARGEST = 4 << 30
MOST_INSTRUCTIONS = 64 << 20
"""Bytes of an instruction stream: what a new device heap holds."""


@dataclass(frozen=True)
class Program:
    """One kernel: its xclbin, instructions, name (None: the xclbin's only one) and buffer sizes in bytes."""

    xclbin: Xclbin
    insts: bytes
    name: str | None
    sizes: tuple[int, ...]

    @classmethod
    def read(cls, xclbin: str, insts: str, buffers: str, name: str | None = None) -> Program:
        """Reads the files; `buffers`: such as "4096,1m". Raises BadXclbin, OSError, or BadArgument, also for
        more than :data:`MOST_INSTRUCTIONS` bytes of instructions."""
        from amdxdna.xclbin import Xclbin

        with open(insts, "rb") as file:
            stream = file.read(MOST_INSTRUCTIONS + 1)
        if len(stream) > MOST_INSTRUCTIONS:
            raise BadArgument(
                f"{insts} is over {MOST_INSTRUCTIONS >> 20} MiB, too much for an instruction stream",
                call="--insts",
                remedy="Give the kernel's instruction stream",
            )
        return cls(Xclbin.read(xclbin), stream, name, sizes(buffers))

    @contextlib.contextmanager
    def opened(self, device: Device) -> Iterator[tuple[Kernel, list[Buffer]]]:
        """The kernel, and its buffers filled with zeros; given back at the end."""
        with contextlib.ExitStack() as stack:
            kernel = stack.enter_context(
                contextlib.closing(device.pool.kernel(self.xclbin, self.insts, name=self.name))
            )
            buffers = [stack.enter_context(device.alloc(nbytes)) for nbytes in self.sizes]
            for buffer in buffers:
                buffer.write(bytes(buffer.nbytes))
            yield kernel, buffers

    def run_once(self, device: Device) -> str:
        """Runs it and says how long that took. Raises what the run raises."""
        with self.opened(device) as (kernel, buffers):
            began = time.perf_counter()
            kernel.run(*buffers)
            took = time.perf_counter() - began
            return (
                f"{kernel.name} completed in {took * 1e3:.2f} ms (with its context); its data is not known, "
                "so not compared"
            )


def sizes(text: str) -> tuple[int, ...]:
    """Buffer sizes from "4096,64k,1m". Raises BadArgument."""
    found = []
    for part in text.split(","):
        word = part.strip().lower()
        digits = word.rstrip("kmg")
        unit = _SUFFIXES.get(word[len(digits) :])
        if unit is None or not digits.isdecimal() or not 0 < int(digits) * unit <= _LARGEST:
            raise BadArgument(
                f"{part!r} is no buffer size",
                call="--buffers",
                remedy="Give bytes with k, m or g, separated by commas, in the order of the kernel's "
                "arguments: 4096,64k,1m",
            )
        found.append(int(digits) * unit)
    if len(found) > MAX_BUFFERS:
        raise BadArgument(
            f"{len(found)} buffers; a kernel takes at most {MAX_BUFFERS}",
            call="--buffers",
            remedy="Give those of the kernel's arguments",
        )
    return tuple(found)
