"""What an xclbin says of its kernels' arguments, of memory banks, and which argument lives in which.

EMBEDDED_METADATA is XML, MEM_TOPOLOGY and CONNECTIVITY are tables; layouts from XRT's public header
(core/include/xrt/detail/xclbin.h) and xclbin_parser.cpp. Read when asked for: nothing here is needed to run
a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from amdxdna.errors import BadXclbin
from amdxdna.xclbin import layout

if TYPE_CHECKING:
    from amdxdna.xclbin.reader import Cu, Section, Xclbin

_MAX_XML_BYTES = 16 << 20
_GLOBAL = 1
_MAX_ARGUMENTS = 0x7FF
"""A packet counts its words in 11 bits (ert.h of XRT and the driver's), and an argument takes one or more."""


@dataclass(frozen=True)
class Argument:
    """One kernel argument. ``offset``: bytes from the first; ``buffer``: an address, else a value."""

    index: int
    name: str
    size: int
    offset: int
    buffer: bool
    type: str


@dataclass(frozen=True)
class KernelInfo:
    """A kernel of the metadata, with its instances' names; ``kind`` is "dpu" where it runs on the array."""

    name: str
    kind: str
    arguments: tuple[Argument, ...]
    instances: tuple[str, ...]

    @property
    def map_words(self) -> int:
        """Argument words of a packet for this kernel: up to the end of its last argument, at least 4
        (XRT's core/common/api/xrt_kernel.cpp)."""
        return max(-(-max((a.offset + a.size for a in self.arguments), default=0) // 4), 4)


@dataclass(frozen=True)
class Memory:
    """A memory bank: its tag, size in KiB, base address, whether the file marks it as used."""

    tag: str
    size_kib: int
    base: int
    used: bool


@dataclass(frozen=True)
class Connection:
    """Argument `argument` of entry `ip` of IP_LAYOUT lives in bank `memory` of MEM_TOPOLOGY."""

    argument: int
    ip: int
    memory: int


@dataclass(frozen=True)
class Metadata:
    """What the xclbin says of kernels and memories; a section that the file does not have is empty."""

    kernels: tuple[KernelInfo, ...]
    memories: tuple[Memory, ...]
    connections: tuple[Connection, ...]
    ips: tuple[str, ...] = ()
    """The names in IP_LAYOUT; `Connection.ip` is an index into it."""

    def kernel(self, name: str) -> KernelInfo | None:
        """The kernel of that name, or None."""
        return next((kernel for kernel in self.kernels if kernel.name == name), None)

    def units(self, xclbin: Xclbin) -> tuple[Cu, ...]:
        """The compute units of `xclbin` in the order of the kernels and instances here, which is the order
        in which XRT numbers them; the file's own order where the metadata does not name every one."""
        named = {cu.name: cu for cu in xclbin.cus}
        names = dict.fromkeys(f"{k.name}:{instance}" for k in self.kernels for instance in k.instances)
        found = tuple(named[name] for name in names if name in named)
        return found if len(found) == len(xclbin.cus) else xclbin.cus

    def bank(self, ip: int, argument: int) -> int | None:
        """The memory bank that `argument` of entry `ip` of IP_LAYOUT lives in (of several, the last)."""
        return max((c.memory for c in self.connections if (c.ip, c.argument) == (ip, argument)), default=None)


def read(xclbin: Xclbin) -> Metadata:
    """Reads the metadata of `xclbin`. Raises BadXclbin for a section that is damaged."""
    xml = xclbin.section(layout.EMBEDDED_METADATA)
    memories = xclbin.section(layout.MEM_TOPOLOGY)
    connections = xclbin.section(layout.CONNECTIVITY)
    ips = xclbin.section(layout.IP_LAYOUT)
    return Metadata(
        _kernels(xclbin.path, xml) if xml else (),
        _memories(xclbin.path, memories) if memories else (),
        _connections(xclbin.path, connections) if connections else (),
        _names(xclbin.path, ips) if ips else (),
    )


def _bad(path: str, section: Section, what: str) -> BadXclbin:
    return BadXclbin(
        f"{path}: at byte {section.offset}: {section.kind_name}: {what}",
        call="xclbin",
        path=path,
        offset=section.offset,
        remedy="Build or download the file again",
    )


def _kernels(path: str, section: Section) -> tuple[KernelInfo, ...]:
    text = section.data.rstrip(b"\0")
    if len(text) > _MAX_XML_BYTES:
        raise _bad(path, section, f"{len(text)} bytes of XML, more than any kernel needs ({_MAX_XML_BYTES})")
    # Entities can make a small text large; no tool writes a document type here.
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise _bad(path, section, "the XML declares a document type")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise _bad(path, section, f"the XML cannot be read: {error}") from None
    found = []
    for kernel in root.iter("kernel"):
        arguments = []
        for index, item in enumerate(kernel.findall("arg")):
            try:
                number = _number(item, "id", index)
                if number >= _MAX_ARGUMENTS:
                    raise ValueError(f"id={number}, and a packet holds {_MAX_ARGUMENTS} at most")
                arguments.append(
                    Argument(
                        number,
                        item.get("name", ""),
                        _number(item, "size"),
                        _number(item, "offset"),
                        _number(item, "addressQualifier") == _GLOBAL,
                        item.get("type", ""),
                    )
                )
            except ValueError as error:
                raise _bad(
                    path, section, f"argument {index} of kernel {kernel.get('name')!r}: {error}"
                ) from None
        found.append(
            KernelInfo(
                kernel.get("name", ""),
                kernel.get("type", ""),
                tuple(arguments),
                tuple(item.get("name", "") for item in kernel.findall("instance")),
            )
        )
    return tuple(found)


def _number(item: ElementTree.Element, name: str, default: int = 0) -> int:
    value = item.get(name)
    if value is None:
        return default
    # Digits are decimal, also behind zeros; int() bounds their number.
    number = int(value, 16) if value[:2].lower() == "0x" else int(value)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{name}={value!r}")
    return number


def _memories(path: str, section: Section) -> tuple[Memory, ...]:
    count = _count(path, section, 8, layout.MEM_DATA.size)
    found = []
    for index in range(count):
        _, used, size, base, tag = layout.MEM_DATA.unpack_from(section.data, 8 + index * layout.MEM_DATA.size)
        found.append(Memory(tag.split(b"\0", 1)[0].decode("utf-8", "replace"), size, base, bool(used)))
    return tuple(found)


def _connections(path: str, section: Section) -> tuple[Connection, ...]:
    count = _count(path, section, 4, layout.CONNECTION.size)
    return tuple(
        Connection(*layout.CONNECTION.unpack_from(section.data, 4 + index * layout.CONNECTION.size))
        for index in range(count)
    )


def _names(path: str, section: Section) -> tuple[str, ...]:
    count = _count(path, section, 8, layout.IP_DATA.size)
    rows = (layout.IP_DATA.unpack_from(section.data, 8 + i * layout.IP_DATA.size) for i in range(count))
    return tuple(row[3].split(b"\0", 1)[0].decode("utf-8", "replace") for row in rows)


def _count(path: str, section: Section, first: int, size: int) -> int:
    """How many entries of `size` bytes a table says it has from byte `first`."""
    if len(section.data) < first:
        raise _bad(path, section, f"{len(section.data)} bytes, less than its header ({first})")
    count = int(layout.COUNT.unpack_from(section.data, 0)[0])
    if count < 0 or first + count * size > len(section.data):
        raise _bad(path, section, f"{count} entries of {size} bytes do not fit {len(section.data)} bytes")
    return count
