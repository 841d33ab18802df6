"""One emulated device: the NPU, its memory, its clients, and the watchdog over its commands."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from amdxdna.emu.driver import hwctx as contexts
from amdxdna.emu.driver import jobs, teardown
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.objects import Client, Device, Hwctx
from amdxdna.emu.driver.table import entries
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.threads import start
from amdxdna.weak import LiveSet

HOLDER_PID = 0x7FFFFFFE
"""Process id of the pretended process that holds `held_slots`: no real process has it."""
RECONFIGURE = 0.2
"""Part of the timeout that passes before a context made anew has its CUs (0.4 s of 2 s)."""
JIFFIES = 0.99
"""The kernel counts in ticks: commands sent within the same few milliseconds are sent at the same time."""
_LIVE: LiveSet[EmuDriver] = LiveSet()


class EmuDriver(Device):
    """A device with its watchdog; :meth:`open` gives its clients. Thread-safe."""

    def __init__(self, options: EmuOptions, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives the seconds that the watchdog counts; whoever sets it forward calls :meth:`look`."""
        super().__init__(options, clock, entries(options.personality.level))
        self._watching = False
        self._stopped = False
        self._bell: SimpleQueue[object] = SimpleQueue()
        """What wakes the watchdog; anything but None ends it. Its put is C, which may run in a finalizer."""
        self._watched = False
        self._start_lock = threading.Lock()
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

    def _hold(self, count: int) -> None:
        """Another process holds `count` contexts; they show in the queries and never end."""
        holder = Client(self, HOLDER_PID)
        self.clients.append(holder)
        for number in range(1, count + 1):
            context = contexts.pretend(holder, number)
            holder.contexts[number] = context

    # -- timeouts (TDR)

    def watch(self) -> None:
        """A command was sent: the watchdog must be awake."""
        if self._watching or not self.kind.tdr:
            return
        if not self._watched:
            with self._start_lock:
                self._start_watchdog(self.kind.tdr)
        self._watching = True
        self._bell.put(None)

    def _start_watchdog(self, tdr: float) -> None:
        """Starts it, once. OSError: there can be no thread."""
        if not self._watched:
            itself = weakref.ref(self, self._bell.put)
            start("amdxdna-emu watchdog", self._watchdog_main, itself, self._bell, tdr)
            self._watched = True

    @staticmethod
    def _watchdog_main(device: weakref.ref[EmuDriver], bell: SimpleQueue[object], period: float) -> None:
        """Looks at every context when its oldest command may be due; sleeps while nothing is in flight."""
        sleep: float | None = None
        while True:
            with contextlib.suppress(Empty):
                if bell.get(timeout=sleep) is not None:
                    return
            strong = device()
            if strong is None or strong._stopped:
                return
            delay = strong.look()
            if delay is None and strong.progressed + period >= strong.clock():
                delay = period
            elif delay is None:
                strong._watching = False
                # A command sent since the look, before the flag fell, found the watchdog awake: look again.
                delay = strong.look()
                if delay is not None:
                    strong._watching = True
            sleep = None if delay is None else min(delay, period)
            del strong

    def look(self) -> float | None:
        """Handles what is due; seconds until the next look, None when nothing is in flight.

        A command's time counts while nothing on the device makes progress: not before it runs, nor while any
        command computes, or would if its thread were given the processor.
        """
        tdr = self.kind.tdr
        soonest: float | None = None
        for client in list(self.clients):
            for context in list(client.contexts.values()):
                if self._expired(context):
                    self._time_out(context)
                contexts.catch_up(context)
                now = self.clock()
                for due in (context.head_since + tdr if context.jobs else 0, context.configure_at):
                    if due:
                        soonest = min(due - now, 1e9 if soonest is None else soonest)
        return None if soonest is None else max(soonest, 0.001)

    def _expired(self, context: Hwctx) -> bool:
        """Whether the oldest command's time is up. Progress on the device gives it another period."""
        tdr = self.kind.tdr
        # With the lock no command is on its way: what a submit lists the NPU has, and it counts as computing.
        with context.lock:
            now = self.clock()
            if not context.jobs or context.head_since + tdr > now:
                return False
            progressed = max(self.progressed, self.npu.waiting_since)
            if progressed + tdr * JIFFIES > now or self.npu.computing:
                context.head_since = now
                return False
            return True

    def _time_out(self, context: Hwctx) -> None:
        """The oldest command times out, the rest of the queue aborts, and the context is made anew."""
        with self.lock:
            if context.id not in context.client.contexts or context.firmware is None or not context.jobs:
                return
            if context.head_since + self.kind.tdr > self.clock():
                return  # somebody else has seen to it
            self.log("TDR timeout detected")
            _, report = self.npu.health(context.firmware)
            with context.lock:
                contexts.disconnect(context)
                jobs.end_all(context, report)
                # Its CUs follow later: whoever submits before that meets a context without any.
                context.configure_at = self.clock() + RECONFIGURE * self.kind.tdr
                try:
                    contexts.reconnect(context)
                except OSError as reason:
                    self.log(f"context could not be made anew: {reason}")

    # -- the end

    def end_contexts(self, client: Client) -> None:
        teardown.flush(client)

    def lose(self) -> None:
        """Every open loses its contexts (amdxdna_remove of amdxdna_pci_drv.c) and may only close."""
        with self.lock:
            self.log("the device was removed")
            for client in self.clients:
                if client.pid != HOLDER_PID:
                    client.lost = True
                    teardown.flush(client)

    def shutdown(self, seconds: float) -> None:
        """Ends the watchdog, and the workers in at most `seconds`; commands in flight stay unanswered."""
        if self._pid == os.getpid():
            self._stopped = True
            self._bell.put(False)
            self.npu.close(seconds)


def shutdown_all(seconds: float = 1.0) -> None:
    """Shuts every device of this process down; for a process's exit."""
    end = time.monotonic() + seconds
    for device in _LIVE:
        device.shutdown(max(end - time.monotonic(), 0.0))
