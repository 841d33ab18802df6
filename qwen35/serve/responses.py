"""/v1/responses: OpenAI's newer form of the same answers, with streams of named events.

Event names and the fields of items are those of OpenAI's public API (openai-python, types/responses).
"""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qwen35.serve.answering import Event, error_response, new_id
from qwen35.serve.chat import finish_reason
from qwen35.serve.errors import ApiError
from qwen35.serve.fields import Fields
from qwen35.serve.items import Items, not_stored, with_instructions
from qwen35.serve.job import Piece
from qwen35.serve.options import Served, read_effort, read_format, read_logprobs, read_options, read_tools
from qwen35.serve.question import Question
from qwen35.serve.store import Store, Stored

if TYPE_CHECKING:
    from qwen35.conversation import Reply

__all__ = ["Answer", "stored_response"]


class Answer(Question):
    """One response; `store` keeps it for requests that go on from it."""

    last = b""

    def __init__(self, body: Fields, served: Served, store: Store) -> None:
        self.store, self.body = store, body.data
        body.refuse("background", False)
        for name in ("conversation", "prompt"):
            body.refuse(name)
        with_logprobs = "message.output_text.logprobs" in (body.items("include") or ())
        logprobs = read_logprobs(body, asked=with_logprobs)
        options = read_options(body, served, lengths=("max_output_tokens",), logprobs=logprobs)
        self.previous = body.text("previous_response_id")
        before = None
        if self.previous is not None and (before := store.get(self.previous)) is None:
            raise not_stored(self.previous)
        read = Items(served.max_images, *((before.messages, before.calls) if before else ()))
        read.read(body)
        self.instructions = body.text("instructions")
        tools = read_tools(body, flat=True)
        form = body.inner("text")
        schema = read_format(form.inner("format") if form is not None else None)
        thinking = read_effort(body, served, body.inner("reasoning"), "effort") and not tools.forced
        self.keep = body.flag("store", True)
        if (about := body.inner("metadata")) is not None:
            for name in about.data:
                about.text(name)
        super().__init__(served, options, read.messages, tools, schema, thinking, logprobs is not None)
        self.refuse_together(body, "text.format", "include", "hold logprobs")
        self.id, self.created = new_id("resp_"), int(time())
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        """Items that are done."""
        self._item: dict[str, Any] | None = None
        """The one that is streaming."""
        self._text = ""

    def asked(self) -> list[dict[str, Any]]:
        """The messages behind the instructions of this request, which are not kept."""
        return with_instructions(self.messages, self.instructions)

    def opening(self) -> list[Event]:
        """The response without output."""
        made = self._response("in_progress", [])
        return [
            self._event("response.created", response=made),
            self._event("response.in_progress", response=made),
        ]

    def piece(self, piece: Piece, reply: Reply) -> list[Event]:
        """A delta of reasoning or text; text of tool calls waits for the end."""
        kind, text, tokens = piece
        if kind == "text":
            text = self.filter.feed(text)
        return self._delta(kind, text, reply, tokens) if text else []

    def closing(self, reply: Reply, timings: dict[str, Any]) -> list[Event]:
        """The rest of the text, the calls, and the whole response."""
        rest, calls = self.filter.end(reply)
        events = []
        if rest:
            events += self._delta("text", rest, reply, len(reply.tokens))
        elif not (calls or self._item or self._output):
            events += self._delta("text", "", reply, len(reply.tokens))  # an answer that says nothing
        status = self._status(reply)
        events += self._end(status)
        for call in calls:
            item = _call(call)
            function = item | {"arguments": "", "status": "in_progress"}
            at = {"item_id": item["id"], "output_index": len(self._output)}
            events += [
                self._event("response.output_item.added", output_index=at["output_index"], item=function),
                self._event("response.function_call_arguments.delta", **at, delta=item["arguments"]),
                self._event(
                    "response.function_call_arguments.done",
                    **at,
                    arguments=item["arguments"],
                    name=item["name"],
                ),
            ]
            events.append(self._done(item))
        made = self._finished(reply, timings)
        return [*events, self._event(f"response.{status}", response=made)]

    def failing(self, error: ApiError) -> Event:
        """What a stream ends with that was cut."""
        made = self._response("failed", self._output)
        made["error"] = {
            "code": "server_error",
            "message": error.message,
            "param": error.param,
            "type": error.code or error.kind,
        }
        return self._event("response.failed", response=made)

    def whole(self, reply: Reply, timings: dict[str, Any]) -> dict[str, Any]:
        """The answer that is not streamed."""
        text, calls = self.filter.whole(reply)
        status = self._status(reply)
        if reply.reasoning:
            self._output.append(_reasoning(reply.reasoning, status if not (text or calls) else "completed"))
        if text or not (calls or reply.reasoning):
            self._output.append(_message(text, status, self.new_logprobs(reply, len(reply.tokens))))
        self._output += [_call(call) for call in calls]
        return self._finished(reply, timings)

    def _status(self, reply: Reply) -> str:
        return "incomplete" if finish_reason(reply, False) == "length" else "completed"

    def _finished(self, reply: Reply, timings: dict[str, Any]) -> dict[str, Any]:
        """The whole response, kept for those that go on from it."""
        status = self._status(reply)
        made = self._response(status, self._output)
        stats = reply.stats
        computed = stats.prompt_tokens - stats.cached_tokens
        made["usage"] = {
            "input_tokens": stats.prompt_tokens,
            "output_tokens": stats.new_tokens,
            "total_tokens": stats.prompt_tokens + stats.new_tokens,
            "input_tokens_details": {
                "cached_tokens": stats.cached_tokens,
                "cache_write_tokens": computed if self.served.model.session.cache is not None else 0,
            },
            "output_tokens_details": {"reasoning_tokens": stats.reasoning_tokens},
        }
        made["completed_at"] = int(time())
        made["timings"] = timings
        if status == "incomplete":
            made["incomplete_details"] = {"reason": "max_output_tokens"}
        if reply.note:
            made["note"] = reply.note
        if self.keep:
            calls = [item for item in self._output if item["type"] == "function_call"]
            text = "".join(
                part["text"] for item in self._output if item["type"] == "message" for part in item["content"]
            )
            message: dict[str, Any] = {
                "role": "assistant",
                "content": text,
                "reasoning_content": reply.reasoning,
            }
            if calls:
                message["tool_calls"] = [
                    {"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
                    for call in calls
                ]
            self.store.add(
                self.id, Stored(made, [*self.messages, message], [call["call_id"] for call in calls])
            )
        return made

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body, sampling = self.body, self.sampling
        tools = [{"strict": None, "parameters": None, **tool} for tool in body.get("tools") or ()]
        about = body.get("text") or {}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "max_output_tokens": self.answer.max_new,
            "metadata": body.get("metadata") or {},
            "model": self.served.names[0],
            "output": list(output),
            "parallel_tool_calls": self.tools.parallel,
            "previous_response_id": self.previous,
            "reasoning": {"effort": (body.get("reasoning") or {}).get("effort"), "summary": None},
            "store": self.keep,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "text": {"format": about.get("format") or {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": tools,
            "truncation": "disabled",
            "usage": None,
            "user": body.get("user"),
        }

    def _event(self, kind: str, /, **data: Any) -> Event:
        number, self._sequence = self._sequence, self._sequence + 1
        return kind, {"type": kind, "sequence_number": number, **data}

    def _delta(self, kind: str, text: str, reply: Reply, tokens: int) -> list[Event]:
        events = []
        wanted = "message" if kind == "text" else "reasoning"
        if self._item is not None and self._item["type"] != wanted:
            events += self._end("completed")
        if self._item is None:
            empty = _message("", "in_progress") if kind == "text" else _reasoning("", "in_progress")
            self._item, self._text = empty, ""
            self._logprobs: list[dict[str, Any]] = []
            part = empty["content"][0]
            events.append(
                self._event(
                    "response.output_item.added", output_index=len(self._output), item=empty | {"content": []}
                )
            )
            events.append(self._event("response.content_part.added", **self._at(), part=part))
        if text:
            self._text += text
            more: dict[str, Any] = {}
            if kind == "text":
                entries = self.new_logprobs(reply, tokens)
                self._logprobs += entries
                more["logprobs"] = entries
            name = "response.output_text.delta" if kind == "text" else "response.reasoning_text.delta"
            events.append(self._event(name, **self._at(), delta=text, **more))
        return events

    def _end(self, status: str) -> list[Event]:
        """Ends the item that is streaming."""
        item = self._item
        if item is None:
            return []
        part, events = item["content"][0], []
        part["text"] = self._text
        if item["type"] == "message":
            part["logprobs"] = self._logprobs
            events.append(
                self._event(
                    "response.output_text.done", **self._at(), text=self._text, logprobs=self._logprobs
                )
            )
        else:
            events.append(self._event("response.reasoning_text.done", **self._at(), text=self._text))
        events.append(self._event("response.content_part.done", **self._at(), part=part))
        item["status"] = status
        self._item = None
        return [*events, self._done(item)]

    def _done(self, item: dict[str, Any]) -> Event:
        self._output.append(item)
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _at(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self._output), "content_index": 0}


def _reasoning(text: str, status: str) -> dict[str, Any]:
    return {
        "id": new_id("rs_"),
        "type": "reasoning",
        "summary": [],
        "status": status,
        "content": [{"type": "reasoning_text", "text": text}],
    }


def _message(text: str, status: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}
    return {"id": new_id("msg_"), "type": "message", "role": "assistant", "status": status, "content": [part]}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": new_id("fc_"),
        "type": "function_call",
        "call_id": call["id"],
        "status": "completed",
        "name": call["function"]["name"],
        "arguments": call["function"]["arguments"],
    }


def stored_response(store: Store) -> Callable[[Request], Any]:
    """The endpoint that gives a kept response again (GET) or forgets it (DELETE)."""

    async def endpoint(request: Request) -> Response:
        name = request.path_params["name"]
        found = store.get(name)
        if found is None:
            error = ApiError(404, f"there is no response {name!r:.100}", code="response_not_found")
            return error_response(error)
        if request.method == "DELETE":
            store.remove(name)
            return JSONResponse({"id": name, "object": "response", "deleted": True})
        return JSONResponse(found.response)

    return endpoint
