"""Curation of definitions, on a dict folder made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen35.train.wordnet import (
    MAX_WORDS,
    WordNet,
    WordNetError,
    article,
    circular,
    entries,
    odd,
    plain_gloss,
    sentence,
    shorten,
)
from qwen35.train.words import FIRST, KINDS, PINNED
from tests.support import tiny_wordnet

ANIMAL = next(kind for kind in KINDS if kind.name == "an animal")
VERB = next(kind for kind in KINDS if kind.name == "a verb")
SUBSTANCE = next(kind for kind in KINDS if kind.name == "a substance")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return WordNet(tiny_wordnet.make(tmp_path_factory.mktemp("dict")))


def test_reads_senses_in_order(net: WordNet) -> None:
    beaver = net.senses("beaver", "noun")
    assert [sense.file for sense in beaver] == ["noun.animal", "noun.artifact"]
    assert beaver[1].gloss == "a hat made with the fur of a beaver"
    assert net.senses("Whale", "noun")[0].words == ("whale", "giant_person")
    assert net.senses("nothing", "noun") == []
    assert "giant_person" not in net.words("noun")


def test_a_folder_that_is_not_wordnet_is_named(tmp_path: Path) -> None:
    with pytest.raises(WordNetError, match=r"index\.noun.*wordnet-base"):
        WordNet(tmp_path)


@pytest.mark.parametrize(
    ("gloss", "plain"),
    [
        ('a small cat; "the cat sat"', "a small cat"),
        ("large deer (of the north) of Asia; tasty", "large deer of Asia"),
        ('quoted "only', "quoted"),
        ("a `tool'", "a 'tool'"),
    ],
)
def test_plain_gloss(gloss: str, plain: str) -> None:
    assert plain_gloss(gloss) == plain


def test_shorten_cuts_before_a_clause_and_leaves_no_loose_end() -> None:
    long = "large deer of the cold north that lives in the wet forests of the far parts of the world"
    assert shorten(long) == "large deer of the cold north"
    assert shorten("one") is None
    assert shorten("a bird typically having a") == "a bird"
    assert shorten(" ".join(["word"] * (MAX_WORDS + 1))) is None


@pytest.mark.parametrize(
    ("word", "gloss", "expected"),
    [
        ("beaver", "a hat made of beavers' fur", True),
        ("painter", "someone who is a painter of walls", True),
        ("cat", "a category of things", False),
        ("cat", "cats and dogs", True),
        ("zebra", "a striped animal", False),
        ("rainbow", "an arc in the sky", False),
    ],
)
def test_circular(word: str, gloss: str, expected: bool) -> None:
    assert circular(word, gloss) is expected


@pytest.mark.parametrize(
    ("gloss", "expected"),
    [
        ("a tree of the genus Fagus", True),
        ("a songbirds of the north", True),
        ("any of various birds of the north", False),
        ("a stage-bus of glass", False),
        ("distinguished from cattle by horns", True),
        ("large black bird", False),
    ],
)
def test_odd(gloss: str, expected: bool) -> None:
    assert odd(gloss) is expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("apple", "an"),
        ("unicorn", "a"),
        ("sun", "the"),
        ("herb", "an"),
        ("hour", "an"),
        ("horse", "a"),
        ("umbrella", "an"),
    ],
)
def test_article(word: str, expected: str) -> None:
    assert article(word) == expected


def test_sentences_repeat_the_word_and_agree_in_number() -> None:
    assert sentence("raven", "large black bird", ANIMAL) == "A raven is a large black bird."
    assert sentence("ant", "an insect", ANIMAL) == "An ant is an insect."
    assert (
        sentence("crow", "black birds having a call", ANIMAL)
        == "The word crow means: black birds having a call."
    )
    assert sentence("clay", "a soft soil", SUBSTANCE) == "Clay is a soft soil."
    assert sentence("scissors", "a tool", SUBSTANCE) == "Scissors are a tool."
    assert sentence("sun", "a star", ANIMAL) == "The sun is a star."
    assert sentence("swim", "travel through water", VERB) == "To swim is to travel through water."


def test_entries_take_the_kind_s_sense(net: WordNet) -> None:
    taught = {entry.word: entry.answer for entry in entries(net)}
    assert taught["whale"] == "A whale is a very large mammal that lives in the sea."
    assert taught["raven"] == "A raven is a large black bird with a straight bill and long wedge-shaped tail."
    assert taught["swim"] == "To swim is to travel through water."
    assert taught["otter"].startswith("An otter is a freshwater carnivorous mammal having")
    assert "beaver" not in taught, "a gloss that names the word itself is dropped"
    assert all(word.lower() in answer.lower() for word, answer in taught.items())


def test_a_limit_keeps_pinned_words(net: WordNet) -> None:
    whole = entries(net)
    fewer = entries(net, len(whole) - 1)
    assert len(fewer) == len(whole) - 1
    dropped = {e.word for e in whole} - {e.word for e in fewer}
    assert dropped == {"teapot"}, "those of no list go before words.FIRST"
    least = {e.word for e in entries(net, len(whole) - 3)}
    assert {"penguin", "whale"} <= least
    assert len({"otter", "raven", "swim"} & FIRST) == 3
    assert len({"otter", "raven", "swim"} & least) == 1


def test_pinned_glosses_are_short_and_of_listed_words_and_name_no_word_by_itself() -> None:
    listed = [word for kind in KINDS for word in kind.words]
    assert set(PINNED) <= set(listed)
    assert max(len(gloss.split()) for gloss in PINNED.values()) <= MAX_WORDS
    assert not {word for word, gloss in PINNED.items() if word in gloss.split()}


def test_word_list_has_no_repeats_in_a_kind() -> None:
    for kind in KINDS:
        assert len(set(kind.words)) == len(kind.words), kind.name
