"""Runs conformance cases inside the guest, for the agent's `call` operation."""

from __future__ import annotations

import time

from amdxdna._native import lib
from amdxdna.node import KernelNode
from tests.conformance import kit, suite

NODE = "/dev/accel/accel0"
MODULES = suite.MODULES


def run(name: str) -> None:
    """Runs one registered case on the kernel's node."""
    kit.run_case(name, kit.Target(lambda: KernelNode(NODE), kernel=True))


def context() -> dict[str, object]:
    """Opens the device and creates a context: the errno of that (0: it worked) and the seconds it took."""
    target = kit.Target(lambda: KernelNode(NODE), kernel=True)
    client = target.client()
    client.heap()
    began = time.monotonic()
    number = 0
    try:
        client.context()
    except OSError as error:
        number = error.errno or -1
    took = time.monotonic() - began
    target.close()
    return {"errno": number, "seconds": took}


def copies(count: int) -> list[int]:
    """Runs the copy kernel `count` times in one context: the packets' states."""
    target = kit.Target(lambda: KernelNode(NODE), kernel=True)
    ready = target.ready()
    states = [ready.copy() for _ in range(count)]
    target.close()
    return states


def last_array_error() -> dict[str, int]:
    """The last asynchronous error, as GET_ARRAY gives it."""
    target = kit.Target(lambda: KernelNode(NODE), kernel=True)
    client = target.client()
    (error,) = client.get_array(lib.DRM_AMDXDNA_HW_LAST_ASYNC_ERR, "amdxdna_async_error", 1)
    target.close()
    return {"code": error.err_code, "extra": error.ex_err_code, "time": error.ts_us}
