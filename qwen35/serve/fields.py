"""Reads the fields of a JSON object: null is absent, a wrong type or range is a 400 that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from qwen35.errors import why_no_json
from qwen35.serve.errors import ApiError

__all__ = ["Fields", "parse_json"]

DEPTH = 100
"""A schema's depth and more; what is read, rendered and echoed by recursion stays far from its limit."""
MOST = 100_000
"""Arrays and objects of a body; while it is read, nobody else is answered. A context of 262,144 tokens has
room for half as many messages."""
COMMAS = 500_000
"""Of a body: twice what lies between the numbers of a prompt of so many tokens. Its size alone would let in
16 million numbers, read in seconds; a thread would not help, for json keeps the interpreter's lock.
"""
_NAMES = {str: "a string", bool: "true or false", list: "an array", dict: "an object"}


def parse_json(data: bytes) -> Fields:
    """A request's body. Raises ApiError 400 for what is no JSON object."""
    if data.count(b",") > COMMAS:
        raise ApiError(400, f"the body holds more than {COMMAS:,} commas")
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {why_no_json(error):.200}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    _bounded(value)
    return Fields(value)


def _bounded(value: Any) -> None:
    """Raises ApiError 400 for more than DEPTH arrays and objects in each other, or MOST in all."""
    level, seen = [value], 1
    for _ in range(DEPTH):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, (dict, list))
        ]
        seen += len(level)
        if seen > MOST:
            raise ApiError(400, f"the body holds more than {MOST:,} arrays and objects")
        if not level:
            return
    raise ApiError(400, f"the body nests arrays and objects more than {DEPTH} deep")


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


class Fields:
    """An object's fields; `where` is its own place, as in `messages[0].`."""

    def __init__(self, data: Mapping[str, Any], where: str = "") -> None:
        self.data, self.where = data, where

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    def wrong(self, name: str, rule: str, code: str | None = None) -> ApiError:
        """The error for a field that is not as `rule` says."""
        param = f"{self.where}{name}"
        return ApiError(400, f"{param} {rule}", param=param, code=code)

    def _typed(self, name: str, kind: type) -> Any:
        value = self.data.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(name, f"must be {_NAMES[kind]}")
        return value

    def text(self, name: str, *, required: bool = False) -> str | None:
        """The field as a string, None where it is absent. Raises ApiError for anything else."""
        value: str | None = self._typed(name, str)
        if required and value is None:
            raise self.wrong(name, "is missing")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """The field as true or false, `default` where it is absent. Raises ApiError."""
        value: bool | None = self._typed(name, bool)
        return default if value is None else value

    def items(self, name: str, *, required: bool = False) -> list[Any] | None:
        """The field as an array, None where it is absent. Raises ApiError."""
        value: list[Any] | None = self._typed(name, list)
        if required and not value:
            raise self.wrong(name, "is missing" if value is None else "must not be empty")
        return value

    def inner(self, name: str) -> Fields | None:
        """The fields of the object in this field, None where it is absent. Raises ApiError."""
        value = self._typed(name, dict)
        return None if value is None else Fields(value, f"{self.where}{name}.")

    def each(self, name: str, *, required: bool = False) -> Iterable[Fields]:
        """The fields of each object in the array of this field. Raises ApiError."""
        for index, value in enumerate(self.items(name, required=required) or ()):
            if not isinstance(value, dict):
                raise self.wrong(f"{name}[{index}]", "must be an object")
            yield Fields(value, f"{self.where}{name}[{index}].")

    def number(self, name: str, low: float, high: float) -> float | None:
        """The field as a number from `low` to `high`, None where it is absent. Raises ApiError."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, "must be a number")
        if not low <= value <= high:
            raise self.wrong(name, f"must be from {low:g} to {high:g}")
        return float(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """The field as an int from `low` to `high` (3.0 is one), None where it is absent. Raises ApiError."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, float) and abs(value) < 2**53 and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "must be a whole number")
        if not low <= value <= high:
            raise self.wrong(name, f"must be from {low:,} to {high:,}")
        return value

    def choice(self, name: str, choices: Iterable[str]) -> str | None:
        """The field as one of `choices`, None where it is absent. Raises ApiError."""
        value = self.text(name)
        if value is not None and value not in choices:
            raise self.wrong(name, f"is {value!r:.60} and must be one of {', '.join(choices)}")
        return value

    def refuse(self, name: str, *harmless: Any) -> None:
        """Raises ApiError for a field that is not supported and would change the answer.

        It would not where it is absent, null or one of `harmless`.
        """
        value = self.data.get(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in harmless):
            raise self.wrong(name, "is not supported", code="unsupported_parameter")
