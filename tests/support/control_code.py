"""Transaction streams that carry a stream of the emulated NPU, and ELF files of them as aiebu-asm's.

A carrier loads a PDI, describes its buffers in the shim's DMA descriptors, writes the emulated NPU's stream
to a core's memory as a program would write its own, and waits for a token: what XRT patches in it, and what
the firmware would be told, are the real thing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.streams import transaction

DESCRIPTORS = 0x1D000
"""The first of the shim's DMA descriptors, 32 bytes each (aie-rt's xaiemlgbl_params.h)."""
CORE = 2 << 20
"""Memory of the first core."""
CONTROL_PACKETS = 15
"""The descriptor that a carrier reads control packets through."""
SHIM, PACKET, ADDRESS, SCALAR = 5, 4, 8, 3
BITS = 3
"""What the low bits of a descriptor's first address word hold: not an address, and cut off."""


@dataclass
class Stream:
    """Control code with its places to patch: (symbol, part, offset, kind, addend, size)."""

    code: bytes
    places: list[tuple[str, str, int, int, int, int]] = field(default_factory=list)
    packets: bytes = b""
    save: bytes = b""
    restore: bytes = b""
    more: dict[str, bytes] = field(default_factory=dict)
    """Further sections by name."""

    def parts(self) -> dict[str, bytes]:
        """By section name, in aiebu-asm's order."""
        found = {
            ".ctrldata": self.packets,
            ".ctrltext": self.code,
            ".preempt_restore": self.restore,
            ".preempt_save": self.save,
            **self.more,
        }
        return {name: data for name, data in found.items() if data}


def carrier(
    program: bytes,
    buffers: int = 2,
    *,
    offsets: Sequence[int] = (),
    nbytes: int = 4096,
    pdi: int | None = None,
    scratchpad: int = 0,
    preempt: bool = False,
    packets: bytes = b"",
    full: bool = False,
    waits: bool = True,
    save: bytes = b"",
    restore: bytes = b"",
    updates: Sequence[tuple[int, int, int]] = (),
) -> Stream:
    """A stream that runs `program` over `buffers`, each from its byte of `offsets` on.

    `updates`: (entry of the state table, factor, register) to add to registers before.
    """
    ops: list[tuple[int, ...]] = []
    places: list[tuple[str, str, int, int, int, int]] = []

    def here() -> int:
        return 16 + 4 * sum(map(len, ops))

    if pdi is not None:
        places.append((f".pdi.{pdi}", ".ctrltext", here() + 8, ADDRESS, 0, 64))
        ops.append((8 | pdi << 16, 64, 0, 0))
    if scratchpad:
        places.append(("scratch-pad-ctrl", ".ctrltext", here() + 8, ADDRESS, 0, scratchpad))
        ops.append((10, scratchpad, 0x1000, 0))
    numbers = [*range(buffers), *([CONTROL_PACKETS] if packets else [])]
    for number in numbers:
        at = DESCRIPTORS + 32 * number
        argument = buffers if number == CONTROL_PACKETS else number
        plus = offsets[number] if number < len(offsets) else 0
        symbol = "control-packet" if number == CONTROL_PACKETS else str(number + (0 if full else 3))
        places.append((symbol, ".ctrltext", here() + 16, SHIM, plus, nbytes))
        ops.append((1, 0, at, 48, nbytes // 4, BITS, 0x7FF0000, 0, 0, 0, 0, 0))
        ops.append((0x81, 48, 0, 0, 0, 0, at + 4, 0, argument, 0, plus, 0))
    words = struct.unpack(f"<{len(program) // 4}I", program)
    ops.append((1, 0, CORE, 16 + len(program), *words))
    ops += [(12 | entry << 8, factor, register) for entry, factor, register in updates]
    if preempt:
        ops.append((0x206,))
    if waits:
        ops.append((0x80, 16, 0x10100, 0x10000))
    return Stream(transaction(*ops), places, packets, save, restore)


def external_buffers(buffers: int, packets: bytes, patched: dict[int, Sequence[int]]) -> str:
    """aiebu-asm's JSON for a stream with control packets: at which bytes is which argument's address."""
    found: dict[str, object] = {
        f"buffer{index}": {
            "xrt_id": index,
            "logical_id": index,
            "size_in_bytes": 4096,
            "name": f"b{index}",
            "control_packet_patch_locations": [
                {"offset": at, "size": 6, "operation": "read_add_write"} for at in patched.get(index, ())
            ],
        }
        for index in range(buffers)
    }
    found["packets"] = {
        "xrt_id": buffers,
        "logical_id": 0xFFFFFFFF,
        "size_in_bytes": len(packets),
        "ctrl_pkt_buffer": True,
        "name": "runtime_control_packet",
    }
    return json.dumps({"external_buffers": found})


def configuration(
    folder: Path,
    kernels: dict[str, tuple[int, dict[str, Stream]]],
    pdis: dict[int, bytes],
    notes: dict[str, str] | None = None,
) -> Path:
    """aiebu-asm's input for a full ELF file, in `folder`; the path of its JSON.

    `kernels`: name -> (arguments, instances). `notes`: KERNEL:INSTANCE -> JSON of :func:`external_buffers`.
    """
    for number, data in pdis.items():
        (folder / f"{number}.pdi").write_bytes(data)
    made = []
    for kernel, (arguments, instances) in kernels.items():
        listed = []
        for name, stream in instances.items():
            at = folder / f"{kernel}-{name}"
            at.with_suffix(".txn").write_bytes(stream.code)
            entry = {"id": name, "TXN_ctrl_code_file": f"{at}.txn"}
            note = (notes or {}).get(f"{kernel}:{name}")
            if stream.packets and note:
                at.with_suffix(".packets").write_bytes(stream.packets)
                at.with_suffix(".json").write_text(note)
                entry.update(ctrl_packet_file=f"{at}.packets", patch_info_file=f"{at}.json")
            listed.append(entry)
        made.append(
            {
                "name": kernel,
                "instance": listed,
                "arguments": [
                    {"name": f"arg_{n}", "type": "char *", "offset": hex(8 * n)} for n in range(arguments)
                ],
                "PDIs": [{"id": number, "PDI_file": str(folder / f"{number}.pdi")} for number in pdis],
            }
        )
    path = folder / "configuration.json"
    path.write_text(json.dumps({"xrt-kernels": made}))
    return path


class Names:
    """A table of names in the making."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, name: str) -> int:
        """Where the name is."""
        at = len(self.data)
        self.data += name.encode() + b"\0"
        return at


@dataclass
class File:
    """An ELF file in the making."""

    os_abi: int = 0x45
    abi_version: int = 0x02
    wide: bool = False
    sections: list[list[object]] = field(default_factory=lambda: [["", 0, 0, b"", 0, 0]])

    def add(self, name: str, kind: int, data: bytes, *, flags: int = 0, link: int = 0, info: int = 0) -> int:
        """A section; its index."""
        self.sections.append([name, kind, flags, data, link, info])
        return len(self.sections) - 1

    def symbol(self, name: int, kind: int, size: int, section: int) -> bytes:
        """A symbol's bytes."""
        if self.wide:
            return struct.pack("<IBBHQQ", name, 0x10 | kind, 0, section, 0, size)
        return struct.pack("<IIIBBH", name, 0, size, 0x10 | kind, 0, section)

    def relocation(self, offset: int, symbol: int, kind: int, addend: int) -> bytes:
        """A relocation's bytes; version 1 of the ABI has the kind in the addend."""
        if self.abi_version == 1:
            kind, addend = 0, addend << 4 | kind
        if self.wide:
            return struct.pack("<QQq", offset, symbol << 32 | kind, addend)
        return struct.pack("<IIi", offset, symbol << 8 | kind, addend)

    def note(self, name: str, data: bytes) -> None:
        """A section of one note."""
        self.add(name, 7, struct.pack("<III4s", 4, len(data), 6, b"XRT\0") + data)

    def done(self) -> bytes:
        """The file."""
        names = Names()
        self.add(".shstrtab", 3, b"")
        placed = [names.add(str(each[0])) if each[0] else 0 for each in self.sections]
        self.sections[-1][3] = names.data
        head = 64 if self.wide else 52
        body, table = b"", []
        # Of symbols, relocations, groups and dynamic symbols.
        entry = {2: 24, 4: 24, 17: 4, 11: 24} if self.wide else {2: 16, 4: 12, 17: 4, 11: 16}
        for name, (_, kind, flags, data, link, info) in zip(placed, self.sections, strict=True):
            assert isinstance(data, bytes)
            body += bytes(-len(body) % 16)
            row = name, kind, flags, 0, head + len(body), len(data), link, info, 1, entry.get(kind, 0)
            table.append(struct.pack("<IIQQQQIIQQ" if self.wide else "<10I", *row))
            body += data
        ident = struct.pack(
            "<4sBBBBB7x", b"\x7fELF", 2 if self.wide else 1, 1, 1, self.os_abi, self.abi_version
        )
        rest = struct.pack(
            "<HHIQQQIHHHHHH" if self.wide else "<HHIIIIIHHHHHH",
            2,
            4,
            1,
            0,
            0,
            head + len(body),
            0,
            head,
            0,
            0,
            64 if self.wide else 40,
            len(table),
            len(table) - 1,
        )
        return ident + rest + body + b"".join(table)


def _patches(file: File, placed: list[tuple[int, tuple[str, str, int, int, int, int]]]) -> None:
    """The dynamic symbols and relocations of (section, place) pairs."""
    names, symbols, relocations = Names(), file.symbol(0, 0, 0, 0), b""
    known: dict[tuple[int, str, int], int] = {}
    for section, (symbol, _, offset, kind, addend, size) in placed:
        key = section, symbol, size
        if key not in known:
            known[key] = len(known) + 1
            symbols += file.symbol(names.add(symbol), 1, size, section)
        relocations += file.relocation(offset, known[key], kind, addend)
    strings = file.add(".dynstr", 3, names.data)
    table = file.add(".dynsym", 11, symbols, link=strings, info=1)
    file.add(".rela.dyn", 4, relocations, link=table)


def partial(stream: Stream, **of_file: int) -> bytes:
    """A file for an xclbin's kernel."""
    file = File(**of_file)  # type: ignore[arg-type]
    at = {name: file.add(name, 1, data) for name, data in stream.parts().items()}
    _patches(file, [(at[place[1]], place) for place in stream.places])
    file.note(".note.xrt.UID", bytes(range(16)))
    return file.done()


def full(
    kernels: dict[str, tuple[int, dict[str, Stream]]],
    pdis: dict[int, bytes],
    columns: int = 8,
    **of_file: int,
) -> bytes:
    """A full file: kernel -> (arguments, instance -> stream), and PDIs that every kernel has."""
    file = File(**{"abi_version": 0x21, **of_file})  # type: ignore[arg-type]
    names, symbols, count = Names(), file.symbol(0, 0, 0, 0), 0
    placed, groups = [], []
    for kernel, (arguments, instances) in kernels.items():
        count += 1
        function = count
        symbols += file.symbol(names.add(f"_Z{len(kernel)}{kernel}{'Pc' * arguments}"), 2, 0, 0)
        for number, data in pdis.items():
            file.add(f".pdi.{number}", 1, data)
        for instance, stream in instances.items():
            count += 1
            symbols += file.symbol(names.add(instance), 1, 0, function)
            at = {name: file.add(f"{name}.{len(groups)}", 1, data) for name, data in stream.parts().items()}
            placed += [(at[place[1]], place) for place in stream.places]
            groups.append((count, list(at.values())))
    table = file.add(".symtab", 2, symbols, link=file.add(".strtab", 3, names.data), info=1)
    _patches(file, placed)
    for number, (symbol, members) in enumerate(groups):
        file.add(
            f".group.{number}", 17, struct.pack(f"<{1 + len(members)}I", 1, *members), link=table, info=symbol
        )
    file.note(".note.xrt.configuration", struct.pack("<I", columns))
    file.note(".note.xrt.UID", bytes(range(16)))
    return file.done()
