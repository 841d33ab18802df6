"""Numbers of the AXLF container ("xclbin2"), shared by the reader and the writer.

Facts from XRT's public header (core/include/xrt/detail/xclbin.h). All fields are little-endian; a struct's
offsets are from its own start, and arrays inside a section are (count, offset from the section's start).
"""

from __future__ import annotations

from struct import Struct

MAGIC = b"xclbin2\0"

# struct axlf up to the section headers: magic, signature length, reserved 28, key block 256, unique id, then
# struct axlf_header at 304.
HEADER_BYTES = 456
UNIQUE_ID_AT = 296
LENGTH_AT = 304
# length, timestamp, feature ROM timestamp, patch, major, minor, mode, action mask, interface uuid, VBNV,
# uuid, debug binary, number of sections
AXLF_HEADER = Struct("<QQQHBBHH16s64s16s16sI4x")
SECTION_HEADER = Struct("<I16s4xQQ")  # kind, name, offset, size

EMBEDDED_METADATA = 2
MEM_TOPOLOGY = 6
CONNECTIVITY = 7
IP_LAYOUT = 8
ASK_GROUP_TOPOLOGY = 26
ASK_GROUP_CONNECTIVITY = 27
AIE_PARTITION = 32

KIND_NAMES = dict(
    enumerate(
        (
            "BITSTREAM",
            "CLEARING_BITSTREAM",
            "EMBEDDED_METADATA",
            "FIRMWARE",
            "DEBUG_DATA",
            "SCHED_FIRMWARE",
            "MEM_TOPOLOGY",
            "CONNECTIVITY",
            "IP_LAYOUT",
            "DEBUG_IP_LAYOUT",
            "DESIGN_CHECK_POINT",
            "CLOCK_FREQ_TOPOLOGY",
            "MCS",
            "BMC",
            "BUILD_METADATA",
            "KEYVALUE_METADATA",
            "USER_METADATA",
            "DNA_CERTIFICATE",
            "PDI",
            "BITSTREAM_PARTIAL_PDI",
            "PARTITION_METADATA",
            "EMULATION_DATA",
            "SYSTEM_METADATA",
            "SOFT_KERNEL",
            "ASK_FLASH",
            "AIE_METADATA",
            "ASK_GROUP_TOPOLOGY",
            "ASK_GROUP_CONNECTIVITY",
            "SMARTNIC",
            "AIE_RESOURCES",
            "OVERLAY",
            "VENDER_METADATA",
            "AIE_PARTITION",
            "IP_METADATA",
            "AIE_RESOURCES_BIN",
            "AIE_TRACE_METADATA",
        )
    )
)

COUNT = Struct("<i")  # the count that starts MEM_TOPOLOGY, IP_LAYOUT (entries at 8) and CONNECTIVITY (at 4)
MEM_DATA = Struct("<BB6xQQ16s")  # type, used, size in KB, base address, tag
IP_DATA = Struct("<IIQ64s")  # type, properties, base address, name
CONNECTION = Struct("<iii")  # argument, index in IP_LAYOUT, index in MEM_TOPOLOGY

MEM_DRAM = 2
IP_PS_KERNEL = 7
ST_DPU = 1
NO_ADDRESS = 0xFFFFFFFFFFFFFFFF

# struct aie_partition: schema version, name (offset), operations per cycle, the two fingerprints, column
# width, start columns (count, offset) of u16, PDIs (count, offset), commit id (offset)
PARTITION = Struct("<B3xII4xQQH6xII72xIII52x")
PDI = Struct("<16sIIII64x")  # uuid, image (bytes, offset), CDO groups (count, offset)
CDO_GROUP = Struct("<IB3xQIIII64x")  # name, type, PDI id, DPU kernel ids (count, offset) of u64, pre groups
CDO_PRIMARY = 1

assert AXLF_HEADER.size == 152 and LENGTH_AT + AXLF_HEADER.size == HEADER_BYTES
assert SECTION_HEADER.size == 40 and MEM_DATA.size == 40 and IP_DATA.size == 80 and CONNECTION.size == 12
assert PARTITION.size == 184 and PDI.size == 96 and CDO_GROUP.size == 96


def kernel_properties(kernel_id: int, functional: int) -> int:
    """IP_LAYOUT's properties word of a DPU kernel: subtype DPU, functional (2 bits), kernel id (12 bits)."""
    return ST_DPU | (functional & 3) << 4 | (kernel_id & 0xFFF) << 16
