"""The DeltaNet mixer in C against the recurrence written out in numpy float64, token by token."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from qwen35 import host
from qwen35.formats import from_bf16, to_bf16
from qwen35.model.deltanet import DeltaNet, LinearState
from tests.support.fences import fenced

SHAPES = {
    # key heads, value heads, dk, dv, conv_k
    "square": (2, 2, 32, 32, 4),
    "grouped": (2, 4, 16, 32, 4),
    "tall": (1, 3, 64, 16, 2),
    "real": (1, 1, 128, 128, 4),
    "wide": (1, 1, 16, 48, 3),
    "no history": (1, 2, 16, 16, 1),
    "longest": (2, 2, 16, 16, 8),
}
LARGE = {"shared out": (4, 20, 128, 128, 4)}
"""A state beyond what a step reads on one thread."""


class Case:
    """A layer's parameters, inputs of `rows` tokens, and empty states."""

    def __init__(self, name, rows, seed=0, decay=None):
        rng = np.random.default_rng(seed)
        kh, vh, dk, dv, taps = (SHAPES | LARGE)[name]
        self.config = SimpleNamespace(
            linear_num_key_heads=kh,
            linear_num_value_heads=vh,
            linear_key_head_dim=dk,
            linear_value_head_dim=dv,
            linear_conv_kernel_dim=taps,
            rms_norm_eps=1e-6,
            lin_value=vh * dv,
            conv_dim=2 * kh * dk + vh * dv,
            n_lin=2 * kh * dk + 2 * vh * dv,
        )
        c = self.config
        self.taps = rng.standard_normal((c.conv_dim, taps)).astype(np.float32) * 0.5
        decays = np.full(vh, decay) if decay else rng.uniform(0.01, 8, vh)
        self.decay = -decays.astype(np.float32)
        self.dt_bias = rng.uniform(-6, 1, vh).astype(np.float32)
        self.norm = (1 + 0.1 * rng.standard_normal(dv)).astype(np.float32)
        self.cols = -(-2 * vh // 16) * 16
        self.y = fenced(to_bf16(rng.standard_normal((rows, c.n_lin + 8)).astype(np.float32)))[:, 8:]
        self.gates = fenced(rng.standard_normal((rows, self.cols)), np.float32)
        self.layer = DeltaNet(c, self.taps, self.decay, self.dt_bias, self.norm, self.cols)

    def state(self, seed=None):
        c = self.config
        conv = fenced(np.zeros((c.linear_conv_kernel_dim - 1, c.conv_dim), np.uint16))
        shape = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
        matrices = fenced(np.zeros(shape, np.float32))
        if seed is not None:
            rng = np.random.default_rng(seed)
            conv[:] = to_bf16(rng.standard_normal(conv.shape).astype(np.float32))
            matrices[:] = rng.standard_normal(matrices.shape)
        return LinearState(conv, matrices)

    def reference(self, start):
        """(outputs [n, vh*dv], conv rows, matrices), float64, from the recurrence of the published papers."""
        c = self.config
        y = from_bf16(self.y[:, : c.n_lin].copy()).astype(np.float64)
        history = np.concatenate([from_bf16(start.conv).astype(np.float64), y[:, : c.conv_dim]])
        mixed = sum(
            history[t : t + len(y)] * self.taps[:, t].astype(np.float64)
            for t in range(c.linear_conv_kernel_dim)
        )
        mixed = mixed / (1 + np.exp(-mixed))
        keys, group = (
            c.linear_num_key_heads * c.linear_key_head_dim,
            c.linear_num_value_heads // c.linear_num_key_heads,
        )
        q, k = (
            mixed[:, at : at + keys].reshape(-1, c.linear_num_key_heads, c.linear_key_head_dim)
            for at in (0, keys)
        )
        v = mixed[:, 2 * keys :].reshape(-1, c.linear_num_value_heads, c.linear_value_head_dim)
        q, k = (np.repeat(x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6), group, axis=1) for x in (q, k))
        q = q * c.linear_key_head_dim**-0.5
        z = y[:, c.conv_dim :].reshape(-1, c.linear_num_value_heads, c.linear_value_head_dim)
        b, a = (
            self.gates[:, at : at + c.linear_num_value_heads].astype(np.float64)
            for at in (0, c.linear_num_value_heads)
        )
        beta = 1 / (1 + np.exp(-b))
        g = np.exp(self.decay * np.logaddexp(0, a + self.dt_bias))
        s = start.matrices.astype(np.float64).copy()
        out = np.empty_like(v)
        for t in range(len(y)):
            s *= g[t][:, None, None]
            delta = (v[t] - np.einsum("hkv,hk->hv", s, k[t])) * beta[t][:, None]
            s += np.einsum("hk,hv->hkv", k[t], delta)
            o = np.einsum("hkv,hk->hv", s, q[t])
            o = o / np.sqrt((o**2).mean(-1, keepdims=True) + c.rms_norm_eps) * self.norm
            out[t] = o * z[t] / (1 + np.exp(-z[t]))
        return out.reshape(len(y), -1), history[len(y) :], s

    def prefill(self, before, after, rows=slice(None)):
        wide = self.config.lin_value
        out = np.full((len(self.y[rows]) + 1, wide + 8), 9, np.uint16)
        self.layer.prefill(self.y[rows], self.gates[rows], before, after, out)
        assert (out[:, wide:] == 9).all() and (out[-1] == 9).all()
        return from_bf16(out[:-1, :wide].copy())

    def step(self, t, before, after):
        c = self.config
        y, gates = fenced(self.y[t, : c.n_lin]), fenced(self.gates[t])
        out = np.full(c.lin_value + 1, 9, np.uint16)
        rest = np.full(self.layer.rest + 1, 9, np.float32)
        left = host.pointer(rest)
        self.layer.step(host.pointer(y), host.pointer(gates), before, host.pointer(out), left)
        self.layer.write(host.pointer(y), before, after, left)
        assert out[-1] == rest[-1] == 9
        return from_bf16(out[:-1])


def close(case, got, start, after, tolerance=3e-6):
    want, conv, s = case.reference(start)
    scale = np.abs(want).max()
    assert np.abs(got - want).max() <= scale * 2**-8  # bf16 outputs
    assert np.array_equal(from_bf16(after.conv), conv.astype(np.float32))
    assert np.abs(after.matrices - s).max() <= tolerance * max(1.0, np.abs(s).max())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 63, 64, 65, 130, 200])
def test_chunked_prompt_is_the_recurrence(isa, name, rows):
    case = Case(name, rows, seed=rows)
    start, after = case.state(seed=1), case.state()
    close(case, case.prefill(start, after), start, after)


@pytest.mark.parametrize("name", [*SHAPES, *LARGE])
def test_steps_are_the_recurrence(isa, name):
    case = Case(name, 4 if name in LARGE else 70, seed=7)
    start = case.state(seed=2)
    now, other = case.state(seed=2), case.state(seed=9)
    outputs = []
    for t in range(len(case.y)):
        outputs.append(case.step(t, now, other))
        now, other = other, now
    close(case, np.stack(outputs), start, now)


def test_a_prompt_from_an_empty_state(isa):
    case = Case("grouped", 100)
    after = case.state(seed=5)  # whatever the free side held before does not matter
    close(case, case.prefill(None, after), case.state(), after)


@pytest.mark.parametrize("cut", [1, 2, 3, 64, 65, 99])
def test_state_carries_over_a_cut(isa, cut):
    case = Case("grouped", 100)
    whole, first, second = case.state(), case.state(), case.state()
    want = case.prefill(case.state(), whole)
    parts = [case.prefill(case.state(), first, slice(0, cut)), case.prefill(first, second, slice(cut, 100))]
    assert np.abs(np.concatenate(parts) - want).max() <= np.abs(want).max() * 2**-8
    assert np.abs(second.matrices - whole.matrices).max() < 3e-6
    assert np.array_equal(second.conv, whole.conv)


@pytest.mark.parametrize("name", ["grouped", "wide"])
def test_cuts_at_whole_chunks_do_not_change_a_bit(isa, name):
    case = Case(name, 300)
    whole, state = case.state(), case.state(seed=1)
    want = case.prefill(case.state(seed=1), whole)
    for cut in (64, 256):
        first, second = case.state(), case.state()
        parts = [case.prefill(state, first, slice(0, cut)), case.prefill(first, second, slice(cut, 300))]
        assert np.array_equal(np.concatenate(parts), want)
        assert np.array_equal(second.matrices, whole.matrices)
        assert np.array_equal(second.conv, whole.conv)


def test_a_second_pass_in_place(isa):
    case = Case("grouped", 100)
    separate, together = case.state(), case.state()
    case.prefill(case.state(), together, slice(0, 40))
    case.prefill(together, separate, slice(40, 100))
    case.prefill(together, together, slice(40, 100))
    assert np.array_equal(together.matrices, separate.matrices)
    assert np.array_equal(together.conv, separate.conv)


@pytest.mark.parametrize("decay", [1e-6, 1.0, 30.0, 1e4])
def test_decays_from_none_to_total(isa, decay):
    # 1e4: a token's factor underflows to zero; products of decays must never be formed as quotients
    case = Case("square", 150, decay=decay)
    start, after = case.state(seed=3), case.state()
    got = case.prefill(start, after)
    assert np.isfinite(after.matrices).all()
    close(case, got, start, after)


def test_a_strong_decay_between_weak_ones(isa):
    # after a gap of e^-600 the later differences are small and must keep their digits
    case = Case("square", 64, decay=1.0)
    case.gates[:, case.config.linear_num_value_heads :] = -12.0
    case.gates[20, case.config.linear_num_value_heads :] = 600.0
    start, after = case.state(seed=4), case.state()
    close(case, case.prefill(start, after), start, after)


def test_threads_do_not_change_a_bit():
    case = Case("grouped", 150)
    before, results = host.threads(), set()
    try:
        for count in (1, 2, 3):
            host.set_threads(count)
            after = case.state()
            got = case.prefill(case.state(seed=1), after)
            step = case.step(0, after, other := case.state())
            results.add((got.tobytes(), after.matrices.tobytes(), step.tobytes(), other.matrices.tobytes()))
    finally:
        host.set_threads(before)
    assert len(results) == 1


def test_old_state_stays_whole():
    case = Case("square", 70)
    start, after = case.state(seed=6), case.state()
    kept = start.matrices.copy(), start.conv.copy()
    case.prefill(start, after)
    case.step(0, start, after)
    assert np.array_equal(start.matrices, kept[0]) and np.array_equal(start.conv, kept[1])


def test_a_step_leaves_both_states_to_its_write():
    case = Case("real", 1)
    start, after = case.state(seed=6), case.state(seed=8)
    kept = after.matrices.copy(), after.conv.copy()
    out, rest = np.empty(case.config.lin_value, np.uint16), np.empty(case.layer.rest, np.float32)
    pointers = [host.pointer(array) for array in (case.y[0], case.gates[0], out, rest)]
    case.layer.step(pointers[0], pointers[1], start, pointers[2], pointers[3])
    assert np.array_equal(after.matrices, kept[0]) and np.array_equal(after.conv, kept[1])
    case.layer.write(pointers[0], start, after, pointers[3])
    close(case, from_bf16(out)[None], start, after)


@pytest.mark.parametrize(
    "dims",
    [
        {"linear_key_head_dim": 24},
        {"linear_value_head_dim": 24},
        {"linear_key_head_dim": 0},
        {"linear_value_head_dim": 0},
        {"linear_conv_kernel_dim": 0},
        {"linear_conv_kernel_dim": 9},
        {"linear_num_key_heads": 0},
        {"linear_num_value_heads": 3},
        {"misaligned": 1},
    ],
)
def test_what_it_cannot_take(dims):
    """Dims, and a state that does not begin at a multiple of 64 bytes: nothing is written."""
    case = Case("square", 4)
    config = SimpleNamespace(**{**vars(case.config), **dims})
    layer = DeltaNet(config, case.taps, case.decay, case.dt_bias, case.norm, case.cols)
    at = dims.get("misaligned", 0)
    state = LinearState(np.full((9, 192), 7, np.uint16), fenced(np.zeros(4096, np.float32))[at:])
    out, rest = np.full((4, 72), 7, np.uint16), np.full(5000, 7, np.float32)
    y, gates, written, left = map(host.pointer, (case.y, case.gates, out, rest))
    for call in (
        lambda: layer.prefill(case.y, case.gates, state, state, out),
        lambda: layer.step(y, gates, state, written, left),
        lambda: layer.write(y, state, state, left),
    ):
        with pytest.raises(ValueError, match="multiples of 16"):
            call()
    assert (state.conv == 7).all() and (out == 7).all() and (rest == 7).all() and not state.matrices.any()


def test_operands_that_are_too_short():
    case, out = Case("square", 4), np.empty((4, 64), np.uint16)
    for y, gates, result in (
        (case.y[:3], case.gates, out),
        (case.y, case.gates, out[:3]),
        (case.y, case.gates[:, :-1].copy(), out),
    ):
        with pytest.raises(ValueError, match="4 rows of gates"):
            case.layer.prefill(y, gates, case.state(), case.state(), result)
