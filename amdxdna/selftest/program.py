"""A program of the user's: an xclbin, an instruction stream, and how large its buffers are."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amdxdna.errors import BadArgument
from amdxdna.files import read_regular
from amdxdna.packet import MAX_BUFFERS
from amdxdna.selftest.guard import GUARD_BYTES, guard, overrun
from amdxdna.selftest.stopping import stopping

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.device import Device
    from amdxdna.kernel import Kernel
    from amdxdna.xclbin import Xclbin

_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
LARGEST = 4 << 30
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

        try:
            stream = read_regular(insts, MOST_INSTRUCTIONS)
        except OSError as failed:
            if failed.errno != errno.EFBIG:
                raise
            raise BadArgument(
                f"{insts} is over {MOST_INSTRUCTIONS >> 20} MiB, too much for an instruction stream",
                call="--insts",
                remedy="Give the kernel's instruction stream",
            ) from None
        return cls(Xclbin.read(xclbin), stream, name, sizes(buffers))

    @contextlib.contextmanager
    def opened(self, device: Device) -> Iterator[tuple[Kernel, list[Buffer]]]:
        """The kernel, and its buffers of zeros, each with a guard behind it; given back at the end."""
        with contextlib.ExitStack() as stack:
            kernel = stack.enter_context(
                contextlib.closing(device.pool.kernel(self.xclbin, self.insts, name=self.name))
            )
            buffers = [stack.enter_context(device.alloc(nbytes + GUARD_BYTES)) for nbytes in self.sizes]
            for buffer, nbytes in zip(buffers, self.sizes, strict=True):
                buffer.write(bytes(nbytes))
                guard(buffer, nbytes)
            yield kernel, buffers

    def run_once(self, device: Device) -> str:
        """Runs it and says how long that took.

        Raises BadArgument where it wrote behind a buffer's end, and what the run raises.
        """
        with self.opened(device) as (kernel, buffers):
            began = time.perf_counter()
            with stopping(device):
                kernel.run(*buffers)
            took = time.perf_counter() - began
            for index, (buffer, nbytes) in enumerate(zip(buffers, self.sizes, strict=True)):
                buffer.from_device()
                past = overrun(buffer, nbytes)
                if past:
                    raise BadArgument(
                        f"the program wrote {past} bytes and more behind the {nbytes} of buffer {index}",
                        call="--buffers",
                        remedy="Give each buffer the size that the program uses",
                    )
            return (
                f"{kernel.name} completed in {took * 1e3:.2f} ms (with its context); its data is not known, "
                "so not compared"
            )


def byte_count(text: str) -> int | None:
    """A number of bytes such as 4096, 64k or 1m; None where `text` is none."""
    unit = _SUFFIXES.get(text[-1:].lower(), 0)
    digits = text[:-1] if unit else text
    # A number this long is past any size, and int() of a longer text is slow.
    return int(digits[:20]) * (unit or 1) if digits.isascii() and digits.isdecimal() else None


def sizes(text: str) -> tuple[int, ...]:
    """Buffer sizes from "4096,64k,1m". Raises BadArgument."""
    found = []
    for part in text.split(","):
        size = byte_count(part.strip())
        if size is None or not 0 < size <= LARGEST:
            raise BadArgument(
                f"{part!r} is no buffer size",
                call="--buffers",
                remedy="Give bytes with k, m or g, separated by commas, in the order of the kernel's "
                "arguments: 4096,64k,1m",
            )
        found.append(size)
    if len(found) > MAX_BUFFERS:
        raise BadArgument(
            f"{len(found)} buffers; a kernel takes at most {MAX_BUFFERS}",
            call="--buffers",
            remedy="Give those of the kernel's arguments",
        )
    return tuple(found)
