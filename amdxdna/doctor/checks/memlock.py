"""Is the locked-memory limit high enough?"""

from __future__ import annotations

from amdxdna.doctor import advice
from amdxdna.doctor.finding import Finding, ok, warn
from amdxdna.doctor.machine import UNLIMITED
from amdxdna.doctor.subject import Subject

HEAP = 64 << 20


def _text(nbytes: int) -> str:
    if nbytes >= UNLIMITED:
        return "unlimited"
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def memlock(subject: Subject) -> Finding:
    """RLIMIT_MEMLOCK against what needs it."""
    machine = subject.machine
    soft, hard = machine.locked_memory()
    facts = {"soft": None if soft >= UNLIMITED else soft, "hard": None if hard >= UNLIMITED else hard}
    if soft >= UNLIMITED:
        return ok("unlimited", facts=facts)
    if machine.who().uid == 0 and not machine.container():
        return ok(f"{_text(soft)}, which does not bind root", facts=facts)
    if subject.emulated:
        return ok(f"{_text(soft)}: limits only wrapped memory", facts=facts)
    if soft >= HEAP:
        return ok(
            f"{_text(soft)}: enough for a heap; large models of other runtimes may want it unlimited",
            facts=facts,
        )
    now = (
        f"; `ulimit -l {'unlimited' if hard >= UNLIMITED else hard >> 10}` raises it at once"
        if hard >= HEAP
        else ""
    )
    return warn(
        f"{_text(soft)} (at most {_text(hard)}{now}): enough for this package but "
        "for memory it wraps; other runtimes lock their 64 MiB heap and the weights, and fail",
        *advice.memlock(machine),
        facts=facts,
    )
