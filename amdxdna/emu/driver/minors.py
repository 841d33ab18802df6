"""The DRM minors that brought something (amdxdna_pci_drv.c lists them), as the emulated driver has them.

Kept apart from what the binding knows of drivers, so that one mistake does not stand in both.
"""

from __future__ import annotations

FIRST = 0
GET_ARRAY = CONTEXTS = 1
ASYNC_ERROR = 2
DEBUG_BUFFER = 3
RESOURCES = 4
TELEMETRY = 5
PREEMPTION = 6
SENSORS = 7
BO_USAGE = 8
HEALTH_REPORT = 9
"""Drivers of smaller minors ask the firmware for no report: its fields stay 0."""
WAIT_CMD = 10
