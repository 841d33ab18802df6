"""Runs in the guest: takes requests, one JSON object a line, on the second serial port and answers each.

Every request runs in a forked child of its own, so that whatever it opened is closed and whatever it broke
is gone when the answer leaves. Standard library only, and as little of it as will do: every import costs
time in an emulated machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import termios
import time
import traceback
from collections.abc import Callable
from typing import Any

PORT = "/dev/ttyS1"
DRIVER = "/sys/bus/pci/drivers/amdxdna"
NODES = "/dev/accel"


class KernelLog:
    """New kernel messages since the last look, as text lines."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)

    def take(self) -> list[str]:
        """The lines that arrived, without their prefix."""
        lines = []
        while True:
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                return lines
            except OSError:
                continue
            lines.append(record.decode(errors="replace").partition(";")[2].split("\n")[0])


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Polls until `condition()`; False when it did not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def unbind(bdf: str) -> dict[str, Any]:
    """Unbinds the driver from the function, if it is bound."""
    if os.path.exists(f"{DRIVER}/{bdf}"):
        with open(f"{DRIVER}/unbind", "w") as file:
            file.write(bdf)
    return {}


def bind(bdf: str) -> dict[str, Any]:
    """Binds the driver to the function, a probe from scratch; `errno` is 0 when its node appeared."""
    try:
        with open(f"{DRIVER}/bind", "w") as file:
            file.write(bdf)
    except OSError as error:
        return {"errno": error.errno}
    appeared = wait_for(lambda: os.path.isdir(NODES) and bool(os.listdir(NODES)), 30)
    return {"errno": 0 if appeared else None}


def shell(command: str) -> dict[str, Any]:
    """Runs a shell command; its exit status and output (both streams)."""
    reader, writer = os.pipe()
    streams = [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, writer, 2)]
    child = os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ, file_actions=streams)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as pipe:
        output = pipe.read()
    _, status = os.waitpid(child, 0)
    return {"status": os.waitstatus_to_exitcode(status), "output": output}


def call(target: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Calls `module:function` with the arguments; its result, which must be JSON."""
    module, _, name = target.partition(":")
    function: Any = __import__(module, fromlist=["_"])
    for part in name.split("."):
        function = getattr(function, part)
    return {"result": function(**arguments)}


def names() -> list[str]:
    """The name of every file of the root file system."""
    found: set[str] = set()
    for top in ("bin", "lib", "lib64", "usr", "app", "bundle"):
        for _, _, files in os.walk(f"/{top}"):
            found.update(files)
    return sorted(found)


OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "unbind": unbind,
    "bind": bind,
    "shell": shell,
    "call": call,
}


def in_child(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one request in a child within its `timeout` (seconds), then kills the child's whole group."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        os.close(reader)
        try:
            answer = OPERATIONS[request["op"]](**request.get("arguments", {}))
        except BaseException as error:
            kind = "skip" if type(error).__name__ == "Skip" else "error"
            answer = {kind: str(error) if kind == "skip" else traceback.format_exc()}
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
        os._exit(0)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    os.close(writer)
    data = b""
    end = time.monotonic() + request.get("timeout", 60)
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            break
        part = os.read(reader, 65536)
        if not part:
            break
        data += part
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        # Also what the request started and left running.
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if data:
        return json.loads(data)
    return {
        "error": f"no answer within {request.get('timeout', 60)} s"
        if ready == []
        else f"the test process ended with wait status {status:#x}"
    }


def main() -> None:
    """Serves requests until the machine ends."""
    port = os.open(PORT, os.O_RDWR | os.O_NOCTTY)
    attributes = termios.tcgetattr(port)
    attributes[0] = attributes[1] = attributes[3] = 0
    attributes[2] = termios.CS8 | termios.CREAD | termios.CLOCAL
    attributes[4] = attributes[5] = termios.B115200
    attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
    termios.tcsetattr(port, termios.TCSANOW, attributes)
    log = KernelLog()
    for name in sys.argv[1:]:
        __import__(name)
    nodes = os.listdir(NODES) if os.path.isdir(NODES) else []
    log.take()
    hello = {"ready": time.monotonic(), "nodes": nodes}

    def send(answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(port, data) :]

    send(hello)
    buffer = b""
    while True:
        buffer += os.read(port, 65536)
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            began = time.monotonic()
            answer = in_child(json.loads(line))
            answer["seconds"] = time.monotonic() - began
            answer["log"] = log.take()
            send(answer)


if __name__ == "__main__":
    main()
