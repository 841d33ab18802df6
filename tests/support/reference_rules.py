"""What the public reference runtime (taconite-qwen35) asks of a bundle when it loads one, as a strict reader.

From its public source (taconite-bundle, taconite-qwen35's npu.rs and tokenizer.rs): what it refuses is
refused here, in words of our own.
"""

from __future__ import annotations

import json
from pathlib import Path

DTYPES = {"f32": 4, "i32": 4, "bf16": 2, "u8": 1}


def number(text: str) -> int:
    """An unsigned number as its parser takes them: digits, a plus sign before them at most."""
    digits = text.removeprefix("+")
    assert digits.isascii() and digits.isdigit(), f"{text!r} is malformed"
    return int(digits)


def load(folder: Path) -> None:
    """Raises AssertionError for the first thing that the reference runtime would not take."""
    manifest(folder)
    tensors(folder)
    tokenizer(folder)


def manifest(folder: Path) -> None:
    """Every record, and that each file is there. Test cases have two fields."""
    params, xclbins, chunks, seen = set(), {}, {}, []
    for line in (folder / "manifest.txt").read_text().splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        tag, fields = words[0], words[1:]
        keyed = dict(word.split("=", 1) for word in fields if "=" in word)
        if tag == "version":
            seen.append(number(fields[0]))
        elif tag == "param":
            assert len(fields) > 1 and fields[0] not in params, line
            params.add(fields[0])
        elif tag == "xclbin":
            assert fields[0] not in xclbins, line
            xclbins[fields[0]] = folder / fields[1]
            assert xclbins[fields[0]].is_file() and fields[2], line
        elif tag in ("gemm", "gemm_chunks", "gemv"):
            sizes = {
                "gemm": "M K N lda c_stride b_bytes a_elems c_elems",
                "gemv": "M K w_words",
                "gemm_chunks": "a_elems c_elems",
            }[tag]
            for key in sizes.split():
                number(keyed[key])
            if tag == "gemm_chunks":
                assert number(fields[1]) == chunks[fields[0]] + 1, line
            if tag != "gemv":
                chunks[fields[0]] = chunks.get(fields[0], 0) + 1
            assert keyed.get("ctx", "gemv" if tag == "gemv" else "gemm") in xclbins, line
            assert (folder / keyed["insts"]).is_file(), line
        elif tag == "tokcase":
            bytes.fromhex("" if fields[0] == "-" else fields[0]).decode()
            assert len(fields) > 1, f"expected at least 2 fields: {line}"
            for word in fields[1].split(","):
                if word:
                    number(word)
        elif tag == "ref":
            assert keyed["thinking"] in ("0", "1") and "prompt" in keyed, line
    assert seen == [1]


def tensors(folder: Path) -> None:
    """The index: five fields a line, offsets of 8, whole elements, nothing twice or past the end."""
    size = (folder / "tensors.bin").stat().st_size
    names = set()
    for line in (folder / "tensors.txt").read_text().splitlines():
        name, dtype, shape, offset, nbytes = line.split()
        assert name not in names, line
        names.add(name)
        for extent in shape.split(","):
            number(extent)
        assert number(offset) % 8 == 0 and number(nbytes) % DTYPES[dtype] == 0, line
        assert number(offset) + number(nbytes) <= size, line


def tokenizer(folder: Path) -> None:
    """tokenizer.json: the published kind, ids of model.vocab dense, plain added tokens."""
    found = json.loads((folder / "tokenizer.json").read_text())
    assert found["normalizer"]["type"] == "NFC"
    split, level = found["pre_tokenizer"]["pretokenizers"]
    assert (split["type"], split["behavior"], split["invert"]) == ("Split", "Isolated", False)
    assert (level["type"], level["add_prefix_space"], level["use_regex"]) == ("ByteLevel", False, False)
    model = found["model"]
    assert model["type"] == "BPE" and not model.get("byte_fallback") and model.get("dropout") is None
    ids = sorted(model["vocab"].values())
    assert ids == list(range(len(ids))), "unsupported vocab id"
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        assert left in model["vocab"] and right in model["vocab"] and left + right in model["vocab"]
    for token in found["added_tokens"]:
        assert token["content"] and token["id"] >= 0
        assert not any(token.get(name) for name in ("normalized", "lstrip", "rstrip", "single_word"))
