"""Checks of what callers pass: the wrong kind or number is one error that names the argument, at once."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from amdxdna.errors import BadArgument, BadType, closed
from amdxdna.text import brief

__all__ = ["Uncopied", "buffers", "content", "instance", "path", "seconds", "text", "wants", "whole"]

T = TypeVar("T")


class Uncopied:
    """What stands for a thing of the device or the process: copy, deepcopy and pickle are a TypeError.

    A copy would share handles with the first, and each would close them.
    """

    __slots__ = ()
    instead = "pass the object itself on; another process makes its own"
    """What to do in place of a copy."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: {self.instead}")


def wants(call: str, name: str, value: object, remedy: str) -> BadType:
    """The error for an argument of the wrong kind."""
    return BadType(f"{name} is {brief(value)}, of type {type(value).__name__}", call=call, remedy=remedy)


FAR = (1 << 63) - 1
"""The largest number that an interface's signed 64 bits hold."""


def whole(call: str, name: str, value: object, least: int = 0, most: int = FAR) -> int:
    """`value` as an int, if it is a whole number (numpy's too) from `least` to `most`.

    Raises BadType, BadArgument.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise wants(call, name, value, "Give a whole number") from None
    if not least <= number <= most:
        raise BadArgument(f"{name} is {brief(number)}", call=call, remedy=f"Give {least} to {most}")
    return number


def seconds(call: str, name: str, value: Any, past: bool = False) -> float:
    """`value` as a float, if it is a time: 0 or more, infinity too; with `past` below 0 too, which waits for
    nothing.

    Raises BadType, BadArgument.
    """
    if isinstance(value, (str, bytes, bytearray)):  # float() would read them
        raise wants(call, name, value, "Give a number of seconds")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        raise wants(call, name, value, "Give a number of seconds") from None
    if not number >= (-math.inf if past else 0):
        raise BadArgument(f"{name} is {number}", call=call, remedy="Give 0 seconds or more")
    return number


def text(call: str, name: str, value: object, remedy: str = "Give a string") -> str:
    """`value`, if it is a string. Raises BadType."""
    if not isinstance(value, str):
        raise wants(call, name, value, remedy)
    return value


def path(call: str, name: str, value: Any) -> str:
    """`value`, if it is a file's name. Raises BadType, BadArgument."""
    try:
        found = os.fspath(value)
    except TypeError:
        found = None
    if not isinstance(found, str):
        raise wants(call, name, value, "Give a path: a string or a Path")
    if "\0" in found:
        raise BadArgument(
            f"{name} is {brief(found)}, which no file can be called", call=call, remedy="Correct the path"
        )
    return found


def content(call: str, name: str, value: Any, remedy: str) -> memoryview:
    """The bytes of a contiguous array or bytes object, without a copy. Raises BadType."""
    try:
        view = memoryview(value)
        if "O" in view.format:  # references of Python's
            raise TypeError
        return view.cast("B")
    except (TypeError, ValueError, BufferError):
        raise wants(call, name, value, remedy) from None


def instance(call: str, name: str, value: object, kind: type[T], remedy: str) -> T:
    """`value`, if it is an object of the class `kind`. Raises BadType."""
    if not isinstance(value, kind):
        raise wants(call, name, value, remedy)
    return value


def buffers(call: str, name: str, value: object, kind: type[T]) -> Sequence[T]:
    """`value`, if it is a list or tuple of open buffers, whose class is `kind`. Raises BadType, Closed."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise wants(call, name, value, "Give a list of buffers")
    for index, one in enumerate(value):
        if not isinstance(one, kind):
            raise wants(call, f"{name}[{index}]", one, "Give a list of buffers")
        if not getattr(one, "handle", 1):
            raise closed("buffer")
    return value
