"""OpenAI's messages in the form that the chat template takes (qwen35.template)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from qwen35.dataurl import decode, is_data_url
from qwen35.errors import ImageError
from qwen35.serve.errors import ApiError
from qwen35.serve.fields import Fields

__all__ = ["Reader"]

_TEXTS = ("text", "input_text", "output_text", "refusal")


class Reader:
    """Turns the messages of one request; counts its pictures.

    Raises ApiError 400, which names the field, for whatever the model's format cannot hold.
    """

    def __init__(self, max_images: int, images: int = 0) -> None:
        self._max_images = max_images
        self._images = images

    def chat(self, messages: Iterable[Fields]) -> list[dict[str, Any]]:
        """Messages of /v1/chat/completions; system and developer messages at the beginning become one."""
        made: list[dict[str, Any]] = []
        calls: dict[str, int] = {}
        for message in messages:
            role = message.choice("role", ("system", "developer", "user", "assistant", "tool"))
            if role is None:
                raise message.wrong("role", "is missing")
            if role in ("system", "developer"):
                self.system(made, message)
            elif role == "user":
                made.append({"role": "user", "content": self.content(message, required=True)})
            elif role == "assistant":
                answer = self._assistant(message)
                calls = {}
                for call in answer.pop("calls"):
                    calls.setdefault(str(call.get("id")), len(calls))
                made.append(answer)
            else:
                self.tool_result(made, message, calls, message.text("tool_call_id"))
        if not any(message["role"] == "user" for message in made):
            raise ApiError(400, "messages holds no user message", param="messages")
        return finished(made)

    def system(self, made: list[dict[str, Any]], message: Fields) -> None:
        """Adds an instruction to the system message."""
        if any(one["role"] != "system" for one in made):
            raise message.wrong("role", "is a system message behind others; the model knows it as the first")
        text = self.text(message)
        if made:
            made[0]["said"].append(f"\n\n{text}")
        else:
            made.append({"role": "system", "content": "", "said": [text]})

    def tool_result(
        self,
        made: list[dict[str, Any]],
        message: Fields,
        calls: dict[str, int],
        call: str | None,
        name: str = "content",
    ) -> None:
        """Adds a tool's result, for :func:`finished`; `calls` are ids and places of the calls before it."""
        role, id_ = ("role", "tool_call_id") if name == "content" else ("type", "call_id")
        if not made or not (made[-1]["role"] == "tool" or made[-1].get("tool_calls")):
            raise message.wrong(role, "is a tool's result without a call before it")
        if call is not None and call not in calls:
            raise message.wrong(id_, f"is {call!r:.60}, which the calls before it do not hold")
        result = {"role": "tool", "content": self.content(message, name, required=True)}
        result["order"] = len(calls) if call is None else calls[call]
        made.append(result)

    def _assistant(self, message: Fields) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant", "content": self.content(message) or ""}
        for name in ("reasoning_content", "reasoning"):
            if isinstance(message.data.get(name), str):
                made["reasoning_content"] = message.data[name]
                break
        calls = []
        for call in message.each("tool_calls"):
            function = call.inner("function")
            if function is None:
                raise call.wrong("function", "is missing")
            calls.append({"id": call.text("id"), **tool_call(function)})
        made["calls"] = calls
        if calls:
            made["tool_calls"] = [{"type": "function", "function": call["function"]} for call in calls]
        return made

    def text(self, message: Fields) -> str:
        """A content that is text alone."""
        content = self.content(message, required=True)
        if isinstance(content, str):
            return content
        if any("image" in item for item in content):
            raise message.wrong("content", "must be text")
        return "".join(item["text"] for item in content)

    def content(self, message: Fields, name: str = "content", *, required: bool = False) -> Any:
        """A message's content: a string, or a list of `{"text"}` and `{"image": bytes}` items."""
        value = message.data.get(name)
        if value is None or isinstance(value, str):
            if value is None and required:
                raise message.wrong(name, "is missing")
            return value
        if not isinstance(value, list):
            raise message.wrong(name, "must be a string or an array of parts")
        items: list[dict[str, Any]] = []
        for part in message.each(name):
            kind = part.text("type", required=True)
            if kind in _TEXTS:
                items.append(
                    {
                        "type": "text",
                        "text": part.text("refusal" if kind == "refusal" else "text", required=True),
                    }
                )
            elif kind in ("image_url", "input_image"):
                items.append({"type": "image", "image": self._image(part)})
            else:
                raise part.wrong(
                    "type", f"is {kind!r:.60}; text and image_url are supported", "unsupported_parameter"
                )
        if required and not items:
            raise message.wrong(name, "is empty")
        return items

    def _image(self, part: Fields) -> bytes:
        self._images += 1
        if self._images > self._max_images:
            raise ApiError(
                400,
                f"a request may hold {self._max_images} pictures",
                param="messages",
                code="too_many_images",
            )
        url = part.data.get("image_url")
        if isinstance(url, dict):
            url = url.get("url")
        if not isinstance(url, str):
            raise part.wrong("image_url", "must hold the picture as a data: URL")
        if not is_data_url(url):
            raise part.wrong(
                "image_url", "must be a data: URL; this server fetches no other", "unsupported_image_url"
            )
        try:
            return decode(url)
        except ImageError as error:
            raise part.wrong("image_url", error.what, "invalid_image") from None


def finished(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results in a row in the order of their calls, for the model's format has no ids; `said` is content.

    Once for all of them: a message at a time, the time would grow with the square of their number.
    """
    made: list[dict[str, Any]] = []
    for _, run in groupby(messages, lambda message: message["role"] == "tool"):
        made += sorted(run, key=lambda message: message.get("order", 0))
    for message in made:
        if said := message.pop("said", None):
            message["content"] += "".join(said)
    return made


def tool_call(function: Fields) -> dict[str, Any]:
    """A call's name and arguments (JSON text, or an object) as the template takes them."""
    name = function.text("name", required=True)
    arguments = function.data.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise function.wrong("arguments", "is no JSON") from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise function.wrong("arguments", "must be a JSON object")
    return {"function": {"name": name, "arguments": arguments}}
