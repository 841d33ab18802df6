"""qwen35.sampling: filters against numpy references, draws against their distributions, stop strings."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qwen35.errors import NoNumbers, UsageError
from qwen35.sampling import (
    GREEDY,
    Sampler,
    Sampling,
    StopStrings,
    candidates,
    card_sampling,
)

VOCAB = 40


def logits(seed: int, vocab: int = VOCAB, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def reference(scores: np.ndarray, s: Sampling) -> np.ndarray:
    """Probabilities [vocab] by the definitions, one filter after the other, each renormalised."""
    p = np.exp((scores.astype(np.float64) - scores.max()) / s.temperature)
    p /= p.sum()
    if s.top_k:
        for token in sorted(range(len(p)), key=lambda i: (-p[i], i))[s.top_k :]:
            p[token] = 0
        p /= p.sum()
    if s.top_p < 1:
        mass, keep = 0.0, []
        for token in sorted(range(len(p)), key=lambda i: (-p[i], i)):
            if mass >= s.top_p:
                break
            keep.append(token)
            mass += p[token]
        p[[i for i in range(len(p)) if i not in keep]] = 0
        p /= p.sum()
    if s.min_p:
        p[p < s.min_p * p.max()] = 0
        p /= p.sum()
    return p


SETTINGS = [
    Sampling(),
    Sampling(temperature=0.3),
    Sampling(temperature=3.0),
    Sampling(top_k=5),
    Sampling(top_k=1),
    Sampling(top_p=0.7),
    Sampling(top_p=1e-6),
    Sampling(min_p=0.1),
    Sampling(min_p=1.0),
    Sampling(temperature=0.7, top_k=20, top_p=0.8, min_p=0.02),
    Sampling(temperature=1.5, top_k=30, top_p=0.95),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=Sampling.describe)
@pytest.mark.parametrize("seed", range(8))
def test_filters_leave_the_referenced_distribution(sampling: Sampling, seed: int) -> None:
    scores = logits(seed)
    ids, weights = candidates(scores, sampling)
    ours = np.zeros(VOCAB)
    ours[ids] = weights / weights.sum()
    np.testing.assert_allclose(ours, reference(scores, sampling), atol=1e-12)
    if sampling.top_k or sampling.top_p < 1:
        assert list(ids) == sorted(ids, key=lambda i: (-scores[i], i))


@pytest.mark.parametrize("sampling", SETTINGS, ids=Sampling.describe)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    """Pearson's chi-square over 6,000 draws stays under its mean by far less than seven deviations."""
    scores, draws = logits(3), 6_000
    sampler = Sampler(sampling.updated(seed=11))
    counts = np.bincount([sampler(scores) for _ in range(draws)], minlength=VOCAB)
    want = reference(scores, sampling) * draws
    assert counts[want == 0].sum() == 0
    pooled = want >= 5
    expected = np.append(want[pooled], want[~pooled].sum() or 1e-9)
    observed = np.append(counts[pooled], counts[~pooled].sum())
    statistic = float(((observed - expected) ** 2 / np.maximum(expected, 1)).sum())
    freedom = max(len(expected) - 1, 1)
    assert statistic < freedom + 7 * (2 * freedom) ** 0.5, (statistic, freedom)


@pytest.mark.parametrize("scale", [0.0, 0.001, 5.0])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.999])
def test_top_p_over_a_large_vocabulary(scale: float, top_p: float) -> None:
    """Flat and peaked: whether the mass is in the few most probable tokens or spread over all."""
    scores, sampling = logits(1, 40_000, scale), Sampling(top_p=top_p)
    ids, weights = candidates(scores, sampling)
    p = np.exp(scores.astype(np.float64) - scores.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    want = order[: int((p[order].cumsum() - p[order] < top_p).sum())]
    assert abs(len(ids) - len(want)) <= 1  # where the mass reaches p to the last bit
    both = min(len(ids), len(want))
    np.testing.assert_array_equal(ids[:both], want[:both])
    np.testing.assert_allclose(weights[:both] / weights[0], p[want[:both]] / p[want[0]], rtol=1e-9)


def test_equal_logits_are_cut_by_id() -> None:
    ids, weights = candidates(np.zeros(10, np.float32), Sampling(top_k=3))
    assert ids.tolist() == [0, 1, 2] and np.ptp(weights) == 0
    ids, _ = candidates(np.array([1, 2, 2, 2, 0], np.float32), Sampling(top_k=2))
    assert ids.tolist() == [1, 2]
    for top_k in (0, 3, 4):  # which cuts nothing
        assert candidates(np.array([1, 3, 2], np.float32), Sampling(top_k=top_k))[0].tolist() == [0, 1, 2]


def test_logits_that_are_no_numbers() -> None:
    scores = np.array([np.nan, 1, -np.inf, 2, np.nan], np.float32)
    ids, weights = candidates(scores, Sampling())
    assert ids[weights.argmax()] == 3 and weights[np.isin(ids, [0, 2, 4])].sum() == 0
    assert Sampler(GREEDY)(scores) == 3
    ids, _ = candidates(np.array([0, np.inf, 1, np.inf], np.float32), Sampling())
    assert ids.tolist() == [1, 3]
    for sampling in (GREEDY, Sampling(seed=1)):
        with pytest.raises(NoNumbers, match=r"no.* number.*--verify.*accept"):
            Sampler(sampling)(np.full(4, np.nan, np.float32))


def test_greedy_is_argmax_and_takes_the_first_of_equals() -> None:
    for seed in range(20):
        scores = logits(seed)
        assert Sampler(GREEDY)(scores) == int(np.argmax(scores))
    assert Sampler(GREEDY)(np.array([0, 3, 3], np.float32)) == 1


def penalised(scores: np.ndarray, s: Sampling, prompt: list[int], said: list[int]) -> np.ndarray:
    """The three penalties by their definitions, token by token."""
    out = scores.copy()
    for token in set(prompt) | set(said):
        divide = out[token] > 0
        out[token] = out[token] / s.repetition_penalty if divide else out[token] * s.repetition_penalty
    for token in set(said):
        out[token] -= s.presence_penalty + s.frequency_penalty * said.count(token)
    return out


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0, presence_penalty=1.5),
        Sampling(temperature=0, frequency_penalty=0.4),
        Sampling(temperature=0, repetition_penalty=1.3),
        Sampling(temperature=0, repetition_penalty=0.8, presence_penalty=0.5, frequency_penalty=0.25),
    ],
    ids=lambda s: f"{s.presence_penalty}-{s.frequency_penalty}-{s.repetition_penalty}",
)
def test_penalties(sampling: Sampling) -> None:
    prompt = [3, 3, 7, 39]
    sampler, said = Sampler(sampling, prompt), []
    for step in range(60):
        scores = logits(step % 5, scale=1.0)
        before = scores.copy()
        token = sampler(scores)
        assert token == int(np.argmax(penalised(scores, sampling, prompt, said)))
        np.testing.assert_array_equal(scores, before)
        said.append(token)
    assert len(set(said)) > 3


def test_prompt_tokens_beyond_the_logits_are_ignored() -> None:
    for beyond in (len(logits(0)), 1000):
        sampler = Sampler(Sampling(temperature=0, repetition_penalty=2), [beyond])
        assert sampler(logits(0)) == int(np.argmax(logits(0)))


@pytest.mark.parametrize("top", [0, 1, 5, 40])
def test_logprobs_are_the_models_own(top: int) -> None:
    sampler = Sampler(Sampling(temperature=0.5, top_k=3, presence_penalty=2, seed=5, logprobs=top))
    for step in range(10):
        scores = logits(step)
        token = sampler(scores)
        wide = scores.astype(np.float64)
        want = wide - np.log(np.exp(wide).sum())
        entry = sampler.logprobs[-1]
        assert entry.token == token and entry.logprob == pytest.approx(want[token], abs=1e-9)
        order = sorted(range(VOCAB), key=lambda i: (-want[i], i))[:top]
        assert [t for t, _ in entry.top] == order
        np.testing.assert_allclose([p for _, p in entry.top], want[order], atol=1e-9)
    assert len(sampler.logprobs) == 10


def test_logprobs_are_not_kept_unasked() -> None:
    sampler = Sampler(GREEDY)
    sampler(logits(0))
    assert sampler.logprobs == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 1e9),
        ("seed", -1),
        ("seed", 2**64),
        ("logprobs", -1),
        ("logprobs", 101),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        Sampling(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("temperature", 0, 1e6), ("top_k", 0, 1 << 40), ("top_p", 1e-9, 1), ("min_p", 0, 1),
        ("repetition_penalty", 1e-9, 1e9), ("presence_penalty", -100, 100), ("frequency_penalty", -100, 100),
        ("seed", 0, 2**64 - 1), ("logprobs", 0, 100),
    ],
)  # fmt: skip
def test_the_outermost_values_are_taken(name: str, low: float, high: float) -> None:
    for value in (low, high):
        assert getattr(Sampling(**{name: value}), name) == value  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=name):
        Sampling(**{name: low - 0.01 if isinstance(low, float) else low - 1})  # type: ignore[arg-type]
    if high <= 100:
        with pytest.raises(UsageError, match=name):
            Sampling(**{name: high + 1})  # type: ignore[arg-type]


def test_sampling_in_words() -> None:
    """What does something, and the seed; never what is only reported."""
    every = Sampling(0.5, 3, 0.9, 0.1, 1.5, 2.5, -1.5, 7, 4)
    said = (
        "top-k 3, top-p 0.9, min-p 0.1, repetition-penalty 1.5, presence-penalty 2.5, frequency-penalty -1.5"
    )
    assert every.describe() == f"temperature 0.5, {said}, seed 7"
    assert Sampling().describe() == "temperature 1" and Sampling(seed=0).describe() == "temperature 1, seed 0"
    assert Sampling(temperature=0, top_k=3, seed=7).describe() == "greedy"
    assert not Sampling(temperature=1e-9).greedy


def test_a_bundles_own_sampling() -> None:
    assert Sampling.parse("greedy") == GREEDY
    assert Sampling.parse("temperature=0.7 top_k=20") == Sampling(temperature=0.7, top_k=20)
    for text in ("warm", "top_k", "colour=1", "top_k=many"):
        with pytest.raises(UsageError, match=text.partition("=")[0]):
            Sampling.parse(text)


def test_updated_keeps_what_is_not_given() -> None:
    base = card_sampling(2048, thinking=False)
    want = Sampling(temperature=1.0, top_k=20, presence_penalty=2.0, seed=3)
    assert base.updated(seed=3, top_k=None) == want


@pytest.mark.parametrize(
    ("hidden", "thinking", "images", "text"),
    [
        (1024, False, False, "temperature 1, top-k 20, presence-penalty 2"),
        (2048, False, True, "temperature 0.7, top-k 20, top-p 0.8, presence-penalty 1.5"),
        (2048, True, False, "temperature 1, top-k 20, top-p 0.95, presence-penalty 1.5"),
        (2048, True, True, "temperature 0.6, top-k 20, top-p 0.95"),
        (4096, False, True, "temperature 0.7, top-k 20, top-p 0.8, presence-penalty 1.5"),
        (2560, True, False, "temperature 1, top-k 20, top-p 0.95, presence-penalty 1.5"),
    ],
)
def test_the_model_cards_values(hidden: int, thinking: bool, images: bool, text: str) -> None:
    assert card_sampling(hidden, thinking=thinking, images=images).describe() == text


# Stop strings.


def stopped(text: str, stops: list[str], cuts: list[int]) -> tuple[str, str | None]:
    """What is shown of `text` when it comes in pieces cut at `cuts`."""
    watch, shown, start = StopStrings(stops), "", 0
    for cut in [*cuts, len(text)]:
        shown += watch.feed(text[start:cut])
        start = cut
        if watch.found is not None:
            return shown, watch.found
    return shown + watch.flush(), watch.found


@pytest.mark.parametrize("seed", range(60))
def test_pieces_do_not_change_where_an_answer_stops(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab\n") for _ in range(60))
    lengths = [rng.randrange(2, 7) for _ in range(rng.randrange(1, 4))]
    stops = ["".join(rng.choice("ab\n") for _ in range(length)) for length in lengths]
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    want = (text[: min(ends)[1]], min(ends)[2]) if ends else (text, None)
    for _ in range(20):
        cuts = sorted(rng.sample(range(1, 60), rng.randrange(1, 30)))
        assert stopped(text, stops, cuts) == want


def test_nothing_is_held_back_without_need() -> None:
    watch = StopStrings(["<end>"])
    assert [watch.feed(piece) for piece in ["a", "b<", "e", "x", "<en", "d", ">more"]] == [
        "a",
        "b",
        "",
        "<ex",
        "",
        "",
        "",
    ]
    assert watch.found == "<end>" and watch.feed("after") == "" and watch.flush() == ""


@pytest.mark.parametrize("stops", [["a" * 8193], ["a" * 5000, "b" * 5000], [str(n) for n in range(65)]])
def test_stop_strings_are_bounded(stops: list[str]) -> None:
    with pytest.raises(UsageError, match="at most 64 strings and 8,192 characters") as caught:
        StopStrings(stops)
    assert len(str(caught.value)) < 200


def test_a_long_stop_string_ends_an_answer() -> None:
    watch = StopStrings(["a" * 8192])
    assert watch.feed("b") == "b" and watch.feed("a" * 8191) == "" and watch.feed("ab") == ""
    assert watch.found == "a" * 8192


def test_no_stop_strings_pass_everything() -> None:
    watch = StopStrings([])
    assert watch.feed("abc") == "abc" and watch.flush() == ""
    with pytest.raises(UsageError, match="empty"):
        StopStrings([""])
