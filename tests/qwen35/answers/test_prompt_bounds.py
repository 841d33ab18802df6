"""Prompts that cannot fit are refused by their size, or by their beginning, and nothing that fits is."""

from __future__ import annotations

import io
import json
import os
import random
import threading
import tracemalloc
import unicodedata
from pathlib import Path

import pytest

from qwen35.cli.args import parse
from qwen35.cli.entries import TOKEN_BYTES, read_line, read_prompt
from qwen35.cli.run import run
from qwen35.errors import PromptTooLong, UsageError
from qwen35.find import DEFAULT_BUNDLE
from qwen35.prompt import assemble
from qwen35.template import Data, Start
from qwen35.tokenizer import Tokenizer
from tests.support.mock_model import fake

WORDS = ["whale", " ", "  ", "\n", "\n\n", "x", "3141", "naïve", "日本", "🐧", "e\u0301", "!?", "'ll", "\t"]


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return Tokenizer(DEFAULT_BUNDLE / "tokenizer.json")


@pytest.mark.parametrize("seed", range(20))
def test_a_beginning_never_has_more_tokens_than_the_whole(real: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        kinds = rng.sample(WORDS, rng.randrange(1, 6))
        text = "".join(rng.choice(kinds) for _ in range(rng.randrange(2000)))
        whole = len(real.encode(text))
        for enough in (0, 1, 5, 20, whole - 1, whole, whole + 1):
            found = real.least(text, max(enough, 0))
            assert found <= whole and (found == 0 or found > enough)


def test_what_is_far_too_long_is_seen_by_its_beginning(real: Tokenizer) -> None:
    text = "The whale is large. " * 20_000
    found = real.least(text, 100)
    assert 100 < found < len(real.encode(text)) / 50
    assert real.least("x" * (2 << 20), 100) == (2 << 20) // real.most_bytes  # one word


def test_bytes_that_nfc_makes_one_byte() -> None:
    """Every code point that NFC can give, from its longest sources: most_bytes is made with that factor.

    Those that stand for no character are their own normal forms.
    """
    longest: dict[str, int] = {}
    every = (chr(c) for c in range(0x110000))
    points = [point for point in every if unicodedata.category(point) not in ("Cn", "Co", "Cs")]
    for point in points:
        whole = unicodedata.normalize("NFD", point)
        if len(whole) == 1:
            longest[whole] = max(longest.get(whole, len(whole.encode())), len(point.encode()))
    worst = 0.0
    for point in points:
        parts = unicodedata.normalize("NFD", point)
        source = max(len(point.encode()), sum(longest.get(part, len(part.encode())) for part in parts))
        worst = max(worst, source / len(unicodedata.normalize("NFC", point).encode()))
    assert 3 < worst <= 4


def test_the_bytes_of_a_token(real: Tokenizer, tmp_path: Path) -> None:
    longest = max(len(real.token_bytes(token)) for token in range(real.vocab_size))
    assert longest <= real.most_bytes <= TOKEN_BYTES
    table = json.loads((DEFAULT_BUNDLE / "tokenizer.json").read_text())
    for change in (
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    ):
        (tmp_path / "t.json").write_text(json.dumps(table | change))
        assert Tokenizer(tmp_path / "t.json").most_bytes == 0


def test_the_api_refuses_without_encoding_it_all(tmp_path: Path) -> None:
    model = fake(tmp_path, max_ctx=60)
    text = "word " * 600_000
    tracemalloc.start()
    try:
        with pytest.raises(PromptTooLong, match=r"at least [\d,]+ tokens and the context holds 60") as caught:
            model.chat(text)
        assert caught.value.least and caught.value.tokens > 60
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(PromptTooLong, match=r"is \d+ tokens"):
        model.chat("word " * 20)
    assert model.chat("hi", max_new=2).result().tokens


def test_many_texts_that_each_fit_are_not_encoded_to_the_end(tmp_path: Path) -> None:
    """Beyond four contexts the number is a bound; up to there it is the number."""
    words = fake(tmp_path).tokenizer
    text = [Data("ab cd"), Start()]
    each = len(words.encode("ab cd"))
    for count, least in ((16, False), (17, False), (18, True), (1000, True)):
        with pytest.raises(PromptTooLong) as caught:
            assemble(text * count, words, limit=4 * each)
        assert (caught.value.tokens, caught.value.least) == (min(count, 17) * each, least)


def test_a_beginnings_last_two_words_do_not_count(real: Tokenizer) -> None:
    """Of the 16 characters a token that are looked at; of four times as many where those show nothing."""
    text = "x " * 500
    words = real.encode("x " * 24)
    assert len(words) == 25  # x, 23 times a space and an x, a space
    assert real.least(text, 3) == len(words) - 2 == 23
    spaces = " " * 180 + text  # 16 of them, and 64, are one word
    assert real.least(spaces, 1) == len(real.encode(spaces[:256])) - 2
    assert real.least("x " * 24, 3) == 0  # no more than the beginning: encode it
    assert real.least("x " * 8 + "x", 0) == len(real.encode("x " * 8)) - 2


def test_lines_end_somewhere() -> None:
    most = 2 * TOKEN_BYTES
    good = b"a" * most
    stream = io.BytesIO(good + b"\r\n" + b"b" * (most + 1) + b"\nshort\n" + b"c" * (5 << 20))
    assert read_line(stream, 2) == good.decode()
    with pytest.raises(UsageError, match=r"over 1,024 bytes, and 2 tokens of context"):
        read_line(stream, 2)
    assert read_line(stream, 2) == "short"
    with pytest.raises(UsageError, match="a line of stdin"):
        read_line(stream, 2)
    assert read_line(stream, 2) is None


class Endless(io.RawIOBase):
    """A stream whose line never ends."""

    def readline(self, size: int | None = -1, /) -> bytes:
        return bytes(size or 0)


@pytest.mark.parametrize("how", ["--interactive", "--chat"])
def test_a_line_without_an_end_ends_the_program(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stdin:
        buffer = Endless()

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Stdin())
    words = [str(tmp_path), how, "--max-ctx", "200", "--quiet", "--stats", "none"]
    assert run(parse(words), lambda options: fake(tmp_path, str)) == 1
    told = capsys.readouterr()
    assert told.err.splitlines() == ["qwen35: error: a line does not end (stdin): 256 MiB of it were read"]


def test_a_chat_without_room_does_not_read_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"y\n" * 5000))
    monkeypatch.setattr("sys.stdin", stdin)
    words = [str(tmp_path), "--chat", "--max-ctx", "120", "--quiet", "--stats", "none"]
    assert run(parse(words), lambda options: fake(tmp_path, lambda q: "no", max_ctx=120)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "16 questions in a row had no room" in lines[-1] and len(lines) == 17


def test_a_pipe_without_a_writer_is_told_and_waited_for(tmp_path: Path) -> None:
    fifo, told = tmp_path / "fifo", []
    os.mkfifo(fifo)

    def waiting() -> None:
        told.append(1)
        threading.Thread(target=lambda: fifo.write_text("from a pipe"), daemon=True).start()

    assert read_prompt(str(fifo), 64, waiting) == "from a pipe"
    assert told == [1]
    reader, writer = os.pipe()
    os.write(writer, b"from ")

    def silent() -> None:
        told.append(2)
        os.write(writer, b"a command")
        os.close(writer)

    assert read_prompt(f"/proc/self/fd/{reader}", 64, silent) == "from a command"
    assert read_prompt(f"/proc/self/fd/{reader}", 64, lambda: told.append(3)) == ""
    assert told == [1, 2]
    os.close(reader)


@pytest.mark.parametrize("how", ["--interactive", "--chat"])
def test_a_long_line_is_told_and_the_next_one_answered(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"x" * (200 * TOKEN_BYTES + 1) + b"\nnext\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    words = [str(tmp_path), how, "--max-ctx", "200", "--quiet", "--stats", "none"]
    status = run(parse(words), lambda options: fake(tmp_path, lambda q: f"You said: {q}"))
    told = capsys.readouterr()
    assert status == 1 and told.out.strip() == "You said: next" and "over 102,400 bytes" in told.err
