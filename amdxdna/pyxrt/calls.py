"""How calls of `pyxrt` are answered: overloads told apart, errors as programs match them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, NoReturn

from amdxdna.errors import XdnaError
from amdxdna.uapi import REQUESTS

Form = Sequence[tuple[str, Callable[[Any], bool]]]
"""The parameters of one overload: name ("" where it takes no keyword), and what it accepts."""


def incompatible(name: str, *given: object) -> NoReturn:
    """Raises the TypeError for a call that no overload takes."""
    kind = "constructor" if name.endswith("__init__") else "function"
    raise TypeError(
        f"{name}(): incompatible {kind} arguments. Invoked with: " + ", ".join(repr(each) for each in given)
    )


def select(
    name: str, args: tuple[Any, ...], keywords: Mapping[str, Any], *forms: Form
) -> tuple[int, list[Any]]:
    """(which of `forms` takes the arguments, their values in its order). Raises TypeError when none does."""
    for number, form in enumerate(forms):
        if len(args) + len(keywords) != len(form):
            continue
        rest = form[len(args) :]
        if any(not parameter or parameter not in keywords for parameter, _ in rest):
            continue
        values = [*args, *(keywords[parameter] for parameter, _ in rest)]
        if all(accepts(value) for (_, accepts), value in zip(form, values, strict=True)):
            return number, values
    incompatible(name, *args, *keywords.values())


def whole(bits: int, signed: bool = False) -> Callable[[Any], bool]:
    """Accepts integers (numpy's too, no floats) that fit `bits` bits."""
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)

    def accepts(value: Any) -> bool:
        try:
            return low <= index(value) < high
        except TypeError:
            return False

    return accepts


SIZE = whole(64)
INT = whole(32, signed=True)
UNSIGNED = whole(32)


def text(value: Any) -> bool:
    """Accepts str."""
    return isinstance(value, str)


def settings(value: Any) -> bool:
    """Accepts a dict of names and unsigned numbers."""
    return isinstance(value, dict) and all(
        isinstance(key, str) and UNSIGNED(number) for key, number in value.items()
    )


def refuse(what: str, code: int | None = None) -> NoReturn:
    """Raises XRT's RuntimeError, with the errno's text behind it."""
    raise RuntimeError(what if code is None else f"{what}: {os.strerror(code)}")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """The binding's errors as XRT's RuntimeError: programs look for its first line, people for the rest."""
    try:
        yield
    except XdnaError as error:
        raise RuntimeError(message(error)) from error


_BINDING = re.compile(r" \([^()]*Device\.[^()]*\)|; a program can share contexts through Device\.pool")
"""What the binding's texts tell its own users alone."""


def plain(text: str) -> str:
    """A text of the binding's for those who use XRT's names."""
    return _BINDING.sub("", text)


def message(error: XdnaError) -> str:
    """XRT's text for a failed call, then the cause and what to do."""
    behind = plain(error.meaning + (f". {error.remedy}" if error.remedy else ""))
    known = REQUESTS.get(error.call.split(" ")[0])
    if error.errno is None or known is None:
        return behind
    return f"{known.symbol} IOCTL failed (err=-{error.errno}): {os.strerror(error.errno)}\n{behind}"
