"""Values that an argument may be given, and what must come of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amdxdna.arguments import Uncopied


class Odd:
    """Something that is nothing of ours."""

    def __repr__(self) -> str:
        return "<odd>"


VALUES: dict[str, Any] = {
    "none": None,
    "str": "zz",
    "digits": "4096",
    "nul": "a\0b",
    "bytes": b"zzzz",
    "float": 1.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "negative": -1,
    "huge": 1 << 70,
    "most": 1 << 50,
    "empty": [],
    "list": [None],
    "number list": [1.5],
    "dict": {"a": 1},
    "object": Odd(),
    "class": str,
    "array": np.zeros(3, "f4"),
    "objects": np.array([None, "x"]),
    "complex": 1j,
}
INTS = {"negative", "huge", "most"}
STRS = {"str", "digits", "nul"}
COPIES = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__)


def refuses(one: object, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=f"a {type(one).__name__} cannot be copied or pickled: "):
        copied(one)


def all_but_are_uncopied(package: Any, values: set[str]) -> None:
    """Of the public classes all but `values`."""
    for name in set(package.__all__) - values:
        kind = getattr(package, name)
        assert not isinstance(kind, type) or issubclass(kind, Uncopied), name
