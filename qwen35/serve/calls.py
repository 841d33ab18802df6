"""What of an answer's text may be shown while it streams, when it may hold tool calls."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from qwen35.serve.errors import ApiError
from qwen35.serve.options import Tools
from qwen35.toolcalls import parse_tool_calls

if TYPE_CHECKING:
    from qwen35.conversation import Reply

__all__ = ["CallFilter"]

_MARK, _END = "<tool_call>", "</tool_call>"


class CallFilter:
    """The text of one answer with declared tools; without tools all of it is shown at once.

    Only the whole answer decides what is a call and what is text that looks like one. So text streams up to
    the first mark, the white space around it waits, and all from there on comes at the end: as calls, or as
    the text that it was.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._one = bool(tools.forced) or not tools.parallel
        self._shown = ""
        self._text = ""
        self._ends = 0

    def feed(self, text: str) -> str:
        """What of the text so far can be shown now."""
        if not self._tools.declared:
            return text
        self._text += text
        if self._tools.forced:
            return ""
        safe = self._text.partition(_MARK)[0]
        if len(safe) == len(self._text):
            keep = max((n for n in range(1, len(_MARK)) if safe.endswith(_MARK[:n])), default=0)
            safe = safe[: len(safe) - keep]
        safe = safe.rstrip() if safe.strip() else ""
        new = safe[len(self._shown) :]
        self._shown = safe if new else self._shown
        return new

    def enough(self, reply: Reply) -> bool:
        """Whether the answer holds the only call that it may hold."""
        if not self._tools.declared or not self._one:
            return False
        ends = reply.text.count(_END)
        if ends == self._ends:
            return False
        self._ends = ends
        return bool(self._calls(reply.text)[1])

    def whole(self, reply: Reply) -> tuple[str, list[dict[str, Any]]]:
        """The text and the calls, each with an id. Raises ApiError 422 where a forced call failed.

        Clients ask again by themselves after a 5xx. 422 is what text-generation-inference says of it
        (InferError::ToolError); Groq says 400 (tool_use_failed).
        """
        if not self._tools.declared:
            return reply.text, []
        text, calls = self._calls(reply.text)
        if self._tools.forced and not calls:
            raise ApiError(
                422,
                "the model made no valid call of a tool"
                + (
                    ", its answer was cut: raise max_completion_tokens"
                    if reply.finish in ("length", "context")
                    else ""
                ),
                param="tool_choice",
                code="no_tool_call",
            )
        made = []
        for call in calls:
            function = call["function"]
            arguments = json.dumps(function["arguments"], ensure_ascii=False)
            made.append(
                {
                    "id": f"call_{uuid.uuid4().hex[:24]}",
                    "type": "function",
                    "function": {"name": function["name"], "arguments": arguments},
                }
            )
        return text, made

    def end(self, reply: Reply) -> tuple[str, list[dict[str, Any]]]:
        """The text that was not shown yet, and the calls."""
        text, calls = self.whole(reply)
        if not self._tools.declared:
            return "", []
        shown = self._shown.lstrip() if calls else self._shown
        return text[len(shown) :], calls

    def _calls(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Text and calls. Where one call is all that may come, nothing counts behind the first."""
        text = self._tools.forced + text
        end = text.find(_END) if self._one else -1
        while end >= 0:
            end += len(_END)
            found = parse_tool_calls(text[:end], self._tools.declared)
            if found[1]:
                return found
            end = text.find(_END, end)
        return parse_tool_calls(text, self._tools.declared)
