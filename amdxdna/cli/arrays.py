"""Arrays in files for `amdxdna run`: .npy and raw bytes, in and out, and how two differ."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import CommandError, UsageError, writing
from amdxdna.files import open_regular, read_up_to
from amdxdna.output import whole_file
from amdxdna.selftest.program import LARGEST, byte_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_UNSIZED = 1 << 20
"""Bytes taken of a file that tells no size."""


def nbytes(text: str) -> int | None:
    """A number of bytes such as 4096, 64k or 1m; None where `text` is none. Raises UsageError past 4 GiB."""
    found = byte_count(text)
    if found is not None and not 0 < found <= LARGEST:
        raise UsageError(f"{text} bytes", "Give 1 to 4g")
    return found


@dataclass(frozen=True)
class Given:
    """A buffer on the command line: what it starts with, and where its contents go.

    ``array``: a file's contents (None: zeros); ``nbytes``: its size; ``target``: the file to write, or None;
    ``output``: whether it is read back.
    """

    name: str
    nbytes: int
    array: NDArray[Any] | None = None
    target: str | None = None
    output: bool = False


def read_input(text: str) -> Given:
    """`--in`: a .npy file, a raw file, or a size, which stands for 32-bit words 0, 1, 2, ...

    Raises UsageError for a file that is empty or over 4 GiB, CommandError for one that cannot be read.
    """
    import numpy as np

    size = nbytes(text)
    if size is not None:
        words = np.arange(-(-size // 4), dtype=np.uint32).view(np.uint8)[:size]
        return Given(f"{size} bytes of 0, 1, 2, ...", size, words)
    array = read_array(text)
    if not array.nbytes:
        raise UsageError(f"{text} holds nothing", "Give a file with data, or a size in bytes")
    return Given(text, array.nbytes, array)


def read_output(text: str) -> Given:
    """`--out`: NAME:BYTES, or BYTES for a buffer that is only compared. Raises UsageError."""
    name, _, size = text.rpartition(":")
    found = nbytes(size)
    if found is None:
        raise UsageError(f"--out {text}: no size", "Write NAME:BYTES, such as c.npy:4096 or c.bin:64k")
    return Given(name or "output", found, target=name or None, output=True)


def read_array(path: str) -> NDArray[Any]:
    """The array of a .npy file, in this machine's byte order, or a raw file's bytes as uint8.

    Raises CommandError.
    """
    import numpy as np

    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise CommandError(f"{path} is over 4 GiB", "Give a smaller file")
            if path.endswith(".npy"):
                # Objects in an array are pickles, which run code when they are read.
                found = np.load(io.BufferedReader(file), allow_pickle=False)
                return np.ascontiguousarray(found, found.dtype.newbyteorder("="))
            if os.fstat(file.fileno()).st_size:
                return np.fromfile(file, np.uint8)
            # A file that tells no size (/proc): numpy would take what cannot be read for nothing.
            return np.frombuffer(read_up_to(file, _UNSIZED), np.uint8)
    except (FileNotFoundError, IsADirectoryError) as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else "not a regular file"
        raise CommandError(f"{path}: {what}", "Give a .npy file, a raw file or a size in bytes") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, SyntaxError, MemoryError, OverflowError) as error:
        raise CommandError(
            f"{path} is no .npy file: {str(error) or type(error).__name__}", "Write it again with numpy.save"
        ) from None


def dtype_of(text: str) -> np.dtype[Any]:
    """A dtype by numpy's name, bfloat16 included (as float32 it is shown). Raises UsageError."""
    import numpy as np

    try:
        found = np.dtype(text)
    except (TypeError, ValueError, SyntaxError):
        raise UsageError(
            f"--dtype {text}: unknown", "Give one of numpy's, such as int32, float32, uint8"
        ) from None
    if found.hasobject or not found.itemsize or found.fields:
        raise UsageError(f"--dtype {text}: not a number's type", "Give one such as int32, float32, uint8")
    return found


def write_array(path: str, data: NDArray[Any]) -> None:
    """Writes a .npy file, or the raw bytes under any other name. Raises CommandError."""
    import numpy as np

    with writing(path), whole_file(path) as file:
        if path.endswith(".npy"):
            np.save(file, data, allow_pickle=False)
        else:
            file.write(data.tobytes())


@dataclass(frozen=True)
class Comparison:
    """How an output and what was expected agree: equal elements of all, and the first that differs."""

    equal: int
    count: int
    first: int | None
    found: str = ""
    wanted: str = ""

    @property
    def same(self) -> bool:
        """Whether all are equal."""
        return self.equal == self.count

    def __str__(self) -> str:
        if self.same:
            return f"{self.count} of {self.count} equal"
        return (
            f"{self.equal} of {self.count} equal; first difference at {self.first}: {self.found}, "
            f"expected {self.wanted}"
        )


def compare(found: NDArray[Any], wanted: NDArray[Any], within: float = 0.0) -> Comparison:
    """Element by element, flat, bit for bit, or as numbers at most `within` apart; NaN equals NaN.

    `found` is taken in the dtype of `wanted`. Raises CommandError where their sizes differ.
    """
    import numpy as np

    if found.nbytes != wanted.nbytes:
        raise CommandError(
            f"the output has {found.nbytes} bytes, what is expected {wanted.nbytes}",
            "Give --out the size of the expected file's data",
        )
    a, b = found.reshape(-1).view(np.uint8).view(wanted.dtype), wanted.reshape(-1)
    if within and a.dtype.kind in "iuf":
        with np.errstate(invalid="ignore"):  # infinities
            same = np.abs(a.astype(np.float64) - b.astype(np.float64)) <= within
        same |= (a == b) | (np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else False)
    else:
        raw = a.view(np.uint8).reshape(a.size, -1) == b.view(np.uint8).reshape(b.size, -1)
        same = raw.all(axis=1)
    wrong = np.flatnonzero(~same)
    if not wrong.size:
        return Comparison(a.size, a.size, None)
    first = int(wrong[0])
    return Comparison(a.size - wrong.size, a.size, first, str(a[first]), str(b[first]))
