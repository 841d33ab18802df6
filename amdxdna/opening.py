"""Which node a name means, and how it is opened: above the seam, for it knows the emulator and the tracer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from amdxdna import sysfs
from amdxdna.arguments import path, wants
from amdxdna.errors import NoDevice
from amdxdna.node import KernelNode, Node
from amdxdna.signals import imports


def resolve(spec: str | int | None, sys: str | Path = "/sys", dev: str | Path = "/dev") -> str:
    """What `spec` names: a node's path, or ``"emu..."`` for the emulated device.

    None or ``"auto"``: the first kernel node if there is one, else ``"emu"``; ``"npu"``: the
    first. An int (or its digits): the n-th node of the amdxdna driver, from 0. Else a path. Raises NoDevice
    for an index past the last node, and for a word that is none of these.
    """
    sys, dev = path("open", "sys", sys), path("open", "dev", dev)
    if isinstance(spec, str):
        path("open", "spec", spec)
    elif spec is not None and (isinstance(spec, bool) or not isinstance(spec, int)):
        raise wants("open", "spec", spec, 'Give "auto", "npu", "emu", an index or the path of an accel node')
    if spec is None or spec == "auto":
        found = sysfs.find_nodes(sys, dev)
        return found[0].path if found else "emu"
    if isinstance(spec, str) and (spec.isdecimal() or spec == "npu"):
        spec = 0 if spec == "npu" else int(spec)
    if isinstance(spec, int):
        found = sysfs.find_nodes(sys, dev)
        if 0 <= spec < len(found):
            return found[spec].path
        if found:
            raise NoDevice(
                f"there is no NPU {spec}; there are {len(found)}, from 0",
                call="open",
                errno=errno.ENOENT,
                remedy="Give a smaller index",
            )
        cause, remedy = sysfs.why_none(sys)
        raise NoDevice(cause, call="open", errno=errno.ENOENT, remedy=remedy)
    if not is_emulated(spec) and os.sep not in spec and not os.path.lexists(spec):
        raise NoDevice(
            f"{spec} is no device",
            call="open",
            errno=errno.ENOENT,
            remedy="Give auto, npu, emu (or emu:key=value,...), a node's path, or a number",
        )
    return spec


def open_node(spec: str | int | None = None, sys: str | Path = "/sys", dev: str | Path = "/dev") -> Node:
    """Opens a new node: see :func:`resolve` for `spec`; ``"emu:key=value,..."`` sets emulator options.

    Raises NoDevice, PermissionDenied or DeviceBusy with cause and remedy. The caller closes it. A process
    should open a kernel node once (:class:`amdxdna.device.Device` shares it). With AMDXDNA_TRACE in the
    environment its calls are recorded (:mod:`amdxdna.trace`).
    """
    where = resolve(spec, sys, dev)
    trace = os.environ.get("AMDXDNA_TRACE")
    if trace:
        imports("amdxdna.trace.node")
        from amdxdna.trace.node import open_traced

        return open_traced(trace, where, lambda: _open(where, sys, dev))
    return _open(where, sys, dev)


def is_emulated(where: str) -> bool:
    """Whether a device's name means the emulated NPU in this process: `emu`, or `emu:OPTIONS`."""
    return where == "emu" or where.startswith("emu:")


def _open(where: str, sys: str | Path, dev: str | Path) -> Node:
    if is_emulated(where):
        imports("amdxdna.emu.node")
        from amdxdna.emu.node import EmuNode
        from amdxdna.emu.options import EmuOptions

        return EmuNode(EmuOptions.parse(where[4:]))
    try:
        return KernelNode(where, sys)
    except NoDevice as error:
        if error.errno != errno.ENOENT:
            raise
        found = sysfs.find_nodes(sys, dev)
        cause, remedy = sysfs.why_none(sys)
        if found:
            cause, remedy = f"there is no {where}", f"The NPU's node is {found[0].path}"
        raise NoDevice(f"{cause} [{where}]", call="open", errno=errno.ENOENT, remedy=remedy) from None
