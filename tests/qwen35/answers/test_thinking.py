"""qwen35.thinking: reasoning never goes out as the answer, nor the answer as reasoning."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from qwen35.thinking import ThinkSplitter


def split(text: str, thinking: bool, cuts: list[int], **options: bool) -> tuple[str, str]:
    splitter, parts = ThinkSplitter(thinking, **options), {"reasoning": "", "text": ""}
    for start, stop in pairwise([0, *cuts, len(text)]):
        for kind, piece in splitter.feed(text[start:stop]):
            assert piece
            parts[kind] += piece
    for kind, piece in splitter.flush():
        parts[kind] += piece
    assert splitter.flush() == []
    return parts["reasoning"], parts["text"]


@pytest.mark.parametrize(
    ("text", "thinking", "want"),
    [
        ("hmm\n</think>\n\nAnswer", True, ("hmm\n", "Answer")),
        ("hmm </thin k> </think>A </think> B", True, ("hmm </thin k> ", "A </think> B")),
        ("never closed </think", True, ("never closed </think", "")),
        ("</think>\n\n", True, ("", "")),
        ("plain `<think>` text", False, ("", "plain `<think>` text")),
        ('the "<think>" mark', False, ("", 'the "<think>" mark')),
        ("\n<think>a</think>b", False, ("a", "b")),
        ("  plain", False, ("", "  plain")),
        (" \n ", False, ("", " \n ")),
        ("<thin", False, ("", "<thin")),
        ("", False, ("", "")),
        ("</think>x", False, ("", "</think>x")),
        # Again.
        ("a</think>A<think>b</think>\n\nB", True, ("a\nb", "AB")),
        ("a</think>A\n<think>b", True, ("a\nb", "A\n")),
        ("A <think>b</think>B", False, ("b", "A B")),
        ("a</think>\n<think>b</think>\nA", True, ("a\nb", "A")),
        ("a</think>A<think>b</thi", True, ("a\nb</thi", "A")),
        ("a</think>A<think>b</think>B<think>c</think>C", True, ("a\nb\nc", "ABC")),
        ("<think></think><think></think>A", False, ("", "A")),
        # Inside each other, and only named.
        ("<think>a<think>b</think>c</think>d", False, ("a<think>b</think>c", "d")),
        ("a<think><think>b</think>c</think>d</think>e", True, ("a<think><think>b</think>c</think>d", "e")),
        ("a</think>A<think>b<think>c</think>d</think>B", True, ("a\nb<think>c</think>d", "AB")),
        ("the <think> mark\n</think>\n\nAnswer", True, ("the <think> mark\n", "Answer")),
        ("<think> <think> <think></think>A", True, ("<think> <think> <think>", "A")),
        ("a <think> mark</think>A<think>b</think>B", True, ("a <think> mark\nb", "AB")),
        ("a `<think>` mark</think>A", True, ("a `<think>` mark", "A")),
        # Quoted.
        (
            "x</think>```\n<think>a</think>\n```\n<think>b</think>c",
            True,
            ("x\nb", "```\n<think>a</think>\n```\nc"),
        ),
        (
            "<tool_call>\n<function=f>\n<think>a</think></tool_call><think>b",
            False,
            ("b", "<tool_call>\n<function=f>\n<think>a</think></tool_call>"),
        ),
        # What no call follows is a call's marker that is named; a call whose end is missing ends with its
        # function; within a value everything is the value's.
        ("<tool_call>\n<think>a</think>b", False, ("a", "<tool_call>\nb")),
        ("Write <tool_call>\nthen it.\n<think>a</think>b", False, ("a", "Write <tool_call>\nthen it.\nb")),
        ("<tool_call>\n\n<func>\n<think>a</think>b", False, ("a", "<tool_call>\n\n<func>\nb")),
        (
            "<tool_call>\n<function=f>\n</function>\n\n<think>a</think>b",
            False,
            ("a", "<tool_call>\n<function=f>\n</function>\n\nb"),
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=x>\n<think>a</think>b",
            False,
            ("", "<tool_call>\n<function=f>\n<parameter=x>\n<think>a</think>b"),
        ),
        (
            '<tool_call>\n{"name": "<think>a</think>"}',
            False,
            ("", '<tool_call>\n{"name": "<think>a</think>"}'),
        ),
        ('It is "big"<think>a</think>b', False, ("a", 'It is "big"b')),
        ("`x`<think>a</think>b", False, ("a", "`x`b")),
        ("the dogs'<think>a</think>b", False, ("a", "the dogs'b")),
        ('a 5"<think>a</think>b', False, ("a", 'a 5"b')),
        ("```\nx\n```<think>a</think>b", False, ("a", "```\nx\n```b")),
        ("```\nx `y\n```\n<think>a</think>b", False, ("a", "```\nx `y\n```\nb")),
        ("one ` alone\n<think>a</think>b", False, ("a", "one ` alone\nb")),
        ("“x”<think>a</think>b", False, ("a", "“x”b")),
        ("“say <think>a</think> so”<think>c</think>", False, ("c", "“say <think>a</think> so”")),
        ("`x <think>a</think>`b", False, ("", "`x <think>a</think>`b")),
        ("Use <tool_call> to call.\n<think>a</think>b", False, ("a", "Use <tool_call> to call.\nb")),
    ],
)
def test_parts_however_they_are_cut(text: str, thinking: bool, want: tuple[str, str]) -> None:
    rng = random.Random(1)
    assert split(text, thinking, list(range(len(text)))) == want
    for _ in range(30):
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(6)))
        assert split(text, thinking, cuts) == want


@pytest.mark.parametrize("thinking", [False, True])
def test_json_may_hold_markers(thinking: bool) -> None:
    text = '{"a": "x <think> y </think> z"}'
    start = "hm</think>\n\n" if thinking else ""
    for cuts in [], list(range(60)):
        assert split(start + text, thinking, cuts, again=False) == ("hm" if thinking else "", text)


def test_text_streams_while_nothing_is_in_doubt() -> None:
    splitter = ThinkSplitter(False)
    for word in ["Some ", "words ", "<b>", " and ", "<th>", "</thinking> ", "end."]:
        assert splitter.feed(word) == [("text", word)]
    assert splitter.flush() == []


WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "```", "`", '"', "\n", " ", "a", "b c", "<th"]


def test_random_texts() -> None:
    """Cut anywhere, the parts are the same, and every word is in one of them."""
    rng = random.Random(5)
    for _ in range(3000):
        words = rng.choices(WORDS, k=rng.randrange(14))
        text = "".join(words)
        thinking = rng.random() < 0.5
        want = split(text, thinking, [])
        assert split(text, thinking, sorted(rng.choices(range(len(text) + 1), k=5))) == want, text
        for letter in "abc":
            assert (want[0] + want[1]).count(letter) == text.count(letter), text
        if "`" not in text and '"' not in text and "<tool_call>" not in text:
            opened = text.find("<think>", 0 if not thinking else text.find("</think>") + 1)
            assert "<think>" not in want[1], (text, want, opened)


def test_time_is_linear() -> None:
    for unit in ("<think>", "</think>", "<think></think>", "<tool_call>", "`", "<think>a</think>b", "\n"):
        for thinking in (False, True):
            splitter = ThinkSplitter(thinking)
            pieces = [piece for _ in range(6_000) for piece in splitter.feed(unit)] + splitter.flush()
            assert len(pieces) <= 24_000
