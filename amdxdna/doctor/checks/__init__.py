"""The checks, one a file, in the order in which they are made.

A check takes a :class:`~amdxdna.doctor.subject.Subject` and returns one Finding; its name is its function's.
The subject has the `machine`, its `npu`, the node's `path`, the `kernel_log`, and the `device`, opened when
it is first asked for; where that fails it is None, and `error` says why. A finding is ``ok(...)``, ``warn``,
``fail`` or ``skip(what is so, what to do, step by step, facts=values for programs)``; with `symptom` another
check names the cause. A check never raises; the machine it looks at may be a test's.

A new one: its file, its place in :data:`CHECKS`, rows in tests/tools/test_doctor_findings.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from amdxdna.doctor.checks.answer import answer
from amdxdna.doctor.checks.contexts import contexts
from amdxdna.doctor.checks.driver import driver
from amdxdna.doctor.checks.firmware import firmware
from amdxdna.doctor.checks.iommu import iommu
from amdxdna.doctor.checks.log import log
from amdxdna.doctor.checks.memlock import memlock
from amdxdna.doctor.checks.module import module
from amdxdna.doctor.checks.node import node
from amdxdna.doctor.checks.npu import npu
from amdxdna.doctor.checks.permission import permission
from amdxdna.doctor.finding import Finding
from amdxdna.doctor.subject import Subject


def _named(check: Callable[[Subject], Finding]) -> Callable[[Subject], Finding]:
    return lambda subject: replace(check(subject), check=check.__name__)


CHECKS: dict[str, Callable[[Subject], Finding]] = {
    check.__name__: _named(check)
    for check in (npu, module, node, driver, firmware, permission, iommu, memlock, log, contexts, answer)
}
"""Name -> check."""
