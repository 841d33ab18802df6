"""Every public object x every method and attribute x every state: the right answer or one clear error.

The rows are held against the live surface (`__all__` and the public names of live objects): a new public name
without a row fails. States: open; in another thread; while another answer is half drawn and a third thread is
inside a step or holds the binding's lock; after close; after the with-block; in a forked child, at whose fork
those locks were held. In the child nothing may wait, nothing reach the parent's device, and the parent works
on afterwards.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amdxdna
import qwen35
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.xclbins import xclbin_bytes
from amdxdna.xclbin import Xclbin
from qwen35 import Qwen35
from qwen35.errors import ImageError
from tests.support.mock_model import fake

WAIT = 60
IDS = [3, 50, 7]
Call = Callable[[Any, "World"], Any]


@dataclass
class World:
    """One live object of every kind."""

    folder: Path
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        enter = self.stack.enter_context
        self.device = enter(Device.open("emu:threads=1,quiet"))
        self.xclbin = Xclbin.read(xclbin_bytes("copy"))
        self.insts = stream.copy(64, 5)
        self.source, self.result = self.device.alloc(64), self.device.alloc(64)
        self.source.view("u4")[:] = np.arange(16)
        self.kernel = self.device.pool.kernel(self.xclbin, self.insts)
        self.context = self.device.context(self.xclbin)
        self.run = self.kernel.start(self.source, self.result).wait()
        self.model: Qwen35 = enter(fake(self.folder, lambda q: f"You said: {q}"))
        self.talk = self.model.conversation("Be kind.")
        self.talk.ask("one").result()
        self.talk.save(self.folder / "saved")
        self.reply = self.model.chat("two")
        next(iter(self.reply))
        self.model.prefill(IDS)
        self.halves: list[Any] = []
        self.client = self.device.client
        self.objects: dict[str, Any] = {
            "Device": self.device,
            "Buffer": self.device.alloc(64),
            "Kernel": self.kernel,
            "HwContext": self.context,
            "Run": self.run,
            "ContextPool": self.device.pool,
            "Xclbin": self.xclbin,
            "Qwen35": self.model,
            "Conversation": self.talk,
            "Reply": self.reply,
        }

    def half(self) -> Any:
        """A reply half read: one made before, while there are any."""
        if self.halves:
            return self.halves.pop()
        reply = self.model.chat("two")
        next(iter(reply))
        return reply

    def works(self) -> bool:
        """Whether the device and the model still do."""
        self.result.view("u4")[:] = 0
        self.kernel.run(self.source, self.result, outputs=[self.result])
        good = bool((self.result.view("u4") == np.arange(16) + 5).all())
        return good and str(self.model.chat("two")) == "You said: two"


OK, SHUT, CLOSED = "ok", "amdxdna.errors.Closed", "qwen35.errors.Closed"


@dataclass(frozen=True)
class Row:
    """A use, and what comes of it after close and in a forked child; in the other states it is right."""

    use: Call
    closed: str
    forked: str


def rows(closed: str, forked: str, **uses: Call) -> dict[str, Row]:
    return {name: Row(use, closed, forked) for name, use in uses.items()}


def get(name: str) -> Call:
    return lambda it, w: getattr(it, name)


def call(name: str, *arguments: Any) -> Call:
    return lambda it, w: getattr(it, name)(*arguments)


def gets(closed: str, forked: str, names: str) -> dict[str, Row]:
    return rows(closed, forked, **{name: get(name) for name in names.split()})


def calls(closed: str, forked: str, names: str) -> dict[str, Row]:
    return rows(closed, forked, **{name: call(name) for name in names.split()})


def imported(it: Any, w: World) -> None:
    fd = w.source.export_fd()
    try:
        it.import_fd(fd, 64).close()
    finally:
        os.close(fd)


def system(it: Any, w: World) -> None:
    before, it.system = it.system, "Be brief."
    it.system = before


def shut(it: Any, w: World) -> None:
    it.close()
    it.close()


USER = [{"role": "user", "content": "x"}]
TABLE: dict[str, dict[str, Row]] = {
    "Device": {
        **gets(SHUT, OK, "client node path version profile emulated heap"),
        **gets(SHUT, SHUT, "pool power_mode"),
        **gets(SHUT, OK, "wait_seconds"),
        **calls(SHUT, OK, "metadata"),  # asked once, and known
        **calls(SHUT, SHUT, "bo_usage contexts info last_async_error resources telemetry"),
        **rows(
            SHUT,
            SHUT,
            alloc=lambda it, w: it.alloc(64).close(),
            import_fd=imported,
            context=lambda it, w: it.context(w.xclbin).close(),
            wrap=lambda it, w: it.wrap(mmap.mmap(-1, 8192)).close(),
        ),
        **rows(OK, OK, open=lambda it, w: it.open("emu:threads=1,quiet").close(), close=shut),
    },
    "Buffer": {
        **gets(SHUT, SHUT, "host_address"),
        **calls(SHUT, SHUT, "memory view to_device from_device read"),
        **rows(
            SHUT,
            SHUT,
            sub=call("sub", 0, 32),
            write=call("write", b"abcd"),
            export_fd=lambda it, w: os.close(it.export_fd()),
        ),
        **rows(OK, OK, close=shut),
    },
    "Kernel": {
        **rows(
            SHUT,
            SHUT,
            run=lambda it, w: it.run(w.source, w.result),
            start=lambda it, w: it.start(w.source, w.result).wait(),
        ),
        **rows(OK, OK, close=shut),
    },
    "HwContext": {
        **rows(SHUT, SHUT, take=lambda it, w: it.run(b"", [])),
        **calls(OK, OK, "in_flight unfinished idle drain"),
        **rows(OK, OK, close=shut),
    },
    "Run": {**gets(OK, OK, "done state"), **calls(OK, OK, "wait")},  # of a run that was waited for
    "ContextPool": {
        **gets(OK, OK, "loads swaps resident stats"),
        **calls(OK, OK, "contexts in_flight abort"),
        **rows(
            SHUT,
            SHUT,
            kernel=lambda it, w: it.kernel(w.xclbin, w.insts).close(),
            chain=lambda it, w: it.chain([(w.kernel, (w.source, w.result))]).wait(),
        ),
        **rows(OK, OK, close=shut),
    },
    "Xclbin": {
        **gets(OK, OK, "kernels"),
        **rows(
            OK,
            OK,
            cu_index=call("cu_index", None),
            section=call("section", 8),
            read=call("read", xclbin_bytes("copy")),
        ),
    },
    "Qwen35": {
        **rows(
            CLOSED,
            CLOSED,
            chat=lambda it, w: str(it.chat("x")),
            reply=lambda it, w: str(it.reply(USER)),
            complete=lambda it, w: str(it.complete("x")),
            generate=lambda it, w: list(it.generate(IDS, 3)),
            prefill=call("prefill", IDS),
            decode=call("decode", 5),
            require_open=call("require_open"),
            check_image=lambda it, w: looked(it),
        ),
        **rows(
            OK, OK, default_sampling=call("default_sampling"), conversation=call("conversation"), close=shut
        ),
    },
    "Conversation": {
        **rows(
            CLOSED,
            CLOSED,
            ask=lambda it, w: str(it.ask("x")),
            answer_tools=lambda it, w: str(it.answer_tools(["4"])),
        ),
        **rows(
            OK,
            OK,
            save=lambda it, w: it.save(w.folder / "again"),
            turns=get("turns"),
            system=system,
            load=lambda it, w: it.load(w.folder / "saved"),
            undo=call("undo"),
            clear=call("clear"),
        ),
    },
    "Reply": {
        **gets(OK, OK, "text reasoning note tokens stats finish complete logprobs tool_calls"),
        **rows(
            CLOSED,
            CLOSED,
            result=lambda it, w: w.half().result(),
            events=lambda it, w: list(w.half().events()),
            __str__=lambda it, w: str(w.half()),
            __iter__=lambda it, w: list(w.half()),
        ),
        **rows(OK, OK, close=lambda it, w: (w.half().close(), shut(it, w))),
    },
}
INNER = {
    "Buffer": {"abandon", "flush_for_start"},
    "Kernel": {"check_open", "fill", "prepare"},
    "HwContext": {
        "assign",
        "finished",
        "give_up",
        "owner",
        "preemption_scratch",
        "run",
        "settle",
        "submit",
        "touches",
    },
    "ContextPool": {"forget", "let_go", "load", "release", "shed_context", "shed_pdis", "unload"},
}
"""What the binding's own files ask of each other, under the locks of those who ask."""
DATA = {
    *("AnswerOptions", "Health", "QoS", "State", "XdnaError", "GREEDY", "Info", "QwenError", "Sampling"),
    *("Stats", "__version__"),
}
"""Values: they know nothing of a device."""
ELSEWHERE = {"Node", "KernelNode", "open_node"}
"""The seam, whose states tests/binding/test_node.py goes through, as OSErrors."""


def looked(model: Any) -> None:
    """The bundle has no tower: that is the right answer of a model that is open."""
    with contextlib.suppress(ImageError):
        model.check_image("x.png")


def outcome(row: Row, it: Any, world: World) -> str:
    try:
        row.use(it, world)
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}"
    return OK


def outcomes(kind: str, world: World) -> dict[str, str]:
    """Of every row; what closes comes last."""
    it = world.objects[kind]
    found = {name: outcome(row, it, world) for name, row in TABLE[kind].items() if name != "close"}
    for name in dir(it):
        if not name.startswith("_") and name not in TABLE[kind]:
            getattr(it, name)
    repr(it)
    if "close" in TABLE[kind]:
        found["close"] = outcome(TABLE[kind]["close"], it, world)
    return found


def test_every_public_name_has_a_row() -> None:
    everything = {*amdxdna.__all__, *qwen35.__all__}
    assert everything == {*TABLE, *DATA, *ELSEWHERE}
    for kind, table in TABLE.items():
        cls = getattr(amdxdna if kind in amdxdna.__all__ else qwen35, kind)
        public = {
            name
            for name, value in inspect.getmembers_static(cls)
            if not name.startswith("_")
            and not inspect.ismemberdescriptor(value)
            and (callable(value) or isinstance(value, (property, classmethod, staticmethod)))
        }
        if kind == "Qwen35":
            public.discard("load")  # makes one
        assert public - INNER.get(kind, set()) == {n for n in table if not n.startswith("__")}, kind


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.stack.close()


KINDS = sorted(TABLE)


@contextlib.contextmanager
def beside(world: World) -> Iterator[None]:
    """Another thread stands inside a step of the model and holds the binding's locks, until the end."""
    inside, go = threading.Event(), threading.Event()

    def hold() -> None:
        pool = world.device.pool
        with (
            world.model.session.turns.alone(),
            world.client.lock,
            world.context.lock,
            world.kernel.shared.lock,
            pool._lock,
            pool._load_lock,
            world.talk._lock,
        ):
            inside.set()
            go.wait(WAIT)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert inside.wait(WAIT)
    try:
        yield
    finally:
        go.set()
        thread.join(WAIT)


@pytest.mark.parametrize("kind", KINDS)
def test_open(kind: str, world: World) -> None:
    assert outcomes(kind, world) == dict.fromkeys(TABLE[kind], OK)


@pytest.mark.parametrize("kind", KINDS)
def test_from_another_thread_while_answers_are_drawn(kind: str, world: World) -> None:
    half = world.half()
    with ThreadPoolExecutor(2) as pool:
        drawing = pool.submit(lambda: [str(world.model.chat("two")) for _ in range(3)])
        found = pool.submit(outcomes, kind, world).result(WAIT)
        shut_down = kind == "Qwen35"  # its last row
        if not shut_down:
            assert drawing.result(WAIT) == ["You said: two"] * 3
            assert str(half) == "You said: two"
    assert found == dict.fromkeys(TABLE[kind], OK)


@pytest.mark.parametrize("how", ["closed", "with"])
@pytest.mark.parametrize("kind", KINDS)
def test_after_close_and_after_the_with_block(kind: str, how: str, world: World) -> None:
    world.halves = [world.half() for _ in range(6)]
    it = world.objects[kind]
    if how == "closed":
        for one in (it, world.context, world.kernel, world.device, world.model):
            if hasattr(one, "close") and not (kind == "Reply" and one is it):
                one.close()
    else:
        world.stack.close()
    assert outcomes(kind, world) == {name: row.closed for name, row in TABLE[kind].items()}


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_forked_child(kind: str, world: World) -> None:
    world.halves = [world.half() for _ in range(6)]
    read, write = os.pipe()
    with beside(world):
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(WAIT)
                os.write(write, json.dumps(outcomes(kind, world)).encode())
            except BaseException as error:
                os.write(write, json.dumps({"": repr(error)}).encode())
            finally:
                world.stack.close()
                os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        told = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it waited"
    assert json.loads(told) == {name: row.forked for name, row in TABLE[kind].items()}
    assert world.works() and len(world.device.contexts()) >= 2
