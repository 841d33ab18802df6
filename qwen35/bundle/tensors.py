"""tensors.txt and tensors.bin: named arrays in one blob, mapped read-only.

A line of tensors.txt is `name dtype d0,d1,... offset bytes`. The blob is mapped, never read whole: a
tensor's pages come in when it is first touched and stay reclaimable page cache.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amdxdna.files import open_regular
from qwen35.bundle.errors import BundleError
from qwen35.bundle.schema import TensorSpec
from qwen35.bundle.text import parse_count, read_lines, shown, unreadable

__all__ = ["BLOB", "DTYPES", "INDEX", "Store", "TensorInfo"]

INDEX = "tensors.txt"
BLOB = "tensors.bin"
ALIGN = 8
"""Alignment, in bytes, that a reader requires of an offset."""

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "bf16": np.dtype("<u2"),
    "u8": np.dtype("u1"),
    "i32": np.dtype("<i4"),
}
"""The dtypes of a bundle and how numpy holds them; bf16 comes as its 16 bits."""

_LIMIT = 16 << 20
_MAX_DIMS = 16


@dataclass(frozen=True)
class TensorInfo:
    """One line of tensors.txt; `shape` is as written there, `elements` follows from the byte count."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    line: int

    @property
    def elements(self) -> int:
        """Elements in the blob."""
        return self.nbytes // DTYPES[self.dtype].itemsize


def _parse(path: Path, number: int, line: str) -> TensorInfo:
    def fail(message: str) -> BundleError:
        return BundleError(path, number, message)

    words = line.split()
    if len(words) != 5:
        raise fail(f"{len(words)} fields instead of five (name dtype shape offset bytes)")
    name, dtype, dims, at, size = words
    if dtype not in DTYPES:
        raise fail(f"tensor {shown(name)}: unknown dtype {shown(dtype)} (known: {', '.join(DTYPES)})")
    if dims.count(",") >= _MAX_DIMS:
        raise fail(f"tensor {shown(name)}: more than {_MAX_DIMS} dimensions")
    shape = [parse_count(dim) for dim in dims.split(",")]
    offset, nbytes = parse_count(at), parse_count(size)
    if offset is None or nbytes is None or any(dim is None for dim in shape):
        raise fail(f"tensor {shown(name)}: shape, offset and bytes must be whole numbers")
    if offset % ALIGN:
        raise fail(f"tensor {shown(name)}: offset {offset} is no multiple of {ALIGN} bytes")
    if nbytes % DTYPES[dtype].itemsize:
        raise fail(f"tensor {shown(name)}: {nbytes} bytes is no whole number of {dtype} elements")
    return TensorInfo(name, dtype, tuple(dim for dim in shape if dim is not None), offset, nbytes, number)


def read_index(path: Path, notes: list[BundleError] | None = None) -> dict[str, TensorInfo]:
    """The entries of a tensors.txt by name. Raises BundleError; `notes` as in Manifest.read."""
    entries: dict[str, TensorInfo] = {}
    for number, line in enumerate(read_lines(path, _LIMIT), 1):
        if not line.strip():
            continue
        info = _parse(path, number, line)
        if "+" in "".join(line.split()[2:]):
            error = BundleError(path, number, f"tensor {shown(info.name)}: a number has a sign")
            if notes is None:
                raise error
            notes.append(error)
        if info.name in entries:
            first = entries[info.name].line
            raise BundleError(path, number, f"tensor {shown(info.name)} is repeated (first on line {first})")
        entries[info.name] = info
    return entries


class Store:
    """Every tensor of a bundle over one read-only mapping of tensors.bin.

    Views returned by `get` keep the mapping alive; they are not writable. Any thread may read. Do not
    rewrite a bundle in place while it is mapped: an exporter writes a new directory.
    """

    def __init__(self, directory: Path, notes: list[BundleError] | None = None) -> None:
        """Maps `directory`. Raises BundleError: see bundle-format; a tensor past the end is refused here."""
        self.index_path = directory / INDEX
        self.path = directory / BLOB
        self._entries = read_index(self.index_path, notes)
        try:
            with open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except FileNotFoundError:
            raise BundleError(self.path, 0, "no such file", "is the bundle complete?") from None
        except OSError as error:
            raise unreadable(self.path, error) from None
        except ValueError as error:
            raise BundleError(self.path, 0, f"cannot be mapped: {error}") from None
        self.nbytes = size
        for info in self._entries.values():
            if info.offset + info.nbytes > size:
                raise BundleError(
                    self.index_path,
                    info.line,
                    f"tensor {shown(info.name)} ends at byte {info.offset + info.nbytes:,}, "
                    f"past the {size:,} bytes of {BLOB}",
                    "is the download complete?",
                )
        self._map = mapped
        self._blob: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def info(self, name: str) -> TensorInfo:
        """The index entry of `name`; raises BundleError when the bundle has no such tensor."""
        info = self._entries.get(name)
        if info is None:
            raise BundleError(self.index_path, 0, f"tensor {name} is missing")
        return info

    def get(self, name: str) -> NDArray[Any]:
        """A read-only view of `name` in its own dtype (bf16 as uint16), in the shape of the index.

        Where the index's shape does not hold the entry's byte count, the view is flat.
        """
        info = self.info(name)
        flat = self._blob[info.offset : info.offset + info.nbytes].view(DTYPES[info.dtype])
        return flat.reshape(info.shape) if math.prod(info.shape) == info.elements else flat

    def bytes(self, name: str) -> NDArray[np.uint8]:
        """The bytes of `name`, a read-only view of the mapping."""
        info = self.info(name)
        return self._blob[info.offset : info.offset + info.nbytes]

    def of(self, spec: TensorSpec) -> NDArray[Any]:
        """`expect` for a tensor of the schema that is no stream."""
        return self.expect(spec.name, spec.dtype, *spec.shape)

    def expect(self, name: str, dtype: str, *shape: int) -> NDArray[Any]:
        """`get`, checked to be `dtype` with as many elements as `shape`, and in that shape.

        Raises BundleError naming the index line.
        """
        info = self.info(name)
        if info.dtype != dtype or info.elements != math.prod(shape):
            wanted = ",".join(map(str, shape))
            raise BundleError(
                self.index_path,
                info.line,
                f"tensor {name} is {info.elements} elements of {info.dtype}, not {dtype} {wanted}",
            )
        return self.get(name).reshape(shape)
