"""The state cache: transactions, snapshots that share rows, memory that comes and goes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qwen35.errors import ModelError
from qwen35.model.cache import StateCache

HUGE = 2 << 20
"""The pages of the cache's mapping may be of this size."""


def config(kinds="lla"):
    return SimpleNamespace(
        layer_types=tuple({"l": "lin", "a": "att"}[kind] for kind in kinds),
        num_key_value_heads=2,
        head_dim=32,
        linear_num_value_heads=3,
        linear_key_head_dim=16,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        conv_dim=40,
    )


def write(cache: StateCache, count: int, seed: int) -> None:
    """What a prefill of `count` tokens does to the state."""
    rng = np.random.default_rng(seed)
    cache.reserve(count)
    for kv in filter(None, cache.kv):
        for rows in (kv.keys, kv.values):
            rows[cache.length : cache.length + count] = rng.integers(1, 1 << 16, (count, 64))
    for pair in filter(None, cache.linear):
        pair[1 - cache.side].conv[:] = rng.integers(0, 1 << 16, (3, 40))
        pair[1 - cache.side].matrices[:] = rng.standard_normal((3, 16, 32))
    cache.commit(count, cache.position + count + 1)


def contents(cache: StateCache):
    """Every byte of the state."""
    linear = [(p[cache.side].conv.copy(), p[cache.side].matrices.copy()) for p in cache.linear if p]
    rows = [(kv.keys[: cache.length].copy(), kv.values[: cache.length].copy()) for kv in cache.kv if kv]
    return cache.length, cache.position, linear, rows


def same(a, b) -> bool:
    return a[:2] == b[:2] and all(
        np.array_equal(x, y)
        for p, q in ((a[2], b[2]), (a[3], b[3]))
        for one, two in zip(p, q, strict=True)
        for x, y in zip(one, two, strict=True)
    )


def resident(cache: StateCache) -> int:
    """Pages of the KV cache's mapping in memory, in bytes, as the kernel counts them."""
    kv = next(filter(None, cache.kv))
    address = f"{kv.keys.__array_interface__['data'][0]:x}-"
    take = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            take = line.startswith(address)
        elif take and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the mapping is not in smaps")


def test_layers_and_alignment():
    cache = StateCache(config("lalla"), 100)
    assert [kv is not None for kv in cache.kv] == [False, True, False, False, True]
    assert [pair is not None for pair in cache.linear] == [True, False, True, True, False]
    for pair in filter(None, cache.linear):
        for state in pair:
            assert state.matrices.shape == (3, 16, 32) and state.conv.shape == (3, 40)
            assert state.matrices.__array_interface__["data"][0] % 64 == 0
    assert cache.kv[1].keys.shape == (100, 64)
    spans = sorted(
        (a.__array_interface__["data"][0], a.nbytes) for kv in cache.kv if kv for a in (kv.keys, kv.values)
    )
    assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))


@pytest.mark.parametrize("kinds", ["l", "a"])
def test_models_of_one_kind_of_layer(kinds):
    cache = StateCache(config(kinds), 10)
    write(cache, 3, 0)
    state, before = cache.snapshot(), contents(cache)
    write(cache, 2, 1)
    cache.restore(state)
    assert same(contents(cache), before)


def test_commit_swaps_sides():
    cache = StateCache(config(), 50)
    assert (cache.side, cache.length, cache.position) == (0, 0, 0)
    write(cache, 7, 0)
    assert (cache.side, cache.length, cache.position) == (1, 7, 8)
    write(cache, 1, 1)
    assert (cache.side, cache.length, cache.position) == (0, 8, 10)


def test_a_write_without_commit_changes_nothing():
    cache = StateCache(config(), 50)
    write(cache, 7, 0)
    before = contents(cache)
    cache.commit, commit = (lambda *_: None), cache.commit
    write(cache, 9, 1)
    cache.commit = commit
    assert same(contents(cache), before)


def test_restore_from_anywhere():
    cache = StateCache(config(), 200)
    states, wanted = [], []
    for seed, count in enumerate((30, 1, 50)):
        write(cache, count, seed)
        states.append(cache.snapshot())
        wanted.append(contents(cache))
    for order in ((2, 0, 1), (0, 2, 2), (1, 1, 0)):
        for at in order:
            write(cache, 13, 77 + at)
            cache.restore(states[at])
            assert same(contents(cache), wanted[at])
    cache.reset()
    write(cache, 90, 99)
    for state, want in zip(states, wanted, strict=True):
        cache.restore(state)
        assert same(contents(cache), want)


def test_snapshots_share_the_rows_before():
    cache = StateCache(config(), 1000)
    row = 2 * 64 * 2  # keys and values of 64 uint16
    write(cache, 300, 0)
    first = cache.snapshot()
    linear = first.conv.nbytes + first.matrices.nbytes
    assert first.nbytes == linear + 300 * row
    again = cache.snapshot()
    assert again.nbytes == linear
    write(cache, 10, 1)
    second = cache.snapshot()
    assert second.nbytes == linear + 10 * row
    assert [block.start for block in second.blocks] == [0, 300]
    # another branch shares what was before it, and no more
    cache.restore(first)
    write(cache, 20, 2)
    branch, want = cache.snapshot(), contents(cache)
    assert branch.nbytes == linear + 20 * row and branch.blocks[0] is second.blocks[0]
    cache.restore(second)
    assert cache.length == 310
    cache.restore(branch)
    assert same(contents(cache), want)


def test_rows_that_are_there_are_not_copied_again():
    cache = StateCache(config(), 1000)
    write(cache, 300, 0)
    first = cache.snapshot()
    write(cache, 100, 1)
    kv = next(filter(None, cache.kv))
    kv.keys[5] = 1234  # a mark that only a copy would remove
    cache.restore(first)
    assert (kv.keys[5] == 1234).all()
    cache.reset()
    cache.restore(first)
    assert not (kv.keys[5] == 1234).any()


def test_a_snapshot_is_independent_of_what_follows():
    cache = StateCache(config(), 100)
    write(cache, 20, 0)
    state, want = cache.snapshot(), contents(cache)
    cache.restore(state)
    for pair in filter(None, cache.linear):
        pair[0].matrices[:] = pair[1].matrices[:] = 5
        pair[0].conv[:] = pair[1].conv[:] = 5
    for kv in filter(None, cache.kv):
        kv.keys[:] = kv.values[:] = 5
    cache.reset()
    cache.restore(state)
    assert same(contents(cache), want)


def test_an_interrupted_restore_leaves_a_state():
    cache = StateCache(config(), 100)
    write(cache, 20, 0)
    old = cache.snapshot()
    cache.reset()
    write(cache, 30, 1)

    class Broken:
        def __iter__(self):
            raise KeyboardInterrupt

    block = old.blocks[0]
    rows, block.rows = block.rows, Broken()
    with pytest.raises(KeyboardInterrupt):
        cache.restore(old)
    assert (cache.length, cache.position) == (0, 0)
    block.rows = rows
    cache.restore(old)
    assert cache.length == 20


def test_another_models_snapshot_is_refused():
    first, second = (StateCache(config(), 100) for _ in range(2))
    write(first, 5, 0)
    with pytest.raises(ModelError, match="another model"):
        second.restore(first.snapshot())
    assert second.length == 0


def test_memory_grows_with_the_rows_and_goes_on_reset():
    cache = StateCache(config("a"), 100_000)
    assert resident(cache) == 0 and cache.kv_bytes == 0
    write(cache, 1000, 0)
    used, steps = 1000 * 2 * 128, 3 * HUGE
    assert used <= resident(cache) < used + steps
    assert cache.kv_bytes == 1024 * 2 * 128
    state = cache.snapshot()
    write(cache, 80_000, 1)
    assert resident(cache) >= 81 * used
    cache.restore(state)
    assert resident(cache) < used + steps
    assert cache.kv_bytes == 1024 * 2 * 128
    cache.reset()
    assert resident(cache) == 0 and cache.kv_bytes == 0


def test_an_uncommitted_tail_is_given_back_too():
    cache = StateCache(config("a"), 100_000)
    cache.commit, commit = (lambda *_: None), cache.commit
    write(cache, 50_000, 0)
    cache.commit = commit
    assert resident(cache) >= 50_000 * 2 * 128
    cache.reset()
    assert resident(cache) == 0


@pytest.mark.parametrize(("behind", "kept"), [(1024, 1536), (1025, 512)])
def test_rows_behind_a_restored_state_are_kept_for_the_next_answer_up_to_a_number(behind, kept):
    cache = StateCache(config("a"), 100_000)
    write(cache, 300, 0)
    state = cache.snapshot()
    write(cache, behind, 1)
    cache.restore(state)
    assert cache.kv_bytes == kept * 2 * 128


def test_what_a_step_reads_asks_for_huge_pages():
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has none")
    cache = StateCache(config(), 100_000)
    found = {}
    for block in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        start, end = (int(word, 16) for word in block.split(" ")[0].split("-"))
        found[range(start, end)] = re.search("^VmFlags:.* hg", block, re.M) is not None
    for array in (cache.kv[2].keys, cache.linear[0][0].matrices):
        address = array.__array_interface__["data"][0]
        assert next(huge for where, huge in found.items() if address in where)
