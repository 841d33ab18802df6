"""Which contexts go: how many are made on several orders of use, against LRU and Belady's optimum."""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import pytest

from amdxdna.kernel import Kernel
from qwen35 import Qwen35
from tests.support.binding import adder


def lru(order: Sequence[Hashable], slots: int) -> int:
    """Contexts made when the least recently used goes."""
    made, there = 0, OrderedDict[Hashable, None]()
    for each in order:
        if each in there:
            there.move_to_end(each)
            continue
        made += 1
        there[each] = None
        if len(there) > slots:
            there.popitem(last=False)
    return made


def belady(order: Sequence[Hashable], slots: int) -> int:
    """The least there can be: the one whose next use is furthest away goes."""
    following = [len(order)] * len(order)
    seen: dict[Hashable, int] = {}
    for at in range(len(order) - 1, -1, -1):
        following[at] = seen.get(order[at], len(order))
        seen[order[at]] = at
    made, there = 0, dict[Hashable, int]()
    for at, each in enumerate(order):
        if each not in there:
            made += 1
            if len(there) == slots:
                del there[max(there, key=there.__getitem__)]
        there[each] = following[at]
    return made


def made(open_emu, order: Sequence[Hashable], slots: int) -> int:
    """Contexts that the pool makes."""
    device = open_emu(f"slots={slots},instant")
    pair = device.alloc(64), device.alloc(64)
    kernels = {each: adder(device, 64, n, variant=n) for n, each in enumerate(dict.fromkeys(order))}
    for each in order:
        kernels[each].run(*pair)
    stats = device.pool.stats
    assert stats.resident == min(slots, len(kernels)) and stats.loads == stats.swaps + stats.resident
    return stats.loads


def test_the_references():
    assert belady("abcabcabc", 2) == 6 and lru("abcabcabc", 2) == 9
    assert belady("aabbab", 2) == lru("aabbab", 2) == 2
    order = list(range(22)) * 5
    assert (lru(order, 16), belady(order, 16)) == (110, 46)


@pytest.mark.parametrize(("count", "slots", "rounds"), [(22, 16, 5), (17, 16, 8), (3, 2, 30), (40, 16, 8)])
def test_a_rotation_over_more_than_there_are(open_emu, count, slots, rounds):
    order = list(range(count)) * rounds
    assert lru(order, slots) == len(order)
    best = belady(order, slots)
    assert made(open_emu, order, slots) <= best + slots


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.3])
def test_a_zipf_mix(open_emu, exponent):
    rng = random.Random(5)
    weights = [1 / (rank + 1) ** exponent for rank in range(40)]
    order = rng.choices(range(40), weights, k=1000)
    count = made(open_emu, order, 16)
    assert count <= 0.95 * lru(order, 16) and count >= belady(order, 16)


@pytest.mark.parametrize("name", ["fits", "phases", "drift", "two loops", "uniform"])
def test_what_lru_is_right_for(open_emu, name):
    rng = random.Random(7)
    orders = {
        "fits": rng.choices(range(16), k=400),
        "phases": [6 * phase + each for phase in range(8) for each in rng.choices(range(14), k=100)],
        "drift": [at // 20 + int(rng.expovariate(0.3)) for at in range(600)],
        "two loops": [(phase % 2) * 12 + each for phase in range(8) for each in list(range(12)) * 6],
        "uniform": rng.choices(range(24), k=600),
    }
    order = orders[name]
    slots = 8 if name == "drift" else 16
    assert made(open_emu, order, slots) <= 1.06 * lru(order, slots) + 1


def test_a_scan_does_not_wash_out_what_is_in_use(open_emu):
    order = [each for turn in range(30) for each in (*[0, 1, 2, 3] * 3, 100 + turn)]
    best = belady(order, 4)
    assert lru(order, 4) > 2 * best
    assert made(open_emu, order, 4) <= best + 6


def test_after_a_rotation_a_new_working_set_stays(open_emu):
    """The order that won under cyclic use has to let go again."""
    order = [*list(range(22)) * 6, *[30 + each for _ in range(20) for each in range(14)]]
    count = made(open_emu, order, 16)
    assert count <= belady(order, 16) + 60


@contextlib.contextmanager
def starts() -> Iterator[list[Kernel]]:
    """Every kernel that is started, in order."""
    order: list[Kernel] = []
    prepare = Kernel.prepare

    def look(kernel, buffers, flush):
        order.append(kernel)
        return prepare(kernel, buffers, flush)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "prepare", look)
        yield order


@pytest.fixture(scope="module")
def models_order() -> list[int]:
    """The kernels of the built-in model, text and vision, in the order in which it uses them."""
    with starts() as order, Qwen35.load(device="emu:threads=1") as model:
        picture = np.random.default_rng(3).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        for turn, text in enumerate(("What is a dog?", "What is this?", "Name a bird.")):
            images = [_image(picture)] if turn == 1 else []
            str(model.chat(text, max_new=4, images=images))
    return [id(kernel) for kernel in order]


def _image(pixels):
    from PIL import Image

    return Image.fromarray(pixels)


@pytest.mark.parametrize("slots", [1, 2, 4, 6, 8, 16])
def test_the_models_own_order(open_emu, models_order, slots):
    """As if each kernel had an xclbin of its own."""
    count = made(open_emu, models_order, slots)
    assert belady(models_order, slots) <= count <= 1.08 * lru(models_order, slots)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_the_built_in_models_contexts(slots):
    """Its xclbins are few, and prompts and tokens take turns."""
    with starts() as started, Qwen35.load(device=f"emu:threads=1,slots={slots}") as model:
        for text in ("What is a dog?", "Name a bird.", "What is a dog?"):
            str(model.chat(text, max_new=2))
        pool = model.device.pool
        order = [kernel.shared.xclbin.digest for kernel in started]
        assert belady(order, slots) <= pool.loads <= lru(order, slots) and pool.resident <= slots
