"""The checks, one a file, in the order in which they are made.

A check takes a :class:`~amdxdna.doctor.subject.Subject` and returns one Finding; its name is its function's.
"""

from __future__ import annotations

from collections.abc import Callable

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

CHECKS: dict[str, Callable[[Subject], Finding]] = {
    check.__name__: check
    for check in (npu, module, node, driver, firmware, permission, iommu, memlock, log, contexts, answer)
}
"""Name -> check."""
