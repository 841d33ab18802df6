"""XRT's Python module `pyxrt`, on this binding: existing NPU programs run unchanged, without XRT.

:func:`install` makes ``import pyxrt`` give this module; ``python -m amdxdna pyxrt -- script.py`` does so for
one program. The interface is that of XRT 2.25's module, what it answers measured on that.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from amdxdna.pyxrt import ext
from amdxdna.pyxrt.buffers import bo
from amdxdna.pyxrt.calls import incompatible
from amdxdna.pyxrt.contexts import hw_context
from amdxdna.pyxrt.devices import DEVICE, device, enumerate_devices
from amdxdna.pyxrt.elfs import elf, program
from amdxdna.pyxrt.enums import ert_cmd_state, xclBOSyncDirection, xrt_info_device, xrt_msg_level
from amdxdna.pyxrt.kernels import kernel, run
from amdxdna.pyxrt.modules import module
from amdxdna.pyxrt.runlists import runlist
from amdxdna.pyxrt.uuids import uuid
from amdxdna.pyxrt.xclbins import xclbin

XCL_BO_FLAGS_NONE = 0
implementation = "amdxdna"
"""Tells this module from XRT's own."""

FOLDER = Path(__file__).parent / "first"
"""Holds one file, pyxrt.py, for processes that find modules by a path."""

emergency, alert, critical, error = (xrt_msg_level(n) for n in range(4))
warning, notice, info, debug = (xrt_msg_level(n) for n in range(4, 8))
_TOLD = 4
"""The least grave level that is shown, as in XRT's own default."""

__all__ = [
    "XCL_BO_FLAGS_NONE",
    "alert",
    "bo",
    "critical",
    "debug",
    "device",
    "elf",
    "emergency",
    "enumerate_devices",
    "error",
    "ert_cmd_state",
    "ext",
    "hw_context",
    "implementation",
    "info",
    "install",
    "installed",
    "kernel",
    "log_message",
    "module",
    "notice",
    "program",
    "run",
    "runlist",
    "uuid",
    "warning",
    "xclBOSyncDirection",
    "xclbin",
    "xrt_info_device",
    "xrt_msg_level",
]


def __dir__() -> list[str]:
    return [name for name in globals() if name.startswith("__")] + __all__


def log_message(level: xrt_msg_level, tag: str, message: str) -> None:
    """Writes a line to stderr; nothing for a level less grave than a warning."""
    if not (isinstance(level, xrt_msg_level) and isinstance(tag, str) and isinstance(message, str)):
        incompatible("log_message", level, tag, message)
    if int(level) <= _TOLD:
        print(f"[{tag}] {level.name.upper()}: {message}", file=sys.stderr)


def install(device: str | None = None) -> None:
    """Makes ``import pyxrt`` give this module from now on, also in children of ``multiprocessing``.

    `device`: what ``pyxrt.device(0)`` is, as ``amdxdna.Device.open`` takes it; it goes to the environment
    (AMDXDNA_PYXRT_DEVICE), for children too. Raises TypeError where it is no str,
    ImportError where another pyxrt has been imported already.
    """
    if device is not None and not isinstance(device, str):
        raise TypeError(f"device is {device!r}; give a str: an index, a node's path or emu")
    found = sys.modules.get("pyxrt")
    if found is not None and found is not sys.modules[__name__]:
        raise ImportError(
            f"another pyxrt is imported already: {getattr(found, '__file__', found)}", name="pyxrt"
        )
    sys.modules["pyxrt"] = sys.modules[__name__]
    sys.modules["pyxrt.ext"] = ext
    if device is not None:
        os.environ[DEVICE] = device
    # A spawned child of multiprocessing gets this list for its own, whatever PYTHONPATH says. Programs look
    # for the script's folder at its head.
    if str(FOLDER) not in sys.path:
        sys.path.insert(1, str(FOLDER))


@contextlib.contextmanager
def installed(device: str | None = None) -> Iterator[None]:
    """Has :func:`install` in force for the block."""
    before = {name: sys.modules.get(name) for name in ("pyxrt", "pyxrt.ext")}
    listed = str(FOLDER) in sys.path
    chosen = os.environ.get(DEVICE)
    install(device)
    try:
        yield
    finally:
        if device is not None:
            os.environ.pop(DEVICE, None)
            if chosen is not None:
                os.environ[DEVICE] = chosen
        if not listed and str(FOLDER) in sys.path:
            sys.path.remove(str(FOLDER))
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
