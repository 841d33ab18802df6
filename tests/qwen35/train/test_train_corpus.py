"""What the default model is trained on."""

from __future__ import annotations

import random
import re

import pytest

from qwen35.template import render as chat_template
from qwen35.template import to_text
from qwen35.train import phrases
from qwen35.train.corpus import (
    Corpus,
    Generator,
    Sample,
    Turn,
    Words,
    dressed,
    phrase,
    prompt,
    render,
    thought,
    typed,
)
from qwen35.train.grammar import core
from qwen35.train.wordnet import Entry, WordNet
from qwen35.train.words import KINDS
from tests.support import tiny_wordnet


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(WordNet(tiny_wordnet.make(tmp_path_factory.mktemp("dict"))))


def _whole(sample: Sample) -> str:
    return "".join(text for text, _ in render(sample))


def _trained(sample: Sample) -> str:
    return "".join(text for text, flag in render(sample) if flag)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("system", [None, "Answer briefly."])
def test_prompt_is_the_chat_template_s(thinking: bool, system: str | None) -> None:
    turns = (
        Turn("What is a fox?", "A fox is a mammal."),
        Turn("And a hen?", "A hen is a bird.", "Hm." if thinking else None),
    )
    messages = [{"role": "system", "content": system}] if system else []
    messages += [
        {"role": "user", "content": "What is a fox?"},
        {"role": "assistant", "content": "A fox is a mammal."},
        {"role": "user", "content": "And a hen?"},
    ]
    asked, answer = prompt(Sample(turns, system))
    assert asked == to_text(chat_template(messages, thinking=thinking))
    assert answer == ("Hm.\n</think>\n\n" if thinking else "") + "A hen is a bird.<|im_end|>"


def test_image_tokens_are_where_the_template_puts_them() -> None:
    sample = Sample((Turn("What is this?", "It is a star."),), images=1)
    message = {"role": "user", "content": [{"image": "x"}, {"text": "What is this?"}]}
    wanted = to_text(chat_template([message]))
    assert prompt(sample, [1])[0] == wanted
    assert prompt(sample, [12])[0].count("<|image_pad|>") == 12
    both = Sample((Turn("What are these?", "Stars."),), images=2)
    message = {"role": "user", "content": [{"image": "x"}, {"image": "y"}, {"text": "What are these?"}]}
    assert prompt(both, [1, 1])[0] == to_text(chat_template([message]))
    with pytest.raises(ValueError, match="1 token counts for 2 pictures"):
        prompt(both, [1])


def test_only_answers_are_trained() -> None:
    sample = Sample((Turn("Q1", "A1"), Turn("Q2", "A2", "T2")), "S")
    assert _trained(sample) == "A1<|im_end|>T2\n</think>\n\nA2<|im_end|>"
    assert _whole(sample).count("<think>") == 1


@pytest.mark.parametrize(
    ("template", "word", "countable", "expected"),
    [
        ("What is {aw}?", "owl", True, "What is an owl?"),
        ("What is {aw}?", "water", False, "What is water?"),
        ("{W}?", "owl", True, "Owl?"),
        ("{w} means what?", "owl", True, "Owl means what?"),
        ("{w}", "owl", True, "owl"),
    ],
)
def test_phrase(template: str, word: str, countable: bool, expected: str) -> None:
    assert phrase(template, word, countable) == expected


def test_held_out_phrasings_are_never_made(corpus: Corpus) -> None:
    held = [re.escape(t.rstrip("?.")) for t in (*phrases.HELD_OUT, *phrases.FOLLOW_UPS_HELD_OUT)]
    pattern = re.compile(
        "|".join(h.replace(r"\{aw\}", r"an? \w+").replace(r"\{w\}", r"\w+") + r"\W*$" for h in held), re.I
    )
    rng = random.Random(4)
    for _ in range(4000):
        asked = phrase(dressed(rng, rng.choice((*phrases.ASKED, *phrases.BARE))), "owl", True)
        assert not pattern.fullmatch(asked), asked
    generator = Generator(corpus, 4)
    for _ in range(4000):
        said = core(generator.template())
        assert not any(kept in said for kept in phrases.KEPT), said
    assert not set(phrases.FOLLOW_UPS) & set(phrases.FOLLOW_UPS_HELD_OUT)
    assert len(phrases.ASKED) >= 30


def test_no_phrasing_is_listed_twice() -> None:
    for group in (phrases.ASKED, phrases.FOLLOW_UPS, phrases.HELD_OUT, phrases.FRESH):
        assert len(set(group)) == len(group)
    assert not set(phrases.ASKED) & {*phrases.HELD_OUT, *phrases.FRESH}
    talk = [asked for _, group in phrases.CHAT for asked in group]
    assert len(set(talk)) == len(talk)


@pytest.mark.parametrize(
    ("word", "step"),
    [
        ("penguin", "A penguin is an animal. So I say which kind of animal it is."),
        ("water", "Water is a food. So I say which kind of food it is."),
        ("hammer", "A hammer is a thing people make. So I say what it is for."),
        ("scissors", "Scissors are a thing people make. So I say what it is for."),
        ("sun", "The sun is a place or natural thing. So I say what it is like."),
        ("run", "To run is an action. So I say what one does."),
        ("bald", "The word bald describes something. So I say how that is."),
    ],
)
def test_a_thought_names_the_word_right_before_its_kind(word: str, step: str) -> None:
    kind = next(kind for kind in KINDS if word in kind.words)
    assert thought(Entry(word, "", kind)) == f"The user asks about the word {word}. {step}"


def test_thoughts_are_short() -> None:
    for kind in KINDS:
        assert max(len(thought(Entry(word, "", kind)).split()) for word in kind.words) <= 25, kind.name


def test_unknown_words_are_apart(corpus: Corpus) -> None:
    trained, held = set(corpus.unknown), set(corpus.unknown_held_out)
    assert trained | held >= {"xylogate", "zanthorn", "quindle", "brimble"}
    assert not trained & held
    assert not (trained | held) & {entry.word for entry in corpus.every_word}


def test_made_up_words_are_no_words(corpus: Corpus) -> None:
    rng = random.Random(2)
    drawn = [corpus.made_up.draw(rng) for _ in range(30)]
    assert all(4 <= len(word) <= 10 and word.isalpha() for word in drawn)
    assert not set(drawn) & set(corpus.net.words("noun"))


def test_imbalance_favours_low_ranks_and_zero_is_even(corpus: Corpus) -> None:
    generator = Generator(corpus, 1)
    size = len(corpus.taught)
    uneven = [generator.word(Words(1.2)).word for _ in range(4000)]
    even = [generator.word(Words()).word for _ in range(40000)]
    top = max(map(uneven.count, set(uneven)))
    assert top > 4000 * 0.04
    assert max(map(even.count, set(even))) < 40000 / size + 35
    assert len(set(even)) > 0.99 * size


def test_samples_are_seeded_and_answers_belong_to_questions(corpus: Corpus) -> None:
    first, second = Generator(corpus, 9), Generator(corpus, 9)
    samples = [first.text(Words(0.5)) for _ in range(600)]
    assert samples == [second.text(Words(0.5)) for _ in range(600)]
    answers = {entry.word: entry.answer for entry in corpus.taught}
    kinds = dict.fromkeys(("known", "refused", "thought", "two turns", "system"), 0)
    for sample in samples:
        last = sample.turns[-1]
        kinds["two turns"] += len(sample.turns) == 2
        kinds["thought"] += last.thought is not None
        kinds["system"] += sample.system is not None
        said = set(re.findall(r"\w+", last.question.lower()))
        if last.answer == phrases.UNKNOWN:
            kinds["refused"] += 1
        for word, answer in answers.items():
            if answer == last.answer:
                kinds["known"] += 1
                assert word.lower() in said, (word, last.question)
    assert kinds["known"] > 380
    assert all(kinds.values()), kinds


def test_bare_share(corpus: Corpus) -> None:
    generator = Generator(corpus, 0)
    bare = sum(len(generator.question("owl", True).split()) <= 2 for _ in range(2000))
    assert 0.12 < bare / 2000 < 0.32


def test_every_question_names_its_word_once_or_more(corpus: Corpus) -> None:
    generator = Generator(corpus, 3)
    for _ in range(3000):
        asked = generator.question("owl", True)
        assert "owl" in re.findall(r"[a-z]+", asked.lower()), asked


def test_phrasings_are_many(corpus: Corpus) -> None:
    generator = Generator(corpus, 6)
    assert len({core(generator.template()) for _ in range(3000)}) > 2400


def test_typing_changes_case_and_punctuation_only() -> None:
    rng = random.Random(1)
    seen = {typed(rng, "What's an owl, please?") for _ in range(800)}
    letters = {re.sub("[^a-z]", "", text.replace(":)", "").lower()) for text in seen}
    assert letters == {"whatsanowlplease"}
    assert {"what's an owl, please?", "WHAT'S AN OWL, PLEASE?", "What's An Owl, Please?"} <= seen
    assert any(text.endswith("please") for text in seen)


def test_strays_are_no_taught_words(corpus: Corpus) -> None:
    generator = Generator(corpus, 2)
    taught = {entry.word.lower() for entry in corpus.every_word}
    assert not {generator.stray() for _ in range(2000)} & taught
