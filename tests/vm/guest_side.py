"""Runs conformance cases inside the guest, for the agent's `call` operation."""

from __future__ import annotations

from amdxdna.node import KernelNode
from tests.conformance import kit, suite

NODE = "/dev/accel/accel0"
MODULES = suite.MODULES


def run(name: str) -> None:
    """Runs one registered case on the kernel's node."""
    kit.run_case(name, kit.Target(lambda: KernelNode(NODE), kernel=True))
