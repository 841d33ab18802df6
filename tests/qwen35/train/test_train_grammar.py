"""Phrasings composed from data files, and their roughening."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from qwen35.train.datafile import DataError
from qwen35.train.grammar import Grammar, apart, core, misspelt, rough


def _grammar(folder: Path, text: str) -> Grammar:
    (folder / "g.txt").write_text(text)
    return Grammar("g.txt", folder, "top")


def test_every_alternative_is_drawn_as_often_as_it_says(tmp_path: Path) -> None:
    grammar = _grammar(tmp_path, '[top]\n3 x a (b|c|) <end>\nd\n[end]\n" e"\n.\n')
    rng = random.Random(1)
    drawn = [grammar.draw(rng) for _ in range(4000)]
    assert set(drawn) == {"a b e", "a b.", "a c e", "a c.", "a e", "a.", "d"}
    assert 0.22 < drawn.count("d") / 4000 < 0.28


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[top]\n<none>\n", "no [none] here"),
        ("[top]\na (b\n", "g.txt:2: "),
        ("[top]\na <top>\n", "g.txt:2: <top> leads back to itself: top > top"),
        ("[top]\n<b>\n[b]\n(x|<top>)\n", "g.txt:4: <top> leads back to itself: top > b > top"),
        ("[other]\na\n", "no [top] here; found other"),
    ],
)
def test_a_bad_grammar_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        _grammar(tmp_path, text)


def test_core_leaves_out_case_and_punctuation() -> None:
    assert core("What's {aw}, then?") == core("whats {w} then") == " whats {w} then "


def test_apart_draws_again() -> None:
    drawn = iter(("Is it {w}?", "what is {aw}, please", "Define {w}."))
    assert apart(lambda: next(drawn), (core("What is {aw}?"), core("is it {w}"))) == "Define {w}."


def test_roughened_phrasings_keep_their_slot() -> None:
    rng = random.Random(2)
    seen = {rough(rng, "Could you define {w}, please?", lambda: "stray") for _ in range(500)}
    assert len(seen) > 200
    assert all(text.count("{w}") == 1 for text in seen)
    assert any("stray" in text for text in seen)
    assert all(rough(rng, "{w}?", lambda: "stray").count("{w}?") == 1 for _ in range(50))


def test_misspelt_words_differ_by_a_letter() -> None:
    rng = random.Random(3)
    seen = {misspelt(rng, "word") for _ in range(200)}
    assert {"wrd", "wword", "owrd"} <= seen
    assert all(3 <= len(word) <= 5 for word in seen)
    assert misspelt(rng, "it") == "it"
