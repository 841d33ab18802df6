"""The default model's tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from qwen35.tokenizer import Tokenizer as OurTokenizer
from qwen35.train import vocabulary
from qwen35.train.corpus import Corpus
from qwen35.train.wordnet import WordNet
from tests.support import tiny_wordnet

SIZE = 4096
FORMS = (" penguin", "penguin", "Penguin", " Penguin", "PENGUIN", " PENGUIN")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Path]:
    corpus = Corpus(WordNet(tiny_wordnet.make(tmp_path_factory.mktemp("dict"))))
    tokenizer = vocabulary.build(corpus, SIZE, merges=300, samples=300)
    path = tmp_path_factory.mktemp("out") / "tokenizer.json"
    tokenizer.save(str(path))
    return tokenizer, path


@pytest.mark.parametrize("form", [*FORMS, " otter"])
def test_a_taught_word_is_one_token_in_each_form(made: tuple[Tokenizer, Path], form: str) -> None:
    assert len(made[0].encode(form).ids) == 1


@pytest.mark.parametrize(
    "text",
    [
        "What is a penguin?",
        "naïve café",
        "你好 🐧",
        "a  b\n\n\tc",
        "12 345.6",
        "don't I'M",
        "zorblax XYLOGATE",
        "<thin k>",
    ],
)
def test_every_text_survives(made: tuple[Tokenizer, Path], text: str) -> None:
    ids = made[0].encode(text).ids
    assert made[0].decode(ids) == text
    assert max(ids) < SIZE - len(vocabulary.SPECIAL) - len(vocabulary.THINK)


def test_the_run_time_s_tokenizer_reads_it_alike(made: tuple[Tokenizer, Path]) -> None:
    ours = OurTokenizer(made[1])
    text = "<|im_start|>user\nWhat is a penguin?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert ours.encode(text, allow_special=True) == made[0].encode(text).ids
    for plain in ("Penguin", "what is water?", "zorblax, 12!"):
        assert ours.encode(plain) == made[0].encode(plain).ids
    for name in vocabulary.SPECIAL:
        assert ours.is_special(ours.added[name])
    for name in vocabulary.THINK:
        assert not ours.is_special(ours.added[name])


def test_added_tokens_come_last_and_the_size_is_as_asked(made: tuple[Tokenizer, Path]) -> None:
    names = (*vocabulary.SPECIAL, *vocabulary.THINK)
    size = made[0].get_vocab_size()
    assert size <= SIZE
    assert [made[0].token_to_id(name) for name in names] == list(range(size - len(names), size))


def test_families_join_the_forms_of_a_word(made: tuple[Tokenizer, Path]) -> None:
    group, form = vocabulary.families(made[0])
    ids = [made[0].encode(text).ids[0] for text in FORMS]
    assert len({group[i] for i in ids}) == 1
    assert [form[i] for i in ids] == list(range(vocabulary.FORMS))
    other = made[0].encode(" otter").ids[0]
    assert group[other] != group[ids[0]]
    assert len(group) == made[0].get_vocab_size()
