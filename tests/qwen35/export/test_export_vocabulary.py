"""The stand-in tokenizer: loads, round-trips any text, has Qwen3.5's special ids, and reads aloud."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from qwen35.export.vocabulary import byte_alphabet, tokenizer_json

PUBLISHED = {
    "<|endoftext|>": 248044,
    "<|im_start|>": 248045,
    "<|im_end|>": 248046,
    "<|vision_start|>": 248053,
    "<|vision_end|>": 248054,
    "<|image_pad|>": 248056,
    "<|video_pad|>": 248057,
    "<tool_call>": 248058,
    "</tool_call>": 248059,
    "<tool_response>": 248066,
    "</tool_response>": 248067,
    "<think>": 248068,
    "</think>": 248069,
}


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(2048))


def test_bytes_are_those_of_byte_level_bpe() -> None:
    assert len(set(byte_alphabet())) == 256
    assert sorted(byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert byte_alphabet()[ord("a")] == "a" and byte_alphabet()[ord(" ")] == "\u0120"


def test_published_ids() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(248320))
    for token, number in PUBLISHED.items():
        assert tokenizer.token_to_id(token) == number
        assert tokenizer.encode(f"x{token}y").ids[1] == number
    assert tokenizer.decode([248045, 248068, 248046]) == "<think>"  # think tags are no special tokens
    words = {tokenizer.id_to_token(number) for number in range(256, 248044)}
    assert len(words) == 248044 - 256


def test_round_trip(small: Tokenizer) -> None:
    rng = random.Random(0)
    texts = ["", " ", "a  b\n\n", "na\u00efve \u4f60\u597d \U0001f427", "don't 123"]
    texts += [
        "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0xA0, 0x250)))) for _ in range(20))
        for _ in range(50)
    ]
    for text in texts:
        ids = small.encode(text).ids
        assert all(number < 256 for number in ids)
        normal = small.normalizer.normalize_str(text)
        assert small.decode(ids) == normal
        assert len(ids) == len(normal.encode())


def test_words_decode_with_a_space_before(small: Tokenizer) -> None:
    text = small.decode([300, 301, 1000])
    assert text.startswith(" ") and len(text.split()) == 3 and text.replace(" ", "").isalpha()


def test_a_vocabulary_too_small() -> None:
    with pytest.raises(ValueError, match="too small"):
        tokenizer_json(500)
