"""Seeded edits of texts, bytes and JSON values."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

WORDS = [
    *("0", "1", "-1", "3", "8", "2147483648", "4294967296", "9223372036854775807", "9" * 40, "1e308"),
    *("1e-300", "nan", "inf", "1_000", "0x10", "\u0663", "", "=", "==", "a=b=c", "#", "..", "/"),
    *("../../etc/passwd", "\0", "\u2028", "\u00a0", "f32", "bf16", "u8", ",", ",,", "1,2,3", "1," * 40 + "1"),
    *("version", "param", "gemm", "gemm_chunks", "gemv", "xclbin", "tokcase", "ref", "sum", "x" * 5000),
    *("M=1", "K=8", "insts=.", "insts=kernels", "ctx=gemm", "\ud7ff", "\U0010ffff", "*", "3-5", "-", ":"),
    *("EACCES", "\x1b[2J", "\u202e", "<think>", "</think>"),
]
NUMBERS = [
    *(0, 1, 2, 3, 4, 7, 8, 16, 255, 256, 4095, 4096, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1),
    *(1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
]
SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3.5, 1e-300, 1e300, float("nan"), float("inf"), 10**400, 1 << 31),
    *(1 << 63, "", "x", "a b", "\ud800", "\0", "../x", "[", "{}", "null", "x" * 3000, "é", "\U0001f427"),
    *("<think>", "</tool_call>", "#", "#/$defs/a", "string", "object", "array", "integer"),
]


def text(rng: random.Random, data: bytes, words: Sequence[str] = WORDS) -> bytes:
    """A few random edits: bytes flipped, words replaced or dropped, lines doubled, dropped, swapped, cut."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        kind = rng.randrange(9)
        if kind == 0 and data:
            position = rng.randrange(len(data))
            data = data[:position] + bytes([rng.randrange(256)]) + data[position + rng.randrange(2) :]
            continue
        if kind == 1:
            data = data[: rng.randrange(len(data) + 1)]
            continue
        parts = lines[at].split(b" ")
        which = rng.randrange(len(parts))
        word = rng.choice(words).encode("utf-8", "surrogatepass")
        if kind in (2, 3):
            parts[which] = word
        elif kind == 4:
            head, _, _ = parts[which].partition(b"=")
            parts[which] = head + b"=" + word
        elif kind == 5:
            del parts[which]
        lines[at] = b" ".join(parts)
        if kind == 6:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif kind == 7:
            del lines[at]
        elif kind == 8:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        data = b"\n".join(lines)
    return data


def binary(rng: random.Random, data: bytes) -> bytes:
    """A few random edits: bytes and numbers replaced, parts cut out, doubled, moved, or the end cut off."""
    block = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        kind = rng.randrange(7)
        at = rng.randrange(len(block) + 1)
        span = rng.choice([1, 2, 4, 8, 16, rng.randrange(1, 200)])
        if kind == 0 and block:
            block[at % len(block)] = rng.randrange(256)
        elif kind in (1, 2):
            size = rng.choice([1, 2, 4, 4, 4, 8, 8])
            at -= at % size if rng.random() < 0.8 else 0
            if at + size <= len(block):
                value = rng.choice(NUMBERS) if kind == 1 else int.from_bytes(block[at : at + size], "little")
                value += rng.choice([-8, -4, -1, 0, 1, 4, 8]) if kind == 2 else 0
                block[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        elif kind == 3:
            del block[at : at + span]
        elif kind == 4:
            block[at:at] = block[at : at + span] * rng.choice([1, 2, 20])
        elif kind == 5:
            block[at:at] = rng.randbytes(span)
        elif rng.random() < 0.5:
            del block[at:]
    return bytes(block)


def value(rng: random.Random, depth: int = 3) -> Any:
    """A random JSON value."""
    kind = rng.randrange(4) if depth else 0
    if kind == 2:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 3:
        return {str(rng.choice(SCALARS)): value(rng, depth - 1) for _ in range(rng.randrange(4))}
    if rng.random() < 0.01:
        return nested(rng.choice([50, 150, 300]))
    return rng.choice(SCALARS)


def nested(depth: int) -> Any:
    """Lists in lists."""
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


def tree(rng: random.Random, original: Any, make: Callable[[random.Random], Any] = value) -> Any:
    """A JSON value with a few parts replaced, dropped, doubled or moved."""
    result = copy.deepcopy(original)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        holders: list[Any] = []
        below = [result]
        while below:
            part = below.pop()
            if isinstance(part, (dict, list)):
                holders.append(part)
                below.extend(part.values() if isinstance(part, dict) else part)
        if not holders or rng.random() < 0.01:
            result = make(rng)
            continue
        holder = rng.choice(holders)
        keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        kind = rng.randrange(5)
        if not keys or kind == 0:
            if isinstance(holder, dict):
                holder[str(rng.choice(SCALARS))] = make(rng)
            else:
                holder.insert(rng.randrange(len(holder) + 1), make(rng))
        elif kind == 1:
            del holder[rng.choice(keys)]
        elif kind == 2:
            holder[rng.choice(keys)] = copy.deepcopy(holder[rng.choice(keys)])
        else:
            holder[rng.choice(keys)] = make(rng)
    return result


def json_text(rng: random.Random, original: Any) -> bytes:
    """The text of a JSON value that was edited as a value, as a text, or both."""
    whole = tree(rng, original) if rng.random() < 0.9 else original
    data = json.dumps(whole, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        at = rng.randrange(len(data) + 1)
        data = (
            data[:at] + rng.choice([b"[" * 3000, b'{"a":' * 3000, b"NaN", b"1e999", b"9" * 5000]) + data[at:]
        )
    return text(rng, data) if rng.random() < 0.1 else data
