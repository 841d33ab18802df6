"""What the driver and the firmware tell about the device: the records that :mod:`amdxdna.query` fills."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from amdxdna._native import lib
from amdxdna.packet import Health
from amdxdna.version import DrmVersion


@dataclass(frozen=True)
class TileInfo:
    """One kind of tile of the array: rows, first row, and what each tile has."""

    row_count: int
    row_start: int
    dma_channel_count: int
    lock_count: int
    event_reg_count: int


@dataclass(frozen=True)
class AieMetadata:
    """The array: bytes of one column's status, columns, rows, hardware version, and its kinds of tiles."""

    col_size: int
    cols: int
    rows: int
    version: tuple[int, int]
    core: TileInfo
    mem: TileInfo
    shim: TileInfo


EMULATED_BUILD = 58_597
"""The firmware build by which this package's NPU model names itself, in process and behind Linux's own driver
alike, so that its kernels are never given to real firmware. Released NPU firmware has had builds of at most
four digits (AMD's linux-firmware file names, amdnpu/17f0_*/npu.sbin.MAJOR.MINOR.PATCH.BUILD)."""


@dataclass(frozen=True)
class FirmwareVersion:
    """The NPU firmware's version."""

    major: int
    minor: int
    patch: int
    build: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}.{self.build}"

    @property
    def emulated(self) -> bool:
        """Whether it is the emulated NPU's."""
        return self.build == EMULATED_BUILD


@dataclass(frozen=True)
class Clock:
    """A clock's name and frequency in MHz."""

    name: str
    mhz: int


@dataclass(frozen=True)
class Sensor:
    """One sensor reading; values are in `units` times 10 ** `unitm`."""

    label: str
    value: int
    maximum: int
    average: int
    highest: int
    status: str
    units: str
    unitm: int
    type: int


@dataclass(frozen=True)
class ResourceInfo:
    """Limits and use: H clock in MHz, TOPS, contexts (`npu_task`)."""

    npu_clk_max: int
    npu_tops_max: int
    npu_task_max: int
    npu_tops_curr: int
    npu_task_curr: int


@dataclass(frozen=True)
class ContextInfo:
    """One hardware context of any process. Fields the driver does not report are 0."""

    context_id: int
    pid: int
    start_col: int
    num_col: int
    command_submissions: int
    command_completions: int
    migrations: int
    preemptions: int
    errors: int
    hwctx_id: int = 0
    priority: int = 0
    heap_usage: int = 0
    suspensions: int = 0
    active: bool = False
    gops: int = 0
    fps: int = 0
    latency: int = 0
    health: Health | None = None
    """Where the firmware says it stands; None where the driver does not tell (it came with DRM minor 9)."""


@dataclass(frozen=True)
class Telemetry:
    """The firmware's telemetry block, as it is; ``contexts`` maps firmware context ids to the driver's."""

    major: int
    minor: int
    type: int
    contexts: tuple[int, ...]
    data: bytes


_ERROR_NUMBERS = {
    3: "saturation",
    4: "floating point",
    5: "stream",
    6: "access",
    7: "bus",
    8: "instruction",
    9: "ECC",
    10: "lock",
    11: "DMA",
    12: "memory parity",
}
_ERROR_MODULES = {3: "core", 4: "memory tile", 5: "shim", 6: "NoC", 7: "PL"}


@dataclass(frozen=True)
class AsyncError:
    """The last error the array raised by itself; packed as drivers/accel/amdxdna/amdxdna_error.h says."""

    code: int
    timestamp_us: int
    extra: int

    @property
    def kind(self) -> str:
        """What kind of error it was, by name."""
        return _ERROR_NUMBERS.get(self.code & 0xFFFF, f"unknown ({self.code & 0xFFFF})")

    @property
    def module(self) -> str:
        """The module of the tile that raised it, by name."""
        return _ERROR_MODULES.get(self.code >> 32 & 0xFF, f"unknown ({self.code >> 32 & 0xFF})")

    @property
    def row(self) -> int:
        """The tile's row."""
        return self.extra >> 8 & 0xFF

    @property
    def column(self) -> int:
        """The tile's column."""
        return self.extra & 0xFF

    def __str__(self) -> str:
        return f"{self.kind} error in a {self.module} at row {self.row}, column {self.column}"


@dataclass(frozen=True)
class BoUsage:
    """Buffer bytes of one process: all, the driver's and runtime's own share, and of the device heap."""

    pid: int
    total: int
    internal: int
    heap: int


class PowerMode(IntEnum):
    """Power modes. TURBO needs a device without open contexts."""

    DEFAULT = lib.POWER_MODE_DEFAULT
    LOW = lib.POWER_MODE_LOW
    MEDIUM = lib.POWER_MODE_MEDIUM
    HIGH = lib.POWER_MODE_HIGH
    TURBO = lib.POWER_MODE_TURBO


@dataclass(frozen=True)
class DeviceInfo:
    """Everything at once; what the driver is too old for is None."""

    path: str
    emulated: bool
    version: DrmVersion
    metadata: AieMetadata
    aie_version: tuple[int, int]
    firmware: FirmwareVersion
    clocks: tuple[Clock, Clock]
    power_mode: PowerMode
    resources: ResourceInfo | None
    sensors: tuple[Sensor, ...] | None
    contexts: tuple[ContextInfo, ...]
