"""What a signal handler raises while objects go is not lost: nothing that Python calls then is in Python."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from amdxdna.device import Device
from amdxdna.trace import ENVIRONMENT
from amdxdna.weak import LiveKeys, LiveSet, LiveValues
from qwen35.engine import Session, generate
from tests.support.binding import adder, copy_xclbin
from tests.support.interrupting import SOAK, Callbacks, callbacks, handlers, interrupted, unraisable, watchdog
from tests.support.mock_model import HashModel, fake
from tests.support.threads import in_threads


def device(folder: Path, options: str = "") -> None:
    """A life of which the interpreter has to end everything."""
    opened = Device.open(f"emu:quiet,threads=1,slots=3{options}")
    kernel, buffer = adder(opened, 64, 1), opened.alloc(64)
    kernel.run(buffer, buffer)
    kernel.start(buffer, buffer)
    opened.pool.unload()
    opened.context(copy_xclbin(7))


def flushed(folder: Path) -> None:
    """On a driver that ends a process's contexts with its children."""
    device(folder, ",driver=6.18")


def traced(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT, str(folder / "trace.jsonl"))
        device(folder)


def turns(folder: Path) -> None:
    session = Session(HashModel(), None)
    first, second = generate(session, [1], max_new=3), generate(session, [2], max_new=3)
    next(first), next(second)
    list(first), list(second)


def model(folder: Path) -> None:
    list(fake(folder).generate([1, 2, 3], max_new=3))


LIVES = [device, flushed, traced, turns, model]


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_no_python_runs_when_objects_go(life: Callable[[Path], None], tmp_path: Path) -> None:
    assert callbacks(lambda: life(tmp_path)) == set()


def test_an_interrupted_life_loses_no_exception() -> None:
    chance = random.Random(13)
    device(Path())
    gc.collect()
    gc.freeze()  # what others left goes another time
    try:
        with watchdog(900 + SOAK), handlers(), unraisable() as lost:
            came = sum(interrupted(lambda: device(Path()), 8e-3, chance) is not None for _ in range(SOAK))
    finally:
        gc.unfreeze()
    assert came == SOAK and lost == []


class Thing:
    """Something to refer to."""


class Loud(Thing):
    """As no class here may be."""

    def __del__(self) -> None:
        self.gone = True


@pytest.mark.parametrize("made", [Loud, Thing])
def test_what_these_tests_look_for_is_found(made: type[Thing]) -> None:
    kept: weakref.WeakSet[Thing] = weakref.WeakSet()

    def life() -> None:
        thing = made()
        kept.add(thing)

    with handlers(), unraisable() as lost, Callbacks(at=1) as points:
        life()
    assert points.found and len(lost) == 1


def test_a_live_set() -> None:
    kept: LiveSet[Thing] = LiveSet()
    a, b = Thing(), Thing()
    for thing in (a, b, a):
        kept.add(thing)
    assert len(list(kept)) == 2 and set(kept) == {a, b} and kept
    for _thing in kept:
        b = a  # one loses its last other owner while they are looked at
    del thing, _thing
    assert list(kept) == [a]
    del a, b
    assert not kept and list(kept) == []


def test_a_live_set_while_threads_and_the_collector_use_it() -> None:
    kept: LiveSet[Thing] = LiveSet()

    def use(number: int) -> None:
        for _ in range(2000):
            thing = Thing()
            thing.itself = thing  # type: ignore[attr-defined]  # for the collector
            kept.add(thing)
            assert thing in list(kept)

    in_threads(4, use)
    gc.collect()
    assert not kept


def test_live_keys() -> None:
    kept: LiveKeys[Thing, str] = LiveKeys()
    a, b = Thing(), Thing()
    assert kept.setdefault(a, "a") == "a" and kept.setdefault(a, "x") == "a"
    kept[b] = "b"
    kept[a] = "c"
    assert kept.setdefault(a, "x") == "c" and kept.setdefault(b, "x") == "b"
    with unraisable(BaseException) as dropped:
        del a
        gc.collect()
    assert dropped == [] and kept.setdefault(b, "x") == "b"


def test_live_values() -> None:
    kept: LiveValues[str, Thing] = LiveValues()
    a, b = Thing(), Thing()
    kept["a"], kept["b"], kept["also b"] = a, b, b
    assert kept.get("a") is a and kept.get("c") is None
    assert kept.discard(b) == {"b", "also b"} and kept.get("b") is None
    del a
    assert kept.get("a") is None
    kept["b"] = b
    assert kept.discard(None) == set() and kept.discard(b) == {"b"}
