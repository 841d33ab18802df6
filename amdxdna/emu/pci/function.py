"""The NPU2 PCI function: configuration space, BARs, and what happens when a register is written."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

from . import registers as reg
from .firmware import Firmware, FirmwareOptions
from .guest_memory import GuestMemory
from .msix import Interrupts, capability
from .psp import Psp
from .smu import Smu
from .vfio_user import CONFIG_REGION

_MSIX_CAPABILITY = 0x40
_STATUS_CAPABILITIES = 0x10
_BAR2 = 0x18
_BAR_64BIT_PREFETCHABLE = 0xC
_LONGEST_COMMAND = 30.0  # seconds


def configuration_space() -> bytes:
    """The 256 bytes a guest finds at reset (PCI Local Bus Specification 3.0, section 6.1)."""
    space = bytearray(256)
    struct.pack_into(
        "<HHHHI",
        space,
        0,
        reg.VENDOR_AMD,
        reg.DEVICE_NPU2,
        0,
        _STATUS_CAPABILITIES,
        reg.CLASS_SIGNAL_PROCESSING << 8 | reg.REVISION_STRIX,
    )
    struct.pack_into("<I", space, _BAR2, _BAR_64BIT_PREFETCHABLE)
    struct.pack_into("<HH", space, 0x2C, reg.VENDOR_AMD, reg.DEVICE_NPU2)
    space[0x34] = _MSIX_CAPABILITY
    space[_MSIX_CAPABILITY : _MSIX_CAPABILITY + 12] = capability(reg.VECTORS, reg.MSIX_BAR)
    return bytes(space)


class Npu2Function:
    """One function with its firmware; implements :class:`.vfio_user.Function`.

    Register accesses come from the server's thread and completions from the NPU model's: one lock
    serialises them. `log` receives one line an event.
    """

    def __init__(
        self, options: FirmwareOptions | None = None, log: Callable[[str], None] = lambda _: None
    ) -> None:
        self.interrupts = Interrupts(reg.VECTORS)
        self.memory = GuestMemory()
        self.lock = threading.RLock()
        self.bars = reg.Bars()
        self.firmware = Firmware(self.bars, self.interrupts, self.memory, self.lock, options, log)
        self.psp = Psp(self.bars, self.firmware.start, self.firmware.stop)
        self.smu = Smu(self.bars)
        self._log = log
        self._configuration = bytearray(configuration_space())
        self._doorbells: dict[tuple[int, int], Callable[[], None]] = {
            (reg.PSP_BAR, reg.PSP_INTERRUPT): self._ring_psp,
        }
        self.psp.reset()

    def region_size(self, region: int) -> int:
        return len(self._configuration) if region == CONFIG_REGION else self.bars.size(region)

    def read(self, region: int, offset: int, count: int) -> bytes:
        with self.lock:
            if region == CONFIG_REGION:
                data = bytes(self._configuration[offset : offset + count])
                return data + bytes(count - len(data))
            return self.bars.read(region, offset, count)

    def write(self, region: int, offset: int, data: bytes) -> None:
        with self.lock:
            if region == CONFIG_REGION:
                # QEMU keeps the fields with side effects; the function only remembers what was written.
                end = min(offset + len(data), len(self._configuration))
                self._configuration[offset:end] = data[: max(0, end - offset)]
                return
            self.bars.write(region, offset, data)
            if int.from_bytes(data[:4], "little") == 1:
                doorbell = self._doorbells.get((region, offset))
                if doorbell:
                    doorbell()
            if (region, offset) == (reg.SMU_BAR, reg.SMU_COMMAND):
                # Drivers that also ring (Linux's, AMD's before 2026) do so afterwards; AMD's newer ones only
                # write the command (xdna-driver 222997c5), so the write is what starts it.
                self._start_smu()
            if region == reg.REGISTERS_BAR and offset >= reg.MAILBOX_REGISTERS:
                self.firmware.pointer_written(offset)

    def map_dma(self, address: int, size: int, fd: int, offset: int) -> None:
        self.memory.map(address, size, fd, offset)

    def unmap_dma(self, address: int, size: int) -> None:
        self.memory.unmap(address, size)

    def unmap_all(self) -> None:
        self.memory.clear()

    def reset(self) -> None:
        """Makes all as after power-up: no firmware, registers zero, configuration space as at reset."""
        with self.lock:
            self._log("reset")
            self.firmware.stop()
            self.interrupts.clear()
            self.bars.clear()
            self._configuration[:] = configuration_space()
            self.psp.reset()
            self.smu.reset()

    def configure(self, options: FirmwareOptions) -> None:
        """Another firmware from the next probe on; what runs now ends."""
        with self.lock:
            self.reset()
            self.firmware.options = options
            self.psp.faults = {}
            self.psp.start = self.firmware.start
            self.smu.fault = None
            self.firmware.overrides = {}

    def close(self) -> None:
        """Ends the firmware and gives the guest's memory back, unless a command computes for too long."""
        with self.lock:
            self.firmware.stop()
        if self.firmware.ended(_LONGEST_COMMAND):
            self.memory.close()

    def _ring_psp(self) -> None:
        self._log(f"psp command {self.bars.load(reg.PSP_BAR, reg.PSP_COMMAND)}")
        self.psp.ring()

    def _start_smu(self) -> None:
        self._log(
            f"smu command {self.bars.load(reg.SMU_BAR, reg.SMU_COMMAND)}"
            f" argument {self.bars.load(reg.SMU_BAR, reg.SMU_ARGUMENT)}"
        )
        self.smu.run()
