"""Runs a target's inputs in a child process, so that a crash or a hang is a finding like any other."""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: CPU seconds and bytes that one input may take, and wall-clock seconds without progress that are a hang.
SECONDS, BYTES, HANG = 2.0, 1 << 30, 300


@dataclass(frozen=True)
class Ready:
    """A parser and its inputs: `make(rng)` gives one, `parse(input)` reads it or raises one of `allowed`.

    `seeds` are inputs that come first, each made when it is its turn.
    """

    parse: Callable[[Any], object]
    make: Callable[[random.Random], Any]
    allowed: tuple[type[BaseException], ...] = ()
    seeds: tuple[Callable[[], Any], ...] = ()
    one_line: bool = True
    """Whether every refusal is one printable line."""


@dataclass
class Result:
    """What came of one target. `faults` name the input: seeds are -1, -2, ..."""

    name: str
    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    faults: list[str] = field(default_factory=list)


def input_of(ready: Ready, name: str, seed: int, index: int) -> Any:
    """Input number `index`."""
    if index < 0:
        return ready.seeds[-1 - index]()
    return ready.make(random.Random(f"{seed} {name} {index}"))


def _child(
    name: str, start: Callable[[Path], Ready], folder: str, seed: int, count: int, far: mmap.mmap, out: int
) -> None:
    faulthandler.disable()  # the parent tells a crash; its stack would stand in the middle of the output
    ready = start(Path(folder))
    result = Result(name)
    for index in range(3):  # what is loaded once is no input's memory
        _one(ready, name, seed, index, Result(name))
    held = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (held + BYTES, resource.RLIM_INFINITY))
    began = time.monotonic()
    for index in range(-len(ready.seeds), count):
        struct.pack_into("<q", far, 0, index)
        struct.pack_into("<q", far, 8, struct.unpack_from("<q", far, 8)[0] + 1)
        _one(ready, name, seed, index, result)
        if len(result.faults) >= 10:
            break
    result.seconds = time.monotonic() - began
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.write(out, json.dumps(vars(result)).encode())


def _scratch() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _one(ready: Ready, name: str, seed: int, index: int, result: Result) -> None:
    given = input_of(ready, name, seed, index)
    began = time.process_time()
    try:
        ready.parse(given)
    except ready.allowed as error:
        result.refused += 1
        text = str(error)
        if ready.one_line and (not text.isprintable() or len(text) > 4000):
            result.faults.append(f"input {index}: an error of {len(text)} characters, or not one line")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        result.faults.append(
            f"input {index}: {type(error).__name__} {str(error)[:200]!r} at {where.filename}:{where.lineno}"
        )
    took = time.process_time() - began
    result.inputs += 1
    result.slowest = max(result.slowest, took)
    if took > SECONDS:
        result.faults.append(f"input {index}: {took:.1f} s of CPU time")


def run(name: str, start: Callable[[Path], Ready], seed: int, count: int) -> Result:
    """Runs the seeds and `count` inputs of a target in a child process."""
    with tempfile.TemporaryDirectory(dir=_scratch()) as folder:
        return _run(name, start, folder, seed, count)


def _run(name: str, start: Callable[[Path], Ready], folder: str, seed: int, count: int) -> Result:
    sys.stdout.flush()
    sys.stderr.flush()
    far = mmap.mmap(-1, 16)
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(ours)
            _child(name, start, folder, seed, count, far, theirs)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(theirs)
    ended, state, seen, since = 0, 0, -1, time.monotonic()
    try:
        while not ended:
            time.sleep(0.02)
            ended, state = os.waitpid(pid, os.WNOHANG)
            done = struct.unpack_from("<q", far, 8)[0]
            if done != seen:
                seen, since = done, time.monotonic()
            elif not ended and time.monotonic() - since > HANG:
                os.kill(pid, signal.SIGKILL)
                ended, state = os.waitpid(pid, 0)
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with open(ours, "rb") as pipe:
        told = pipe.read()
    if told:
        return Result(**json.loads(told))
    index = struct.unpack_from("<q", far, 0)[0]
    how = f"signal {state & 127}" if state & 127 else f"status {state >> 8}"
    return Result(name, seen, faults=[f"input {index}: the process ended ({how}), or hung"])
