"""The packed weights in buffers of the device, so that they are resident once.

Two ways. Where the driver takes read-only user memory, one user-pointer buffer over the mapped tensors.bin,
the weights being parts of it. Else every tensor is read by threads straight into its buffer's own mapping,
and the page cache behind is released as it goes. `Weights.report` says which.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle.errors import BundleError

from .._host import ffi, lib

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.device import Device
    from qwen35.bundle.bundle import Bundle

__all__ = ["Weights"]

U8 = NDArray[np.uint8]
Progress = Callable[[int, int], None]

_PIECE = 16 << 20
_PAGE = 4096


class Weights:
    """Buffers by tensor name. `way` is read or user-pointer, `nbytes` what they hold, `seconds` it took."""

    def __init__(self, buffers: dict[str, Buffer], way: str, nbytes: int, seconds: float) -> None:
        self._buffers, self.way, self.nbytes, self.seconds = buffers, way, nbytes, seconds

    def __getitem__(self, name: str) -> Buffer:
        return self._buffers[name]

    def __contains__(self, name: object) -> bool:
        return name in self._buffers

    @property
    def report(self) -> str:
        """One line: how the weights came to the device."""
        rate = self.nbytes / max(self.seconds, 1e-9) / 1e9
        how = {"read": "read into the device's buffers",
               "user-pointer": "mapped for the device (user-pointer buffer)"}[self.way]
        return f"{self.nbytes / 1e6:,.0f} MB of weights {how} in {self.seconds:.2f} s ({rate:.1f} GB/s)"

    def bytes(self, name: str) -> U8:
        """The tensor's bytes as they sit in its buffer, read-only."""
        return self._buffers[name].view(writable=False)

    def close(self) -> None:
        """Gives the buffers back."""
        buffers, self._buffers = self._buffers, {}
        for buffer in buffers.values():
            buffer.close()

    @classmethod
    def load(
        cls, bundle: Bundle, device: Device, names: Sequence[str], *, way: str = "auto", release: bool = True,
        threads: int = 0, progress: Progress | None = None,
    ) -> Weights:
        """Brings tensors to the device. `way`: auto, read, or user-pointer (raises where that is refused).

        `release` drops each piece from the page cache once it is read; `threads` 0: one a processor, at most
        8; `progress(done, total)` in bytes. Raises BundleError for a file that cannot be read, and the
        binding's errors.
        """
        began = time.perf_counter()
        total = sum(bundle.tensors.info(name).nbytes for name in names)
        buffers = None
        if way != "read":
            buffers = _mapped(bundle, device, names, required=way == "user-pointer")
        taken = "read" if buffers is None else "user-pointer"
        if buffers is None:
            buffers = _read(bundle, device, names, release, threads, progress)
        return cls(buffers, taken, total, time.perf_counter() - began)


def _mapped(bundle: Bundle, device: Device, names: Iterable[str], required: bool) -> dict[str, Buffer] | None:
    """Parts of one user-pointer buffer over the mapping; None where the driver refuses it."""
    from amdxdna.errors import XdnaError

    store = bundle.tensors
    first = next(iter(names), None)
    if first is None:
        return None
    base = store.bytes(first).__array_interface__["data"][0] - store.info(first).offset
    try:
        whole = device.wrap(base, -(-store.nbytes // _PAGE) * _PAGE)
    except XdnaError:
        if required:
            raise
        return None
    whole.clean = True
    parts = {name: whole.sub(store.info(name).offset, store.info(name).nbytes) for name in names}
    whole.close()
    return parts


def _read(
    bundle: Bundle, device: Device, names: Sequence[str], release: bool, threads: int,
    progress: Progress | None,
) -> dict[str, Buffer]:
    store = bundle.tensors
    total = sum(store.info(name).nbytes for name in names)
    buffers: dict[str, Buffer] = {}
    views: dict[Buffer, memoryview] = {}
    done = 0
    try:
        with open(store.path, "rb", buffering=0) as file, \
                ThreadPoolExecutor(threads or min(len(os.sched_getaffinity(0)), 8)) as pool:

            def piece(job: tuple[Buffer, int, int]) -> int:
                buffer, at, offset = job
                view = views[buffer][at:at + _PIECE]
                lib.host_populate(ffi.cast("void *", ffi.from_buffer(view)), len(view))
                _fill(file.fileno(), view, offset, str(store.path))
                if release:
                    os.posix_fadvise(file.fileno(), offset, len(view), os.POSIX_FADV_DONTNEED)
                buffer.to_device(at, len(view))
                return len(view)

            def jobs() -> Iterable[tuple[Buffer, int, int]]:
                for name in sorted(names, key=lambda name: store.info(name).offset):
                    info = store.info(name)
                    buffer = buffers[name] = device.alloc(info.nbytes, flush=False)
                    views[buffer] = buffer.view().data
                    for at in range(0, info.nbytes, _PIECE):
                        yield buffer, at, info.offset + at

            for size in pool.map(piece, jobs()):
                done += size
                if progress is not None:
                    progress(done, total)
        for buffer in buffers.values():
            buffer.clean = True  # every piece has been flushed, and nobody else has the view
    except BaseException:
        for buffer in buffers.values():
            buffer.close()
        raise
    return buffers


def _fill(descriptor: int, view: memoryview, offset: int, path: str) -> None:
    while view:
        try:
            count = os.preadv(descriptor, [view], offset)
        except OSError as error:
            raise BundleError(path, 0, f"cannot be read: {error.strerror}") from None
        if count == 0:
            raise BundleError(path, 0, "ended while it was read", "is the download complete?")
        view, offset = view[count:], offset + count
