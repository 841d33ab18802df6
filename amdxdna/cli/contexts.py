"""`amdxdna contexts`: who uses the NPU.

JSON: ``amdxdna.contexts`` version 1: ``limit`` and ``taken`` (null where the driver does not tell), the list
``contexts`` of ``{"pid", "process" (or null), "context", "first_column", "columns", "submitted",
"completed", "errors", "suspensions", "priority", "memory" (bytes of the whole process, or null), "heap"
(bytes, or null), "state" "running"|"idle", "health"}`` with ``health`` null or ``{"operation" (or null),
"pc", "fatal" (0: none), "exception", "exception_pc", "module"}``, ``unavailable``: why a field is null, and
``time``, seconds since 1970. With ``--watch`` it is one document a line.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import Parser, document, print_json
from amdxdna.cli.device import Answers, add_device, open_device, process_names
from amdxdna.cli.screen import NOT_AVAILABLE, show, size, table, wrap

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.device_info import ContextInfo
    from amdxdna.doctor import Machine

_HEADER = ("PID", "PROCESS", "COLS", "SENT", "DONE", "ERRORS", "MEMORY", "STATE", "HEALTH")
_RIGHT = (0, 3, 4, 5, 6)
_NOT_STARTED = 0xFFFFFFFF


def contexts_main(argv: list[str]) -> int:
    """Exit status 0, or 1 when the driver does not answer."""
    parser = Parser(
        "contexts",
        description="Hardware contexts of all processes: columns, commands, memory, state "
        "and where their command stands.",
    )
    add_device(parser)
    parser.add_argument("--watch", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("--interval", metavar="S", type=float, default=1.0, help="seconds between looks (1)")
    parser.add_argument("--count", metavar="N", type=int, help="with --watch: stop after N looks")
    parser.add_json()
    options = parser.parse_args(argv)
    if not 0 < options.interval <= 3600:
        parser.error("--interval takes seconds, more than 0 and at most 3600")
    if options.count is not None and options.count < 1:
        parser.error("--count takes a number of looks, 1 or more")
    if options.count is not None and not options.watch:
        parser.error("--count belongs to --watch")
    with open_device(options.device) as device:
        looks = 0
        while True:
            facts = gather(device)
            looks += 1
            if options.json:
                print_json(document("contexts", time=time.time(), **facts))
            else:
                if options.watch and sys.stdout.isatty():
                    sys.stdout.write("\x1b[H\x1b[2J")
                show(screen(facts))
            if not options.watch or looks == options.count:
                return 0
            time.sleep(options.interval)
            if not options.json and not sys.stdout.isatty():
                print()


def gather(device: Device, lenient: bool = False, machine: Machine | None = None) -> dict[str, Any]:
    """The document's fields. `machine`: where processes' names are looked up; None: this one."""
    answers = Answers(lenient=lenient)
    from amdxdna.query import context_use

    use = answers.ask("contexts", lambda: context_use(device.client))
    found = use.listed if use is not None else ()
    if use is not None and use.limit is None:
        answers.ask("limit", device.resources)  # for the reason why it is not told
    names = process_names(found, device.node.emulated, machine)
    memory: dict[int, int | None] = {}
    for pid in {context.pid for context in found if context.pid > 0}:
        usage = answers.ask("memory", lambda pid=pid: device.bo_usage(pid))  # type: ignore[misc]
        memory[pid] = None if usage is None else usage.total
    if not device.version.has("GET_ARRAY"):
        answers.unavailable["heap"] = "needs amdxdna driver version 0.1 or newer"
    if found and all(context.health is None for context in found):
        answers.unavailable["health"] = "this driver does not tell where a context stands (0.9 and newer do)"
    return {
        "limit": None if use is None else use.limit,
        "taken": None if use is None or use.limit is None else use.taken,
        "contexts": [
            _entry(c, names.get(c.pid), memory.get(c.pid), "heap" not in answers.unavailable) for c in found
        ],
        "unavailable": answers.unavailable,
    }


def _entry(context: ContextInfo, name: str | None, memory: int | None, heap: bool) -> dict[str, Any]:
    health = context.health
    return {
        "pid": context.pid,
        "process": name,
        "context": context.context_id,
        "first_column": context.start_col,
        "columns": context.num_col,
        "submitted": context.command_submissions,
        "completed": context.command_completions,
        "errors": context.errors,
        "suspensions": context.suspensions,
        "priority": context.priority,
        "memory": memory,
        "heap": context.heap_usage if heap else None,
        "state": "running" if context.command_submissions > context.command_completions else "idle",
        "health": None
        if health is None
        else {
            "operation": None if health.txn_op_idx == _NOT_STARTED else health.txn_op_idx,
            "pc": health.ctx_pc,
            "fatal": health.fatal_error_type,
            "exception": health.fatal_error_exception_type,
            "exception_pc": health.fatal_error_exception_pc,
            "module": health.fatal_error_app_module,
        },
    }


def screen(facts: dict[str, Any]) -> list[str]:
    """The table, what it counts, and why something is n/a."""
    found, missing = facts["contexts"], dict(facts["unavailable"])
    limit = missing.pop("limit", None)
    if facts["taken"] is not None:
        total = f"{facts['taken']} of {facts['limit']} contexts in use"
        unlisted = facts["taken"] - len(found)
        if unlisted > 0:
            total += f"; {unlisted} not listed (other users' or being freed)"
    else:
        total = f"{len(found)} contexts in use"
    lines = wrap(total + (f"; how many there can be is n/a ({limit})" if limit else ""))
    if found:
        lines += ["", *table(_HEADER, [_row(context) for context in found], _RIGHT)]
    reasons = [line for name, reason in missing.items() for line in wrap(reason, f"{name} n/a: ")]
    return [*lines, *([""] if reasons else []), *reasons]


def _row(context: dict[str, Any]) -> list[str]:
    first, columns = context["first_column"], context["columns"]
    in_flight = max(0, context["submitted"] - context["completed"])
    return [
        str(context["pid"]),
        context["process"] or "?",
        f"{first}-{first + columns - 1}" if columns > 1 else str(first),
        str(context["submitted"]),
        str(context["completed"]),
        str(context["errors"]),
        NOT_AVAILABLE if context["memory"] is None else size(context["memory"]),
        f"{in_flight} running" if in_flight else "idle",
        _health(context["health"], bool(in_flight)),
    ]


def _health(health: dict[str, Any] | None, running: bool) -> str:
    if health is None:
        return NOT_AVAILABLE
    if health["fatal"]:
        return (
            f"fatal error {health['fatal']}, exception {health['exception']} at {health['exception_pc']:#x}"
        )
    if not running:
        return "ok"
    return "not started" if health["operation"] is None else f"at op {health['operation']}"
