"""qwen35.toolcalls: a call's values come out as they were meant, or the text stays text."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from qwen35.errors import UsageError
from qwen35.template import parse_tool_calls, render, to_text

CALL = "<tool_call>\n<function=f>\n{}\n</function>\n</tool_call>"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {
        "name": name, "parameters": {"type": "object", "properties": properties},
    }}  # fmt: skip


def written(content: str, calls: list[dict[str, Any]]) -> str:
    """An answer as the template writes it."""
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": content, "tool_calls": calls},
    ]
    return to_text(render(messages, answer=False)).split("</think>\n\n", 1)[1].removesuffix("<|im_end|>\n")


def test_tool_calls_are_read_back() -> None:
    calls = [call("weather", city="Zürich\nNord", days=[1, 2]), call("now")]
    assert parse_tool_calls(written("Let me see.", calls)) == ("Let me see.", calls)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (CALL.format("<parameter=a>\n1\n</parameter>"), {"a": "1"}),
        ("<tool_call><function=f><parameter=a>1</parameter></function></tool_call>", {"a": "1"}),
        (CALL.format("<parameter=a>1\n</parameter>"), {"a": "1"}),
        (CALL.format("<parameter=a>\n1</parameter>"), {"a": "1"}),
        (CALL.format("<parameter=a>\n1\n</parameter>").replace("\n", "\r\n"), {"a": "1"}),
        (
            CALL.format("<parameter=a>\n1\n\n</parameter>\n\n<parameter=b>\n\n2\n</parameter>"),
            {"a": "1\n", "b": "\n2"},
        ),
        (CALL.format("<parameter=a>\n1"), {"a": "1"}),
        (
            CALL.format("<parameter=a>\nx\n</function>\n</tool_call>\ny\n</parameter>"),
            {"a": "x\n</function>\n</tool_call>\ny"},
        ),
        (CALL.format("<parameter=a>\nx</parameter> y\n</parameter>"), {"a": "x</parameter> y"}),
        (CALL.format("<parameter=a>\n<b> a < b > c </b>\n</parameter>"), {"a": "<b> a < b > c </b>"}),
        (CALL.format("<parameter=a>\n\n</parameter>"), {"a": ""}),
        (CALL.format("<parameter=a>\n</parameter>"), {"a": ""}),
        (CALL.format("<parameter=a></parameter>"), {"a": ""}),
        (CALL.format("<parameter=a b>\n  indented\n</parameter>"), {"a b": "  indented"}),
        (CALL.format("<parameter=a>\nx\r\n</parameter>"), {"a": "x\r"}),
        (CALL.format(""), {}),
        ("<tool_call><function=f></function></tool_call>", {}),
    ],
)
def test_values_are_kept(text: str, arguments: dict[str, str]) -> None:
    assert parse_tool_calls(text) == ("", [call("f", **arguments)])
    assert parse_tool_calls("Yes. " + text + "\n\n" + text) == ("Yes.", [call("f", **arguments)] * 2)
    assert parse_tool_calls(text, [tool("f")]) == ("", [call("f", **arguments)])
    assert parse_tool_calls(text, [tool("g")]) == parse_tool_calls(text, []) == (text, [])


def test_the_last_closer_may_be_missing_in_the_last_call() -> None:
    text = CALL.format("<parameter=a>\n1\n</parameter>\n<parameter=b>\n2")
    assert parse_tool_calls(text) == ("", [call("f", a="1", b="2")])
    assert parse_tool_calls(GOOD + text) == ("", [call("f", a="1"), call("f", a="1", b="2")])
    assert parse_tool_calls(GOOD + text + GOOD) == (text + GOOD, [call("f", a="1")])  # in doubt


GOOD = CALL.format("<parameter=a>\n1\n</parameter>")


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "",
        "<tool_call>\n<function=f>\n<parameter=a>\n1",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
        "<function=f></function>",
        "<tool_call>{}</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        CALL.format("text <parameter=a>\n1\n</parameter>"),
        CALL.format("<parameter=a>\n1\n</parameter> text"),
        # What was meant is in doubt.
        CALL.format("<parameter=a>\n1\n<parameter=b>\n2\n</parameter>"),
        CALL.format("<parameter=a>\n1\n<parameter=b>\n2"),
        CALL.format("<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>"),
        CALL.format("<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>\ny\n</parameter>"),
        CALL.format("<parameter=a>\n1") + "\n" + GOOD,
        CALL.format("<parameter=a>\n" + GOOD + "\n</parameter>"),
        # Quoted.
        f"Write it so:\n```\n{GOOD}\n```\nThen wait.",
        f"Write it so: `{GOOD}`",
    ],
)
def test_text_stays_text(text: str) -> None:
    assert parse_tool_calls(text) == (text, [])
    assert parse_tool_calls(text, [tool("f", a={"type": "string"})]) == (text, [])


def test_a_quoted_example_is_no_call_and_what_comes_after_it_is() -> None:
    other = GOOD.replace("=f>", "=example_function_name>")
    text = f"An example:\n{other}\nand\n```\n{GOOD}\n```\nNow: {GOOD}"
    rest, calls = parse_tool_calls(text, [tool("f")])
    assert calls == [call("f", a="1")]
    assert rest == text.removesuffix(GOOD).strip()


ANY = {"type": "object", "properties": {"x": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, " -7 ", -7),
        ({"type": "integer"}, "7.0", 7),
        ({"type": "integer"}, "7.5", "7.5"),
        ({"type": "integer"}, "seven", "seven"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "integer"}, "0x10", "0x10"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "integer"}, "12345678901234567890123", 12345678901234567890123),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "Infinity", "Infinity"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "null"}, "None", None),
        ({"type": "null"}, "null", None),
        ({"type": "string"}, "[1,2]", "[1,2]"),
        ({"type": "string"}, "7", "7"),
        ({"type": "string"}, "true", "true"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array", "items": {"type": "string"}}, '["1", "2"]', ["1", "2"]),
        ({"type": "array"}, "['a']", "['a']"),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "array"}, "[NaN]", "[NaN]"),
        ({"type": "array"}, "[1e999]", "[1e999]"),
        ({"type": "array"}, '["\\ud800"]', '["\\ud800"]'),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"enum": [True, "no"]}, "no", "no"),
        ({"enum": [1]}, "true", "true"),
        ({"const": None}, "None", None),
        ({"type": "string", "enum": ["null"]}, "null", "null"),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "string"]}, "5", 5),
        ({"type": ["string", "integer"]}, "five", "five"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": "integer", "nullable": True}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "[1]", "[1]"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", [1]),
        ({"oneOf": [{"type": "boolean"}, {"type": "number"}]}, "0", 0),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "string"}]}, "5", "5"),
        ({"$ref": "#/$defs/count"}, "5", 5),
        ({"anyOf": [{"$ref": "#/$defs/name"}, {"type": "null"}]}, "5", "5"),
        ({"$ref": "#/$defs/loop"}, "5", "5"),
        ({"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "integer"}]}, "5", 5),
        ({"$ref": "#/nowhere"}, "5", "5"),
        ({"$ref": "http://example.org"}, "[5]", [5]),
        ({"type": "int"}, "5", 5),
        ({"type": "list"}, "[5]", [5]),
        ({"type": "any"}, "5", "5"),
        ({"type": 3}, "[5]", [5]),
        ({}, "5", "5"),
        ({}, "[1, 2]", [1, 2]),
        ({}, '{"a": null}', {"a": None}),
        (True, "true", "true"),
        ({"description": "free"}, "[not json", "[not json"),
    ],
)
def test_values_have_the_type_that_the_schema_names(schema: Any, text: str, value: Any) -> None:
    declared = tool("f", a=schema)
    loop = {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}
    declared["function"]["parameters"]["$defs"] = {
        "count": {"type": "integer"},
        "name": {"type": "string"},
        "loop": loop,
    }
    for form in declared, declared["function"]:
        _, [found] = parse_tool_calls(CALL.format(f"<parameter=a>\n{text}\n</parameter>"), [form])
        got = found["function"]["arguments"]["a"]
        assert got == value and type(got) is type(value)


def test_parameters_beyond_the_declared_ones() -> None:
    text = CALL.format("<parameter=z>\n5\n</parameter>")
    declared = tool("f")
    assert parse_tool_calls(text, [declared]) == ("", [call("f", z="5")])
    declared["function"]["parameters"]["additionalProperties"] = {"type": "integer"}
    assert parse_tool_calls(text, [declared]) == ("", [call("f", z=5)])


@pytest.mark.parametrize("tools", [[3], [None], ["f"], [{}], [{"function": 3}], [{"function": {"name": 3}}]])
def test_declarations_that_are_none(tools: Any) -> None:
    assert parse_tool_calls(GOOD, tools) == (GOOD, [])


@pytest.mark.parametrize("parameters", [None, 3, [], "x", {"properties": 3}, {"properties": {"a": 3}}])
def test_schemas_that_are_none(parameters: Any) -> None:
    assert parse_tool_calls(GOOD, [{"name": "f", "parameters": parameters}]) == ("", [call("f", a="1")])


def test_how_deep_an_argument_may_be_nested() -> None:
    for depth, read in ((100, True), (101, False)):
        deep = "[" * depth + "]" * depth
        text = CALL.format(f"<parameter=a>\n{deep}\n</parameter>")
        for tools in None, [tool("f", a={"type": "array"})]:
            assert parse_tool_calls(text, tools)[1] == [call("f", a=json.loads(deep) if read else deep)]


def test_an_argument_nested_beyond_reading_stays_text() -> None:
    for depth in (200, 900, 100_000):
        for deep in ("[" * depth, "[" * depth + "]" * depth):
            text = CALL.format(f"<parameter=a>\n{deep}\n</parameter>")
            for tools in None, [tool("f", a={"type": "array"})]:
                assert parse_tool_calls(text, tools)[1] == [call("f", a=deep)]


MARKS = ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>"]
WORDS = [*MARKS, "<parameter=b>", "\n", "\n", "\n", " ", "\r\n", "x", "1", "<", ">", "<parameter=", "é"]
TYPED = {
    "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
    "l": {"type": "array"}, "o": {"type": "object"}, "m": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}  # fmt: skip


def test_what_the_template_writes_is_read_back() -> None:
    """Values of every type, texts without the format's own markers: the same call. Any text: it or none."""
    rng = random.Random(3)

    def text(words: list[str]) -> str:
        return "".join(rng.choices(words, k=rng.randrange(6)))

    def value(kind: str, words: list[str]) -> Any:
        inner = [text(words), rng.randrange(99), None, True]
        return {
            "s": text(words), "i": rng.randrange(-(10**20), 10**20), "n": rng.uniform(-9, 9) * 10.0**inner[1],
            "b": rng.random() < 0.5, "l": inner, "o": {"k": inner}, "m": rng.choice([None, 4]),
        }[kind]  # fmt: skip

    harmless = ["\n", " ", "\r", "x", "1", "<", ">", "</p>", "[", "null", "`", "é", "\\", '"']
    for words in harmless, WORDS:
        kept = 0
        for _ in range(1500):
            keys = rng.sample(list(TYPED), rng.randrange(5))
            calls = [
                call("f", **{key: value(key, words) for key in keys}) for _ in range(rng.randrange(1, 3))
            ]
            answer = written("", calls)
            rest, found = parse_tool_calls(answer, [tool("f", **TYPED)])
            if words is harmless:
                assert (rest, found) == ("", calls)
            elif len(found) == len(calls):
                kept += found == calls
        assert words is harmless or kept > 500


def test_random_texts() -> None:
    """Nothing raises, what is no call is left as it was, and no value is lost on the way."""
    rng = random.Random(4)
    found = 0
    for _ in range(8_000):
        text = "".join(rng.choices(WORDS, k=rng.randrange(20)))
        if rng.random() < 0.7:
            at = rng.choice([0, len(text), rng.randrange(len(text) + 1)])
            text = text[:at] + GOOD[: rng.choice([len(GOOD), rng.randrange(len(GOOD))])] + text[at:]
        for tools in None, [tool("f", a={"type": "integer"})]:
            rest, calls = parse_tool_calls(text, tools)
            if not calls:
                assert rest == text
                continue
            found += 1
            json.dumps(calls, allow_nan=False)
            written("", calls)
            names = [key for one in calls for key in one["function"]["arguments"]]
            assert len(rest) < len(text) and len(names) <= text.count("<parameter=")
    assert found > 500


@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        "<tool_call><function=f>",
        "<tool_call><function=f><parameter=a>",
        "<parameter=",
        "<tool_call><function=f><parameter=a>1</parameter>",
        "</parameter>",
        "</function></tool_call>",
        "<tool_call><function=f></function></tool_call>",
        "<tool_call><function=g></function></tool_call>`",
        "<tool_call><function=f><parameter=a>1</parameter></function>",
        " ",
        "<tool_call> ",
        "```\n",
    ],
)
def test_time_is_linear(unit: str) -> None:
    """A megabyte of anything; in quadratic time this would take hours."""
    for text in unit * (1_000_000 // len(unit)), "<tool_call><function=f><parameter=a>" + unit * 50_000:
        parse_tool_calls(text)
        parse_tool_calls(text, [tool("f")])


@pytest.mark.parametrize("text", [5, None, b"x", 10**6000], ids=["int", "none", "bytes", "huge"])
def test_what_is_no_text(text: Any) -> None:
    with pytest.raises(UsageError, match=r"text is .*give a string"):
        parse_tool_calls(text)


@pytest.mark.parametrize("tools", [5, "abc", {}])
def test_what_is_no_list_of_tools(tools: Any) -> None:
    with pytest.raises(UsageError, match=r"tools is .*give a list"):
        parse_tool_calls("x", tools)
