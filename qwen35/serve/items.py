"""The input items of /v1/responses in the form that the chat template takes (qwen35.template)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qwen35.serve.errors import ApiError
from qwen35.serve.fields import Fields
from qwen35.serve.messages import Reader, finished, tool_call

__all__ = ["Items", "not_stored", "with_instructions"]


class Items:
    """Messages and calls of a conversation that goes on from `messages`, whose last calls are `calls`.

    What an assistant said in a row (reasoning, text, calls) is one message of the model's format. Raises
    ApiError 400, which names the field, for whatever that format cannot hold.
    """

    def __init__(
        self, max_images: int, messages: Iterable[dict[str, Any]] = (), calls: Iterable[str] = ()
    ) -> None:
        self.messages = list(messages)
        self.calls = {call: place for place, call in enumerate(calls)}
        """Ids and places of the calls that results may be given for."""
        images = sum(
            "image" in item
            for message in self.messages
            if isinstance(message["content"], list)
            for item in message["content"]
        )
        self._reader = Reader(max_images, images)
        self._open: dict[str, Any] | None = None
        """The assistant's message that the next item may belong to."""

    def read(self, body: Fields) -> None:
        """Adds the body's `input`."""
        value = body.data.get("input")
        if isinstance(value, str):
            self.messages.append({"role": "user", "content": value})
        else:
            if value is not None and not isinstance(value, list):
                raise body.wrong("input", "must be a string or an array of items")
            for item in body.each("input", required=True):
                self._item(item)
        if not any(message["role"] == "user" for message in self.messages):
            raise body.wrong("input", "holds no user message")
        self.messages = finished(self.messages)

    def _item(self, item: Fields) -> None:
        kind = item.text("type") or "message"
        if kind == "message":
            role = item.choice("role", ("system", "developer", "user", "assistant"))
            if role == "assistant":
                self._said(item)
                return
            self._open = None
            if role is None:
                raise item.wrong("role", "is missing")
            if role == "user":
                content = self._reader.content(item, required=True)
                self.messages.append({"role": "user", "content": content})
            else:
                self._reader.system(self.messages, item)
        elif kind == "reasoning":
            texts = [part.text("text") or "" for name in ("content", "summary") for part in item.each(name)]
            self._assistant(after=("said", "tool_calls"))["reasoning_content"] = "".join(texts)
        elif kind == "function_call":
            message = self._assistant()
            if "tool_calls" not in message:
                message["tool_calls"] = []
                self.calls.clear()
            message["tool_calls"].append({"type": "function", **tool_call(item)})
            self.calls.setdefault(item.text("call_id", required=True) or "", len(self.calls))
        elif kind == "function_call_output":
            self._open = None
            call = item.text("call_id", required=True)
            self._reader.tool_result(self.messages, item, self.calls, call, "output")
        else:
            raise item.wrong(
                "type",
                f"is {kind!r:.60}; message, reasoning, function_call and function_call_output are supported",
                "unsupported_parameter",
            )

    def _said(self, item: Fields) -> None:
        content = self._reader.text(item)
        message = self._assistant(after=("tool_calls",))
        if content:
            message.setdefault("said", []).append(content)

    def _assistant(self, after: Iterable[str] = ()) -> dict[str, Any]:
        """The message under way, a new one where that holds what must come `after` the item."""
        if self._open is None or any(self._open.get(name) for name in after):
            self._open = {"role": "assistant", "content": ""}
            self.messages.append(self._open)
        return self._open


def with_instructions(messages: list[dict[str, Any]], text: str | None) -> list[dict[str, Any]]:
    """The messages behind a request's own instructions, which no later request has."""
    if not text:
        return messages
    if messages and messages[0]["role"] == "system":
        first = {"role": "system", "content": f"{text}\n\n{messages[0]['content']}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def not_stored(name: str) -> ApiError:
    """The error for a response that is not kept (any more)."""
    text = (
        f"previous_response_id: there is no response {name!r:.100} here, it was not stored or others "
        "took its place; send the whole conversation as input"
    )
    return ApiError(400, text, param="previous_response_id", code="previous_response_not_found")
