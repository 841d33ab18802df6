"""One emulated device: the NPU, its memory, its clients, and the watchdog over its commands."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from time import sleep

from amdxdna.emu.driver import clocks, hwctx, jobs
from amdxdna.emu.driver.bo import Bo
from amdxdna.emu.driver.client import Client
from amdxdna.emu.driver.memory import DeviceMemory
from amdxdna.emu.driver.store import error
from amdxdna.emu.faults import Faults
from amdxdna.emu.npu import Npu
from amdxdna.emu.options import EmuOptions
from amdxdna.text import printable

HOLDER_PID = 0x7FFFFFFE
"""Process id of the pretended process that holds `held_slots`: no real process has it."""
RECONFIGURE = 0.2
"""Part of the timeout that passes before a context made anew has its CUs (0.4 s of 2 s)."""
JIFFIES = 0.99
"""The kernel counts in ticks: commands sent within the same few milliseconds are sent at the same time."""
_LIVE: weakref.WeakSet[EmuDriver] = weakref.WeakSet()


class EmuDriver:
    """A device. `lock` is the driver's device lock: contexts, queries and power change under it.

    Lock order: device lock, context lock, memory lock. Thread-safe.
    """

    clock_max = clocks.LEVELS[clocks.TOP][1]

    def __init__(self, options: EmuOptions, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives the seconds that the watchdog counts; whoever sets it forward calls :meth:`look`."""
        self.options = options
        self.clock = clock
        self.kind = options.personality
        self.lock = threading.RLock()
        self.faults = Faults(options.faults)
        self.memory = DeviceMemory(options.address == "pasid")
        # Virtual contexts share the firmware's slots in time.
        slots = self.kind.context_limit or options.slots
        self.npu = Npu(self.memory, slots=slots, columns=options.columns, threads=options.threads,
                       instant=options.instant, log=self.log, clock=lambda: self.clock())
        self.memory.computing = lambda: self.npu.computing
        self.clients: list[Client] = []
        self.power_mode = 0
        self.default_level = clocks.TOP
        self.level = clocks.TOP
        self.force_preempt = 0
        self.frame_boundary_preempt = 0
        self.last_async_error = bytes(24)
        self.progressed = 0.0
        """When a command was last sent or answered, on the whole device."""
        self.idle_wait = min(2.0, self.kind.tdr) if self.kind.tdr else 2.0
        self.messages: deque[str] = deque(maxlen=256)
        """What a kernel log would show."""
        self._records: deque[tuple[float, str]] = deque(maxlen=32)
        self._told: set[str] = set()
        self._watching = False
        self._stopped = False
        self._wake = threading.Event()
        self._watchdog: threading.Thread | None = None
        self._pid = os.getpid()
        _LIVE.add(self)
        if options.held_slots:
            self._hold(options.held_slots)
        self.npu.faults = self.faults

    # -- clients

    def open(self, pid: int, kind: type[Client] = Client) -> Client:
        """A new open of the device by process `pid`. Raises the OSError of an injected fault."""
        refused = self.faults.event("open", errno.EACCES) if self.faults.active else 0
        if refused:
            raise error(refused)
        client = kind(self, pid)
        with self.lock:
            self.clients.append(client)
        return client

    def wait_gone(self, bo: Bo) -> None:
        """Waits until nothing here touches the user's memory behind a BO whose handle is gone."""
        self.memory.wait_gone(bo, 2 * self.idle_wait)

    def _hold(self, count: int) -> None:
        """Another process holds `count` contexts; they show in the queries and never end."""
        holder = Client(self, HOLDER_PID)
        self.clients.append(holder)
        for number in range(1, count + 1):
            context = hwctx.pretend(holder, number)
            holder.contexts[number] = context

    def log(self, line: str) -> None:
        """Keeps a line of the driver's log; on stderr the first time, unless the device is quiet."""
        self.messages.append(line)
        self._records.append((time.monotonic(), line))
        if not self.options.quiet and line not in self._told and len(self._told) < 50:
            self._told.add(line)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                print(f"amdxdna.emu: {printable(line)}", file=sys.stderr)

    def kernel_log(self) -> str:
        """The newest lines as :meth:`amdxdna.node.Node.text` gives a kernel's."""
        return "\n".join(f"{when:.6f} {line}" for when, line in self._records.copy())

    def set_default_clock(self, context: hwctx.Hwctx, columns: int) -> None:
        """A new context's QoS raises or sets the default clock level."""
        requested = hwctx.requested_gops(context)
        self.default_level = clocks.level_for(context.gops, context.fps, context.latency, requested,
                                              hwctx.OPS_PER_COLUMN * columns)
        if self.power_mode == 0:
            self.level = self.default_level

    # -- timeouts (TDR)

    def watch(self) -> None:
        """A command was sent: the watchdog must be awake."""
        if self._watching or not self.kind.tdr:
            return
        self._watching = True
        if self._watchdog is None:
            self._watchdog = threading.Thread(target=self._watchdog_main, daemon=True,
                                              args=(weakref.ref(self), self._wake, self.kind.tdr),
                                              name="amdxdna-emu watchdog")
            self._watchdog.start()
        self._wake.set()

    @staticmethod
    def _watchdog_main(device: weakref.ref[EmuDriver], wake: threading.Event, period: float) -> None:
        """Looks at every context when its oldest command may be due; sleeps while nothing is in flight."""
        while True:
            wake.wait()
            strong = device()
            if strong is None or strong._stopped:
                return
            delay = strong.look()
            if delay is None and strong.progressed + period < strong.clock():
                wake.clear()
                strong._watching = False
                # A command sent since the look, before the flag fell, found the watchdog awake: look again.
                delay = strong.look()
                if delay is None:
                    del strong
                    continue
                strong._watching = True
                wake.set()
            del strong
            sleep(period if delay is None else min(delay, period))

    def look(self) -> float | None:
        """Handles what is due; seconds until the next look, None when nothing is in flight.

        A command's time counts while nothing on the device makes progress: not before it runs, nor while any
        command computes, or would if its thread were given the processor.
        """
        tdr = self.kind.tdr
        soonest: float | None = None
        for client in list(self.clients):
            for context in list(client.contexts.values()):
                now = self.clock()
                if context.jobs and context.head_since + tdr <= now:
                    progressed = max(self.progressed, self.npu.waiting_since)
                    if progressed + tdr * JIFFIES > now or self.npu.computing:
                        # Something on the device made progress: this context gets another period.
                        context.head_since = now
                    else:
                        self._time_out(context)
                self.catch_up(context)
                for due in (context.head_since + tdr if context.jobs else 0, context.configure_at):
                    if due:
                        soonest = min(due - now, 1e9 if soonest is None else soonest)
        return None if soonest is None else max(soonest, 0.001)

    def _time_out(self, context: hwctx.Hwctx) -> None:
        """The oldest command times out, the rest of the queue aborts, and the context is made anew."""
        with self.lock:
            if context.id not in context.client.contexts or context.firmware is None or not context.jobs:
                return
            if context.head_since + self.kind.tdr > self.clock():
                return  # somebody else has seen to it
            self.log("TDR timeout detected")
            _, report = self.npu.health(context.firmware)
            with context.lock:
                hwctx.disconnect(context)
                jobs.end_all(context, report)
                # Its CUs follow later: whoever submits before that meets a context without any.
                context.configure_at = self.clock() + RECONFIGURE * self.kind.tdr
                try:
                    hwctx.reconnect(context)
                except OSError as reason:
                    self.log(f"context could not be made anew: {reason}")

    def catch_up(self, context: hwctx.Hwctx) -> None:
        """Configures a context that was made anew, when that is due: whoever looks at it first does so."""
        if not 0 < context.configure_at <= self.clock():
            return
        with self.lock, context.lock:
            if not context.configure_at:
                return
            context.configure_at = 0.0
            try:
                hwctx.configure_firmware(context)
            except OSError as reason:
                self.log(f"CUs could not be configured again: {reason}")

    # -- the end

    def shutdown(self, seconds: float) -> None:
        """Ends the workers, at most that long, and the watchdog; commands in flight stay unanswered."""
        if self._pid == os.getpid():
            self._stopped = True
            self._wake.set()
            self.npu.close(seconds)

    def __del__(self) -> None:
        wake = getattr(self, "_wake", None)
        if wake is not None:
            wake.set()


def shutdown_all(seconds: float = 1.0) -> None:
    """Shuts every device of this process down; for a process's exit."""
    end = time.monotonic() + seconds
    for device in list(_LIVE):
        device.shutdown(max(end - time.monotonic(), 0.0))
