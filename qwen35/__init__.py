"""Qwen3.5 (text and images) with its projections on an AMD NPU, driven through the amdxdna ioctls.

`api` is where a program starts, `cli` the main job, `serve` the server; `engine` makes tokens, `model` and
`vision` compute, `bundle` is what they run from, `export` makes it.

In a program:

    from qwen35 import Qwen35

    with Qwen35.load() as model:
        for piece in model.chat("What is a penguin?"):
            print(piece, end="", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwen35.api import Info, Qwen35
    from qwen35.conversation import Conversation, Reply
    from qwen35.errors import QwenError
    from qwen35.options import AnswerOptions
    from qwen35.sampling import GREEDY, Sampling
    from qwen35.stats import Stats

__version__ = "0.1.0"
__all__ = [
    "GREEDY",
    "AnswerOptions",
    "Conversation",
    "Info",
    "Qwen35",
    "QwenError",
    "Reply",
    "Sampling",
    "Stats",
    "__version__",
]

_HOME = {
    "Qwen35": "api",
    "Info": "api",
    "Conversation": "conversation",
    "Reply": "conversation",
    "QwenError": "errors",
    "AnswerOptions": "options",
    "GREEDY": "sampling",
    "Sampling": "sampling",
    "Stats": "stats",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"qwen35.{_HOME[name]}"), name)
    raise AttributeError(f"module 'qwen35' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
