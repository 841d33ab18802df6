"""Signals at chosen and at random moments, and what they may not leave behind."""

from __future__ import annotations

import _weakrefset
import contextlib
import dis
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from amdxdna import signals
from amdxdna.device import Device
from amdxdna.emu.driver.bo import DEV
from amdxdna.reaper import reap
from tests.support.descriptors import descriptors, opened

SOAK = int(os.environ.get("AMDXDNA_SOAK", "200"))
"""Interruptions of a soak. The quick run has few; AMDXDNA_SOAK=10000 is the full count."""
ROOT = str(Path(__file__).parents[2])
OURS = (ROOT + "/amdxdna/", ROOT + "/qwen35/")
# Behind these the interpreter looks for signals (a superset over the versions).
_CHECKS = (
    "RESUME",
    "CALL",
    "CALL_FUNCTION",
    "CALL_FUNCTION_KW",
    "CALL_FUNCTION_EX",
    "CALL_KW",
    "CALL_METHOD",
    "JUMP_BACKWARD",
    "JUMP_ABSOLUTE",
    "GEN_START",
)


_WEAK = tuple(module.__file__ or "" for module in (weakref, _weakrefset))
# Only a drop of the last reference, not a call, enters a function behind one of these.
_DROPS = ("POP_TOP", "STORE_FAST", "DELETE_FAST", "RETURN_VALUE", "DELETE_ATTR")


class Stop(BaseException):
    """What a user's handler raises."""


@contextlib.contextmanager
def handlers() -> Iterator[None]:
    """SIGINT: KeyboardInterrupt; SIGTERM: SystemExit; SIGUSR1 and SIGALRM: Stop.

    What Python drops of them, in a finalizer, is not kept: pytest would keep its frames, and what they hold.
    """

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stop

    chosen: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: end,
        signal.SIGUSR1: stop,
        signal.SIGALRM: stop,
    }
    told = sys.unraisablehook

    def drop(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, RAISED):
            told(dropped)

    before = {number: signal.signal(number, handler) for number, handler in chosen.items()}
    sys.unraisablehook = drop
    try:
        yield
    finally:
        sys.unraisablehook = told
        for number, handler in before.items():
            signal.signal(number, handler)


RAISED = (KeyboardInterrupt, SystemExit, Stop)


class Points:
    """Traces the packages' code in this thread, and sends a signal at the n-th place where one could come."""

    def __init__(self, at: int = -1, number: int = signal.SIGUSR1) -> None:
        self.count = 0
        self.at = at
        self.number = number
        self.where = ""
        self._before: dict[FrameType, str] = {}
        self._names: dict[CodeType, dict[int, str]] = {}

    def __enter__(self) -> Points:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._before.clear()

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS) or frame.f_code.co_filename.endswith("/signals.py"):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._opcode

    def _name(self, frame: FrameType) -> str:
        """The instruction a frame is at."""
        code = frame.f_code
        names = self._names.get(code)
        if names is None:
            names = self._names[code] = {i.offset: i.opname for i in dis.get_instructions(code)}
        return names.get(frame.f_lasti, "")

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            code = frame.f_code
            # Where a call has raised the interpreter does not look; 3.11 keeps the exception where a tracer
            # raises there.
            if self._before.get(frame, "RESUME") in _CHECKS and self._name(frame) != "PUSH_EXC_INFO":
                self.count += 1
                if self.count == self.at:
                    self.where = (
                        f"{code.co_filename}:{frame.f_lineno} {getattr(code, 'co_qualname', code.co_name)}"
                    )
                    signal.raise_signal(self.number)
            self._before[frame] = self._name(frame)
        elif event == "return":
            self._before.pop(frame, None)
        return self._opcode


class Callbacks(Points):
    """The same at places within what the interpreter calls when an object goes, and whatever that calls: code
    of ours or of anybody's, which it tells by `__del__`, by the weakref modules' names, or by who "calls".
    In a critical section handlers do not run, so nothing is lost in one."""

    def __init__(self, at: int = -1, number: int = signal.SIGUSR1) -> None:
        super().__init__(at, number)
        self.found: set[str] = set()
        self._inside: set[FrameType] = set()

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        code, caller = frame.f_code, frame.f_back
        if not signals.MAIN.noting and (
            caller in self._inside
            or code.co_name == "__del__"
            or (code.co_filename in _WEAK and code.co_name in ("_remove", "remove", "_cb", "__call__"))
            or (caller is not None and self._name(caller) in _DROPS)
        ):
            self._inside.add(frame)
            self.found.add(f"{code.co_filename}:{code.co_name}")
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return self._opcode
        return None

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        super()._opcode(frame, event, argument)
        if event == "return":
            self._inside.discard(frame)
        return self._opcode

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._inside.clear()


def callbacks(action: Callable[[], None]) -> set[str]:
    """What Python code is called when objects go that `action` makes; files and functions."""
    action()
    gc.collect()
    gc.freeze()  # what others left goes another time
    try:
        with Callbacks() as points:
            action()
            gc.collect()
            reap()
    finally:
        gc.unfreeze()
    return points.found


@contextlib.contextmanager
def unraisable(*kinds: type[BaseException]) -> Iterator[list[str]]:
    """What the interpreter drops of what handlers raise, or of these kinds, and where."""
    dropped: list[str] = []

    def note(what: sys.UnraisableHookArgs) -> None:
        if issubclass(what.exc_type, kinds or RAISED):
            dropped.append(f"{what.exc_type.__name__} in {what.object!r:.200}")

    before, sys.unraisablehook = sys.unraisablehook, note
    try:
        yield dropped
    finally:
        sys.unraisablehook = before


def everywhere(action: Callable[[], None], check: Callable[[str], None], most: int, seed: int = 1) -> int:
    """Runs `action` with a signal at each place in it (at `most` of them, chosen by `seed`) and calls `check`
    after each; how many were interrupted."""
    action()
    with Points() as points:
        action()
    chance = random.Random(seed)
    places = range(1, points.count + 1)
    chosen = list(places) if len(places) <= most else sorted(chance.sample(places, most))
    hit = 0
    for at in chosen:
        try:
            with Points(at, chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))) as points:
                action()
        except RAISED:
            hit += 1
        check(f"place {at}: {points.where}")
    return hit


def interrupted(
    action: Callable[[], object], longest: float, chance: random.Random
) -> type[BaseException] | None:
    """Repeats `action` until a signal comes, within `longest` seconds; which exception its handler raised."""
    number = chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM))
    wait = chance.uniform(1e-5, longest)
    timer = kind = None
    try:
        if number == signal.SIGALRM:
            signal.setitimer(signal.ITIMER_REAL, wait)
        else:
            timer = threading.Timer(wait, os.kill, (os.getpid(), number))
            timer.start()
        due = end = time.monotonic() + wait
        while time.monotonic() < end + 2:  # Python drops what a handler raises in a finalizer of its own
            action()
            if timer is not None and timer.is_alive():
                end = max(due, time.monotonic())
    except RAISED as error:
        kind = type(error)
    if timer is not None:
        timer.join()
    return kind


class Ledger:
    """What an open of the emulated device holds. Command buffers count apart: a context keeps a stock."""

    def __init__(self, device: Device) -> None:
        self._client = device.node.client
        self._driver = device.node.driver
        self._known = Counter(where for _, where in descriptors())

    def read(self) -> dict[str, object]:
        """Counts, after what was dropped has been given back."""
        reap()
        client = self._client
        bos = list(client.handles.values())
        data = [bo for bo in bos if not bo.internal or bo.kind == DEV]
        return {
            "buffers": len(data),
            "bytes": sum(bo.size for bo in data),
            "contexts": len(client.contexts),
            "timelines": len(client.syncobjs),
            "descriptors": self._opened(),
            "firmware contexts": self._driver.npu.contexts,
            "mappings": sum(not r.bo.internal for r in client.space),
            "in flight": sum(len(context.jobs) for context in client.contexts.values()),
            "busy": sum(bo.busy for bo in bos),
            "commands are few": len(bos) - len(data) < 64,
            "held by handlers": signals.MAIN.noting or signals.MAIN.replaced,
        }

    def _opened(self) -> dict[str, int]:
        """What is open that was not, and how many of each: what other tests left may go meanwhile."""
        return dict(Counter(where for _, where in opened()) - self._known)

    def settle(self, before: dict[str, object], where: str = "") -> None:
        """Waits until what is held is what was held `before`: a driver tells a command's end before it lets
        go of what it used."""
        end = time.monotonic() + 30
        while (now := self.read()) != before:
            assert time.monotonic() < end, f"{where}: {now} instead of {before}"
            gc.collect()
            time.sleep(0.01)


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Ends the process with every thread's stack when what is inside takes longer."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
