"""/v1/completions: a text, or token ids, that the model goes on with; no chat format around it."""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Any

from qwen35.conversation import Reply
from qwen35.serve.answering import Event, new_id
from qwen35.serve.chat import finish_reason, usage_of
from qwen35.serve.errors import ApiError
from qwen35.serve.fields import Fields
from qwen35.serve.job import Piece
from qwen35.serve.options import Served, read_options

__all__ = ["Completion"]


class Completion:
    """One completion (answering.Form). A reasoning block that the model opens by itself is left out."""

    last = b"data: [DONE]\n\n"

    def __init__(self, body: Fields, served: Served) -> None:
        self.served = served
        self.options = read_options(body, served, lengths=("max_tokens",))
        self.stream = self.options.stream
        body.refuse("logprobs", False)
        prompt = body.data.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        vocab = served.model.info.vocab or served.model.tokenizer.vocab_size
        if isinstance(prompt, list) and prompt:
            if not all(type(token) is int and 0 <= token < vocab for token in prompt):
                raise body.wrong("prompt", f"must be one text, or token ids from 0 to {vocab - 1:,}")
        elif not isinstance(prompt, str) or not prompt:
            raise body.wrong("prompt", "must be a text, or token ids, and not empty")
        self.prompt: Any = prompt
        self.id, self.created = new_id("cmpl-"), int(time())

    def begin(self, cancelled: Callable[[], bool]) -> Reply:
        """The reply, made in the model's thread. Markers in the text are text."""
        model = self.served.model
        sampling = self.options.chosen(model.default_sampling())
        return model.complete(self.prompt, self.options.answer, sampling=sampling, cancel=cancelled)

    def opening(self) -> list[Event]:
        """No event: a stream begins with the text."""
        return []

    def piece(self, piece: Piece, reply: Reply) -> list[Event]:
        """The event of a piece of text; reasoning has none."""
        return [self._event(piece[1])] if piece[0] == "text" else []

    def enough(self, reply: Reply) -> bool:
        """False: a completion goes on to its end."""
        return False

    def closing(self, reply: Reply, timings: dict[str, Any]) -> list[Event]:
        """Why it ended, and what it cost."""
        events = [self._event("", finish_reason(reply, False), timings=timings)]
        if self.options.include_usage:
            name, data = self._event("")
            events.append((name, data | {"choices": [], "usage": usage_of(reply)}))
        return events

    def failing(self, error: ApiError) -> Event:
        """What a stream ends with that was cut."""
        return "", error.body()

    def whole(self, reply: Reply, timings: dict[str, Any]) -> dict[str, Any]:
        """The answer that is not streamed."""
        more = {"usage": usage_of(reply), "timings": timings}
        return self._event(reply.text, finish_reason(reply, False), **more)[1]

    def _event(self, text: str, finish: str | None = None, **more: Any) -> Event:
        choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
        return "", {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.served.names[0],
            "choices": [choice],
            **more,
        }
