"""A trace on a time axis: the Chrome trace event format, which Perfetto and chrome://tracing open.

Format: the public "Trace Event Format" document; complete events ("X") and metadata ("M").
Programs are processes with their threads; each open of a node is a process of its own, whose threads are its
hardware contexts; stages of a model are a thread of the program.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_NPU = 1 << 24
"""Process ids of opens: behind those that Linux gives out (4,194,304 at most)."""
_STAGES = 1 << 24


class TimelineView:
    """Writes events as a JSON document, line by line; :meth:`finish` closes it.

    Made for :class:`amdxdna.trace.recorder.Recorder`'s views: called with each line's dictionary, in order.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._first = True
        self._named: set[tuple[int, int | None]] = set()
        self._submits: dict[tuple[int, int, int], str] = {}
        write('{"displayTimeUnit": "ms", "traceEvents": [\n')

    def __call__(self, line: dict[str, Any]) -> None:
        if "call" in line:
            self._call(line)
        elif "stage" in line:
            self._name(line["pid"], f"program {line['pid']}", _STAGES, "stages of the model")
            self._complete(line["stage"], line["pid"], _STAGES, line["t"] * 1e6, line["us"], {})

    def _call(self, line: dict[str, Any]) -> None:
        began, pid, tid = line["t"] * 1e6, line["pid"], line["tid"]
        self._name(pid, f"program {pid}", tid, f"thread {tid}")
        about = {"in": line["in"], "out": line["out"]}
        if "errno" in line:
            about |= {"errno": line["errno"], "meaning": line["meaning"]}
        self._complete(line["call"], pid, tid, began, line["us"], about)
        number = line["open"]
        if number is None or "errno" in line:
            return
        name = line["call"]
        if name == "CREATE_HWCTX":
            self._context(number, line["out"].get("handle"), "context created", began, line["us"])
        elif name == "DESTROY_HWCTX":
            self._context(number, line["in"].get("handle"), "context destroyed", began, line["us"])
        elif name == "EXEC_CMD":
            key = number, line["in"].get("hwctx", 0), line["out"].get("seq", 0)
            self._submits[key] = _label(line.get("packet"))
        for command in line.get("completed", ()):
            self._command(number, command, began + line["us"])

    def _context(self, number: int, handle: int | None, what: str, began: float, took: float) -> None:
        """The driver's work on a context: what swapping costs."""
        if handle is None:
            return
        self._name(_NPU + number, f"NPU, open {number}", handle, f"context {handle}")
        self._complete(what, _NPU + number, handle, began, took, {})

    def _command(self, number: int, command: dict[str, Any], ended: float) -> None:
        context = command["context"]
        label = self._submits.pop((number, context, command["seq"]), "command")
        self._name(_NPU + number, f"NPU, open {number}", context, f"context {context}")
        about = {"seq": command["seq"], "state": command["state"]}
        if command.get("health"):
            about["health"] = command["health"]
        name = label if command["state"] in ("COMPLETED", None) else f"{label} {command['state']}"
        # A wait tells when it noticed the end, which is when the command was over at the latest.
        self._complete(name, _NPU + number, context, ended - command["us"], command["us"], about)

    def _complete(
        self, name: str, pid: int, tid: int, began: float, took: float, about: dict[str, Any]
    ) -> None:
        self._event(
            {
                "name": name,
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": round(began, 3),
                "dur": round(took, 3),
                "args": about,
            }
        )

    def _name(self, pid: int, process: str, tid: int, thread: str) -> None:
        if (pid, None) not in self._named:
            self._named.add((pid, None))
            self._event({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": process}})
        if (pid, tid) not in self._named:
            self._named.add((pid, tid))
            self._event({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": thread}})

    def _event(self, event: dict[str, Any]) -> None:
        self._write(("" if self._first else ",\n") + json.dumps(event))
        self._first = False

    def finish(self) -> None:
        """Ends the document."""
        self._write("\n]}\n")


def _label(packet: dict[str, Any] | None) -> str:
    """What a submit runs, in a few words."""
    if not packet or "opcode" not in packet:
        return "command"
    if "commands" in packet:
        return f"chain of {packet['members']}"
    return str(packet["opcode"])
