"""The platform security processor's mailbox, as the driver uses it to start and stop the firmware."""

from __future__ import annotations

from collections.abc import Callable

from . import registers as reg

VALIDATE, START, RELEASE = 1, 2, 3


class Psp:
    """Answers the three commands. `start` boots the firmware, `stop` ends it.

    The driver writes a command and its arguments, rings, waits for the ready bit and then reads the
    response where the first argument was: 0 is success (drivers/accel/amdxdna/aie2_psp.c).
    `faults` maps a command to the response given instead; None means that it never becomes ready.
    """

    def __init__(self, bars: reg.Bars, start: Callable[[], None], stop: Callable[[], None]) -> None:
        self._bars = bars
        self.start = start
        self.stop = stop
        self.faults: dict[int, int | None] = {}
        self.validated = False

    def reset(self) -> None:
        """Makes it ready for commands, with nothing loaded."""
        self.validated = False
        self._bars.store(reg.PSP_BAR, reg.PSP_COMMAND, reg.PSP_READY)

    def ring(self) -> None:
        """The driver rang: runs the command in the registers."""
        command = self._bars.load(reg.PSP_BAR, reg.PSP_COMMAND)
        response: int | None = 0
        if command in self.faults:
            response = self.faults[command]
        elif command == VALIDATE:
            self.validated = True
        elif command == START and self.validated:
            self.start()
        elif command == RELEASE:
            self.stop()
        else:
            response = 0xFFFF0006
        if response is None:
            self._bars.store(reg.PSP_BAR, reg.PSP_COMMAND, 0)
            return
        self._bars.store(reg.REGISTERS_BAR, reg.PSP_RESPONSE, response)
        self._bars.store(reg.PSP_BAR, reg.PSP_COMMAND, reg.PSP_READY | command)
