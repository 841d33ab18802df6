"""Reads xclbin (AXLF) files: sections, AIE partition, every PDI with its kernel ids, and the CUs.

Everything is checked against the file's bounds before it is read, and what is read is never larger than the
file, so a damaged or hostile file costs one :class:`~amdxdna.errors.BadXclbin`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import uuid as _uuid
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, NoReturn

from amdxdna.arguments import path as _path
from amdxdna.arguments import text, whole
from amdxdna.errors import BadXclbin
from amdxdna.files import read_regular
from amdxdna.xclbin import layout

MAX_FILE_BYTES = 1 << 30
_MAX_COLUMNS = 1024  # an AIE array is a few dozen columns wide


@dataclass(frozen=True)
class Section:
    """One section: `kind` (number of the AXLF header), its `name` and its bytes."""

    kind: int
    name: str
    offset: int
    data: bytes

    @property
    def kind_name(self) -> str:
        """The kind by its name, or its number for an unknown one."""
        return layout.KIND_NAMES.get(self.kind, f"kind {self.kind}")


@dataclass(frozen=True)
class Partition:
    """The AIE partition: width in columns, allowed first columns, operations per cycle, fingerprint."""

    name: str
    column_width: int
    start_columns: tuple[int, ...]
    ops_per_cycle: int
    inference_fingerprint: int
    pre_post_fingerprint: int


@dataclass(frozen=True)
class CdoGroup:
    """One CDO group of a PDI: which DPU kernel ids it serves."""

    name: str
    type: int
    pdi_id: int
    kernel_ids: tuple[int, ...]


@dataclass(frozen=True)
class Pdi:
    """One PDI (the array's configuration): its image and the CUs that use it.

    ``cu_ids`` are the DPU kernel ids of its CDO groups, ``functions`` the functional numbers of the CUs of
    the file that name one of those ids, in the same order.
    """

    uuid: _uuid.UUID
    data: bytes
    groups: tuple[CdoGroup, ...]
    cu_ids: tuple[int, ...]
    functions: tuple[int, ...]


@dataclass(frozen=True)
class Cu:
    """One compute unit as CONFIG_CU wants it; its place in :attr:`Xclbin.cus` is its CU index.

    ``name`` is ``"KERNEL:INSTANCE"``, ``kernel`` the part before the colon, ``pdi`` the index in
    :attr:`Xclbin.pdis`, ``function`` the CU's function number.
    """

    name: str
    kernel: str
    kernel_id: int
    function: int
    pdi: int


@dataclass(frozen=True)
class Xclbin:
    """A parsed xclbin. Immutable, safe to share between threads.

    ``digest`` covers what a hardware context is made of (columns, CUs, PDI images): two files with the same
    digest can share a context, whatever their paths, time stamps and UUIDs.
    """

    path: str
    uuid: _uuid.UUID
    timestamp: int
    sections: tuple[Section, ...]
    partition: Partition
    pdis: tuple[Pdi, ...]
    cus: tuple[Cu, ...]
    digest: bytes
    vbnv: str = ""
    """The platform that the file was made for ("vendor:board:name:version")."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the DPU kernels, in CU order, each once."""
        return tuple(dict.fromkeys(cu.kernel for cu in self.cus))

    def cu_index(self, kernel: str | None = None) -> int:
        """The index of the CU that runs `kernel` (its name, or ``"KERNEL:INSTANCE"``); None: the only kernel.

        Raises BadXclbin when the file has no such kernel, or several and none was named.
        """
        if kernel is not None:
            text("xclbin", "kernel", kernel, "Give a kernel's name, or None")
        if kernel is None and len(self.kernels) == 1:
            return 0
        for index, cu in enumerate(self.cus):
            if kernel is not None and kernel in (cu.kernel, cu.name):
                return index
        wanted = "one must be named" if kernel is None else f"there is no {kernel!r}"
        raise BadXclbin(
            f"{self.path}: {wanted}; the kernels are {', '.join(self.kernels)}",
            call="xclbin",
            path=self.path,
            offset=0,
            remedy="Name one of these kernels",
        )

    def section(self, kind: int) -> Section | None:
        """The first section of `kind`, or None."""
        kind = whole("xclbin", "kind", kind)
        return next((s for s in self.sections if s.kind == kind), None)

    @classmethod
    def read(cls, source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Xclbin:
        """Parses a file's path, or its contents. Raises BadXclbin: path, byte offset, what is wrong."""
        found, problem = read_any(source)
        if problem is not None:
            raise problem
        return found


def read_any(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
) -> tuple[Xclbin, BadXclbin | None]:
    """Parses a file that need not be one for an NPU: what it holds, and why no NPU can run it, or None.

    What is not in such a file is empty: its CUs, its PDIs, a partition of 0 columns. Raises BadXclbin for a
    file that is damaged or no xclbin.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _Reader("<bytes>", bytes(source)).parse()
    path = _path("xclbin", "source", source)
    return _Reader(path, _load(path)).parse()


def _load(path: str) -> bytes:
    try:
        return read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            _bad(path, 0, f"{error.strerror}, more than any xclbin")
        if error.errno == errno.EINVAL:
            raise BadXclbin(
                f"{path}: {error.strerror}", call="xclbin", path=path, remedy="Name a file"
            ) from None
        raise BadXclbin(
            f"{path}: cannot be read", call="xclbin", errno=error.errno, path=path, remedy="Check the path"
        ) from None


def _bad(path: str, offset: int, what: str) -> NoReturn:
    raise BadXclbin(
        f"{path}: at byte {offset}: {what}",
        call="xclbin",
        path=path,
        offset=offset,
        remedy="Build or download the file again",
    )


NO_PARTITION = Partition("", 0, (), 0, 0, 0)
"""That of a file without one."""


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


class _Reader:
    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data
        self.end = len(data)

    def bad(self, offset: int, what: str) -> NoReturn:
        _bad(self.path, offset, what)

    def unpack(self, kind: Struct, offset: int, what: str) -> tuple[Any, ...]:
        if offset < 0 or offset + kind.size > self.end:
            self.bad(offset, f"{what} ({kind.size} bytes) does not fit the file ({self.end} bytes)")
        return kind.unpack_from(self.data, offset)

    def parse(self) -> tuple[Xclbin, BadXclbin | None]:
        if self.end < layout.HEADER_BYTES:
            self.bad(self.end, f"the file ends inside the header ({layout.HEADER_BYTES} bytes)")
        if self.data[:8] != layout.MAGIC:
            self.bad(0, f"not an xclbin: it starts with {self.data[:8]!r}, not {layout.MAGIC!r}")
        (length, timestamp, _, _, _, _, _, _, _, vbnv, uuid, _, count) = layout.AXLF_HEADER.unpack_from(
            self.data, layout.LENGTH_AT
        )
        if length > self.end:
            self.bad(layout.LENGTH_AT, f"the header promises {length} bytes, the file has {self.end}")
        if layout.HEADER_BYTES + count * layout.SECTION_HEADER.size > length:
            self.bad(448, f"{count} section headers do not fit the file ({length} bytes)")
        self.end = length
        sections = tuple(self._sections(count))
        by_kind: dict[int, Section] = {}
        for section in sections:
            by_kind.setdefault(section.kind, section)
        partition = NO_PARTITION
        pdis: tuple[Pdi, ...] = ()
        cus: tuple[Cu, ...] = ()
        lacks = [layout.KIND_NAMES[k] for k in (layout.AIE_PARTITION, layout.IP_LAYOUT) if k not in by_kind]
        problem = (
            f"it has no {' and no '.join(lacks)} section. It is a file for something else: an FPGA card, a "
            "simulation, or a platform to build on"
            if lacks
            else ""
        )
        if layout.AIE_PARTITION in by_kind:
            partition, pdis = _PartitionReader(self, by_kind[layout.AIE_PARTITION]).parse()
        if layout.IP_LAYOUT in by_kind:
            units = self._units(by_kind[layout.IP_LAYOUT])
            cus = _cus(units, pdis)
            problem = problem or ("" if cus else _unserved(units, pdis))
        functions = {cu.kernel_id: cu.function for cu in cus}
        pdis = tuple(
            Pdi(p.uuid, p.data, p.groups, p.cu_ids, tuple(functions[k] for k in p.cu_ids if k in functions))
            for p in pdis
        )
        found = Xclbin(
            self.path,
            _uuid.UUID(bytes=uuid),
            timestamp,
            sections,
            partition,
            pdis,
            cus,
            _digest(partition, pdis, cus),
            _text(vbnv),
        )
        return found, _not_for_npu(self.path, problem) if problem else None

    def _sections(self, count: int) -> Iterator[Section]:
        room = self.end
        for index in range(count):
            at = layout.HEADER_BYTES + index * layout.SECTION_HEADER.size
            kind, name, offset, size = self.unpack(layout.SECTION_HEADER, at, f"section header {index}")
            if offset + size > self.end:
                name = layout.KIND_NAMES.get(kind, kind)
                self.bad(
                    at + 24,
                    f"section {index} ({name}) is bytes {offset} to {offset + size}, past the "
                    f"file's end ({self.end})",
                )
            room -= size
            if room < 0:
                self.bad(at + 24, f"the sections up to {index} overlap: they are larger than the file")
            yield Section(kind, _text(name), offset, self.data[offset : offset + size])

    def _units(self, section: Section) -> list[tuple[str, int, int]]:
        """(name, kernel id, function number) of IP_LAYOUT's kernels."""
        (count,) = (
            self.unpack(layout.COUNT, section.offset, "IP_LAYOUT's count")
            if len(section.data) >= 4
            else self.bad(section.offset, "IP_LAYOUT is empty")
        )
        if count < 0 or 8 + count * layout.IP_DATA.size > len(section.data):
            self.bad(
                section.offset,
                f"IP_LAYOUT lists {count} entries of {layout.IP_DATA.size} bytes in "
                f"{len(section.data)} bytes",
            )
        rows = (layout.IP_DATA.unpack_from(section.data, 8 + i * layout.IP_DATA.size) for i in range(count))
        # Older files do not mark their kernels as the array's (ST_DPU); XRT goes by kernel id alone, too
        # (core/common/xclbin_parser.cpp and xdna-driver, src/shim/hwctx.cpp).
        return [
            (_text(name), properties >> 16 & 0xFFF, properties >> 4 & 3)
            for kind, properties, _, name in rows
            if kind == layout.IP_PS_KERNEL
        ]


def _cus(units: list[tuple[str, int, int]], pdis: tuple[Pdi, ...]) -> tuple[Cu, ...]:
    """The kernels that a PDI serves."""
    by_id: dict[int, int] = {}
    for index, pdi in enumerate(pdis):
        for kernel_id in pdi.cu_ids:
            by_id.setdefault(kernel_id, index)
    return tuple(
        Cu(name, name.split(":", 1)[0], kernel_id, function, by_id[kernel_id])
        for name, kernel_id, function in units
        if kernel_id in by_id
    )


_MOST_NAMED = 8


def _unserved(units: list[tuple[str, int, int]], pdis: tuple[Pdi, ...]) -> str:
    """Why there is no CU."""
    if not pdis:
        return "its AIE_PARTITION holds no PDI"
    if not units:
        return "its IP_LAYOUT names no kernel that runs on the array"
    named = [f"{name} with id {kernel_id:#x}" for name, kernel_id, _ in units]
    ids = [f"{number:#x}" for pdi in pdis for number in pdi.cu_ids]
    return (
        f"none of its PDIs serves a kernel of its IP_LAYOUT: the PDIs are for ids {_some(ids)}, the kernels "
        f"are {_some(named)}"
    )


def _some(items: list[str]) -> str:
    more = len(items) - _MOST_NAMED
    return (", ".join(items[:_MOST_NAMED]) or "none") + (f" and {more} more" if more > 0 else "")


def _not_for_npu(path: str, why: str) -> BadXclbin:
    return BadXclbin(
        f"{path}: an xclbin that no NPU can run: {why}",
        call="xclbin",
        path=path,
        offset=0,
        remedy="Name one that was built for the NPU; `python -m amdxdna xclbin FILE` shows what one holds",
    )


class _PartitionReader:
    """The AIE_PARTITION section, whose arrays are (count, offset) pairs inside it."""

    def __init__(self, file: _Reader, section: Section) -> None:
        self.file = file
        self.base = section.offset
        self.data = section.data
        # Every array element read takes its size from this; overlapping arrays cannot multiply the file.
        self.room = 2 * len(section.data)

    def bad(self, offset: int, what: str) -> NoReturn:
        self.file.bad(self.base + offset, f"AIE_PARTITION: {what}")

    def array(self, at: int, count: int, offset: int, size: int, what: str) -> int:
        if count * size + offset > len(self.data):
            self.bad(
                at,
                f"{what}: {count} of {size} bytes at {offset} do not fit the section "
                f"({len(self.data)} bytes)",
            )
        self.room -= count * size
        if self.room < 0:
            self.bad(at, f"{what}: the arrays overlap: together they are larger than the section")
        return offset

    def text(self, offset: int) -> str:
        if offset >= len(self.data):
            self.bad(offset, "a name lies past the section's end")
        return _text(self.data[offset : offset + 256])

    def parse(self) -> tuple[Partition, tuple[Pdi, ...]]:
        if len(self.data) < layout.PARTITION.size:
            self.bad(0, f"{len(self.data)} bytes, less than its header ({layout.PARTITION.size})")
        (_, name, ops, inference, pre_post, width, starts, starts_at, pdis, pdis_at, _) = (
            layout.PARTITION.unpack_from(self.data, 0)
        )
        if not 0 < width <= _MAX_COLUMNS:
            self.bad(32, f"a width of {width} columns")
        self.array(40, starts, starts_at, 2, "start columns")
        columns = Struct(f"<{starts}H").unpack_from(self.data, starts_at)
        self.array(120, pdis, pdis_at, layout.PDI.size, "PDIs")
        found = tuple(self._pdi(pdis_at + i * layout.PDI.size) for i in range(pdis))
        return Partition(self.text(name), width, columns, ops, inference, pre_post), found

    def _pdi(self, at: int) -> Pdi:
        uuid, size, offset, groups, groups_at = layout.PDI.unpack_from(self.data, at)
        if not size:
            self.bad(at + 16, "a PDI is empty")
        self.array(at + 16, size, offset, 1, "PDI image")
        self.array(at + 24, groups, groups_at, layout.CDO_GROUP.size, "CDO groups")
        found = tuple(self._group(groups_at + i * layout.CDO_GROUP.size) for i in range(groups))
        ids = tuple(dict.fromkeys(k for group in found for k in group.kernel_ids))
        return Pdi(_uuid.UUID(bytes=uuid), self.data[offset : offset + size], found, ids, ())

    def _group(self, at: int) -> CdoGroup:
        name, kind, pdi_id, ids, ids_at, _, _ = layout.CDO_GROUP.unpack_from(self.data, at)
        self.array(at + 16, ids, ids_at, 8, "DPU kernel ids")
        return CdoGroup(self.text(name), kind, pdi_id, Struct(f"<{ids}Q").unpack_from(self.data, ids_at))


def _digest(partition: Partition, pdis: tuple[Pdi, ...], cus: tuple[Cu, ...]) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    lengths = [len(pdi.data) for pdi in pdis]
    state.update(repr((partition.column_width, partition.ops_per_cycle, lengths)).encode())
    for cu in cus:
        state.update(repr((cu.name, cu.kernel_id, cu.function, cu.pdi)).encode())
    for pdi in pdis:
        state.update(pdi.data)
    return state.digest()
