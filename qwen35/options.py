"""The options of an answer: one set for the command line, the chat, programs and the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwen35.arguments import MAX_NEW, called, stop_strings, text, wants, whole
from qwen35.errors import UsageError
from qwen35.sampling import LoopDetector, Sampling

__all__ = ["AnswerOptions", "StepProgress"]


StepProgress = Callable[[str, int, int], None]
"""Told of what is done, how much of it, and of how much."""


@dataclass(frozen=True)
class AnswerOptions:
    """What an answer takes beside its messages. Immutable; checked when made: UsageError names the field.

    thinking       the model reasons first
    max_new        most tokens of the answer, reasoning included
    sampling       how tokens are chosen; None: the model's own values (`Qwen35.default_sampling`)
    stop           strings (or one; 64 and 8,192 characters at most) that end the answer and are not part of
                   it; they do not apply to reasoning
    tools          functions that the model may call, in the Hugging Face form
    json_schema    the answer is a JSON document that fits it (needs the llguidance package);
                   `Reply.complete` tells whether it came to its end
    allow_special  markers inside messages become control tokens
    loops          after how many tokens of one pattern over and over an answer is ended (finish "loop"):
                   True is LoopDetector's own number, False never
    keep           states of the prompt are kept, and kept ones used: a prompt that was asked before, a
                   conversation that goes on, the same system message and tools are not computed again
    draft          where the last tokens stood earlier in the context, those that followed run ahead in one
                   pass: an answer that quotes is faster, and the same but for rounding, which is that of a
                   prompt there (qwen35.drafts)
    begin          text, markers included, that the answer is made to begin with; no part of the reply
    cancel         `cancel()` is asked between tokens and passes whether the answer is to end
    progress       `progress(what, done, total)` is told how far the prompt's tokens ("prompt") and a picture
                   ("picture") are
    done           `done(reply)` is called when the answer ends in any way
    """

    thinking: bool = False
    max_new: int = MAX_NEW
    sampling: Sampling | None = None
    stop: str | Sequence[str] = ()
    tools: Sequence[Mapping[str, Any]] | None = None
    json_schema: Any = None
    allow_special: bool = False
    loops: bool | int = True
    keep: bool = True
    draft: bool = False
    begin: str = ""
    cancel: Callable[[], bool] | None = None
    progress: StepProgress | None = None
    done: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_new", whole("max_new", self.max_new, 1, option="--max-new"))
        object.__setattr__(self, "stop", stop_strings(self.stop))
        text("begin", self.begin)
        if self.sampling is not None and not isinstance(self.sampling, Sampling):
            raise wants("sampling", self.sampling, "give a Sampling or None")
        for name in ("cancel", "progress", "done"):
            called(name, getattr(self, name))
        if not isinstance(self.loops, bool) and not (
            isinstance(self.loops, int) and 1 <= self.loops < 1 << 31
        ):
            raise UsageError(f"loops is {self.loops!r}", "loops", "give True, False or a number of tokens")

    @classmethod
    def of(cls, options: AnswerOptions | None, changes: Mapping[str, Any]) -> AnswerOptions:
        """`options` (None: the defaults) with changed fields. Raises UsageError, TypeError for no field."""
        if options is not None and not isinstance(options, AnswerOptions):
            raise wants("options", options, "give AnswerOptions or None")
        if options is None:
            return cls(**changes)
        return replace(options, **changes) if changes else options

    def loop_detector(self) -> LoopDetector | None:
        """What notices this answer's repetitions; None where they are allowed."""
        if self.loops is False:
            return None
        return LoopDetector() if self.loops is True else LoopDetector(self.loops)
