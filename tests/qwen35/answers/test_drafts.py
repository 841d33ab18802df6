"""qwen35.drafts: what is drafted, what it may cost, and that answers stay what they are without."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35.api import Qwen35
from qwen35.drafts import ALLOWED, LEAST, LONGEST, MATCH, PASS, ROW, Drafts
from qwen35.engine import PrefixCache, Session, generate
from qwen35.prompt import assemble
from qwen35.sampling import GREEDY, Sampler, Sampling
from qwen35.stats import Stats
from qwen35.template import render
from tests.support.margins import margins
from tests.support.mock_model import HashModel, fake


def drawn(ids: list[int], answer: list[int], **options: Any) -> list[list[int]]:
    """What is drafted with each token of an answer."""
    drafts = Drafts(ids, options.pop("limit", 100), **options)
    return [drafts.next(token, 1000) for token in answer]


def test_what_followed_is_drafted_once_enough_is_equal() -> None:
    prompt = list(range(100, 180))
    found = drawn(prompt, prompt[20:40])
    assert [len(draft) for draft in found] == [0] * 7 + [64] + [0] * 12
    assert found[MATCH - 1][:52] == prompt[20 + MATCH :]


def test_the_longest_match_counts_and_of_equal_ones_the_latest() -> None:
    one, other = list(range(20)), [98, *range(20)]
    for before, ends in (([99, *one], [30, 31, 32]), (one, [40, 41, 42])):
        drafts = Drafts([99, *one, *range(30, 40), *other, *range(40, 50)], 100)
        for token in before[:-1]:
            assert drafts.next(token, 0) == []
        assert drafts.next(before[-1], 100)[:3] == ends


def test_a_pattern_goes_on_in_its_draft() -> None:
    found = drawn([1, 2, 3], [1, 2, 3] * 3)
    assert max(found, key=len) == ([3, 1, 2] * 30)[:LONGEST]


def test_a_draft_ends_at_stop_tokens_limits_and_the_room() -> None:
    prompt = list(range(100))
    assert drawn(prompt, prompt[:9], stop=[30])[MATCH - 1] == prompt[MATCH:30]
    assert drawn(prompt, prompt[:9], stop=[MATCH + LEAST - 1])[MATCH - 1] == []
    assert drawn(prompt, prompt[:9], limit=12)[MATCH - 1] == prompt[MATCH : MATCH + 12]
    assert not any(drawn(prompt, prompt, limit=LEAST - 1))
    drafts = Drafts(prompt, 100)
    assert not any(drafts.next(token, LEAST - 1) for token in prompt[:20])
    assert not any(drawn(list(range(MATCH)), list(range(MATCH))[:-1]))


def test_what_a_draft_has_to_be_paid_with() -> None:
    """The first is free; the next is there once a twentieth of the tokens since, or what was saved, pays it.

    A pass costs six tokens and each of its rows a quarter, so a token that comes true saves three quarters.
    """

    for come_true, want in ((0, 97), (1, 82), (4, 37), (64, 8)):
        drafts = Drafts(list(range(300)), 64)
        assert [bool(drafts.next(token, 1000)) for token in range(8)] == [False] * 7 + [True]
        assert not any(drafts.next(token, 1000) for token in range(8, 8 + come_true))
        assert (drafts.passes, drafts.drafted, drafts.accepted) == (1, 64, come_true)
        count = next(count for count in range(1, 200) if drafts.next(99 + count, 1000))
        assert count in (want, want + 1)  # a sum of twentieths


@pytest.mark.parametrize("seed", range(3))
def test_drafts_that_fail_cost_little(seed: int) -> None:
    chance, text = random.Random(seed), [*range(4000, 4300)]
    while len(text) < 4000:  # again and again a part of the text, each time with another end
        at = chance.randrange(len(text) - 20)
        text += [*text[at : at + MATCH + 3], chance.randrange(4000)]
    drafts = Drafts([], 64)
    for token in text:
        drafts.next(token, 100)
    count, passes, accepted = len(text), drafts.passes, drafts.accepted
    cost = count - accepted - passes + passes * (PASS + ROW) + accepted * ROW
    assert passes > 20 and cost < count * (1 + ALLOWED) + PASS


class Ahead(HashModel):
    """Says a pattern of seven tokens, but for one in `slips`; counts passes and rows out of them."""

    draft_limit = 40

    def __init__(self, slips: int = 10**9, **options: Any) -> None:
        super().__init__(**options)
        self.slips, self.open, self.passes, self.rows = slips, [], 0, 0
        self.given: list[int] = []

    def decode(self, token: int, draft: Any = ()) -> np.ndarray:
        assert self.length + 1 + len(draft) <= self.max_ctx
        if self.open and self.open[0] == token:
            self.rows += 1
            del self.open[0]
        else:
            self.open = list(draft)
            self.passes += 1
        if draft:
            self.given.append(len(draft))
        return super().decode(token)

    def logits(self) -> np.ndarray:
        out = np.zeros(self.vocab, np.float32)
        out[self.length % 7 if self.length % self.slips else 40 + self.length % 20] = 3
        out[50] = 2.0
        return out


@pytest.mark.parametrize("slips", [10**9, 50, 13])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_is_what_it_is_without(slips: int, temperature: float) -> None:
    def answer(draft: bool) -> tuple[list[int], list[Any], Stats, Ahead]:
        model, stats = Ahead(slips), Stats()
        sampler = Sampler(Sampling(temperature=temperature, top_k=3, seed=4, logprobs=2))
        ids = list(generate(model, [1, 2, 3], sampler, [60], 400, stats=stats, draft=draft))
        return ids, sampler.logprobs, stats, model

    plain, drafted = answer(False), answer(True)
    assert plain[:2] == drafted[:2] and len(plain[1]) == len(plain[0]) == 400
    assert plain[2].draft_passes == plain[3].rows == 0 and plain[3].passes == 399
    stats, model = drafted[2], drafted[3]
    assert (stats.draft_passes, stats.drafted_tokens) == (len(model.given), sum(model.given))
    assert stats.accepted_tokens == model.rows == 399 - model.passes
    if temperature == 0:
        assert model.rows > (0 if slips == 13 else 100)


@pytest.mark.parametrize("most", [20, 21, 30, 57])
def test_no_draft_goes_beyond_the_answer_or_the_context(most: int) -> None:
    model = Ahead()
    assert len(list(generate(model, [1, 2, 3], max_new=most, draft=True))) == most
    assert model.length == most + 2 and not model.open
    model = Ahead(max_ctx=most)
    run = generate(model, [1, 2, 3], max_new=500, draft=True)
    assert len(list(run)) == most - 2 and run.finish == "context" and model.length == most and not model.open


def test_a_model_that_takes_no_drafts_gets_none() -> None:
    class Without(Ahead):
        draft_limit = 0

    model = Without()
    assert len(list(generate(model, [1], max_new=60, draft=True))) == 60
    assert model.given == []


def test_the_option_reaches_the_model(tmp_path: Path) -> None:
    with fake(tmp_path, lambda _: "abcdefghij" * 8) as model:
        model.model.draft_limit = 30
        plain = model.chat("x", max_new=60).result()
        drafted = model.chat("x", max_new=60, draft=True).result()
        assert plain.tokens == drafted.tokens and plain.stats.draft_passes == 0
        stats = drafted.stats
        assert stats.draft_passes and stats.accepted_tokens > 20
        assert f"{stats.accepted_tokens} of {stats.drafted_tokens} tokens of" in stats.line()
        cut = model.chat("x", stop="hijab", draft=True).result()
        assert cut.text == "abcdefg" and cut.finish == "stop-string"


def test_a_document_fits_its_schema_with_drafts(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "array", "items": {"const": "abcdefghijklmn"}, "minItems": 6, "maxItems": 6}
    with fake(tmp_path) as model:
        model.model.draft_limit = 30
        sampling = Sampling(seed=2, logprobs=1)
        plain, drafted = (
            model.chat("q", json_schema=schema, sampling=sampling, max_new=300, draft=draft).result()
            for draft in (False, True)
        )
    assert json.loads(drafted.text) == ["abcdefghijklmn"] * 6 and drafted.complete
    assert plain.tokens == drafted.tokens and plain.logprobs == drafted.logprobs
    assert drafted.stats.accepted_tokens > 20


@pytest.fixture(scope="module")
def builtin() -> Iterator[Qwen35]:
    with Qwen35.load(device="emu:quiet,threads=1") as model:
        yield model


WHO, FOX = "Who are you?", "What is a fox?"


def prompt_of(model: Qwen35, *questions: str, end: str = "") -> list[int]:
    """A conversation up to the last question. Earlier answers are greedy; the one to WHO ends with `end`."""
    messages: list[dict[str, Any]] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        ids = list(assemble(render(messages), model.tokenizer, None).ids)
        if len(messages) < 2 * len(questions) - 1:
            text = model.reply(messages, sampling=GREEDY).result().text
            if end and question == WHO:
                text = text[: len(text) * 4 // 5] + end
            messages.append({"role": "assistant", "content": text})
    return ids


def test_the_builtin_model_differs_in_near_ties_alone(builtin: Qwen35) -> None:
    near = 0
    total, edited = Stats(), " that jumps over every lazy dog."
    prompts = [
        prompt_of(builtin, *["What is a penguin?", FOX] * 2, "What is a penguin?"),
        prompt_of(builtin, WHO, FOX, WHO),
        prompt_of(builtin, WHO, FOX, WHO, end=edited),
    ]
    samplings = [GREEDY, *(Sampling(seed=seed) for seed in range(2))]
    for ids, sampling in itertools.product(prompts, samplings):
        stats = Stats()
        want, got = (
            list(
                generate(
                    builtin.session, ids, Sampler(sampling, ids), builtin.stop, 60, stats=stats, draft=draft
                )
            )
            for draft in (False, True)
        )
        total.draft_passes += stats.draft_passes
        total.accepted_tokens += stats.accepted_tokens
        total.drafted_tokens += stats.drafted_tokens
        apart = next((at for at, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]), None)
        if apart is None:
            assert want == got
            continue
        near += 1
        logits = builtin.prefill(ids)
        for token in want[:apart]:
            logits = builtin.decode(token)
        if sampling.greedy:
            assert margins(logits) < 0.1
        else:  # in the order of the draw there is next to nothing between the two
            shares = np.exp(logits - logits.max(), dtype=np.float64)
            first, second = sorted((want[apart], got[apart]))
            assert shares[first + 1 : second].sum() < 0.02 * shares.sum()
    assert near <= 2, "near-ties are rare"
    assert total.draft_passes > 3 and 40 < total.accepted_tokens < total.drafted_tokens


def test_a_second_answer_quotes_the_first(builtin: Qwen35) -> None:
    talks = [builtin.conversation() for _ in range(2)]
    for question in (WHO, FOX, WHO):
        plain, drafted = (
            talk.ask(question, sampling=GREEDY, draft=bool(n)).result() for n, talk in enumerate(talks)
        )
        assert plain.tokens == drafted.tokens


def test_answers_that_take_turns_are_those_alone(builtin: Qwen35) -> None:
    """A pass stays what it is while another answer has the model."""
    prompts = [prompt_of(builtin, *talk) for talk in ((WHO, FOX, WHO), (WHO, FOX, FOX, WHO))]

    def begun(ids: list[int]) -> Any:
        return generate(builtin.session, ids, None, builtin.stop, 50, draft=True)

    alone = [list(begun(ids)) for ids in prompts]
    runs = [begun(ids) for ids in prompts]
    turns = itertools.zip_longest(*runs)
    assert [[token for token in side if token is not None] for side in zip(*turns, strict=True)] == alone
    assert all(run.stats.accepted_tokens for run in runs)


def test_kept_states_are_what_they_are_without(builtin: Qwen35) -> None:
    ids = prompt_of(builtin, WHO, FOX, WHO)

    def answer(session: Session, draft: bool) -> list[int]:
        return list(generate(session, ids, None, builtin.stop, 60, draft=draft))

    want = answer(builtin.session, True)
    session = Session(builtin.model, PrefixCache(), 512)
    assert [answer(session, draft) for draft in (True, False, True)] == [want] * 3
