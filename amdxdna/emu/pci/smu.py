"""The system management unit's mailbox: power on and off, and the two clock levels."""

from __future__ import annotations

from . import registers as reg

POWER_ON, POWER_OFF, SET_SOFT_LEVEL, SET_HARD_LEVEL = 3, 4, 7, 8
_OK, _UNKNOWN = 1, 0xFE


class Smu:
    """Answers at once; the driver polls for a non-zero response (drivers/accel/amdxdna/aie2_smu.c).

    `fault` is the response given instead; 0 means that none comes. `log` holds (command, argument) pairs.
    """

    def __init__(self, bars: reg.Bars) -> None:
        self._bars = bars
        self.fault: int | None = None
        self.powered = False
        self.level = 0
        self.log: list[tuple[int, int]] = []

    def reset(self) -> None:
        """Switches the NPU off."""
        self.powered = False
        self.level = 0
        self.log = []

    def run(self) -> None:
        """The driver wrote the command: runs it on the argument in its register."""
        command = self._bars.load(reg.SMU_BAR, reg.SMU_COMMAND)
        argument = self._bars.load(reg.SMU_BAR, reg.SMU_ARGUMENT)
        self.log.append((command, argument))
        response = _OK
        if command in (POWER_ON, POWER_OFF):
            self.powered = command == POWER_ON
        elif command in (SET_SOFT_LEVEL, SET_HARD_LEVEL):
            self.level = argument
        else:
            response = _UNKNOWN
        self._bars.store(reg.SMU_BAR, reg.SMU_RESPONSE, response if self.fault is None else self.fault)
