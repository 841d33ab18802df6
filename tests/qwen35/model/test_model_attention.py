"""The attention mixer in C against softmax attention written out in numpy float64."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from qwen35 import host
from qwen35.formats import from_bf16, to_bf16
from qwen35.model.attention import Attention
from tests.support.fences import fenced

SHAPES = {
    # heads, kv heads, hd, rope_dim
    "pairs": (4, 2, 32, 8),
    "single": (3, 3, 16, 16),
    "many": (7, 1, 48, 12),
    "real": (4, 1, 256, 64),
    "unrotated": (2, 1, 64, 0),
}


class Case:
    """A layer's parameters and the inputs of `total` tokens, with an empty cache."""

    def __init__(self, name, total, seed=0, scale=1.0):
        rng = np.random.default_rng(seed)
        heads, kv, hd, rope = SHAPES[name]
        self.heads, self.kv, self.hd, self.half, self.total = heads, kv, hd, rope // 2, total
        self.config = SimpleNamespace(
            num_attention_heads=heads,
            num_key_value_heads=kv,
            head_dim=hd,
            rotary_dim=rope,
            rms_norm_eps=1e-6,
            n_att=2 * (heads + kv) * hd,
        )
        weights = scale * 0.2 * rng.standard_normal((2, hd))
        self.q_norm, self.k_norm = weights.astype(np.float32)
        self.layer = Attention(self.config, self.q_norm, self.k_norm)
        self.y = fenced(to_bf16(rng.standard_normal((total, self.config.n_att + 8)).astype(np.float32) * 2))[
            :, 8:
        ]
        angles = rng.uniform(-40, 40, (total, self.half)).astype(np.float32)
        self.cos, self.sin = fenced(np.cos(angles)), fenced(np.sin(angles))
        self.keys, self.values = (fenced(np.full((total + 3, kv * hd), 0x7FFF, np.uint16)) for _ in range(2))

    def reference(self, cached=True):
        """Outputs [total, heads*hd] and rotated keys [total, kv, hd], float64; keys as cached."""
        y = from_bf16(self.y[:, : self.config.n_att].copy()).astype(np.float64)
        wide, groups = 2 * self.heads * self.hd, self.heads // self.kv
        qg = y[:, :wide].reshape(self.total, self.heads, 2, self.hd)
        q, gate = qg[:, :, 0], qg[:, :, 1]
        k, v = (
            y[:, wide + i * self.kv * self.hd :][:, : self.kv * self.hd].reshape(self.total, self.kv, self.hd)
            for i in (0, 1)
        )
        q, k = self._rotate(q, self.q_norm), self._rotate(k, self.k_norm)
        if cached:
            k = self.cached_keys()
        scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, groups, 1)) * self.hd**-0.5
        scores[:, ~np.tril(np.ones((self.total, self.total), bool))] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hij,jhd->ihd", weights, np.repeat(v, groups, 1)) / (1 + np.exp(-gate))
        return out.reshape(self.total, -1), k

    def _rotate(self, x, weight):
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + weight.astype(np.float64))
        a, b, rest = np.split(x, [self.half, 2 * self.half], -1)
        cos, sin = (t.astype(np.float64)[:, None] for t in (self.cos, self.sin))
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def cached_keys(self):
        halves = self.keys[: self.total].view(np.float16)
        return halves.astype(np.float64).reshape(self.total, self.kv, self.hd)

    def prefill(self, start, stop):
        rows = slice(start, stop)
        wide = self.heads * self.hd
        out = np.full((stop - start + 1, wide + 8), 9, np.uint16)
        self.layer.prefill(self.y[rows], start, self.cos[rows], self.sin[rows], self.keys, self.values, out)
        assert (out[:, wide:] == 9).all() and (out[-1] == 9).all()
        assert (self.keys[stop:] == 0x7FFF).all() and (self.values[stop:] == 0x7FFF).all()
        return from_bf16(out[:-1, :wide].copy())

    def step(self, t):
        y, cos, sin = map(fenced, (self.y[t], self.cos[t], self.sin[t]))
        out = np.full(self.heads * self.hd + 1, 9, np.uint16)
        self.layer.step(
            *map(host.pointer, (y,)), t, *map(host.pointer, (cos, sin, self.keys, self.values, out))
        )
        assert (self.keys[t + 1 :] == 0x7FFF).all() and (self.values[t + 1 :] == 0x7FFF).all()
        assert out[-1] == 9
        return from_bf16(out[:-1])


def close(case, got):
    want = case.reference()[0]
    assert (np.abs(got - want) <= np.abs(want) * 2**-8 + 1e-5).all()  # outputs are bf16


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("total", [1, 2, 31, 33, 64, 65, 150])
def test_prompt(isa, name, total):
    case = Case(name, total, seed=total)
    close(case, case.prefill(0, total))


@pytest.mark.parametrize("name", SHAPES)
def test_tokens(isa, name):
    case = Case(name, 70)
    close(case, np.stack([case.step(t) for t in range(70)]))


@pytest.mark.parametrize("cut", [1, 63, 64, 100, 256, 299])
def test_prompt_then_prompt_then_tokens(isa, cut):
    case = Case("pairs", 310, seed=cut)
    parts = [case.prefill(0, cut), case.prefill(cut, 300), *(case.step(t)[None] for t in range(300, 310))]
    close(case, np.concatenate(parts))


@pytest.mark.parametrize("name", ["pairs", "many", "real"])
def test_cuts_of_a_prompt_do_not_change_a_bit(isa, name):
    # the tiles of keys are the cache's, so a query's result is its own: however the rows come
    total = 600
    whole = Case(name, total, seed=3)
    want = whole.prefill(0, total)
    for borders in ([256, 512], [1, 47, 48, 130, 511]):
        case = Case(name, total, seed=3)
        parts = [case.prefill(a, b) for a, b in pairwise([0, *borders, total])]
        assert np.array_equal(np.concatenate(parts), want)
        assert np.array_equal(case.keys, whole.keys)


def test_cache_rows(isa):
    case = Case("pairs", 40)
    case.prefill(0, 39)
    case.step(39)
    _, want = case.reference(cached=False)
    assert (np.abs(case.cached_keys() - want) <= np.abs(want) * 2**-11 + 2e-6).all()
    wide = 2 * case.heads * case.hd + case.kv * case.hd
    assert np.array_equal(case.values[:40], case.y[:, wide : wide + case.kv * case.hd])


def test_scores_far_apart(isa):
    # norms of 20 give scores of hundreds: without a running maximum the exponentials overflow
    case = Case("pairs", 200, scale=100.0)
    got = np.concatenate([case.prefill(0, 199), case.step(199)[None]])
    assert np.isfinite(got).all()
    # a float32 score of 10,000 is good to 1e-3, and so are the weights
    assert np.abs(got - case.reference()[0]).max() < 0.03


def test_float16_keys_round_as_numpy_does(isa):
    rng = np.random.default_rng(1)
    case = Case("unrotated", 1)
    # hd 64 and a row of equal magnitudes: the normed key is the row's signs times its weights
    row = np.where(rng.random(64) < 0.5, -1, 1).astype(np.float32)
    weight = (10.0 ** rng.uniform(-9, 4.7, 64)).astype(np.float32)
    weight[:4] = 65519.0, 65504.0, 2.0**-24, 2.0**-25
    case.layer = Attention(case.config, case.q_norm, weight - 1)
    case.y[0, 2 * 2 * 64 : 2 * 2 * 64 + 64] = to_bf16(row)
    case.prefill(0, 1)
    scale = np.float32(1) / np.sqrt(np.float32(1 + 1e-6))
    with np.errstate(over="ignore"):
        want = (row * scale * (1 + (weight - 1))).astype(np.float32).astype(np.float16)
    assert np.array_equal(case.keys[0, :64].view(np.float16), want)


def test_ties_of_float16_keys_go_to_even(isa):
    case = Case("unrotated", 1)
    case.config.rms_norm_eps = 0.0  # a row of ones keeps its length to the bit
    ties = (1024.5 + np.arange(11)) * 2.0 ** np.array([[-10], [5]])
    weight = np.ones(64, np.float32)
    weight[:22] = ties.ravel()
    weight[22:44], weight[44:] = (
        np.nextafter(weight[:22], np.float32(0)),
        np.nextafter(weight[:20], np.float32(9e9)),
    )
    case.layer = Attention(case.config, case.q_norm, weight - 1)
    case.y[0, 2 * 2 * 64 : 2 * 2 * 64 + 64] = to_bf16(np.ones(64, np.float32))
    case.prefill(0, 1)
    assert np.array_equal(case.keys[0, :64].view(np.float16), (1 + (weight - 1)).astype(np.float16))


def test_threads_do_not_change_a_bit():
    results, before = set(), host.threads()
    try:
        for count in (1, 2, 3):
            host.set_threads(count)
            case = Case("pairs", 700)
            got = case.prefill(0, 699)
            results.add((got.tobytes(), case.step(699).tobytes()))
    finally:
        host.set_threads(before)
    assert len(results) == 1


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "kv_heads"),
    [(24, 8, 2), (528, 8, 2), (0, 0, 2), (32, 7, 2), (32, 34, 2), (32, 8, 3), (32, 8, 0)],
)
def test_dims_it_cannot_take(head_dim, rotary_dim, kv_heads):
    """Odd rotations, rotations wider than a head, heads that cannot be shared out: nothing is written."""
    case = Case("pairs", 2)
    dims = {"head_dim": head_dim, "rotary_dim": rotary_dim, "num_key_value_heads": kv_heads}
    layer = Attention(SimpleNamespace(**{**vars(case.config), **dims}), case.q_norm, case.k_norm)
    keys, values, out = (np.full((2, 4 * 528), 7, np.uint16) for _ in range(3))
    tables = np.ones((2, 2, rotary_dim // 2), np.float32)
    with pytest.raises(ValueError, match="multiples of 16"):
        layer.prefill(case.y, 0, *tables, keys, values, out)
    with pytest.raises(ValueError, match="multiples of 16"):
        layer.step(host.pointer(case.y), 0, *map(host.pointer, (*tables, keys, values, out)))
    assert (keys == 7).all() and (values == 7).all() and (out == 7).all()


def test_operands_that_are_too_short():
    case = Case("pairs", 5)
    with pytest.raises(ValueError, match="5 rows after 4"):
        case.layer.prefill(
            case.y, 4, case.cos, case.sin, case.keys, case.values, np.empty((5, 128), np.uint16)
        )
    out, whole = np.empty((5, 128), np.uint16), (case.keys, case.values)
    for y, keys, values, result in (
        (case.y[:4], *whole, out),
        (case.y, case.keys[:4], case.values, out),
        (case.y, case.keys, case.values[:4], out),
        (case.y, *whole, out[:4]),
    ):
        with pytest.raises(ValueError, match="5 rows after 0"):
            case.layer.prefill(y, 0, case.cos, case.sin, keys, values, result)
    gaps = np.repeat(case.cos, 2, 1)[:, ::2]
    for tables in ((case.cos[:, :3], case.sin), (gaps, case.sin), (case.cos, gaps), (case.cos, case.sin[:4])):
        with pytest.raises(ValueError, match="rotation tables"):
            case.layer.prefill(case.y, 0, *tables, *whole, out)
