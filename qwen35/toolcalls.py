"""Tool calls in the text of an answer: read back, or left as the text they are.

The format is the one that the chat template shows the model (qwen35.template). It has no way to quote its own
markers, so a call is taken only where its text can be read in one way; everything else stays text, and so
does all that follows it. Values become what the tool's JSON schema says.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from qwen35.arguments import text as check_text
from qwen35.arguments import wants
from qwen35.schema import resolve

__all__ = ["parse_tool_calls"]

Tool = Mapping[str, Any]

_MARK = re.compile(r"</?tool_call>|<function=([^<>\r\n]+)>|</function>|<parameter=([^<>\r\n]+)>|</parameter>")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)


def parse_tool_calls(text: str, tools: Iterable[Tool] | None = None) -> tuple[str, list[dict[str, Any]]]:
    """An answer's text without its tool calls, and the calls as `{"function": {"name", "arguments"}}`.

    `tools` are the declared tools, in the form that `render` takes; a call of any other stays text. None
    stands for tools that are not known: every call is taken. A value has the type that the tool's schema
    gives it, a text that is no value of that type stays text; where several types fit, text comes last.
    Without a schema an object or array in JSON becomes one, anything else is text.

    A call may stand on one line, end its lines in CR LF, and lack the `</parameter>` of its only open value.
    A call stays text that is cut off, is quoted (in a code fence, behind a backtick), names a parameter
    twice, or whose values hold markers that leave its borders in doubt. Takes time linear in the text.
    Raises UsageError for what is no text, or no tools.
    """
    check_text("text", text)
    if tools is not None and (isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Iterable)):
        raise wants("tools", tools, "give a list of tools, or None")
    if "<tool_call>" not in text:
        return text, []
    declared = None if tools is None else _declared(tools)
    marks = _Marks(text)
    fences = [match.start() for match in _FENCE.finditer(text)]
    calls: list[dict[str, Any]] = []
    rest: list[str] = []
    at = done = fenced = 0  # the next mark, the text that is dealt with, and how many fences lie before it
    while at < len(marks.kinds):
        if marks.kinds[at] != "<tool_call>" or not marks.joined(at, "<function="):
            at += 1
            continue
        start = marks.starts[at]
        fenced += bisect_left(fences, start) - bisect_left(fences, done)
        rest.append(text[done:start])
        done = start
        if fenced % 2 or text[start - 1 : start] == "`":
            at += 1
            continue
        found = marks.call(at)
        if found is None:
            break
        after, name, values = found
        if declared is not None:
            name = name if name in declared else name.strip()
        if declared is None or name in declared:
            arguments = _typed(values, declared[name] if declared is not None else {})
            calls.append({"type": "function", "function": {"name": name, "arguments": arguments}})
            done = marks.ends[after - 1]
        at = after
    return ("".join([*rest, text[done:]]).strip() if calls else text), calls


class _Marks:
    """The markers of a text, in order, and for each where the next of some kinds is."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = list(_MARK.finditer(text))
        self.names = [match[1] or match[2] or "" for match in found]
        self.kinds = [
            match[0].removesuffix(f"{name}>") if name else match[0]
            for match, name in zip(found, self.names, strict=True)
        ]
        self.starts = [m.start() for m in found]
        self.ends = [m.end() for m in found]
        count = len(found)
        # Only white space between a mark and the next.
        self.close = [
            not text[end:start].strip() for end, start in zip(self.ends, self.starts[1:], strict=False)
        ]
        self.close.append(False)
        self.call_end = [count] * (count + 1)  # next </function> that a </tool_call> follows
        self.value_end = [count] * (count + 1)  # next </parameter> that a parameter or the call's end follows
        self.opening = [count] * (count + 1)  # next marker that opens something
        for i in range(count - 1, -1, -1):
            kind = self.kinds[i]
            ends = kind == "</function>" and self.joined(i, "</tool_call>")
            self.call_end[i] = i if ends else self.call_end[i + 1]
            more = self.joined(i, "<parameter=") or (self.close[i] and self.call_end[i + 1] == i + 1)
            self.value_end[i] = i if kind == "</parameter>" and more else self.value_end[i + 1]
            self.opening[i] = i if not kind.startswith("</") else self.opening[i + 1]

    def joined(self, at: int, kind: str) -> bool:
        """Whether a mark of `kind` follows with nothing but white space between."""
        return self.close[at] and self.kinds[at + 1] == kind

    def call(self, at: int) -> tuple[int, str, dict[str, str]] | None:
        """The call that starts at a mark: the mark after it, its name, its values; None when in doubt."""
        count = len(self.kinds)
        values: dict[str, str] = {}
        if not self.close[at + 1]:
            return None
        here = at + 2
        while True:
            kind, name = self.kinds[here], self.names[here]
            if kind == "</function>":
                after = here + 2
                if not self.joined(here, "</tool_call>"):
                    return None
                if after < count and self.kinds[after] != "<tool_call>":
                    return None  # what is closed here was never opened: a value was cut
                return after, self.names[at + 1], values
            if kind != "<parameter=" or name in values:
                return None
            end = self.value_end[here + 1]
            if end < count:
                if self.opening[here + 1] < end:
                    return None  # an example in the value, or its closer is missing
                after = end + 1
            elif here + 1 < count and self.call_end[here + 1] == here + 1:
                end = after = here + 1  # no value ends any more, and nothing but one closer is missing
            else:
                return None
            values[name] = _bare(self.text[self.ends[here] : self.starts[end]])
            here = after


def _bare(text: str) -> str:
    """A value without the line ends that the format puts around it."""
    if text.startswith("\n"):
        return text[1:].removesuffix("\n")
    text = text.removeprefix("\r\n")
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _declared(tools: Iterable[Tool]) -> dict[str, Any]:
    """The parameters' schema of each declared tool; {} where it has none."""
    found: dict[str, Any] = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters") or {}
    return found


def _typed(values: Mapping[str, str], schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    other = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
    known = properties if isinstance(properties, Mapping) else {}
    return {key: _value(text, known.get(key, other), schema) for key, text in values.items()}


#: How the template writes what JSON writes in small letters, beside JSON's own words.
_WORDS = {"True": True, "False": False, "None": None}
_KINDS: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
    "string": str,
}
#: Names that tools made from Python's types use.
_ALIASES = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "str": "string",
}
_ONE_OF_EACH: tuple[Any, ...] = (None, True, 0, 0.5, [], {}, "")
_DEEPEST = 100


def _value(text: str, schema: Any, root: Any) -> Any:
    """A parameter's text as the first of null, boolean, number, array, object, text that its schema takes."""
    value = _json(text)
    if all(_fits(one, schema, root) for one in _ONE_OF_EACH):
        return value if isinstance(value, (list, dict)) else text
    tries = [_WORDS[text.strip()]] if text.strip() in _WORDS else [] if isinstance(value, str) else [value]
    if isinstance(value, float) and value.is_integer():
        tries.append(int(value))
    return next((one for one in tries if _fits(one, schema, root)), text)


def _fits(value: Any, schema: Any, root: Any, known: dict[int, bool] | None = None) -> bool:
    """Whether a value is of a type (or one of the values) that a schema names; its inside is not looked at.

    A schema that refers to itself fits nothing by that. `known` are the answers for parts already seen.
    """
    if not isinstance(schema, Mapping):
        return True
    known = {} if known is None else known
    if id(schema) not in known:
        known[id(schema)] = False
        known[id(schema)] = _judge(value, schema, root, known)
    return known[id(schema)]


def _judge(value: Any, schema: Mapping[str, Any], root: Any, known: dict[int, bool]) -> bool:
    if "$ref" in schema and not _fits(value, resolve(schema["$ref"], root), root, known):
        return False
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list) and not any(type(c) is type(value) and c == value for c in choices):
        return False
    for key in ("anyOf", "oneOf"):
        some = schema.get(key)
        if isinstance(some, list) and some and not any(_fits(value, s, root, known) for s in some):
            return False
    every = schema.get("allOf")
    if isinstance(every, list) and not all(_fits(value, s, root, known) for s in every):
        return False
    names = schema.get("type")
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list):
        return True
    names = [_ALIASES.get(name, name) for name in names if isinstance(name, str)]
    if value is None and schema.get("nullable") is True:
        return True
    # A truth value is an int to Python.
    kinds = [_KINDS.get(n) for n in names if n == "boolean" or not isinstance(value, bool)]
    return not all(name in _KINDS for name in names) or any(k and isinstance(value, k) for k in kinds)


def _json(text: str) -> Any:
    """A text as the JSON value that it spells and that can be written again; the text where there is none."""

    def number(spelling: str) -> float:
        if not math.isfinite(value := float(spelling)):
            raise ValueError
        return value

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError
        return found

    def none(_: str) -> None:
        raise ValueError

    try:
        value = json.loads(text, parse_float=number, parse_constant=none, object_pairs_hook=once)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # UnicodeEncodeError, for half a character, is a ValueError
        return text
    layer = [value]
    for _ in range(_DEEPEST):
        layer = [inner for outer in layer for inner in _parts(outer)]
        if not layer:
            return value
    return text


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
