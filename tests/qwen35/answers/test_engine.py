"""qwen35.engine: generation over a mock model, and kept states that change nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from qwen35.engine import Generation, Input, PrefixCache, Session, generate
from qwen35.errors import Cancelled, PromptTooLong
from qwen35.sampling import GREEDY, LoopDetector, Sampler, Sampling
from qwen35.stats import Stats
from tests.support.mock_model import HashModel, State


def greedy(ids: list[int], count: int, vocab: int = 64) -> list[int]:
    """Argmax after argmax, one call a prompt."""
    model = HashModel(vocab)
    logits, out = model.prefill(ids), []
    for _ in range(count):
        out.append(int(np.argmax(logits)))
        logits = model.decode(out[-1])
    return out


def test_greedy_is_argmax_after_argmax() -> None:
    assert list(generate(HashModel(), [1, 2, 3], max_new=20)) == greedy([1, 2, 3], 20)


def test_the_stop_token_is_not_yielded() -> None:
    want = greedy([5], 12)
    stop = want[7]
    run = generate(HashModel(), [5], stop=[stop], max_new=50)
    assert list(run) == want[: want.index(stop)]
    assert run.finish == "stop" and run.stats.new_tokens == want.index(stop)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_max_new_ends_it_without_a_needless_decode(count: int) -> None:
    model = HashModel()
    run = generate(model, [1, 2], max_new=count)
    assert len(list(run)) == count and run.finish == "length"
    assert [kind for kind, _ in model.calls].count("decode") == count - 1


def test_a_full_context_ends_it() -> None:
    model = HashModel(max_ctx=10)
    run = generate(model, list(range(7)), max_new=50)
    assert len(list(run)) == 4 and run.finish == "context" and model.length == 10


def test_a_prompt_may_fill_the_context() -> None:
    run = generate(HashModel(max_ctx=7), list(range(7)), max_new=50)
    assert len(list(run)) == 1 and run.finish == "context"


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers() -> None:
    model = HashModel(max_ctx=10)
    with pytest.raises(PromptTooLong, match=r"11 tokens .* holds 10") as caught:
        list(generate(model, list(range(11))))
    assert (caught.value.tokens, caught.value.limit) == (11, 10)
    assert model.calls == []


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        list(generate(HashModel(), []))


def test_cancel_between_tokens_keeps_what_came() -> None:
    seen: list[int] = []
    run = generate(HashModel(), [1], max_new=50, cancel=lambda: len(seen) >= 3)
    for token in run:
        seen.append(token)
    assert seen == greedy([1], 3) and run.finish == "cancel"


def test_cancel_during_the_prompt() -> None:
    model, told = HashModel(), []
    session = Session(model, None, pass_tokens=10)
    run = generate(
        session, list(range(35)), cancel=lambda: len(told) >= 2, progress=lambda *pair: told.append(pair)
    )
    with pytest.raises(Cancelled):
        list(run)
    assert told == [(0, 35), (10, 35)] and model.length == 20


def test_progress_and_passes() -> None:
    model, told = HashModel(), []
    session = Session(model, None, pass_tokens=10)
    session.prime(Input(list(range(25))), progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 25), (10, 25), (20, 25), (25, 25)]
    assert [n for kind, n in model.calls if kind == "prefill"] == [10, 10, 5]


def test_a_loop_ends_it() -> None:
    class Parrot(HashModel):
        def logits(self) -> np.ndarray:
            out = np.zeros(self.vocab, np.float32)
            out[self.length % 3] = 1
            return out

    run = generate(Parrot(), [1, 2], max_new=500, loops=LoopDetector(span=64))
    assert len(list(run)) == 64 and run.finish == "loop" and run.period == 3
    assert len(list(generate(Parrot(), [1, 2], max_new=500))) == 500


def test_closing_early() -> None:
    run = generate(HashModel(), [1], max_new=50)
    assert (run.finish, run.period, run.error) == ("", 0, None)
    next(run)
    run.close()
    assert list(run) == []
    assert isinstance(run, Generation)


def test_what_is_kept_unless_told_otherwise() -> None:
    assert PrefixCache().budget == 512 << 20
    session = Session(HashModel())
    assert session.pass_tokens == 0 and session.cache is not None and session.cache.budget == 512 << 20
    with pytest.raises(ValueError, match="2 keys for 3 tokens"):
        Input([1, 2, 3], keys=[1, 2])


def test_times_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second a look at it; what the pictures took, which a pass computes, is not the prompt's."""
    now, stats = [0.0], Stats(vision_s=5.0)

    def perf_counter() -> float:
        now[0] += 1.0
        return now[0]

    def part(start: int, stop: int) -> dict[str, object]:
        now[0], stats.vision_s = now[0] + 16, stats.vision_s + 16
        return {}

    monkeypatch.setattr("qwen35.engine.time", SimpleNamespace(perf_counter=perf_counter))
    assert len(list(generate(HashModel(), Input([1, 2, 3], part=part), max_new=3, stats=stats))) == 3
    # The first look begins the answer, two are the prompt's, then there is one a token.
    assert (stats.prefill_s, stats.first_token_s, stats.decode_s) == (1, 19, 2)
    assert (stats.tokens_per_s, stats.prompt_tokens_per_s) == (1, 3)


def test_statistics() -> None:
    stats = Stats()
    list(generate(HashModel(), [1, 2, 3], max_new=5, stats=stats))
    assert (stats.prompt_tokens, stats.cached_tokens, stats.new_tokens, stats.finish) == (3, 0, 5, "length")
    assert 0 < stats.prefill_s <= stats.first_token_s and stats.decode_s > 0 and stats.tokens_per_s > 0


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_a_seed_reproduces_an_answer(seed: int) -> None:
    def answer(seed: int) -> list[int]:
        return list(generate(HashModel(), [9], Sampler(Sampling(seed=seed)), max_new=40))

    assert answer(seed) == answer(seed)
    assert answer(seed) != answer(seed + 1)


def test_without_a_seed_one_is_drawn_and_told() -> None:
    sampler = Sampler(Sampling())
    first = list(generate(HashModel(), [9], sampler, max_new=40))
    again = list(generate(HashModel(), [9], Sampler(Sampling(seed=sampler.seed)), max_new=40))
    assert first == again


# Kept states.


def turns(seed: int) -> list[Input]:
    """Prompts of a conversation that grows, is taken back and goes on otherwise; borders before answers."""
    rng = random.Random(seed)

    def words(count: int) -> list[int]:
        return [rng.randrange(64) for _ in range(count)]

    prompts, ids, borders = [], words(rng.randrange(3, 30)), []
    history: list[tuple[list[int], list[int]]] = []
    for _ in range(8):
        if history and rng.random() < 0.3:
            ids, borders = map(list, rng.choice(history))
        history.append((ids[:], borders[:]))
        ids += words(rng.randrange(1, 12))
        borders.append(len(ids))
        prompts.append(Input(ids + words(rng.randrange(1, 4)), borders[:], shared=borders[0]))
        ids += words(rng.randrange(1, 9))
    return prompts


@pytest.mark.parametrize("pass_tokens", [0, 7])
@pytest.mark.parametrize("seed", range(12))
def test_answers_are_the_same_with_and_without_kept_states(seed: int, pass_tokens: int) -> None:
    """HashModel's logits depend on every token and on every cut: a wrong state or cut changes the answer."""
    kept = Session(HashModel(), PrefixCache(), pass_tokens)
    bare = Session(HashModel(), None, pass_tokens)
    few = Session(HashModel(), PrefixCache(2_000), pass_tokens)
    saved = 0
    for prompt in turns(seed):
        stats = Stats()
        want = list(generate(bare, prompt, max_new=5))
        assert list(generate(kept, prompt, max_new=5, stats=stats)) == want
        assert list(generate(few, prompt, max_new=5)) == want
        assert stats.prompt_tokens == len(prompt.ids)
        saved += stats.cached_tokens
    assert saved > 0


def test_cached_tokens_are_those_up_to_the_last_common_border() -> None:
    model = HashModel()
    session = Session(model)
    first = Input([1, 2, 3, 4, 5], [3])
    second = Input([1, 2, 3, 9, 9, 9, 9], [3, 6])
    for prompt, cached, computed in [(first, 0, 5), (second, 3, 4), (second, 6, 1), (first, 3, 2)]:
        stats = Stats()
        model.calls.clear()
        session.prime(prompt, stats)
        assert stats.cached_tokens == cached
        assert sum(n for kind, n in model.calls if kind == "prefill") == computed


@pytest.mark.parametrize("pass_tokens", [0, 2, 3])
def test_what_prompts_of_different_conversations_share_is_kept_too(pass_tokens: int) -> None:
    session = Session(HashModel(), pass_tokens=pass_tokens)
    system = [1, 2, 3]
    for n, cached in [(7, 0), (8, 3), (9, 3), (7, 5)]:
        prompt, stats = Input([*system, n, n, 4], [3, 5], shared=3), Stats()
        want = list(generate(Session(HashModel(), None, pass_tokens), prompt, max_new=5))
        assert list(generate(session, prompt, max_new=5, stats=stats)) == want
        assert stats.cached_tokens == cached


@pytest.mark.parametrize("shared", [3, 0])
def test_conversations_that_grow_do_not_displace_each_other(shared: int) -> None:
    """Eight of them, with room for ten states: their system message's, if any, and the last of each."""
    session = Session(HashModel(), PrefixCache(10_000))
    talks = [([1, 2, 3, n, n], [3, 5] if shared else [5]) for n in range(8)]
    for turn in range(6):
        for ids, borders in talks:
            stats = Stats()
            session.prime(Input([*ids, 4], borders, shared=shared), stats)
            assert stats.cached_tokens == (borders[-2] if turn or (shared and ids[3]) else 0)
            ids += [4, 5, 6]
            borders.append(len(ids))


def test_nothing_is_marked_where_nothing_is_kept() -> None:
    class Model(HashModel):
        def prefill(self, ids, *, marks=(), **options):  # type: ignore[no-untyped-def]
            assert not marks
            return super().prefill(ids, **options)

    Session(Model(), None).prime(Input([1, 2, 3], [1, 2], shared=1))


def test_an_images_content_tells_prompts_apart() -> None:
    session = Session(HashModel())

    def cached(*keys: int) -> int:
        stats = Stats()
        session.prime(Input([1, 7, 7, 2, 3], [4], keys=[1, *keys, 2, 3]), stats)
        return stats.cached_tokens

    assert [cached(-5, -6), cached(-5, -6), cached(-5, -8), cached(-5, -8)] == [0, 4, 0, 4]


def test_parts_of_a_prompt_get_their_arguments() -> None:
    seen = []

    class Model(HashModel):
        def prefill(self, ids, *, positions=None, **options):  # type: ignore[no-untyped-def]
            seen.append((list(ids), positions))
            return super().prefill(ids, **options)

    session = Session(Model(), pass_tokens=4)
    session.prime(Input(list(range(6)), [3], part=lambda start, stop: {"positions": (start, stop)}))
    assert seen == [([0, 1, 2, 3], (0, 4)), ([4, 5], (4, 6))]


def test_least_recently_used_states_go_first() -> None:
    cache = PrefixCache(250)
    for name in (1, 2):
        cache.add((name, 0), [1], State((), 100))
    assert cache.find((1, 0), [1]) is not None  # a use
    cache.add((3, 0), [1], State((), 100))
    assert len(cache) == 2 and cache.nbytes == 200
    assert cache.find((2, 0), [1]) is None
    assert cache.find((1, 0), [1]) is not None and cache.find((3, 0), [1]) is not None


def test_memory_that_states_share_counts_once_and_as_long_as_one_needs_it() -> None:
    cache, rows = PrefixCache(1000), (7, 500)
    cache.add((1, 0), [1], State((), 100, (rows,)))
    cache.add((2, 0), [1], State((), 100, (rows, (8, 200))))
    assert cache.nbytes == 900
    cache.add((3, 0), [1], State((), 150))
    assert len(cache) == 2 and cache.nbytes == 950  # the first went, the rows it shared did not


def test_a_state_over_the_budget_is_not_kept() -> None:
    cache = PrefixCache(250)
    cache.add((1, 0), [1], State((), 100))
    cache.add((2, 0), [1], State((), 251))
    assert len(cache) == 1 and cache.find((1, 0), [1]) is not None
    cache.add((3, 0), [1], State((), 250))  # as large as the budget
    assert cache.nbytes == 250 and cache.find((3, 0), [1]) is not None
    cache.clear()
    assert len(cache) == 0 and cache.nbytes == 0


def test_a_failure_leaves_the_session_usable() -> None:
    class Failing(HashModel):
        fail = False

        def decode(self, token: int) -> np.ndarray:
            if self.fail:
                raise OSError(62, "timer expired")
            return super().decode(token)

    model = Failing()
    session = Session(model)
    prompt = Input([1, 2, 3, 4], [2])
    want = list(generate(session, prompt, max_new=6))
    model.fail = True
    with pytest.raises(OSError, match="timer"):
        list(generate(session, prompt, max_new=6))
    model.fail = False
    assert list(generate(session, prompt, max_new=6)) == want
    assert Sampler(GREEDY).sampling.greedy
