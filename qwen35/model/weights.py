"""The packed weights in buffers of the device, so that they are resident once.

Two ways. `copy`: every tensor is read by threads straight into its buffer's own mapping; where memory is
short the page cache behind is released as it goes. `map`, where the driver takes read-only user memory: one
user-pointer buffer over the mapped tensors.bin, the weights being parts of it. `Weights.report` says which.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from amdxdna.files import open_regular
from qwen35 import meminfo
from qwen35._host import ffi, lib
from qwen35.bundle.errors import BundleError
from qwen35.errors import ModelError
from qwen35.threads import Threads

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.device import Device
    from amdxdna.errors import XdnaError
    from amdxdna.profile import DriverProfile
    from qwen35.bundle.bundle import Bundle

__all__ = ["Weights", "map_weights"]

U8 = NDArray[np.uint8]
Progress = Callable[[int, int], None]
Trial = Callable[[dict[str, "Buffer"]], str]

PIECE = 16 << 20
"""Bytes that a thread reads at a time."""
_AHEAD = 4
"""Pieces that the disk reads ahead of those being copied: a thread that fills fresh pages asks it nothing."""
_PAGE = 4096


class Weights:
    """Buffers by tensor name. `way` is copy or map, `nbytes` what they hold, `seconds` it took.

    `why` says why not the other way.
    """

    def __init__(
        self, buffers: dict[str, Buffer], way: str, nbytes: int, seconds: float, why: str = ""
    ) -> None:
        self._buffers, self.way, self.nbytes, self.seconds, self.why = buffers, way, nbytes, seconds, why

    def __getitem__(self, name: str) -> Buffer:
        return self._buffers[name]

    def __contains__(self, name: object) -> bool:
        return name in self._buffers

    @property
    def report(self) -> str:
        """One line: how the weights came to the device."""
        rate = self.nbytes / max(self.seconds, 1e-9) / 1e9
        how = {
            "copy": "read into the device's buffers",
            "map": "mapped for the device (user-pointer buffer)",
        }[self.way]
        return f"{self.nbytes / 1e6:,.0f} MB of weights {how} in {self.seconds:.2f} s ({rate:.1f} GB/s)"

    def bytes(self, name: str) -> U8:
        """The tensor's bytes as they sit in its buffer, read-only."""
        return self._buffers[name].view(writable=False)

    def close(self) -> None:
        """Gives the buffers back."""
        buffers, self._buffers = self._buffers, {}
        _close(buffers)

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        device: Device,
        names: Sequence[str],
        *,
        way: str = "auto",
        trial: Trial | None = None,
        release: bool | None = None,
        threads: int = 0,
        progress: Progress | None = None,
    ) -> Weights:
        """Brings tensors to the device. `way`: auto, copy, or map (raises ModelError where the
        driver refuses that).

        auto maps where the driver keeps such memory right (amdxdna.profile) and `trial(buffers)` finds
        nothing wrong (it returns what is); without a trial it copies. `release` drops each piece from the
        page cache once it is read (None: where memory is short); `threads` 0: one a processor, at most 8;
        `progress(done, total)` in bytes. Raises BundleError for a file that cannot be read, and the binding's
        errors.
        """
        began = time.perf_counter()
        total = sum(bundle.tensors.info(name).nbytes for name in names)
        buffers, why = None, "as asked"
        if way == "auto" and device.profile.user_pointers != "ro":
            why = "this driver is not known to keep read-only user memory right"
        elif way == "auto" and trial is None:
            why = "not tried"
        elif way != "copy":
            buffers, why = _tried(bundle, device, names, way == "map", trial)
        taken = "copy" if buffers is None else "map"
        if buffers is None:
            short = _short(total) if release is None else release
            buffers = _read(bundle, device, names, short, threads, progress)
        return cls(buffers, taken, total, time.perf_counter() - began, why)


def _tried(
    bundle: Bundle, device: Device, names: Sequence[str], required: bool, trial: Trial | None
) -> tuple[dict[str, Buffer] | None, str]:
    """Mapped buffers and what speaks for them, or None and what speaks against."""
    from amdxdna.errors import Closed, DeviceLost, XdnaError

    try:
        buffers = map_weights(bundle, device, names)
    except XdnaError as error:
        if required:
            if isinstance(error, (DeviceLost, Closed)):
                raise
            raise _refused(device.profile, error) from None
        return None, f"the driver refuses read-only user memory: {error.meaning}"
    if required or buffers is None or trial is None:
        return buffers, "as asked"
    try:
        wrong = trial(buffers)
    except BaseException:
        _close(buffers)
        raise
    if not wrong:
        return buffers, "results are those over copies"
    _close(buffers)
    return None, wrong


_POINTERS = {
    "none": "does not give the NPU a program's own memory",
    "rw": "gives the NPU writable memory only, and mapped weights are read-only",
    "ro": "gives the NPU read-only memory too, but refused this",
    "unsafe": "gives the NPU read-only memory too, but refused this",
}


def _refused(profile: DriverProfile, error: XdnaError) -> ModelError:
    """The driver's rule; its errno means something else for other memory."""
    name = errno.errorcode.get(error.errno or 0, "no errno")
    text = f"weights cannot be mapped for the NPU: {profile.name} {_POINTERS[profile.user_pointers]}"
    if profile.user_pointers in ("ro", "unsafe"):
        text += f": {error.meaning}"
    return ModelError(f"{text} ({name})", "--weights map", "use --weights copy, or auto")


def _short(total: int) -> bool:
    """Whether leaving `total` bytes of a file in the page cache, beside as many in buffers, crowds others.

    What is not known counts as short.
    """
    free = meminfo.available()
    return free is None or free < 3 * total


def _close(buffers: dict[str, Buffer]) -> None:
    for buffer in buffers.values():
        buffer.close()


def map_weights(bundle: Bundle, device: Device, names: Iterable[str]) -> dict[str, Buffer] | None:
    """Parts of one user-pointer buffer over the mapping; None for no names. Raises the driver's refusal."""
    store = bundle.tensors
    first = next(iter(names), None)
    if first is None:
        return None
    base = store.bytes(first).__array_interface__["data"][0] - store.info(first).offset
    whole = device.wrap(base, -(-store.nbytes // _PAGE) * _PAGE)
    whole.clean = True
    parts = {name: whole.sub(store.info(name).offset, store.info(name).nbytes) for name in names}
    whole.close()
    return parts


def _read(
    bundle: Bundle,
    device: Device,
    names: Sequence[str],
    release: bool,
    threads: int,
    progress: Progress | None,
) -> dict[str, Buffer]:
    store = bundle.tensors
    infos = sorted((store.info(name) for name in dict.fromkeys(names)), key=lambda info: info.offset)
    pieces = [
        (info, at, min(PIECE, info.nbytes - at)) for info in infos for at in range(0, info.nbytes, PIECE)
    ]
    total = sum(info.nbytes for info in infos)
    buffers: dict[str, Buffer] = {}
    views: dict[Buffer, memoryview] = {}
    done = 0
    try:
        with (
            open_regular(store.path) as file,
            Threads(threads or min(len(os.sched_getaffinity(0)), 8)) as pool,
        ):

            def read(number: int) -> int:
                for info, at, size in pieces[number + _AHEAD if number else 1 : number + _AHEAD + 1]:
                    with contextlib.suppress(OSError):
                        os.posix_fadvise(file.fileno(), info.offset + at, size, os.POSIX_FADV_WILLNEED)
                info, at, size = pieces[number]
                offset, buffer = info.offset + at, buffers[info.name]
                view = views[buffer][at : at + size]
                lib.host_populate(ffi.cast("void *", ffi.from_buffer(view)), size)
                _fill(file.fileno(), view, offset, str(store.path))
                if release:
                    os.posix_fadvise(file.fileno(), offset, size, os.POSIX_FADV_DONTNEED)
                buffer.to_device(at, size)
                return size

            def numbers() -> Iterable[int]:
                """The pieces' numbers, each once its buffer is there."""
                for number, (info, at, _) in enumerate(pieces):
                    if at == 0:
                        buffer = buffers[info.name] = device.alloc(info.nbytes, flush=False)
                        views[buffer] = buffer.view().data
                    yield number

            for size in pool.map(read, numbers()):
                done += size
                if progress is not None:
                    progress(done, total)
        for buffer in buffers.values():
            buffer.clean = True  # every piece has been flushed, and nobody else has the view
    except BaseException:
        _close(buffers)
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
