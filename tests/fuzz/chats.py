"""What people, programs and the model write: messages, tools, calls, schemas, saved conversations."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from qwen35.conversation import Conversation
from qwen35.errors import ModelError, TemplateError, TokenizerError, UsageError
from qwen35.sampling import Sampling
from qwen35.structured import JsonGrammars
from qwen35.template import encode, parse_tool_calls, render, to_text
from qwen35.thinking import ThinkSplitter
from tests.fuzz import mutate
from tests.fuzz.run import Ready
from tests.support.chat_cases import TOOLS
from tests.support.chat_cases import conversation as chat
from tests.support.mock_model import tokenizer as synthetic_tokenizer

_ODD: list[Any] = [3, None, "x", b"x", (), {1}, object(), 1.5, float("nan"), "\ud800", iter([]), 10**400]


def _value(rng: random.Random) -> Any:
    return rng.choice(_ODD) if rng.random() < 0.3 else mutate.value(rng)


def messages(folder: Path) -> Ready:
    """Messages and tools of a program, rendered and encoded."""
    tokenizer = synthetic_tokenizer(folder)
    cases = [chat(seed) for seed in range(60)]

    def make(rng: random.Random) -> tuple[Any, Any]:
        case = rng.choice(cases)
        told, tools = case["messages"], case["tools"]
        return (
            mutate.tree(rng, told, _value) if rng.random() < 0.8 else told,
            mutate.tree(rng, tools, _value) if tools and rng.random() < 0.5 else tools,
        )

    def parse(given: tuple[Any, Any]) -> None:
        pieces = render(given[0], tools=given[1])
        encode(pieces, tokenizer, image_tokens=[1] * to_text(pieces).count("<|image_pad|>"))

    def one(content: Any, **more: Any) -> tuple[Any, Any]:
        return [{"role": "user", "content": content}], more.get("tools")

    deep = mutate.nested(100_000)
    circle: list[Any] = []
    circle.append(circle)
    return Ready(
        parse,
        make,
        (TemplateError, TokenizerError, UsageError),
        (
            lambda: (3, None),
            lambda: ([3], None),
            lambda: one("x", tools=3),
            lambda: one("x", tools=[3]),
            lambda: one("\ud800"),
            lambda: one("x", tools=[{"a": float("nan")}]),
            lambda: one([deep]),
            lambda: one(circle),
            lambda: one("x", tools=[{"a": circle}]),
            lambda: one("x", tools=[{"a": deep}]),
            lambda: one("x", tools=[{"a": "\ud800"}]),
            lambda: one("<think>" * 100_000),
            lambda: one("x", tools=[{"a": 10**5000}]),
        ),
    )


_PARTS = [
    *("<tool_call>", "</tool_call>", "<function=f>", "<function=g>", "</function>", "<parameter=a>"),
    *("<parameter=b>", "</parameter>", "<parameter=", "<function=", "\n", "\n", "\n", "\r\n", " ", "x", "1"),
    *("true", "null", "[1]", '{"a": 1}', "<", ">", "```", "`", "1e999", "é", "\U0001f427"),
]
_CALL = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"


def toolcalls(folder: Path) -> Ready:
    """Tool calls in a model's text, by declared schemas of any kind."""

    def make(rng: random.Random) -> tuple[str, Any]:
        text = "".join(rng.choices(_PARTS, k=rng.randrange(40)))
        if rng.random() < 0.5:
            at = rng.choice([0, len(text), rng.randrange(len(text) + 1)])
            text = text[:at] + _CALL + text[at:]
        tools = None if rng.random() < 0.2 else mutate.tree(rng, _TOOLS, _schema)
        return text, tools if isinstance(tools, list) else None

    def parse(given: tuple[str, Any]) -> None:
        text, tools = given
        rest, calls = parse_tool_calls(text, tools)
        assert calls or rest == text
        json.dumps(calls, allow_nan=False, ensure_ascii=False).encode()
        if calls:
            render(
                [
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "content": rest, "tool_calls": calls},
                ]
            )

    return Ready(
        parse,
        make,
        (),
        (
            *(
                lambda unit=unit: (unit * (1_000_000 // len(unit)), None)
                for unit in (  # type: ignore[misc]
                    "<tool_call>",
                    "<tool_call><function=f><parameter=a>",
                    _CALL,
                    "</parameter>",
                    "<parameter=",
                    "```\n",
                )
            ),
            lambda: (_CALL.replace("1", "[" * 500_000), _TOOLS),
        ),
    )


_TOOLS = [*TOOLS, {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {
        "a": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/a"}]}, "b": {"type": ["string", "null"]}},
    "$defs": {"a": {"enum": [1, "x"]}},
}}}]  # fmt: skip
_KEYS = [
    *("type", "properties", "required", "items", "anyOf", "allOf", "oneOf", "enum", "const", "$ref"),
    *("minItems", "maxLength", "pattern", "additionalProperties", "minimum", "nullable", "$defs", "format"),
    *("x-guidance", "a"),
]


def _schema(rng: random.Random, depth: int = 3) -> Any:
    """Something like a JSON schema."""
    if not depth or rng.random() < 0.15:
        return mutate.value(rng, 1)
    kind = rng.choice(["string", "integer", "number", "boolean", "null", "array", "object", "x"])
    found: dict[str, Any] = {"type": kind}
    if kind == "object":
        found["properties"] = {rng.choice("abc"): _schema(rng, depth - 1) for _ in range(rng.randrange(3))}
        found["required"] = rng.choices("abc", k=rng.randrange(2))
    elif kind == "array":
        found["items"] = _schema(rng, depth - 1)
    if rng.random() < 0.3:
        found[rng.choice(_KEYS)] = rng.choice(
            [
                "#",
                "#/$defs/a",
                1,
                10**9,
                [_schema(rng, depth - 1)],
                _schema(rng, depth - 1),
                mutate.value(rng, 1),
                "(",
            ]
        )
    if rng.random() < 0.2:
        del found["type"]
    return found


def thinking(folder: Path) -> Ready:
    """A model's text as it streams, parted."""
    parts = [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "```", "`", '"', "\n", " ", "x", "yz", "<th"),
        ">",
    ]

    def make(rng: random.Random) -> tuple[list[str], bool]:
        text = "".join(rng.choices(parts, k=rng.randrange(20)))
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(6)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return pieces, rng.random() < 0.5

    def parted(pieces: list[str], reasoning: bool) -> tuple[str, str]:
        splitter = ThinkSplitter(reasoning)
        events = [event for piece in pieces for event in splitter.feed(piece)] + splitter.flush()
        said = {kind: "".join(p for k, p in events if k == kind) for kind in ("reasoning", "text")}
        return said["reasoning"], said["text"]

    def parse(given: tuple[list[str], bool]) -> None:
        pieces, reasoning = given
        found = parted(pieces, reasoning)
        assert found == parted(["".join(pieces)], reasoning)
        for letter in "xyz":
            assert "".join(found).count(letter) == "".join(pieces).count(letter)

    return Ready(
        parse, make, (), (lambda: (["<think>"] * 50_000, True), lambda: (["</think>"] * 50_000, False))
    )


def schema(folder: Path) -> Ready:
    """JSON schemas, and the first tokens of documents that fit them."""
    tokenizer = synthetic_tokenizer(folder)
    vocab = tokenizer.vocab_size
    grammars = JsonGrammars(tokenizer, vocab, [tokenizer.added["<|im_end|>"]])
    scores = np.zeros(vocab, np.float32)

    def parse(given: Any) -> None:
        found, steps = given
        constraint = grammars.constraint(found)
        for step in range(steps):
            allowed = np.flatnonzero(constraint.mask(scores) > -np.inf)
            assert allowed.size
            constraint.accept(int(allowed[step * 7919 % allowed.size]))
            if constraint.closed:
                break

    def nest(depth: int) -> Any:
        inner: Any = {}
        for _ in range(depth):
            inner = {"anyOf": [inner]}
        return inner

    return Ready(
        parse,
        lambda rng: (_schema(rng, 4), rng.randrange(12)),
        (UsageError, ModelError),
        tuple(
            (lambda given=given: (given, 3))  # type: ignore[misc]
            for given in (
                True,
                False,
                None,
                3,
                {"$ref": "#"},
                {"const": float("nan")},
                {"const": 10**400},
                {"const": "\ud800"},
                nest(900),
                nest(20_000),
                {"type": "array", "items": {"type": "null"}, "minItems": 10**6},
                {"type": "string", "pattern": "(a{1000}){1000}"},
                {"enum": [str(i) for i in range(100_000)]},
                {
                    "$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(60)},
                    "$ref": "#/$defs/a0",
                },
            )
        ),
    )


def conversation(folder: Path) -> Ready:
    """Files that `/load` is given."""
    path = folder / "talk.json"
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": [1, None]}}}
    turns = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"text": "x"}, {"image": "a.png"}]},
        {"role": "assistant", "content": "y", "reasoning_content": "r", "tool_calls": [call]},
        {"role": "tool", "content": "z"},
    ]
    original = {"format": "qwen35-conversation", "version": 1, "messages": turns, "tools": TOOLS}

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        talk = Conversation(None)  # type: ignore[arg-type]
        talk.load(path)
        assert isinstance(talk.system, str | None) and talk.turns >= 0
        with contextlib.suppress(TemplateError):
            render(talk.messages, tools=talk.tools)
        talk.save(path)
        again = Conversation(None)  # type: ignore[arg-type]
        again.load(path)
        assert again.messages == talk.messages
        talk.undo()
        talk.clear()

    return Ready(
        parse,
        lambda rng: mutate.json_text(rng, original),
        (UsageError,),
        (
            lambda: b"[]," * (5 << 20),
            lambda: b" " * (32 << 20),
            lambda: b"[" * (1 << 20),
            lambda: b"\xff\xfe",
        ),
    )


def sampling(folder: Path) -> Ready:
    """A bundle's `sampling` param."""
    words = [
        *("greedy", "temperature=0.7", "top_k=20", "top_p=1", "min_p=0", "seed=7", "logprobs=3", "seed="),
        *("=", "top_k=1e9", "temperature=nan", "temperature=1e999", "top_p=-1", "seed=" + "9" * 5000, "x=1"),
    ]

    def make(rng: random.Random) -> str:
        return " ".join(rng.choice([*words, *mutate.WORDS]) for _ in range(rng.randrange(6)))

    return Ready(lambda text: Sampling.parse(text).describe(), make, (UsageError,))
