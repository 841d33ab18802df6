"""Reading safetensors files without torch: a bounds-checked header over a read-only mapping.

A file is a little-endian 64-bit header length, that many bytes of JSON (name -> dtype, shape,
data_offsets), then the data. The format is documented by the safetensors project.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amdxdna.files import open_regular, read_up_to
from qwen35.export.errors import CheckpointError

__all__ = ["Entry", "SafeTensors"]

_HEADER_LIMIT = 25 << 20
_MAX_DIMS = 16
_SIZES = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}
_NUMPY: dict[str, np.dtype[Any]] = {"BF16": np.dtype("<u2"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: `offset` is from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafeTensors:
    """One file, mapped. Views keep the mapping alive; any thread may read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises CheckpointError for a file that is missing or no well-formed safetensors file."""
        self.path = Path(path)
        try:
            with open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(8)
                if len(head) < 8:
                    raise CheckpointError(self.path, f"{size} bytes is too short for a safetensors file")
                (length,) = struct.unpack("<Q", head)
                if length > min(size - 8, _HEADER_LIMIT):
                    raise CheckpointError(
                        self.path,
                        f"a header of {length:,} bytes does not fit the {size:,} of the file",
                        "is the download complete?",
                    )
                self.entries = self._parse(read_up_to(file, length - 1, length - 1), 8 + length, size)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise CheckpointError(self.path, "no such file", "is the download complete?") from None
        except (OSError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(self.path, f"cannot be read: {getattr(error, 'strerror', error)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def array(self, name: str) -> NDArray[Any]:
        """A read-only view of a BF16 (as uint16 bits), F16 or F32 tensor in its shape.

        Raises CheckpointError for a dtype that is none of the three; KeyError for a name not in the file.
        """
        entry = self.entries[name]
        if entry.dtype not in _NUMPY:
            raise CheckpointError(
                self.path,
                f"{name} is {entry.dtype}; BF16, F16 and F32 can be exported",
                "export the unquantised checkpoint",
            )
        dtype = _NUMPY[entry.dtype]
        if not entry.nbytes:
            return np.zeros(entry.shape, dtype)
        flat: NDArray[Any] = np.frombuffer(self._map, dtype, entry.nbytes // dtype.itemsize, entry.offset)
        return flat.reshape(entry.shape)

    def _parse(self, header: bytes, start: int, size: int) -> dict[str, Entry]:
        try:
            table = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(self.path, f"the header is no valid JSON: {error}") from None
        if not isinstance(table, dict):
            raise CheckpointError(self.path, "the header is no JSON object")
        return {
            name: self._entry(name, value, start, size)
            for name, value in table.items()
            if name != "__metadata__"
        }

    def _entry(self, name: str, value: object, start: int, size: int) -> Entry:
        def fail(message: str) -> CheckpointError:
            return CheckpointError(self.path, f"tensor {name[:80]!r}: {message}")

        if not isinstance(value, dict):
            raise fail("its entry is no JSON object")
        dtype, shape, span = value.get("dtype"), value.get("shape"), value.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in _SIZES:
            raise fail(f"dtype {dtype!r:.40} is unknown")
        if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(map(_is_size, shape)):
            raise fail("shape is no list of sizes")
        if not isinstance(span, list) or len(span) != 2 or not all(map(_is_size, span)):
            raise fail("data_offsets is no pair of offsets")
        first, last = span
        if not first <= last <= size - start:
            raise fail(f"bytes {first}..{last} lie outside the file's {size - start:,} bytes of data")
        if math.prod(shape) * _SIZES[dtype] != last - first:
            raise fail(f"{last - first} bytes do not hold {dtype} {shape}")
        return Entry(name, dtype, tuple(shape), start + first, last - first)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name is repeated")
    return table
