"""Control code for the NPU in ELF files, as aiebu-asm writes them for the AIE2P array (NPU2).

Facts from Xilinx/aiebu and Xilinx/XRT (core/common/api/xrt_elf.cpp at 51a05cdc86), and from files that
aiebu-asm of XRT 2.25 made. A file is either full (it has a partition's width and its own PDIs, and needs no
xclbin) or goes with a kernel of an xclbin.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from amdxdna.elf.patch import Kind, Patch, patch
from amdxdna.elf.sections import FUNC, GROUP, OBJECT, Elf, Section, Symbol
from amdxdna.errors import BadElf
from amdxdna.files import read_regular

AIE2P = 0x45
GENERATIONS = {0x40: "AIE2PS", 0x46: "AIE2PS", 0x4B: "AIE4", 0x56: "AIE4", 0x69: "AIE4"}
"""OS/ABI bytes of other generations of the array."""
TEXT, PACKETS, SAVE, RESTORE = ".ctrltext", ".ctrldata", ".preempt_save", ".preempt_restore"
PARTS = (TEXT, PACKETS, SAVE, RESTORE)
CONTROL_PACKETS = "control-packet"
CONTROL_SCRATCHPAD = "scratch-pad-ctrl"
PREEMPTION_SCRATCHPAD = "scratch-pad-mem"
_PDI, _PM_SYMBOL = ".pdi", "ctrlpkt-pm"
_CONFIGURATION, _UID = ".note.xrt.configuration", ".note.xrt.UID"
_MOST_COLUMNS = 128
_LARGEST_SCRATCHPAD = 64 << 20
MAX_FILE_BYTES = 1 << 30
"""As of an xclbin: far more than a device heap holds."""

Key = tuple[str, str]
"""A symbol's name, and the part whose places it means."""


@dataclass(frozen=True)
class Code:
    """The control code of one kernel instance: what a run of it needs. Bytes are the file's own."""

    name: str
    """``KERNEL:INSTANCE``; empty for a file that goes with an xclbin's kernel."""
    parts: dict[str, bytes]
    """By section name (:data:`PARTS`), those that there are."""
    patches: dict[Key, tuple[Patch, ...]]
    pdis: dict[str, bytes]
    """PDIs that the stream loads, by symbol."""
    packets: dict[str, bytes] = field(default_factory=dict)
    """Further control packets that the stream names (``ctrlpkt-pm-N``), by symbol."""

    def places(self, part: str, name: str, index: int | None = None) -> tuple[Patch, ...]:
        """The places of an argument in a part: by its name or, where there are none of it, by its index."""
        found = self.patches.get((name, part), ())
        return found if found or index is None else self.patches.get((str(index), part), ())


@dataclass(frozen=True)
class ElfKernel:
    """A kernel of a full ELF file: its buffers and its instances, each with its own control code."""

    name: str
    arguments: int
    instances: tuple[str, ...]


class ControlElf:
    """An ELF file of control code. Immutable.

    ``columns``: the partition's width; None for a file that goes with an xclbin. ``kernels``: of a full file,
    by name. ``scratchpad``: bytes of the control scratchpad, 0 without one. ``preemptible``, ``has_pdis``:
    whether any of its code is. Raises BadElf for a file that is damaged, or of another generation of the
    array.
    """

    def __init__(self, data: bytes, path: str = "ELF file") -> None:
        self.path = path
        self._elf = elf = Elf(bytes(data), path)
        if elf.os_abi != AIE2P:
            made = GENERATIONS.get(elf.os_abi)
            raise BadElf(
                f"{path} is control code for {made or 'no known generation of the array'} (OS/ABI "
                f"{elf.os_abi:#x}), not for NPU2 ({AIE2P:#x})",
                call="elf",
                path=path,
                offset=7,
                remedy="Compile it for npu2",
                os_abi=elf.os_abi,
            )
        self.grouped = elf.abi_version >> 4 >= 1
        """Whether its code is in groups, one for each instance of a kernel."""
        note = elf.named(_CONFIGURATION)
        self.columns = None if note is None else self._columns(note)
        uid = elf.named(_UID)
        self.uid = b"" if uid is None else elf.note(uid)
        self.kernels: dict[str, ElfKernel] = {}
        self.scratchpad = 0
        self._members: dict[str, list[int]] = {}
        """Sections of each instance, by ``KERNEL:INSTANCE``."""
        self._owner: dict[int, str] = {}
        if self.grouped:
            self._read_groups()
        else:
            self._take("", [index for index, _ in enumerate(elf.sections)])
        self._codes = {name: self._parts(name) for name in self._members}
        self._patches: dict[str, dict[Key, list[Patch]]] = {name: {} for name in self._members}
        self._read_patches()
        self.has_pdis = any(_PDI in each.name for each in elf.sections)
        self.preemptible = any(SAVE in parts for parts in self._codes.values())

    @classmethod
    def read(cls, source: str | os.PathLike[str] | bytes) -> ControlElf:
        """From a path, or from the file's bytes. Raises BadElf, also where the path cannot be read."""
        if isinstance(source, bytes):
            return cls(source)
        path = os.fspath(source)
        try:
            return cls(read_regular(path, MAX_FILE_BYTES), path)
        except OSError as error:
            if isinstance(error, BadElf):
                raise
            why = f": {error.strerror}" if error.errno in (errno.EFBIG, errno.EINVAL) else ""
            raise BadElf(
                f"{path} cannot be read{why}",
                call="elf",
                errno=error.errno,
                path=path,
                remedy="Give the path of an ELF file of control code",
            ) from None
        except ValueError:
            raise BadElf(
                f"{path!r} is no path",
                call="elf",
                path=path,
                remedy="Give the path of an ELF file of control code",
            ) from None

    @property
    def names(self) -> tuple[str, ...]:
        """What :meth:`code` takes."""
        return tuple(self._codes)

    def code(self, name: str = "") -> Code:
        """The control code of ``KERNEL:INSTANCE``, or of a file without kernels. Raises KeyError."""
        parts = self._codes[name]
        patches = {key: tuple(places) for key, places in self._patches[name].items()}
        symbols = [symbol for symbol, part in patches if part == TEXT]
        last = max(self._members[name])
        pdis = {symbol: self._pdi(symbol, last) for symbol in symbols if "pdi" in symbol}
        packets = {
            symbol: self._section("." + symbol.replace("-", "."), symbol)
            for symbol in symbols
            if _PM_SYMBOL in symbol
        }
        return Code(name, parts, patches, pdis, packets)

    def _columns(self, note: Section) -> int:
        held = self._elf.note(note)[:4]
        columns = int.from_bytes(held, "little")
        if not 0 < columns <= _MOST_COLUMNS:
            self._elf.bad(f"a partition of {columns} columns", note.at)
        return columns

    # -- instances

    def _read_groups(self) -> None:
        elf = self._elf
        table = elf.named(".symtab")
        symbols = () if table is None else elf.symbols(table)
        for section in elf.sections:
            if section.kind != GROUP or len(section.data) < 4:
                continue
            words = section.data[4 : len(section.data) // 4 * 4]
            kernel, instance = self._instance(section, symbols)
            self._take(f"{kernel}:{instance}", [word for (word,) in struct.iter_unpack("<I", words)], section)

    def _instance(self, section: Section, symbols: tuple[Symbol, ...]) -> tuple[str, str]:
        """Kernel and instance of a group. Its symbol is the instance's, whose section index is the number of
        the kernel's symbol."""
        elf = self._elf
        of = symbols[section.info] if section.info < len(symbols) else None
        if of is None or of.kind != OBJECT:
            elf.bad(f"group {section.name!r} names no kernel instance", section.at)
        function = symbols[of.section] if of.section < len(symbols) else None
        if function is None or function.kind != FUNC:
            elf.bad(f"the instance {of.name!r} belongs to no kernel", section.at)
        name, arguments = self._signature(function.name, section.at)
        known = self.kernels.get(name)
        instances = (*(known.instances if known else ()), of.name)
        self.kernels[name] = ElfKernel(name, arguments if known is None else known.arguments, instances)
        return name, of.name

    def _signature(self, mangled: str, at: int) -> tuple[str, int]:
        """Name and number of arguments of a function by its mangled name (Itanium C++ ABI), all of them
        pointers."""
        elf = self._elf
        head = re.match(r"_Z(\d{1,5})", mangled)
        length = int(head[1]) if head else 0
        start = head.end() if head else 0
        if not head or start + length > len(mangled) or not length:
            elf.bad(f"{mangled!r} is no mangled name of a kernel", at)
        types = re.findall(r"P*[vci]", mangled[start + length :])
        if "".join(types) != mangled[start + length :]:
            elf.bad(f"{mangled!r} has arguments of a type that is not known", at)
        if any(not each.startswith("P") for each in types):
            elf.bad(f"{mangled!r} has arguments that are no buffers", at)
        return mangled[start : start + length], len(types)

    def _take(self, name: str, members: list[int], group: Section | None = None) -> None:
        at = 0 if group is None else group.at
        if name in self._members:
            self._elf.bad(f"there are two instances {name!r}", at)
        for index in members:
            if index >= len(self._elf.sections) or index in self._owner:
                self._elf.bad(f"{name!r} has section {index}, which is not there or another's", at)
            self._owner[index] = name
        self._members[name] = members

    def _parts(self, name: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        elf = self._elf
        for index in self._members[name]:
            section = elf.sections[index]
            part = part_of(section.name)
            if part is None or not section.data:
                continue
            if part in found:
                elf.bad(f"{name!r} has two sections {part}", section.at)
            found[part] = elf.plain(section)
        if TEXT not in found:
            elf.bad(
                f"{name!r} has no control code (.ctrltext)"
                if name
                else "there is no control code (.ctrltext)",
                0,
            )
        if (SAVE in found) != (RESTORE in found):
            elf.bad("sections to save and to restore at a preemption are not paired", 0)
        return found

    # -- places to patch

    def _read_patches(self) -> None:
        elf = self._elf
        dynamic, table = elf.named(".dynsym"), elf.named(".rela.dyn")
        if dynamic is None or table is None:
            return
        symbols = elf.symbols(dynamic)
        for number, each in enumerate(elf.relocations(table)):
            if each.symbol >= len(symbols):
                elf.bad(f"relocation {number} is of symbol {each.symbol}, which is not there", table.at)
            symbol = symbols[each.symbol]
            if symbol.section >= len(elf.sections):
                elf.bad(f"{symbol.name!r} is of section {symbol.section}, which is not there", table.at)
            section = elf.sections[symbol.section]
            # Version 1 of the ABI: the kind is in the addend's low four bits.
            old = elf.abi_version == 1
            self._place(
                number,
                section,
                symbol,
                self._owner.get(symbol.section),
                each.offset,
                each.addend & 15 if old else each.kind,
                (each.addend & 0xFFFFFFFF) >> 4 if old else each.addend,
            )

    def _place(
        self,
        number: int,
        section: Section,
        symbol: Symbol,
        owner: str | None,
        offset: int,
        kind: int,
        addend: int,
    ) -> None:
        elf = self._elf
        part = part_of(section.name)
        if owner is None or part is None or part not in self._codes[owner]:
            elf.bad(f"relocation {number} is for {section.name!r}, which is no control code", section.at)
        if kind not in set(Kind):
            elf.bad(f"relocation {number} is of kind {kind}, which NPU2 does not have", section.at)
        place = patch(Kind(kind), section.data, offset, addend, symbol.size)
        if place is None:
            elf.bad(f"relocation {number} at {offset} does not fit {section.name!r}", section.at)
        if symbol.name == CONTROL_SCRATCHPAD and not self.scratchpad:
            if symbol.size > _LARGEST_SCRATCHPAD:
                elf.bad(f"a control scratchpad of {symbol.size} bytes", section.at)
            self.scratchpad = symbol.size
        self._patches[owner].setdefault((symbol.name, part), []).append(place)

    def _pdi(self, symbol: str, last: int) -> bytes:
        """A PDI by its symbol. Every kernel has PDIs of its own in front of its code, by the same names."""
        mine = list(self._sections(symbol))
        if not mine:
            self._elf.bad(f"there is no PDI {symbol!r}", 0)
        before = [section for index, section in mine if index < last]
        section = before[-1] if before else mine[0][1]
        if not section.data:
            self._elf.bad(f"the PDI {symbol!r} is empty", section.at)
        return self._elf.plain(section)

    def _section(self, name: str, symbol: str) -> bytes:
        found = next((each for _, each in self._sections(name) if each.data), None)
        if found is None:
            self._elf.bad(f"there are no control packets {symbol!r}", 0)
        return self._elf.plain(found)

    def _sections(self, name: str) -> Iterator[tuple[int, Section]]:
        return ((index, each) for index, each in enumerate(self._elf.sections) if each.name == name)


def part_of(name: str) -> str | None:
    """The part that a section of this name is, e.g. of ``.ctrltext.0``."""
    return next((part for part in PARTS if part in name), None)
