"""What chat completions and responses share: one answer with tools, a schema, reasoning and logprobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qwen35.serve.calls import CallFilter
from qwen35.serve.fields import Fields
from qwen35.serve.options import Options, Served, Tools

if TYPE_CHECKING:
    from qwen35.conversation import Reply
    from qwen35.sampling import TokenLogprob
    from qwen35.tokenizer import Tokenizer

__all__ = ["Question"]


class Question:
    """What is asked for, as the body of an endpoint said it. A subclass is its answering.Form."""

    def __init__(
        self,
        served: Served,
        options: Options,
        messages: list[dict[str, Any]],
        tools: Tools,
        schema: Any,
        thinking: bool,
        logprobs: bool,
    ) -> None:
        self.served, self.options, self.messages, self.tools = served, options, messages, tools
        self.logprobs, self.stream = logprobs, options.stream
        images = any(isinstance(message["content"], list) for message in messages)
        self.sampling = options.chosen(served.model.default_sampling(thinking=thinking, images=images))
        self.answer = replace(
            options.answer,
            thinking=thinking,
            sampling=self.sampling,
            tools=tools.declared or None,
            json_schema=schema,
            begin=tools.forced,
        )
        self.filter = CallFilter(tools)
        self._reported = 0

    def refuse_together(self, body: Fields, schema: str, logprobs: str, words: str) -> None:
        """Raises ApiError 400 for what cannot be had at once, naming the fields `schema` and `logprobs`."""
        if self.answer.json_schema is not None and self.tools.declared:
            raise body.wrong(schema, "cannot hold together with tools", "unsupported_parameter")
        if self.logprobs and (self.answer.tools or self.answer.thinking or self.answer.stop):
            raise body.wrong(
                logprobs,
                f"cannot {words} together with tools, reasoning or stop strings",
                "unsupported_parameter",
            )

    def asked(self) -> list[dict[str, Any]]:
        """The messages that the model gets."""
        return self.messages

    def begin(self, cancelled: Callable[[], bool]) -> Reply:
        """The reply, made in the model's thread."""
        return self.served.model.reply(self.asked(), self.answer, cancel=cancelled)

    def enough(self, reply: Reply) -> bool:
        """Whether the one call that is allowed is there."""
        return self.filter.enough(reply)

    def new_logprobs(self, reply: Reply, tokens: int) -> list[dict[str, Any]]:
        """Logprobs of the tokens up to number `tokens` that were not reported before."""
        if not self.logprobs:
            return []
        before, self._reported = self._reported, tokens
        return [_entry(self.served.model.tokenizer, one) for one in reply.logprobs[before:tokens]]


def _entry(tokenizer: Tokenizer, one: TokenLogprob) -> dict[str, Any]:
    """A token's logprob with its alternatives."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": max(logprob, -9999.0),
            "bytes": list(data),
        }

    return entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top]}
