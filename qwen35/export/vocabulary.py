"""A stand-in tokenizer.json for models without a checkpoint: bytes, made-up words, the special tokens.

Ids 0..255 are the bytes (in byte-level BPE's order), then one pronounceable made-up word an id, so that a
random model's answer can be read aloud; behind them come the special tokens in Qwen3.5's order, from
<|endoftext|> on. As in the published file these are added tokens alone: ids of model.vocab have no gaps,
which other readers insist on. There are no merges: every text is encoded by its bytes.
"""

from __future__ import annotations

import json

__all__ = ["ADDED_TOKENS", "SPLIT", "tokenizer_json"]

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen3.5's split of a text into pieces, from its tokenizer.json."""

ADDED_TOKENS: dict[int, str] = dict(
    enumerate(
        (
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_end|>",
            "<|object_ref_start|>",
            "<|object_ref_end|>",
            "<|box_start|>",
            "<|box_end|>",
            "<|quad_start|>",
            "<|quad_end|>",
            "<|vision_start|>",
            "<|vision_end|>",
            "<|vision_pad|>",
            "<|image_pad|>",
            "<|video_pad|>",
            "<tool_call>",
            "</tool_call>",
            "<|fim_prefix|>",
            "<|fim_middle|>",
            "<|fim_suffix|>",
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
            "<tool_response>",
            "</tool_response>",
            "<think>",
            "</think>",
        )
    )
)
"""Qwen3.5's added tokens by their distance from <|endoftext|> (248044 in the published models).

None is left out: readers number added tokens that model.vocab lacks one after the other.
"""

_PLAIN = range(14, 26)
_ONSETS = (*"bdfghjklmnprstvwyz", "ch", "sh")
_VOWELS = "aeiou"


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte value in byte-level BPE (as GPT-2 defined it)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _word(number: int) -> str:
    """A made-up word for each number, all different."""
    text, base = "", len(_ONSETS) * len(_VOWELS)
    number += base  # at least two syllables
    while number:
        number, rest = divmod(number, base)
        text += _ONSETS[rest // 5] + _VOWELS[rest % 5]
    return "\u0120" + text


def tokenizer_json(vocab: int) -> str:
    """tokenizer.json for `vocab` rows; <|endoftext|> gets id vocab - 276 (248044 of 248320)."""
    base = vocab - 276
    if base < 256:
        raise ValueError(f"a vocabulary of {vocab} is too small for bytes and special tokens")
    table = {character: index for index, character in enumerate(sorted(byte_alphabet()))}
    for index in range(256, base):
        table[_word(index - 256)] = index
    added = []
    for offset, content in ADDED_TOKENS.items():
        added.append(
            {
                "id": base + offset,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": offset not in _PLAIN,
            }
        )
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "post_processor": None,
            "decoder": level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": table,
                "merges": [],
            },
        },
        ensure_ascii=False,
    )
