"""Thousands of signals at random moments: each result that follows is right, nothing leaks, every wait ends.

SIGINT (KeyboardInterrupt), SIGTERM (SystemExit) and handlers of a user's, each in the midst of something that
is chosen at random. AMDXDNA_SOAK sets how many; the quick run has 200.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from amdxdna.device import Device
from amdxdna.errors import XdnaError
from qwen35.bundle import Bundle
from qwen35.model.projections import Projections
from qwen35.model.text import TextModel
from qwen35.vision.tower import VisionTower
from tests.support.binding import adder
from tests.support.interrupting import SOAK, Ledger, handlers, interrupted, watchdog
from tests.support.model_bundle import bundle_path, tokens
from tests.support.operations import OPERATIONS, Rig

CHECK = 25
"""Interruptions between two looks at everything that is held."""


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    with watchdog(900 + SOAK / 10), handlers():
        yield


@pytest.mark.parametrize("seed", [1, 2])
def test_binding(seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig()
    for operation in OPERATIONS:
        operation(rig)
    rig.right()
    ledger = Ledger(rig.device)
    gc.collect()
    before = ledger.read()
    kinds = set()
    for n in range(SOAK // 4):
        operation = chance.choice(OPERATIONS)
        kinds.add(interrupted(lambda operation=operation: operation(rig), 0.004, chance))  # type: ignore[misc]
        rig.right_one(n % 3)
        if n % CHECK == 0:
            rig.right()
            ledger.settle(before)
    rig.right()
    ledger.settle(before)
    assert len(kinds - {None}) == 3
    rig.close()


class Worker(threading.Thread):
    """Runs kernels of two xclbins on its own buffers until it is told to stop; `wrong` is what went wrong."""

    def __init__(self, rig: Rig, number: int) -> None:
        super().__init__(name=f"worker {number}")
        self._kernels = [adder(rig.device, 64, 10 * number + n, variant=n) for n in range(2)]
        self._a, self._b = rig.device.alloc(64), rig.device.alloc(64)
        self._a.view("u4")[:] = number
        self._number = number
        self.over = threading.Event()
        self.wrong = ""
        self.runs = 0

    def run(self) -> None:
        try:
            while not self.over.is_set():
                kernel = self.runs % 2
                self._kernels[kernel].run(self._a, self._b, outputs=[self._b], timeout=60)
                found = self._b.view("u4").tolist()
                if found != [11 * self._number + kernel] * 16:
                    self.wrong = f"{found}"
                    return
                self.runs += 1
        except XdnaError as error:
            self.wrong = repr(error)


def test_binding_beside_threads() -> None:
    chance = random.Random(3)
    rig = Rig()
    workers = [Worker(rig, n) for n in (1, 2)]
    operations = [each for each in OPERATIONS if each is not Rig.context]  # the threads have both slots
    for operation in operations:
        operation(rig)
    rig.right()
    ledger = Ledger(rig.device)
    gc.collect()
    before = ledger.read()
    for worker in workers:
        worker.start()
    try:
        for n in range(SOAK // 4):
            operation = chance.choice(operations)
            interrupted(lambda operation=operation: operation(rig), 0.01, chance)  # type: ignore[misc]
            rig.right_one(n % 3)
            assert [worker.wrong for worker in workers] == ["", ""]
        end = time.monotonic() + 60
        while any(worker.runs <= 10 for worker in workers):
            assert time.monotonic() < end and [worker.wrong for worker in workers] == ["", ""]
            time.sleep(0.01)
    finally:
        for worker in workers:
            worker.over.set()
        for worker in workers:
            worker.join(60)
    rig.right()
    ledger.settle(before)
    rig.close()


class Model:
    """A text model with a tower, and what it must give."""

    def __init__(self) -> None:
        self.bundle = Bundle.open(bundle_path("vision"))
        self.device = Device.open("emu:quiet,threads=1")
        self.text = TextModel(self.bundle, self.device, 256)
        assert self.bundle.config.vision is not None
        vision = self.bundle.config.vision
        self.npu = Projections(self.bundle, self.device)
        self.tower = VisionTower(self.bundle, self.npu, vision)
        self.patches = np.random.default_rng(1).random((16, vision.patch_dim), np.float32)
        self.ids = tokens("vision", 40)
        self.text.prefill(self.ids[:20])
        self.at = self.text.snapshot()
        self.after = self.text.decode(self.ids[20])
        self.text.restore(self.at)
        self.longer = self.text.prefill(self.ids[20:])
        self.picture = self.tower.encode(self.patches, (4, 4))
        self.text.restore(self.at)

    def decode(self) -> None:
        self.text.restore(self.at)
        for token in self.ids[20:23]:
            self.text.decode(token)

    def prefill(self) -> None:
        self.text.restore(self.at)
        self.text.prefill(self.ids[20:])

    def vision(self) -> None:
        self.tower.encode(self.patches, (4, 4))

    def load(self) -> None:
        TextModel(self.bundle, self.device, 64).close()

    def right(self, what: int) -> None:
        if what % 3 == 0:
            assert np.array_equal(self.tower.encode(self.patches, (4, 4)), self.picture)
        self.text.restore(self.at)
        if what % 3 == 1:
            assert np.array_equal(self.text.prefill(self.ids[20:]), self.longer)
        else:
            assert np.array_equal(self.text.decode(self.ids[20]), self.after)


MODEL: list[Callable[[Model], None]] = [Model.decode, Model.prefill, Model.vision, Model.load]


def test_model() -> None:
    chance = random.Random(4)
    model = Model()
    for operation in MODEL:
        operation(model)
    ledger = Ledger(model.device)
    gc.collect()
    before = ledger.read()
    for n in range(SOAK // 4):
        operation = chance.choice(MODEL)
        interrupted(lambda operation=operation: operation(model), 0.05, chance)  # type: ignore[misc]
        assert model.text.length in (0, 20, 21, 22, 23, 40)
        model.right(n)
        if n % CHECK == 0:
            for what in range(3):  # in every context: what is dropped in one goes with its next command
                model.right(what)
            ledger.settle(before)
    model.text.close()
    model.tower.close()
    model.npu.close()
    model.device.close()
