"""Checks everything the NPU needs, names the cause of what fails, and says what to do.

`checks` holds one check a file, :class:`~amdxdna.doctor.subject.Subject` what a check sees, `machine` what is
read of sysfs, procfs and /dev, `events` what the kernel log says.
"""

from __future__ import annotations

from amdxdna.doctor.examine import examine
from amdxdna.doctor.finding import Finding, Report, Status
from amdxdna.doctor.machine import Machine

__all__ = ["Finding", "Machine", "Report", "Status", "examine"]
