"""Every public call of the binding x wrong kinds of argument: one error of ours that names the argument.

It comes before anything reaches the device, which goes on working. The rows are held against the signatures:
a new parameter without a row fails.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import importlib
import inspect
import math
import os
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import amdxdna
from amdxdna import arguments, ioctl
from amdxdna.arguments import Uncopied
from amdxdna.client import Client
from amdxdna.create_hwctx import QoS
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.xclbins import xclbin_bytes
from amdxdna.errors import BadArgument, BadType, Closed, XdnaError
from amdxdna.hwctx import HwContext
from amdxdna.pool import ContextPool
from amdxdna.restart import Restartable, RestartableChain
from amdxdna.xclbin import Xclbin
from tests.support.argument_values import COPIES, INTS, STRS, VALUES, all_but_are_uncopied, refuses

TIMES = {*INTS, "float", "nan", "infinity"}


class World:
    """An emulated device, and one object of every kind on it."""

    def __init__(self) -> None:
        self.device = Device.open("emu:threads=1,quiet")
        self.xclbin = Xclbin.read(xclbin_bytes("copy"))
        self.insts = stream.copy(64, 5)
        self.source, self.result = self.device.alloc(64), self.device.alloc(64)
        self.source.view("u4")[:] = np.arange(16)
        self.kernel = self.device.pool.kernel(self.xclbin, self.insts)
        self.context, self.spare = (self.device.context(self.xclbin) for _ in range(2))
        self.run = self.kernel.start(self.source, self.result).wait()
        self.restartable = Restartable(self.context, b"")

    def works(self) -> bool:
        self.result.view("u4")[:] = 0
        self.kernel.run(self.source, self.result, outputs=[self.result])
        return bool((self.result.view("u4") == np.arange(16) + 5).all())


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.device.close()


Call = Callable[[World, Any], Any]
ROWS: dict[str, tuple[Call, set[str]]] = {
    "Device.open spec": (lambda w, v: Device.open(v, sys="/nonexistent").close(), {*STRS, *INTS, "none"}),
    "Device.open sys": (lambda w, v: Device.open(0, sys=v), {*STRS}),
    "Device.open dev": (lambda w, v: Device.open(0, sys="/nonexistent", dev=v), {*STRS}),
    "Device.alloc nbytes": (lambda w, v: w.device.alloc(v), INTS),
    "Device.alloc kind": (lambda w, v: w.device.alloc(64, v), set()),
    "Device.wrap source": (lambda w, v: w.device.wrap(v), {"array"}),
    "Device.wrap of source": (lambda w, v: w.device.wrap(v, 4096), {*INTS, "array"}),
    "Device.wrap nbytes": (lambda w, v: w.device.wrap(np.zeros(8192, "u1"), v), {*INTS, "none"}),
    "Device.import_fd fd": (lambda w, v: w.device.import_fd(v), INTS),
    "Device.import_fd nbytes": (lambda w, v: imported(w, v), {*INTS, "none"}),
    "Device.context xclbin": (lambda w, v: w.device.context(v), {"none"}),
    "Device.context qos": (lambda w, v: w.device.context(w.xclbin, v).close(), {"none"}),
    "Device.context columns": (lambda w, v: w.device.context(None, columns=v), INTS),
    "Device.context cus": (lambda w, v: w.device.context(w.xclbin, cus=v).close(), {"none", "empty"}),
    "Device.telemetry kind": (lambda w, v: w.device.telemetry(v), INTS),
    "Device.bo_usage pid": (lambda w, v: w.device.bo_usage(v), {*INTS, "none"}),
    "Device.power_mode mode": (lambda w, v: setattr(w.device, "power_mode", v), INTS),
    "Device.wait_seconds wait_seconds": (lambda w, v: waiting(w, v), TIMES),
    "Buffer.view dtype": (lambda w, v: w.source.view(v), {"none", "class"}),
    "Buffer.view shape": (lambda w, v: w.source.view("u1", v), {*INTS, "none", "empty"}),
    "Buffer.sub offset": (lambda w, v: w.source.sub(v), INTS),
    "Buffer.sub nbytes": (lambda w, v: w.source.sub(0, v).close(), {*INTS, "none"}),
    "Buffer.to_device offset": (lambda w, v: w.source.to_device(v), INTS),
    "Buffer.to_device nbytes": (lambda w, v: w.source.to_device(0, v), {*INTS, "none"}),
    "Buffer.from_device offset": (lambda w, v: w.source.from_device(v), INTS),
    "Buffer.from_device nbytes": (lambda w, v: w.source.from_device(0, v), {*INTS, "none"}),
    "Buffer.write data": (lambda w, v: w.device.alloc(64).write(v), {"bytes", "array"}),
    "Buffer.write offset": (lambda w, v: w.device.alloc(64).write(b"1", v), INTS),
    "Buffer.read offset": (lambda w, v: w.source.read(v), INTS),
    "Buffer.read nbytes": (lambda w, v: w.source.read(0, v), {*INTS, "none"}),
    "Kernel.start buffers": (lambda w, v: w.kernel.start(w.source, v), set()),
    "Kernel.start outputs": (lambda w, v: w.kernel.start(w.source, w.result, outputs=v).wait(), {"empty"}),
    "Kernel.run buffers": (lambda w, v: w.kernel.run(v, w.result), set()),
    "Kernel.run outputs": (lambda w, v: w.kernel.run(w.source, w.result, outputs=v), {"empty"}),
    "Kernel.run timeout": (lambda w, v: w.kernel.run(w.source, w.result, timeout=v), {*TIMES, "none"}),
    "HwContext.run words": (lambda w, v: w.spare.run(v), {"bytes"}),
    "HwContext.run buffers": (lambda w, v: w.spare.run(b"", v).wait(), {"empty"}),
    "HwContext.drain seconds": (lambda w, v: w.context.drain(v), TIMES),
    "Run.wait timeout": (lambda w, v: w.run.wait(v), {*TIMES, "none"}),
    "Run.wait outputs": (lambda w, v: w.run.wait(outputs=v), {"empty"}),
    "ContextPool.kernel xclbin": (lambda w, v: w.device.pool.kernel(v, w.insts), set()),
    "ContextPool.kernel insts": (lambda w, v: w.device.pool.kernel(w.xclbin, v), {"bytes", "array"}),
    "ContextPool.kernel name": (
        lambda w, v: w.device.pool.kernel(w.xclbin, w.insts, name=v),
        {*STRS, "none"},
    ),
    "ContextPool.kernel ops": (lambda w, v: w.device.pool.kernel(w.xclbin, w.insts, ops=v), INTS),
    "ContextPool.chain calls": (lambda w, v: w.device.pool.chain(v), {"empty"}),
    "ContextPool max_contexts": (lambda w, v: ContextPool(w.device.client, v), {*INTS, "none"}),
    "a chain's calls": (lambda w, v: w.device.pool.chain([(w.kernel, (w.source, w.result)), v]), set()),
    "a chain's kernel calls": (lambda w, v: w.device.pool.chain([(v, (w.source,))]), set()),
    "a chain's list calls": (lambda w, v: w.device.pool.chain([(w.kernel, v)]), {"empty"}),
    "Xclbin.read source": (lambda w, v: Xclbin.read(v), {*STRS, "bytes"}),
    "Xclbin.cu_index kernel": (lambda w, v: w.xclbin.cu_index(v), {*STRS, "none"}),
    "Xclbin.section kind": (lambda w, v: w.xclbin.section(v), INTS),
    "Restartable words": (lambda w, v: Restartable(w.context, v), {"bytes", "array"}),
    "Restartable context": (lambda w, v: Restartable(v, b""), set()),
    "Restartable.start buffers": (lambda w, v: w.restartable.start(v), {"empty"}),
    "RestartableChain members": (lambda w, v: RestartableChain(v), set()),
    "open_node spec": (lambda w, v: amdxdna.open_node(v, "/nonexistent").close(), {*STRS, *INTS, "none"}),
    **{f"QoS {name}": (lambda w, v, name=name: QoS(**{name: v}), INTS) for name in vars(QoS())},
}
"""(call, the kinds that it may take: those may also be refused for their value)."""
FLAGS = {"flush", "writable"}
"""Anything is true or false."""


def imported(w: World, nbytes: Any) -> None:
    fd = w.source.export_fd()
    try:
        w.device.import_fd(fd, nbytes).close()
    finally:
        os.close(fd)


def waiting(w: World, value: Any) -> None:
    before = w.device.wait_seconds
    w.device.wait_seconds = value
    w.device.wait_seconds = before


def test_every_parameter_has_a_row() -> None:
    missing = []
    for kind in (Device, amdxdna.Buffer, amdxdna.Kernel, HwContext, amdxdna.Run, ContextPool, Xclbin):
        for name, value in inspect.getmembers(kind):
            if name.startswith("_") or not callable(value) or name in INNER:
                continue
            for parameter in inspect.signature(value).parameters:
                row = f"{kind.__name__}.{name} {parameter}"
                if parameter not in {"self", *FLAGS} and row not in ROWS:
                    missing.append(row)
    assert missing == []


INNER = {
    *("flush_for_start", "abandon", "prepare", "fill", "finished", "give_up", "assign", "owner", "settle"),
    *("submit", "touches", "take", "forget", "let_go", "load", "release", "shed_context", "shed_pdis"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_argument(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    call, fitting = ROWS[name]
    submits: list[str] = []
    plain = ioctl.call

    def counted(node: Any, what: str, *rest: Any, **named: Any) -> Any:
        if what in ("EXEC_CMD", "CREATE_HWCTX"):
            submits.append(what)
        return plain(node, what, *rest, **named)

    monkeypatch.setattr(ioctl, "call", counted)
    wrong = []
    for kind, value in VALUES.items():
        submits.clear()
        try:
            call(world, value)
        except XdnaError as error:
            told = str(error)
            argument = name.split()[-1]
            if submits and kind not in fitting:
                wrong.append(f"{kind}: {submits} before {told}")
            if kind not in fitting and (
                not isinstance(error, (BadArgument, Closed))
                or (isinstance(error, BadType) and argument not in told and "is no buffer" not in told)
            ):
                wrong.append(f"{kind}: does not name {argument}: {told}")
            if not error.remedy or "\n" in told or len(told) > 400:
                wrong.append(f"{kind}: {told}")
        except Exception as error:
            wrong.append(f"{kind}: {error!r}")
        else:
            if kind not in fitting:
                wrong.append(f"{kind}: taken")
    monkeypatch.undo()
    gc.collect()
    assert wrong == []
    assert world.works()


def test_a_length_for_a_list_or_the_other_way_round(world: World) -> None:
    """Values that are nearly right."""
    device, kernel, a, b = world.device, world.kernel, world.source, world.result
    for use, told in [
        (lambda: kernel.run(a, b, outputs=b), "outputs is <Buffer"),
        (lambda: kernel.run(a, b, outputs=None), "outputs is None"),
        (lambda: kernel.run(a, b, outputs=[None]), r"outputs\[0\] is None"),
        (lambda: kernel.run(a, b, timeout=float("nan")), "timeout is nan"),
        (lambda: kernel.start(a, b).wait(float("nan")), "timeout is nan"),
        (lambda: kernel.start(a, b).wait("x"), "timeout is 'x'"),
        (lambda: device.pool.chain([kernel]), r"calls\[0\] is <Kernel"),
        (lambda: device.pool.chain((kernel, (a, b))), r"calls\[0\] is <Kernel"),
        (lambda: device.alloc(1 << 50), "nbytes is 1125899906842624"),
        (lambda: device.alloc("4096"), "nbytes is '4096'"),
        (lambda: device.alloc(1.5), "nbytes is 1.5"),
        (lambda: a.view("O"), "dtype is"),
        (lambda: a.view("V0"), "dtype is"),
        (lambda: a.view("S"), "dtype"),
        (lambda: a.view("u4", 1.5), "shape is 1.5"),
        (lambda: a.view("u4", "44"), "shape is '44'"),
    ]:
        with pytest.raises(BadArgument, match=told):
            use()
    closed = device.alloc(64)
    closed.close()
    with pytest.raises(Closed):
        kernel.run(a, b, outputs=[closed])
    assert world.works()


def test_the_bounds_of_numbers() -> None:
    most = (1 << 63) - 1
    assert [arguments.whole("call", "n", n) for n in (0, most)] == [0, most]
    for n in (-1, most + 1):
        with pytest.raises(BadArgument):
            arguments.whole("call", "n", n)
    assert arguments.seconds("call", "s", 0) == 0 and arguments.seconds("call", "s", 10**400) == math.inf
    assert arguments.seconds("call", "s", -(10**400), past=True) == -math.inf
    for s in (-1, -(10**400), math.nan):
        with pytest.raises(BadArgument):
            arguments.seconds("call", "s", s)


def test_numbers_and_arrays_of_numpys(world: World) -> None:
    """What numpy gives is as good."""
    device = world.device
    with device.alloc(np.int64(64)) as buffer:
        assert buffer.view("u4", np.int32(4)).shape == (4,)
        assert buffer.view("u4", np.array([2, 3])).shape == (2, 3)
        assert buffer.sub(np.uint8(8), np.int16(4)).nbytes == 4
        buffer.write(np.arange(4, dtype="f4"), np.int64(16))
        assert buffer.read(np.int64(16), np.int64(16)) == np.arange(4, dtype="f4").tobytes()
    words = np.frombuffer(world.insts, "u4")
    kernel = device.pool.kernel(world.xclbin, words)
    kernel.run(world.source, world.result, outputs=(world.result,), timeout=np.float32(60))
    assert (world.result.view("u4") == np.arange(16) + 5).all()
    kernel.close()


HANDS: list[Callable[[World], Any]] = [
    lambda w: w.device,
    lambda w: w.source,
    lambda w: w.source.sub(0, 4),
    lambda w: w.kernel,
    lambda w: w.context,
    lambda w: w.run,
    lambda w: w.device.pool,
    lambda w: w.device.client,
    lambda w: w.device.node,
    lambda w: w.device.heap,
    lambda w: w.kernel.shared,
    lambda w: w.restartable,
    lambda w: RestartableChain([w.restartable]),
    lambda w: w.context.take(),
]


@COPIES
def test_nothing_of_a_device_is_copied(copied: Callable[[Any], Any], world: World) -> None:
    """A copied buffer was the same handle: closing one took the other's memory for whoever came next."""
    for hand in HANDS:
        one = hand(world)
        refuses(one, copied)
        with pytest.raises(TypeError, match="cannot be copied or pickled: "):
            copied({"inside": [one]}) if copied is not copy.copy else copied(one)
    assert copied(world.xclbin) is not None and copied(QoS(gops=1)) is not None
    assert world.works()


def test_what_holds_handles_is_not_copied() -> None:
    """Of the public classes all but values and the seam's protocol."""
    all_but_are_uncopied(amdxdna, {"Health", "QoS", "State", "Xclbin", "XdnaError", "Node"})
    assert issubclass(Client, Uncopied)


def changes(kind: Any) -> bool:
    """Whether a record lets a field of it be set."""
    try:
        setattr(object.__new__(kind), dataclasses.fields(kind)[0].name, None)
    except dataclasses.FrozenInstanceError:
        return False
    return True


def test_records_stay_as_they_were_made() -> None:
    """Threads may share them; but for those that are filled while something is read or written."""
    tools = {"__main__", "cli", "doctor", "emu", "selftest", "trace"}
    names = [found.name for found in pkgutil.walk_packages(amdxdna.__path__, "amdxdna.")]
    names = [name for name in names if name.split(".")[1] not in tools and ".first" not in name]
    kinds = [kind for name in names for kind in vars(importlib.import_module(name)).values()]
    kinds = [kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    assert len(kinds) > 40
    changing = {kind.__name__ for kind in kinds if changes(kind)}
    assert changing == {"Array", "Listing", "TileState", "_Blob"}


def test_a_with_block_of_something_closed() -> None:
    device = Device.open("emu:threads=1,quiet")
    buffer, context = device.alloc(64), device.context(Xclbin.read(xclbin_bytes("copy")))
    for one in (buffer, context, device):
        one.close()
        with pytest.raises(Closed, match="closed"), one:
            pytest.fail("entered")
