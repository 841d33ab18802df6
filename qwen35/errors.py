"""The exceptions of the qwen35 package.

Each carries three short texts, so that every message can be one line of the same shape:
what went wrong, where (a path, an option, a turn), and what to do about it.
"""

from __future__ import annotations

from amdxdna.entry import descriptor_fault, library_fault, memory_fault, thread_fault
from amdxdna.text import one_line

__all__ = [
    "Cancelled",
    "Closed",
    "ImageError",
    "ModelError",
    "PromptTooLong",
    "QwenError",
    "TemplateError",
    "TokenizerError",
    "UsageError",
    "explain",
    "one_line",
    "why_no_json",
]


class QwenError(Exception):
    """Base of the package's own errors.

    `what` is the fault, `where` the file, option or place (may be empty), `remedy` what to do (may be empty).
    `str(error)` is `what (where): remedy`, always one line.
    """

    def __init__(self, what: str, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(what, where, remedy)

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f" ({self.where})"
        if self.remedy:
            text += f": {self.remedy}"
        return one_line(text)


class UsageError(QwenError):
    """A wrong option or argument; the command line exits with 2."""


class Closed(UsageError):
    """The model was closed, or was loaded by the parent of this forked process."""


class TokenizerError(QwenError, ValueError):
    """A tokenizer.json that cannot be read, or a text or token id that it cannot take."""


class TemplateError(QwenError, ValueError):
    """Messages that the chat template refuses."""


class ImageError(QwenError, ValueError):
    """A picture that cannot be read or used, or a bundle without a vision tower."""


class ModelError(QwenError):
    """A bundle that cannot be found or run."""


class NoNumbers(QwenError, ValueError):
    """What the model gave is no number anywhere: a damaged bundle or a failing device."""

    def __init__(self) -> None:
        super().__init__(
            "the model gave no probabilities: none of its results is a number",
            remedy="python -m qwen35 info BUNDLE --verify finds a damaged bundle, "
            "python -m qwen35 accept BUNDLE an NPU that computes wrongly",
        )
        self.args = ()


class Cancelled(QwenError):
    """The user stopped the prompt before the first token of an answer existed."""


class PromptTooLong(QwenError, ValueError):
    """The prompt needs more tokens than the context holds; carries both numbers.

    `least`: it was not counted to its end, and is `tokens` long or longer.
    """

    def __init__(self, tokens: int, limit: int, remedy: str = "", least: bool = False) -> None:
        self.tokens = tokens
        self.limit = limit
        self.least = least
        super().__init__(
            f"the prompt is {'at least ' * least}{tokens:,} tokens and the context holds {limit:,}",
            remedy=remedy or "shorten the prompt or raise --max-ctx",
        )
        self.args = (tokens, limit, remedy, least)


def why_no_json(error: Exception) -> str:
    """Why `json` did not read or write something: its own words, but for those that advise Python's user."""
    if isinstance(error, RecursionError):
        return "arrays and objects lie too deep in each other"
    text = str(error)
    return "a number has too many digits" if "set_int_max_str_digits" in text else text


def explain(error: BaseException) -> str:
    """One line for any exception that may reach a user: what (where): what to do."""
    if isinstance(error, QwenError):
        return descriptor_fault(error) or str(error)
    known = memory_fault(error) or library_fault(error) or thread_fault(error) or descriptor_fault(error)
    if known is not None:
        return one_line(known)
    if isinstance(error, MemoryError):
        return "out of memory: lower --max-ctx or close other programs"
    remedy = getattr(error, "remedy", None)
    meaning = getattr(error, "meaning", None)
    text = str(error)
    if meaning or remedy:
        # The binding's errors carry the parts too; its own text may hold them already.
        parts = [text] + [str(p) for p in (meaning, remedy) if p and str(p) not in text]
        return one_line(": ".join(part for part in parts if part))
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return one_line(f"{error.strerror.lower()}{where}")
    module = type(error).__module__.partition(".")[0]
    if module in ("amdxdna", "qwen35") and text:
        return one_line(text)
    return one_line(
        f"unexpected {type(error).__name__}: {text or 'no details'} (a fault of this program): "
        "run again with QWEN35_DEBUG=1 for the full report"
    )
