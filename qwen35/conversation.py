"""An answer as it streams, and a conversation that remembers its turns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen35.engine import Generation
from qwen35.errors import Cancelled, UsageError
from qwen35.sampling import Sampler, StopStrings, TokenLogprob
from qwen35.stats import Stats
from qwen35.thinking import ThinkSplitter
from qwen35.tokenizer import Tokenizer
from qwen35.toolcalls import parse_tool_calls

if TYPE_CHECKING:
    from qwen35.api import Qwen35

Tools = Sequence[Mapping[str, Any]] | None

__all__ = ["Conversation", "Reply", "ThinkSplitter", "user_message"]

def user_message(text: str, images: Sequence[Any] = ()) -> dict[str, Any]:
    """A question in the Hugging Face form, its images before the text."""
    if not images:
        return {"role": "user", "content": text}
    items: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*items, {"type": "text", "text": text}]}


class Reply:
    """One answer, made while it is read.

    Iterating gives the pieces of the answer's text; `events()` gives reasoning too. `str(reply)` and
    `result()` run it to the end, `close()` ends it where it is. Whatever the model or the device raises comes
    out of the iteration.

    Attributes, complete at the end: `text`, `reasoning`, `tokens` (ids), `finish` (see Stats), `stats`,
    `note` (one line when the answer was cut for repeating itself, or its JSON is not whole), `logprobs`.
    With a JSON schema `complete` is to be asked before `text` is read as JSON.
    """

    def __init__(
        self,
        run: Generation,
        tokenizer: Tokenizer,
        *,
        thinking: bool = False,
        stop: Sequence[str] = (),
        sampler: Sampler | None = None,
        tools: Tools = None,
        done: Callable[[Reply], None] | None = None,
    ) -> None:
        self.text = ""
        self.reasoning = ""
        self.note = ""
        self.tokens: list[int] = []
        self.stats: Stats = run.stats
        self._run = run
        self._tokenizer = tokenizer
        constrained = sampler is not None and sampler.constraint is not None
        self._splitter = ThinkSplitter(thinking, again=not constrained)
        self._stops = StopStrings(stop)
        self._sampler = sampler
        self._tools = tools or ()
        self._done = done
        self._stream = self._events()

    @property
    def finish(self) -> str:
        """Why the answer ended; empty while it runs."""
        return self.stats.finish

    @property
    def complete(self) -> bool:
        """Whether the answer is a whole document of its JSON schema; without a schema always true."""
        constraint = self._sampler.constraint if self._sampler is not None else None
        if constraint is None:
            return True
        if self.finish == "stop":
            return constraint.complete
        return constraint.closed and self.finish != "stop-string"

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """One entry a token, when the sampling asked for them."""
        return self._sampler.logprobs if self._sampler is not None else []

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Calls of declared tools: `{"type": "function", "function": {"name", "arguments"}}`.

        The text streams with the calls in it; read them at its end, when it is known what they are.
        """
        return parse_tool_calls(self.text, self._tools)[1]

    def events(self) -> Iterator[tuple[str, str]]:
        """`("reasoning" | "text", piece)` pairs as they come."""
        return self._stream

    def __iter__(self) -> Iterator[str]:
        return (piece for kind, piece in self._stream if kind == "text")

    def result(self) -> Reply:
        """Runs to the end and returns itself."""
        for _ in self._stream:
            pass
        return self

    def __str__(self) -> str:
        return self.result().text

    def __repr__(self) -> str:
        return f"<Reply {self.finish or 'running'}: {self.text!r:.60}>"

    def close(self) -> None:
        """Ends the answer where it is; what came so far counts."""
        self._stream.close()
        if not self.stats.finish:
            self._end("cancel")

    def _end(self, finish: str) -> None:
        """Once, whatever way the answer ends."""
        self.stats.finish = finish
        self._run.close()
        notes = []
        if self._run.period and finish == "loop":
            tokens = f"{self._run.period} token{'s' * (self._run.period != 1)}"
            notes.append(f"stopped: the answer repeats the same {tokens} over and over")
        if not self.complete:
            notes.append("the JSON is not complete")
        self.note = "; ".join(notes)
        if self._sampler is not None and not self._sampler.sampling.greedy:
            self.stats.seed = self._sampler.seed
        self.reasoning = self.reasoning.strip()
        if self._done is not None:
            self._done(self)

    def _events(self) -> Generator[tuple[str, str], None, None]:
        finish = "error"
        decoder = self._tokenizer.stream()
        try:
            for token in self._run:
                self.tokens.append(token)
                yield from self._show(self._splitter.feed(decoder.feed(token)))
                self.stats.reasoning_tokens += self._splitter.reasoning
                if self._stops.found is not None:
                    finish = "stop-string"
                    return
            yield from self._show(self._splitter.feed(decoder.flush()) + self._splitter.flush())
            if self._stops.found is None and (rest := self._stops.flush()):
                self.text += rest
                yield "text", rest
            finish = "stop-string" if self._stops.found is not None else self._run.finish
        except Cancelled:
            finish = "cancel"
        except (GeneratorExit, KeyboardInterrupt):
            finish = "cancel"
            raise
        finally:
            self._end(finish)

    def _show(self, pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        for kind, piece in pairs:
            if kind == "reasoning":
                self.reasoning += piece
                yield kind, piece
            elif shown := self._stops.feed(piece):
                self.text += shown
                yield kind, shown


class Conversation:
    """Turns with one model. Made by `Qwen35.conversation`; not thread-safe.

    A turn enters the history when its answer ends. An answer that was stopped stays as far as it came; a turn
    that failed, or was stopped before its answer began, leaves no trace. Reasoning is kept in `messages` and,
    as the model's format has it, not shown to the model again once the next question is asked.
    """

    def __init__(self, model: Qwen35, system: str | None = None, *, tools: Tools = None) -> None:
        self._model = model
        self.tools = tools
        #: The turns in the Hugging Face form, the system message first if there is one.
        self.messages: list[dict[str, Any]] = []
        self._current: Reply | None = None
        self.system = system

    @property
    def system(self) -> str | None:
        """The system message's text; setting it changes it for the turns to come, None removes it."""
        first = self.messages[:1]
        return str(first[0]["content"]) if first and first[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        if self.system is not None:
            del self.messages[0]
        if text is not None and text.strip():
            self.messages.insert(0, {"role": "system", "content": text})

    @property
    def turns(self) -> int:
        """Questions asked and answered."""
        return sum(message["role"] == "user" for message in self.messages)

    def ask(self, text: str, *, images: Sequence[Any] = (), **options: Any) -> Reply:
        """Asks the next question; read the answer from the reply. Images come before the text.

        Options are those of `Qwen35.reply`: thinking, sampling, max_new, stop, ... An earlier reply that
        still runs is ended first. Raises what `Qwen35.reply` raises; the conversation is then as it was.
        """
        return self._add([user_message(text, images)], **options)

    def answer_tools(self, results: Sequence[str], **options: Any) -> Reply:
        """Gives the results of the last answer's tool calls, in their order; options as `ask`'s."""
        return self._add([{"role": "tool", "content": result} for result in results], **options)

    def _add(self, new: list[dict[str, Any]], **options: Any) -> Reply:
        if self._current is not None and not self._current.finish:
            self._current.close()

        def done(reply: Reply) -> None:
            if reply.finish == "error" or (reply.finish == "cancel" and not reply.tokens):
                return
            content, calls = parse_tool_calls(reply.text, self.tools or ())
            message = {"role": "assistant", "content": content, "reasoning_content": reply.reasoning}
            self.messages += [*new, message | ({"tool_calls": calls} if calls else {})]

        messages = [*self.messages, *new]
        self._current = self._model.reply(messages, tools=self.tools, keep=True, done=done, **options)
        return self._current

    def undo(self) -> str | None:
        """Takes back the last question with all that followed; its text, or None when there was none."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]["role"] == "user":
                content = self.messages[index]["content"]
                del self.messages[index:]
                if isinstance(content, str):
                    return content
                return "".join(item.get("text", "") for item in content)
        return None

    def clear(self) -> None:
        """Forgets every turn; the system message stays."""
        self.messages[:] = [m for m in self.messages[:1] if m["role"] == "system"]

    def save(self, path: str | Path) -> None:
        """Writes the conversation as JSON, whole or not at all. Images are kept as paths.

        Raises UsageError for an image that did not come from a file, OSError when writing fails.
        """
        path = Path(path)
        for message in self.messages:
            for item in message["content"] if isinstance(message["content"], list) else ():
                if "image" in item and not isinstance(item["image"], (str, Path)):
                    raise UsageError("an image that came from memory cannot be saved", str(path))
        data = {"format": _FORMAT, "version": 1, "messages": self.messages, "tools": self.tools}
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            text = json.dumps(data, ensure_ascii=False, indent=1, default=lambda p: str(Path(p).resolve()))
            partial.write_text(text + "\n", encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def load(self, path: str | Path) -> None:
        """Replaces the conversation by a saved one. Raises UsageError for any other file."""
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read the conversation: {error.strerror}", str(path)) from None
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise UsageError("this is no saved conversation", str(path), "give a file that /save wrote")
        if data.get("version") != 1:
            raise UsageError(f"unknown version {data.get('version')!r}", str(path), "use a newer program")
        messages, tools = data.get("messages"), data.get("tools")
        if not isinstance(messages, list) or not all(map(_sound, messages)):
            raise UsageError("the saved conversation is damaged", str(path))
        if not isinstance(tools, list | None):
            raise UsageError("the saved conversation's tools are damaged", str(path))
        self.messages, self.tools = messages, tools


_FORMAT = "qwen35-conversation"


def _sound(message: Any) -> bool:
    """Whether a message of a file is one as `save` writes them; what it says is the template's to judge."""
    if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant", "tool"):
        return False
    content, calls = message.get("content"), message.get("tool_calls", [])
    items = [{"text": content}] if isinstance(content, str) else content
    return (
        isinstance(items, list)
        and all(isinstance(item, dict) and isinstance(item.get("text", ""), str) for item in items)
        and all(isinstance(item.get("image", ""), str) for item in items)
        and isinstance(message.get("reasoning_content", ""), str)
        and isinstance(calls, list)
        and all(isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls)
    )
