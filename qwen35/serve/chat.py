"""/v1/chat/completions."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any

from qwen35.serve.answering import Event, new_id
from qwen35.serve.errors import ApiError
from qwen35.serve.fields import Fields
from qwen35.serve.job import Piece
from qwen35.serve.messages import Reader
from qwen35.serve.options import Served, read_effort, read_format, read_logprobs, read_options, read_tools
from qwen35.serve.question import Question

if TYPE_CHECKING:
    from qwen35.conversation import Reply

__all__ = ["Chat", "finish_reason", "usage_of"]

_FINISH = {"stop": "stop", "length": "length", "context": "length", "loop": "length"}


def finish_reason(reply: Reply, called: bool) -> str:
    """Why an answer ended, in OpenAI's words; one that repeats itself or is no whole document was cut.

    A stop string ends a document where its client wanted.
    """
    if called:
        return "tool_calls"
    if reply.finish == "stop-string":
        return "stop"
    return _FINISH.get(reply.finish, "stop") if reply.complete else "length"


def usage_of(reply: Reply) -> dict[str, Any]:
    """Token counts as chat completions have them."""
    stats = reply.stats
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.new_tokens,
        "total_tokens": stats.prompt_tokens + stats.new_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": stats.reasoning_tokens},
    }


class Chat(Question):
    """One chat completion."""

    last = b"data: [DONE]\n\n"

    def __init__(self, body: Fields, served: Served) -> None:
        logprobs = read_logprobs(body, asked=body.flag("logprobs"))
        options = read_options(
            body, served, lengths=("max_completion_tokens", "max_tokens"), logprobs=logprobs
        )
        messages = Reader(served.max_images).chat(body.each("messages", required=True))
        tools = read_tools(body)
        schema = read_format(body.inner("response_format"))
        thinking = read_effort(body, served) and not tools.forced
        super().__init__(served, options, messages, tools, schema, thinking, logprobs is not None)
        self.refuse_together(body, "response_format", "logprobs", "be given")
        self.id, self.created = new_id("chatcmpl-"), int(time())

    def opening(self) -> list[Event]:
        """The event that names the role."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def piece(self, piece: Piece, reply: Reply) -> list[Event]:
        """A delta of reasoning or text; text of tool calls waits for the end."""
        kind, text, tokens = piece
        if kind == "reasoning":
            return [self._chunk({"reasoning_content": text})]
        shown = self.filter.feed(text)
        if not shown:
            return []
        return [self._chunk({"content": shown}, logprobs=self._entries(reply, tokens))]

    def closing(self, reply: Reply, timings: dict[str, Any]) -> list[Event]:
        """The rest of the text, the calls, why it ended, and what it cost."""
        rest, calls = self.filter.end(reply)
        events = []
        if rest:
            events.append(self._chunk({"content": rest}, logprobs=self._entries(reply, len(reply.tokens))))
        for index, call in enumerate(calls):
            function = call["function"]
            head = {
                "index": index,
                "id": call["id"],
                "type": "function",
                "function": {"name": function["name"], "arguments": ""},
            }
            events.append(self._chunk({"tool_calls": [head]}))
            delta = {"index": index, "function": {"arguments": function["arguments"]}}
            events.append(self._chunk({"tool_calls": [delta]}))
        more: dict[str, Any] = {"timings": timings}
        if reply.note:
            more["note"] = reply.note
        events.append(self._chunk({}, finish_reason(reply, bool(calls)), **more))
        if self.options.include_usage:
            name, data = self._chunk({})
            events.append((name, data | {"choices": [], "usage": usage_of(reply)}))
        return events

    def failing(self, error: ApiError) -> Event:
        """What a stream ends with that was cut."""
        return "", error.body()

    def whole(self, reply: Reply, timings: dict[str, Any]) -> dict[str, Any]:
        """The answer that is not streamed."""
        text, calls = self.filter.whole(reply)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": None,
        }
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": finish_reason(reply, bool(calls)),
            "logprobs": self._entries(reply, len(reply.tokens)),
        }
        made = {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.served.names[0],
            "choices": [choice],
            "usage": usage_of(reply),
            "timings": timings,
        }
        return made | ({"note": reply.note} if reply.note else {})

    def _chunk(
        self, delta: dict[str, Any], finish: str | None = None, *, logprobs: Any = None, **more: Any
    ) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return "", {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.served.names[0],
            "choices": [choice],
            **more,
        }

    def _entries(self, reply: Reply, tokens: int) -> dict[str, Any] | None:
        """New logprobs, in this endpoint's form."""
        return {"content": self.new_logprobs(reply, tokens), "refusal": None} if self.logprobs else None
