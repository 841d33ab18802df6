"""AMD's NPU through the Linux amdxdna driver's ioctls, without a vendor runtime.

`device` is where a program starts, `node` the seam to the driver, `emu` the emulated NPU behind it; `doctor`,
`selftest`, `trace`, `xclbin`, `pdi`, `insts` and `elf` are tools, `cli` their command lines.

Names are loaded when first used, so ``import amdxdna`` is cheap and does not import numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.create_hwctx import QoS
    from amdxdna.device import Device
    from amdxdna.errors import XdnaError
    from amdxdna.hwctx import HwContext
    from amdxdna.kernel import Kernel
    from amdxdna.node import KernelNode, Node
    from amdxdna.opening import open_node
    from amdxdna.packet import Health, State
    from amdxdna.pool import ContextPool
    from amdxdna.run import Run
    from amdxdna.xclbin import Xclbin

__version__ = "0.1.0"

_WHERE = {
    "Buffer": "buffer",
    "ContextPool": "pool",
    "Device": "device",
    "Health": "packet",
    "HwContext": "hwctx",
    "Kernel": "kernel",
    "KernelNode": "node",
    "Node": "node",
    "QoS": "create_hwctx",
    "Run": "run",
    "State": "packet",
    "Xclbin": "xclbin",
    "XdnaError": "errors",
    "open_node": "opening",
}

__all__ = [
    "Buffer",
    "ContextPool",
    "Device",
    "Health",
    "HwContext",
    "Kernel",
    "KernelNode",
    "Node",
    "QoS",
    "Run",
    "State",
    "Xclbin",
    "XdnaError",
    "open_node",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from amdxdna.signals import imports

    module = f"{__name__}.{where}"
    imports(module)
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
