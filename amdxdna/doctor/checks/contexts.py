"""Are hardware contexts left, and who holds the others?"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from amdxdna.doctor.finding import NOT_OPEN, Finding, fail, ok, skip, warn
from amdxdna.doctor.subject import Subject
from amdxdna.errors import XdnaError
from amdxdna.query import context_use
from amdxdna.selftest.probes import make_context

if TYPE_CHECKING:
    from amdxdna.device import Device

_NEARLY = 0.75


def contexts(subject: Subject) -> Finding:
    """Contexts in use by process, against how many there can be."""
    device = subject.device
    if device is None:
        return skip(NOT_OPEN)
    try:
        use = context_use(device.client)
    except XdnaError as error:
        return fail(f"the driver does not tell: {error.meaning}", error.remedy)
    found, taken, limit = use.listed, use.taken, use.limit
    holders = Counter(context.pid for context in found)
    facts = {"limit": limit, "taken": taken, "holders": {str(pid): count for pid, count in holders.items()}}
    who = ", ".join(f"{_name(subject, pid)}: {count}" for pid, count in holders.most_common())
    unseen = taken - len(found)
    if unseen > 0:
        who += f"{', ' if who else ''}not listed: {unseen}"
    total = f"{taken} of {limit}" if limit is not None else f"{taken} of an unknown number"
    if limit is not None and taken > limit:
        total = f"{taken}, more than the {limit} that the driver counts on,"
    text = f"{total} in use" + (f" ({who})" if who else "")
    if limit is not None and taken >= limit:
        if _gives_another(device):
            return ok(f"{text}, and the device gives another", facts=facts | {"more": True})
        # The driver's process ids are the host's: in a container they name other processes, or none.
        told = subject.emulated or not subject.machine.container()
        pids = " ".join(str(pid) for pid in holders if pid > 0 and pid != os.getpid() and told)
        end = "End the programs that hold them" + (f" (`kill {pids}`)" if pids else "")
        return fail(
            f"all hardware contexts are taken: {text}. A new one fails with CREATE_HWCTX "
            f"{'ENOENT' if device.profile.context_limit else 'EINVAL'}",
            f"{end}, or stop the NPU services (flm, lemonade)",
            "`python -m amdxdna contexts --watch` shows them",
            facts=facts,
        )
    if limit and taken >= limit * _NEARLY:
        return warn(
            f"few are left: {text}",
            "A program that needs more waits or swaps; end what is not needed",
            facts=facts,
        )
    return ok(text, facts=facts)


def _gives_another(device: Device) -> bool:
    """Whether a context can be made though as many are taken as the driver counts on: it is no hard limit."""
    try:
        make_context(device)
    except XdnaError:
        return False
    return True


def _name(subject: Subject, pid: int) -> str:
    # The driver's process ids are the host's, which mean nothing inside a container.
    if subject.machine.container() and not subject.emulated:
        return f"process {pid} of the host"
    name = subject.machine.process_name(pid)
    return f"{name} ({pid})" if name else f"process {pid}"
