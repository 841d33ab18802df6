"""The default model's tokenizer: byte-level BPE with Qwen3.5's split and special tokens, and whole words.

A taught word is one token in each form it is typed in (with and without a space before it: "word", "Word",
"WORD"); merges serve all other text.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from qwen35.export.vocabulary import SPLIT
from qwen35.train.corpus import Corpus, Generator, Words, render

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
THINK = ("<think>", "</think>")
"""Added tokens that a decoder shows, as in Qwen3.5's tokenizer."""


FORMS = 6
"""Forms of a word that get tokens of their own."""


def _pieces() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )


def _assemble(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pieces()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def word_forms(words: Iterable[str]) -> list[str]:
    """The forms of each word that get a token of their own, in a fixed order."""
    forms: list[str] = []
    for word in words:
        capital = word[0].upper() + word[1:]
        forms += [" " + word, word, capital, " " + capital, " " + word.upper(), word.upper()]
    return list(dict.fromkeys(forms))


def build(corpus: Corpus, size: int = 16384, merges: int = 1500, samples: int = 20000) -> Tokenizer:
    """A tokenizer of `size` rows: bytes, `merges` BPE merges, whole words by need, then added tokens."""
    generator = Generator(corpus, 11)
    rng = random.Random(3)
    texts = [t for _ in range(samples) for t, _ in render(generator.text(Words()))]
    strangers = [" " + rng.choice(corpus.unknown) for _ in range(20000)]
    learner = _assemble(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    learner.train_from_iterator(strangers + [e.answer for e in corpus.every_word], trainer)
    learned = json.loads(learner.to_str())["model"]
    vocab: dict[str, int] = dict(learned["vocab"])
    pieces = _pieces()
    counts: Counter[str] = Counter()
    for text in texts:
        for special in (*SPECIAL, *THINK):
            text = text.replace(special, "\n")
        counts.update(piece for piece, _ in pieces.pre_tokenize_str(text))
    room = size - len(SPECIAL) - len(THINK)
    forced = [pieces.pre_tokenize_str(form) for form in word_forms(e.word for e in corpus.every_word)]
    wanted = [form[0][0] for form in forced if len(form) == 1]
    answers: Counter[str] = Counter()
    for entry in corpus.every_word:
        answers.update(piece for piece, _ in pieces.pre_tokenize_str(" " + entry.answer))
    wanted += [piece for piece, count in counts.most_common() if count >= 40 and piece not in answers]
    wanted += [piece for piece, _ in answers.most_common()]
    for piece in wanted:
        if len(vocab) >= room:
            break
        vocab.setdefault(piece, len(vocab))
    merged = [tuple(pair) for pair in learned["merges"]]
    tokenizer = _assemble(models.BPE(vocab=vocab, merges=merged, ignore_merges=True))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in THINK])
    return tokenizer


def families(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """For each token, its word's number and its form.

    Forms: 0 " word", 1 "word", 2 "Word", 3 " Word", 4 "WORD", 5 " WORD".
    """
    names = [tokenizer.id_to_token(i) or "" for i in range(tokenizer.get_vocab_size())]
    numbers: dict[str, int] = {}
    group, form = [], []
    for name in names:
        text = name
        spaced = text.startswith("Ġ")
        text = text[1:] if spaced else text
        upper = text[:1].isupper()
        loud = len(text) > 1 and text.isalpha() and text.isupper()
        group.append(numbers.setdefault(text.lower() if text.isalpha() else name, len(numbers)))
        if loud:
            form.append(4 + spaced)
        else:
            form.append(
                {(True, False): 0, (False, False): 1, (False, True): 2, (True, True): 3}[spaced, upper]
            )
    return group, form
