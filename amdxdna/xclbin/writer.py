"""Makes xclbin (AXLF) files: the emulator's own, and small ones for tests.

The output is deterministic: the same arguments give the same bytes, and the file's UUID is derived from its
contents unless one is given. Besides what this package reads, the sections XRT's parser wants are there:
EMBEDDED_METADATA (the kernels' arguments as XML), MEM_TOPOLOGY and CONNECTIVITY with their group forms.
"""

from __future__ import annotations

import hashlib
import uuid as _uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import pack
from xml.sax.saxutils import quoteattr

from amdxdna.errors import BadArgument
from amdxdna.xclbin import layout

DEFAULT_KERNEL_ID = 0x901
# (name, is a buffer, size, offset, type, memory): the kernel arguments of mlir-aie's DPU kernels.
_ARGUMENTS = (
    ("opcode", False, 8, 0x00, "uint64_t", None),
    ("instr", True, 8, 0x08, "char *", "SRAM"),
    ("ninstr", False, 4, 0x10, "uint32_t", None),
    *((f"bo{i}", True, 8, 0x14 + 8 * i, "void*", "HOST") for i in range(5)),
)
_MEMORIES = (("HOST", 0x10000, 0x4000000), ("SRAM", 0xC000, 0x4000000))  # tag, KB, base
_NAME_BYTES = 64


@dataclass(frozen=True)
class KernelSpec:
    """A DPU kernel to put into the file. `kernel_id` (12 bits) ties it to a PDI."""

    name: str = "MLIR_AIE"
    kernel_id: int = DEFAULT_KERNEL_ID
    instance: str = "MLIRAIE"
    functional: int = 0


@dataclass(frozen=True)
class PdiSpec:
    """A PDI image and the ids of the kernels it serves. `uuid` None: derived from the image."""

    data: bytes
    kernel_ids: tuple[int, ...] = (DEFAULT_KERNEL_ID,)
    uuid: _uuid.UUID | None = None
    name: str = "DPU"


@dataclass
class _Blob:
    """A section under construction whose parts point at each other by offset."""

    data: bytearray = field(default_factory=bytearray)

    def add(self, part: bytes, align: int = 8) -> int:
        self.data += bytes(-len(self.data) % align)
        offset = len(self.data)
        self.data += part
        return offset


def build(
    pdis: Sequence[PdiSpec],
    kernels: Sequence[KernelSpec] = (KernelSpec(),),
    *,
    columns: int = 8,
    start_columns: Sequence[int] = (0,),
    ops_per_cycle: int = 2048,
    inference_fingerprint: int = 0,
    uuid: _uuid.UUID | None = None,
    timestamp: int = 0,
) -> bytes:
    """The bytes of an xclbin with these PDIs and kernels, for a partition `columns` wide.

    Raises BadArgument for values the format cannot hold.
    """
    _check(pdis, kernels, columns, start_columns)
    sections = [
        (layout.MEM_TOPOLOGY, _memories()),
        (
            layout.AIE_PARTITION,
            _partition(pdis, columns, start_columns, ops_per_cycle, inference_fingerprint),
        ),
        (layout.EMBEDDED_METADATA, _metadata(kernels)),
        (layout.IP_LAYOUT, _ip_layout(kernels)),
        (layout.CONNECTIVITY, _connectivity(kernels)),
        (layout.ASK_GROUP_CONNECTIVITY, _connectivity(kernels)),
        (layout.ASK_GROUP_TOPOLOGY, _memories()),
    ]
    head = layout.HEADER_BYTES + len(sections) * layout.SECTION_HEADER.size
    headers, body = bytearray(), _Blob(bytearray(head))
    for kind, data in sections:
        offset = body.add(data)
        headers += layout.SECTION_HEADER.pack(kind, b"", offset, len(data))
    body.add(b"")
    out = body.data
    out[:8] = layout.MAGIC
    out[8:12] = pack("<i", -1)
    out[12:40] = b"\xff" * 28
    out[layout.HEADER_BYTES : head] = headers
    content = hashlib.blake2b(out, digest_size=16).digest()
    identity = (uuid or _uuid.UUID(bytes=content, version=4)).bytes
    out[layout.UNIQUE_ID_AT : layout.LENGTH_AT] = content[:8]
    layout.AXLF_HEADER.pack_into(
        out,
        layout.LENGTH_AT,
        len(out),
        timestamp,
        0,
        0,
        2,
        1,
        0,
        0,
        bytes(16),
        b"",
        identity,
        b"",
        len(sections),
    )
    return bytes(out)


def _check(
    pdis: Sequence[PdiSpec], kernels: Sequence[KernelSpec], columns: int, start_columns: Sequence[int]
) -> None:
    problem = ""
    if not pdis or not kernels:
        problem = "at least one PDI and one kernel are needed"
    elif not 0 < columns < 1 << 10 or any(not 0 <= c < 1 << 16 for c in start_columns):
        problem = f"{columns} columns starting at {list(start_columns)} cannot be written"
    for kernel in kernels:
        if len(f"{kernel.name}:{kernel.instance}".encode()) >= _NAME_BYTES:
            problem = f"the name {kernel.name}:{kernel.instance} is longer than {_NAME_BYTES - 1} bytes"
        if not 0 <= kernel.kernel_id < 1 << 12:
            problem = f"kernel id {kernel.kernel_id:#x} does not fit 12 bits"
    for pdi in pdis:
        if not pdi.data:
            problem = "a PDI is empty"
    if problem:
        raise BadArgument(problem, call="xclbin writer", remedy="Correct the arguments")


def _partition(
    pdis: Sequence[PdiSpec], columns: int, start_columns: Sequence[int], ops: int, fingerprint: int
) -> bytes:
    blob = _Blob(bytearray(layout.PARTITION.size))
    name = blob.add(b"QoS\0")
    commit = blob.add(b"\0")
    starts = blob.add(b"".join(pack("<H", c) for c in start_columns))
    table = blob.add(bytes(len(pdis) * layout.PDI.size))
    for index, pdi in enumerate(pdis):
        image = blob.add(pdi.data)
        group_name = blob.add(pdi.name.encode() + b"\0")
        ids = blob.add(b"".join(pack("<Q", k) for k in pdi.kernel_ids))
        group = blob.add(
            layout.CDO_GROUP.pack(group_name, layout.CDO_PRIMARY, index + 1, len(pdi.kernel_ids), ids, 0, 0)
        )
        identity = pdi.uuid or _uuid.UUID(bytes=hashlib.blake2b(pdi.data, digest_size=16).digest(), version=4)
        layout.PDI.pack_into(
            blob.data, table + index * layout.PDI.size, identity.bytes, len(pdi.data), image, 1, group
        )
    layout.PARTITION.pack_into(
        blob.data,
        0,
        0,
        name,
        ops,
        fingerprint,
        0,
        columns,
        len(start_columns),
        starts,
        len(pdis),
        table,
        commit,
    )
    return bytes(blob.data)


def _memories() -> bytes:
    return (
        layout.COUNT.pack(len(_MEMORIES))
        + bytes(4)
        + b"".join(
            layout.MEM_DATA.pack(layout.MEM_DRAM, 1, size, base, tag.encode())
            for tag, size, base in _MEMORIES
        )
    )


def _ip_layout(kernels: Sequence[KernelSpec]) -> bytes:
    return (
        layout.COUNT.pack(len(kernels))
        + bytes(4)
        + b"".join(
            layout.IP_DATA.pack(
                layout.IP_PS_KERNEL,
                layout.kernel_properties(k.kernel_id, k.functional),
                layout.NO_ADDRESS,
                f"{k.name}:{k.instance}".encode(),
            )
            for k in kernels
        )
    )


def _connectivity(kernels: Sequence[KernelSpec]) -> bytes:
    tags = [tag for tag, _, _ in _MEMORIES]
    entries = [
        layout.CONNECTION.pack(argument, index, tags.index(memory))
        for index in range(len(kernels))
        for argument, (_, _, _, _, _, memory) in enumerate(_ARGUMENTS)
        if memory is not None
    ]
    return layout.COUNT.pack(len(entries)) + b"".join(entries)


def _metadata(kernels: Sequence[KernelSpec]) -> bytes:
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<project name="amdxdna">',
        '<platform vendor="amd" boardid="npu" name="npu" featureRomTime="0">',
        '<device name="npu" fpgaDevice="">',
        '<core name="OCL_REGION_0" type="clc_region">',
    ]
    for kernel in kernels:
        lines.append(f'<kernel name={quoteattr(kernel.name)} language="c" type="dpu">')
        lines.append(
            f'<extended-data subtype="1" functional="{kernel.functional}" '
            f'dpu_kernel_id="{kernel.kernel_id:#x}"/>'
        )
        for index, (name, is_buffer, size, offset, ctype, _) in enumerate(_ARGUMENTS):
            lines.append(
                f'<arg name="{name}" addressQualifier="{int(is_buffer)}" id="{index}" '
                f'size="{size:#x}" offset="{offset:#x}" hostOffset="0x0" hostSize="{size:#x}" '
                f'type="{ctype}"/>'
            )
        lines.append(f"<instance name={quoteattr(kernel.instance)}/>")
        lines.append("</kernel>")
    lines += ["</core>", "</device>", "</platform>", "</project>", ""]
    return "\n".join(lines).encode()
