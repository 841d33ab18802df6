"""Checks of what callers pass: the wrong kind or number is one UsageError that names it, at once."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

from amdxdna.text import brief
from qwen35.errors import UsageError

__all__ = [
    "MAX_NEW",
    "TRAINED_CTX",
    "called",
    "path",
    "stop_fault",
    "stop_strings",
    "text",
    "texts",
    "token_ids",
    "wants",
    "whole",
]


def wants(name: str, value: object, rule: str) -> UsageError:
    """The error for an argument of the wrong kind."""
    return UsageError(f"{name} is {brief(value)}, of type {type(value).__name__}", name, rule)


def whole(name: str, value: object, least: int, most: int | None = None, option: str = "") -> int:
    """`value` as an int, if it is a whole number (numpy's too) from `least` to `most`. Raises UsageError.

    `option` is its name on a command line.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise wants(name, value, "give a whole number") from None
    if number < least or (most is not None and number > most):
        rule = f"it must be {least:,} or more" if most is None else f"use {least:,} to {most:,}"
        raise UsageError(f"{name} is {brief(number)}", option or name, rule)
    return number


def text(name: str, value: object, none: bool = False) -> None:
    """Raises UsageError unless `value` is a string, or None where `none` allows it."""
    if not isinstance(value, str) and not (none and value is None):
        raise wants(name, value, "give a string" + " or None" * none)


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Strings, or one, as a tuple."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise wants(name, value, "give a string or a list of strings")
    return tuple(value)


MAX_NEW = 512
"""Most tokens of an answer, unless asked for otherwise."""
TRAINED_CTX = 262_144
"""Tokens of the context that the model was trained with (max_position_embeddings of the published configs);
more would run, and answer badly."""
STOP_STRINGS, STOP_CHARACTERS = 64, 8192
"""Most stop strings of an answer, and most characters of all of them: each piece of text is held to each."""


def stop_fault(strings: Sequence[str]) -> str:
    """What is wrong with stop strings, as what follows their name in a sentence; empty for good ones."""
    if "" in strings:
        return "must not hold an empty string"
    many = len(strings) > STOP_STRINGS or sum(map(len, strings)) > STOP_CHARACTERS
    return f"must hold at most {STOP_STRINGS} strings and {STOP_CHARACTERS:,} characters" if many else ""


def stop_strings(value: Any) -> tuple[str, ...]:
    """Stop strings, or one, as a tuple. Raises UsageError for too many, too long or an empty one."""
    found = texts("stop", value)
    if fault := stop_fault(found):
        raise UsageError(f"stop {fault}", "--stop")
    return found


def path(name: str, value: Any) -> None:
    """Raises UsageError unless `value` is a file's name: a string or a Path."""
    try:
        found = os.fspath(value)
    except TypeError:
        found = None
    if not isinstance(found, str):
        raise wants(name, value, "give a path: a string or a Path")
    if "\0" in found:
        raise UsageError(f"{name} is {brief(found)}, which no file can be called", name, "correct the path")


def called(name: str, value: Callable[..., Any] | None) -> None:
    """Raises UsageError unless `value` is a function or None."""
    if value is not None and not callable(value):
        raise wants(name, value, "give a function or None")


def token_ids(name: str, value: Any, vocab: int) -> list[int]:
    """A sequence of ints or an array as a list of token ids, each below `vocab`. Raises UsageError."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        ids = [operator.index(one) for one in value]
    except TypeError:
        raise wants(name, value, "give a list of token ids") from None
    for one in ids:
        if not 0 <= one < vocab:
            raise UsageError(f"{name} holds {brief(one)}, no token id", name, f"use 0 to {vocab - 1:,}")
    return ids
