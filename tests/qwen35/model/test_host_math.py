"""The C host math against numpy in float64, on every instruction set this processor offers."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

import numpy as np
import pytest

from qwen35 import host
from qwen35._host import lib
from qwen35.formats import from_bf16, to_bf16
from tests.support import shortage, workers
from tests.support.fences import fenced
from tests.support.synthetic import bf16_round

SPECIAL = np.array(
    [
        *(0.0, -0.0, 1.0, 1.00390625, 1.01171875, -1.00390625, 3.3895314e38, 3.4e38, np.inf, -np.inf, 1e-40),
        *(-1e-40, 9.2e-41, 65536.0, 1.5e-45, 2.0**-133, 2.0**-134, 3 * 2.0**-134),
    ],
    np.float32,
)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 31, 100, 4097])
def test_bf16_conversions(isa, count):
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32) * 100
    values[: min(count, SPECIAL.size)] = SPECIAL[: min(count, SPECIAL.size)]
    values, bits = fenced(values), fenced(np.empty(count, np.uint16))
    host.f32_to_bf16(values, bits)
    assert np.array_equal(bits, to_bf16(values))
    back = fenced(np.empty(count, np.float32))
    host.bf16_to_f32(bits, back)
    assert np.array_equal(back, from_bf16(bits))


def test_bf16_keeps_nan(isa):
    values = np.full(33, np.nan, np.float32)
    values.view(np.uint32)[1::2] = 0x7F800001  # signalling, payload in the low half alone
    bits = np.empty(33, np.uint16)
    host.f32_to_bf16(values, bits)
    assert np.isnan(from_bf16(bits)).all()


@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 1), (3, 48, 7), (8, 32, 64), (21, 80, 33), (64, 128, 128)])
def test_matmul_with_strides(isa, m, n, k):
    rng = np.random.default_rng(m)
    a = fenced(rng.standard_normal((m, k + 5)), np.float32)[:, 5:]
    b = fenced(rng.standard_normal((k, n + 9)), np.float32)[:, 9:]
    out = np.full((m + 1, n + 3), 7, np.float32)
    host.matmul(a, b, out[:m, :n])
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(out[:m, :n] - want).max() < 2e-6 * k
    assert (out[:, n:] == 7).all() and (out[m] == 7).all()


def test_matmul_refuses_widths_it_cannot_do():
    with pytest.raises(ValueError, match="multiple of 16"):
        host.matmul(np.zeros((2, 4), np.float32), np.zeros((4, 8), np.float32), np.zeros((2, 8), np.float32))


def reference_norm(x, adds, weight, eps):
    x = x.copy()
    for add in adds:
        x += from_bf16(np.ascontiguousarray(add[:, : x.shape[1]]))
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * (1 + weight.astype(np.float64))
    return x, normed


@pytest.mark.parametrize(("rows", "dim"), [(1, 64), (1, 2048), (5, 72), (16, 96), (17, 128), (100, 40)])
def test_norm_adds_normalises_and_projects(isa, rows, dim):
    rng = np.random.default_rng(dim)
    whole = rng.standard_normal((rows + 1, dim)).astype(np.float32)
    x, behind = whole[:rows], whole[rows].copy()
    weight = fenced(rng.standard_normal(dim) * 0.1, np.float32)
    proj = rng.standard_normal((6, dim)).astype(np.float32)
    adds = [fenced(to_bf16(rng.standard_normal((rows, dim + 8 * s)).astype(np.float32))) for s in range(3)]
    adds = [add[:, 8 * s :] for s, add in enumerate(adds)]
    norm = host.Norm(weight, 1e-6, adds=3, proj=proj)
    out = np.full((rows + 1, dim + 24), 9, np.uint16)
    gates = np.full((rows + 1, norm.proj_cols), 9, np.float32)
    want_x, want = reference_norm(x, adds, weight, 1e-6)
    norm.rows(x, adds, out, gates[:rows])
    assert np.array_equal(whole[rows], behind)
    assert np.array_equal(x, want_x)  # float32 sums in order, exactly
    got = from_bf16(out[:rows, :dim].copy())
    assert np.abs(got - want).max() <= np.abs(want).max() * 2**-8
    assert (got == bf16_round(want.astype(np.float32))).mean() > 0.99
    assert (out[:, dim:] == 9).all() and (out[rows] == 9).all() and (gates[rows] == 9).all()
    gates = gates[:rows]
    assert np.abs(gates[:, :6] - want @ proj.T.astype(np.float64)).max() < 1e-5 * dim**0.5
    assert norm.proj_cols == 16 and not gates[:, 6:].any()
    later = np.empty((1, 16), np.float32)
    norm.gates(x[-1:], later)
    assert np.array_equal(later[0], gates[-1])


def test_norm_without_adds_and_projection(isa):
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    before = x.copy()
    out = np.empty((3, 64), np.uint16)
    host.Norm(np.zeros(64, np.float32), 1e-6).rows(x, [], out)
    assert np.array_equal(x, before)
    want = before / np.sqrt((before**2).mean(-1, keepdims=True) + 1e-6)
    assert np.abs(from_bf16(out) - want).max() < 0.02


@pytest.mark.parametrize("blocks", [1, 5, 192])
def test_swiglu_of_interleaved_pairs(isa, blocks):
    rng = np.random.default_rng(blocks)
    gate, up = (bf16_round(rng.standard_normal(blocks * 32).astype(np.float32) * 4) for _ in range(2))
    pairs = np.stack([gate.reshape(-1, 32), up.reshape(-1, 32)], 1).reshape(-1)
    out = fenced(np.empty(blocks * 32, np.uint16))
    host.swiglu_pairs(fenced(to_bf16(pairs)), out)
    want = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
    assert np.abs(from_bf16(out) - want).max() <= np.abs(want).max() * 2**-8
    assert (from_bf16(out) == bf16_round(want.astype(np.float32))).mean() > 0.99


def test_swiglu_over_the_whole_range_of_gates(isa):
    values = np.concatenate([np.linspace(-120, 120, 4001), [-1e30, 1e30, 0.0]]).astype(np.float32)
    gate = np.full(4032, np.nan, np.float32)
    gate[: values.size] = bf16_round(values)
    pairs = np.stack([gate.reshape(-1, 32), np.ones((126, 32), np.float32)], 1).reshape(-1)
    out = np.empty(gate.size, np.uint16)
    host.swiglu_pairs(to_bf16(pairs), out)
    wide = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        want = wide / (1 + np.exp(-wide))
    # below -88 the float32 exponential is infinite and the result 0, which is right to 1e-36
    assert np.allclose(from_bf16(out), want, rtol=2**-8, atol=1e-36, equal_nan=True)


def test_results_do_not_depend_on_threads():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((300, 128)).astype(np.float32)
    proj = rng.standard_normal((16, 128)).astype(np.float32)
    norm = host.Norm(np.zeros(128, np.float32), 1e-6, proj=proj)
    results = []
    before = host.threads()
    try:
        for count in (1, 2, 5, 2, 1):
            host.set_threads(count)
            assert host.threads() == count
            out, gates = np.empty((300, 128), np.uint16), np.empty((300, 16), np.float32)
            norm.rows(x.copy(), [], out, gates)
            results.append((out.tobytes(), gates.tobytes()))
    finally:
        host.set_threads(before)
    assert len(set(results)) == 1


@pytest.mark.parametrize("size", [0, 1, 64, 3 << 20])
def test_fetched_memory_stays_as_it_is(size):
    memory = np.random.default_rng(size).integers(0, 1 << 16, size, np.uint16)
    before = memory.copy()
    lib.host_fetch(host.pointer(memory), memory.nbytes)
    assert np.array_equal(memory, before)


def test_thread_count_is_checked():
    with pytest.raises(ValueError, match="65 threads"):
        host.set_threads(65)
    with pytest.raises(ValueError, match="unknown"):
        host.set_isa("quantum")


F, B = np.zeros((4, 32), np.float32), np.zeros((4, 32), np.uint16)
GAPS, WIDE = np.zeros((4, 64), np.float32)[:, ::2], np.zeros((4, 64), np.uint16)
NORM = host.Norm(np.zeros(32, np.float32), 1e-6, adds=1, proj=np.zeros((3, 32), np.float32))
GATES = np.zeros((4, 16), np.float32)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: NORM.rows(GAPS, [B], B), "does not fit this norm"),
        (lambda: NORM.rows(F[:, :16].copy(), [B], B), "does not fit this norm"),
        (lambda: NORM.rows(F, [], B), "with 0 additions"),
        (lambda: NORM.rows(F, [B[:3]], B), "fewer than 4 rows"),
        (lambda: NORM.rows(F, [B], B[:3]), "fewer than 4 rows"),
        (lambda: NORM.rows(F, [B], B, GATES[:3]), "fewer than 4 rows"),
        (lambda: NORM.rows(F, [B], B, GATES[:, :3]), "fewer than 4 rows"),
        (lambda: NORM.rows(F, [B[:, :31]], B), "rows of 32 contiguous elements"),
        (lambda: NORM.rows(F, [WIDE[:, ::2]], B), "rows of 32 contiguous elements"),
        (lambda: NORM.rows(F, [B], B.reshape(-1)), "rows of 32 contiguous elements"),
        (lambda: NORM.gates(GAPS, GATES), "do not fit this norm"),
        (lambda: NORM.gates(F[:, :16].copy(), GATES), "do not fit this norm"),
        (lambda: NORM.gates(F, GATES[:3]), "do not fit this norm"),
        (lambda: host.swiglu_pairs(B.reshape(-1), B[0]), "no 32 | 32 pairs"),
        (lambda: host.swiglu_pairs(B[0], B[0, :16]), "no 32 | 32 pairs"),
        (lambda: host.matmul(F[:, :4], F[:3, :16], F[:, :16]), "multiple of 16"),
        (lambda: host.matmul(F[:, :4], F[:, :16], F[:3, :16]), "multiple of 16"),
        (lambda: host.bf16_to_f32(B, F[:3]), "of one size"),
        (lambda: host.bf16_to_f32(WIDE[:, ::2], F), "of one size"),
        (lambda: host.f32_to_bf16(F, WIDE[:, ::2]), "of one size"),
        (lambda: host.check(-22), "multiples of 16"),
    ],
)
def test_operands_that_do_not_fit_are_refused(call: Callable[[], None], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        call()
    NORM.rows(F, [B], WIDE, GATES)  # whose rows are longer


def test_scratch_that_cannot_be_had_is_told() -> None:
    with pytest.raises(MemoryError):
        host.check(-12)


def _norm_sum() -> bytes:
    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    out = np.empty((128, 64), np.uint16)
    host.Norm(np.zeros(64, np.float32), 1e-6).rows(x, [], out)
    return out.tobytes()


def test_the_pool_works_in_a_forked_child():
    before = host.set_threads(3)
    try:
        want = _norm_sum()
        read, write = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                assert all(_norm_sum() == want for _ in range(50))
                assert workers.masks() == [0, workers.ALL, workers.ALL]
                for count in (3, 2, 1, 4):
                    assert host.set_threads(count) and _norm_sum() == want
                    workers.counted(count)
                code = 0
            finally:
                os.write(write, bytes([code]))
                os._exit(code)
        os.close(write)
        assert os.read(read, 1) == b"\0"
        os.close(read)
        assert os.waitpid(child, 0)[1] == 0
        assert _norm_sum() == want
    finally:
        host.set_threads(before)


def test_the_pool_computes_on_more_than_the_callers_thread():
    before = host.set_threads(2)
    try:
        workers.shared(lambda: lib.host_fma(20_000_000))
    finally:
        host.set_threads(before)


def test_by_default_there_is_a_thread_for_each_processor_that_may_be_used():
    before, processors = host.threads(), os.sched_getaffinity(0)
    try:
        for allowed in (processors, {min(processors)}):
            os.sched_setaffinity(0, allowed)
            host.set_threads(0)
            assert host.threads() == min(16, len(allowed))
    finally:
        os.sched_setaffinity(0, processors)
        host.set_threads(before)


STAGES = """
import threading
import numpy as np
from qwen35 import host
from qwen35.vision.host import GELU_TANH, FullAttention, LayerNorm, activate
from tests.qwen35.model import test_model_attention, test_model_deltanet
host.set_threads(1)
delta, prompt, step = (test_model_deltanet.Case("square", 5),
                       *(test_model_attention.Case("pairs", 40) for _ in range(2)))
ones, bits, full = np.ones((1, 64), np.float32), np.zeros((1, 192), np.uint16), FullAttention(1, 64)
scratch, turns = full.scratch(1), ones[:, :32].copy()
full.load(bits, turns, turns, scratch, 0, 1)
for name, stage in {
    "norm": lambda: host.Norm(ones[0], 1e-6).rows(ones, [], bits),
    "layer norm": lambda: LayerNorm(ones[0], ones[0]).rows(ones, [], bits),
    "activation": lambda: activate(GELU_TANH, 1, 64, [bits, bits], bits),
    "recurrence": lambda: delta.prefill(delta.state(), delta.state()),
    "recurrence's step": lambda: delta.step(0, delta.state(), delta.state()),
    "attention": lambda: prompt.prefill(0, 40),
    "attention's step": lambda: step.step(0),
    "loading a picture": lambda: full.load(bits, turns, turns, scratch, 0, 1),
    "a picture's attention": lambda: full.part(scratch, 1, (0, 1), (0, 1), (0, 1), bits),
}.items():
    found = [name]
    def twice():
        allowed.value = 0
        try:
            stage()
        except MemoryError:
            found.append("refused")
        allowed.value = 1 << 30
        stage()
        found.append("done")
    thread = threading.Thread(target=twice)  # whose scratch is its own
    thread.start()
    thread.join()
    print(*found)
"""


def test_a_stage_without_memory_says_so_and_works_when_there_is_some(tmp_path):
    lines = shortage.run(STAGES, tmp_path)
    assert len(lines) == 9 and all(line.endswith(" refused done") for line in lines), lines


def test_scratch_that_was_too_small_is_given_back_and_so_is_an_ended_threads():
    """64 bytes a value: 700 MB, were all kept."""

    def lengthen() -> None:
        for dim in range(64_000, 64_000 + 80 * 64, 64):
            x, out = np.ones((1, dim), np.float32), np.empty((1, dim), np.uint16)
            norm = host.Norm(np.zeros(dim, np.float32), 1e-6)
            norm.rows(x, [], out)
            thread = threading.Thread(target=norm.rows, args=(x, [], out))
            thread.start()
            thread.join()

    assert shortage.within(300 << 20, lengthen)


def test_concurrent_callers_get_their_own_results():
    from concurrent.futures import ThreadPoolExecutor

    norm = host.Norm(np.zeros(64, np.float32), 1e-6)

    def one(seed: int) -> bool:
        x = np.random.default_rng(seed).standard_normal((200, 64)).astype(np.float32)
        out = np.empty((200, 64), np.uint16)
        norm.rows(x.copy(), [], out)
        want = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return bool(np.abs(from_bf16(out) - want).max() < 0.05)

    before = host.set_threads(3)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(one, range(200)))
    finally:
        host.set_threads(before)
