"""An answer as it streams, and a conversation that remembers its turns."""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from amdxdna.arguments import Uncopied
from amdxdna.files import read_regular
from amdxdna.forklock import reentrant
from amdxdna.output import write_whole
from amdxdna.text import brief
from qwen35.arguments import path as is_path
from qwen35.arguments import text as is_text
from qwen35.arguments import wants
from qwen35.engine import Generation, OneReader
from qwen35.errors import Cancelled, UsageError
from qwen35.options import AnswerOptions
from qwen35.sampling import Sampler, StopStrings, TokenLogprob
from qwen35.stats import Stats
from qwen35.thinking import ThinkSplitter
from qwen35.tokenizer import Tokenizer
from qwen35.toolcalls import parse_tool_calls

Tools = Sequence[Mapping[str, Any]] | None

__all__ = ["Conversation", "Reply", "ThinkSplitter", "user_message"]


def user_message(text: str, images: Any = ()) -> dict[str, Any]:
    """A question in the Hugging Face form, its images (several, or one path or file's bytes) before it."""
    if isinstance(images, (str, bytes, os.PathLike)):
        images = [images]
    elif images is None:
        images = []
    elif isinstance(images, Mapping) or not isinstance(images, Iterable):
        raise wants("images", images, "give a path, a file's bytes, or a list of them")
    images = list(images)
    if not images:
        return {"role": "user", "content": text}
    items: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*items, {"type": "text", "text": text}]}


class _Answer:
    """What of an answer has come so far. It keeps neither reply nor generator, so both go when dropped."""

    def __init__(self, run: Generation, options: AnswerOptions, sampler: Sampler) -> None:
        self.text = ""
        self.reasoning = ""
        self.note = ""
        self.tokens: list[int] = []
        self.stats: Stats = run.stats
        self.over = False
        """Whether it ended and everybody was told."""
        self.run, self.sampler, self.tools = run, sampler, options.tools or ()
        self._splitter = ThinkSplitter(options.thinking, again=sampler.constraint is None)
        self._stops, self._done = StopStrings(options.stop), options.done

    def events(self, decoder: Any) -> Generator[tuple[str, str], None, None]:
        """Draws it."""
        finish = "error"
        try:
            for token in self.run:
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
            finish = "stop-string" if self._stops.found is not None else self.run.finish
        except Cancelled:
            finish = "cancel"
        except (GeneratorExit, KeyboardInterrupt):
            finish = "cancel"
            for _ in self._show(self._splitter.flush()):
                pass  # nobody reads on, and what waited for the next piece was said all the same
            raise
        finally:
            self.end(finish)

    def end(self, finish: str) -> None:
        """Once, whatever way the answer ends."""
        try:
            self._end(finish)
        finally:
            self.over = True

    def _end(self, finish: str) -> None:
        self.stats.finish = finish
        self.run.close()
        notes = []
        if self.run.period and finish == "loop":
            tokens = f"{self.run.period} token{'s' * (self.run.period != 1)}"
            notes.append(f"stopped: the answer repeats the same {tokens} over and over")
        if self.reasoning.strip() and not self.text.strip() and finish in ("stop", "length", "context"):
            notes.append(
                "the answer is reasoning alone, and ended before any text"
                + (": allow it more tokens (--max-new)" if finish == "length" else "")
            )
        if not self.complete:
            notes.append("the JSON is not complete")
        self.note = "; ".join(notes)
        if not self.sampler.sampling.greedy:
            self.stats.seed = self.sampler.seed
        self.reasoning = self.reasoning.strip()
        if self._done is not None:
            self._done(Reply._over(self))

    @property
    def complete(self) -> bool:
        """Whether it is a whole document of its schema; without one always true."""
        constraint = self.sampler.constraint
        if constraint is None:
            return True
        if self.stats.finish == "stop":
            return constraint.complete
        return constraint.closed and self.stats.finish != "stop-string"

    def _show(self, pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        for kind, piece in pairs:
            if kind == "reasoning":
                self.reasoning += piece
                yield kind, piece
            elif shown := self._stops.feed(piece):
                self.text += shown
                yield kind, shown


class Reply(Uncopied):
    """One answer, made while it is read.

    Iterating gives the pieces of the answer's text; `events()` gives reasoning too. `str(reply)` and
    `result()` run it to the end, `close()` ends it where it is. Whatever the model or the device raises comes
    out of the iteration, Closed once the model is closed, and again each time it is read on; what came before
    stays readable (`text`).

    Replies of one model may be read in any order, also half-way and in turns (see Qwen35). One reply may go
    from thread to thread; whoever reads it while another thread is drawing from it gets a UsageError. Dropped
    half-way it ends as `close` ends it.

    Attributes, complete at the end: `text`, `reasoning`, `tokens` (ids), `finish` (see Stats), `stats`,
    `note` (one line when the answer was cut for repeating itself, is reasoning alone, or its JSON is not
    whole), `logprobs`.
    With a JSON schema `complete` is to be asked before `text` is read as JSON.
    """

    instead = "its text, tokens and stats are what can be kept"

    def __init__(
        self,
        run: Generation,
        tokenizer: Tokenizer,
        options: AnswerOptions,
        sampler: Sampler,
    ) -> None:
        self._answer = _Answer(run, options, sampler)
        self._stream = OneReader(self._answer.events(tokenizer.stream()))

    @classmethod
    def _over(cls, answer: _Answer) -> Reply:
        """A reply of which nothing is left to be read."""
        reply = cls.__new__(cls)
        nothing: tuple[tuple[str, str], ...] = ()
        reply._answer, reply._stream = answer, OneReader(event for event in nothing)
        return reply

    @property
    def text(self) -> str:
        """The answer's text so far."""
        return self._answer.text

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return self._answer.reasoning

    @property
    def note(self) -> str:
        """One line when the answer was cut for repeating itself, or its JSON is not whole."""
        return self._answer.note

    @property
    def tokens(self) -> list[int]:
        """Its token ids so far."""
        return self._answer.tokens

    @property
    def stats(self) -> Stats:
        """What it cost; times include the wait for answers that took their turn in between."""
        return self._answer.stats

    @property
    def finish(self) -> str:
        """Why the answer ended; empty while it runs."""
        return self._answer.stats.finish

    @property
    def complete(self) -> bool:
        """Whether the answer is a whole document of its JSON schema; without a schema always true."""
        return self._answer.complete

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """One entry a token, when the sampling asked for them."""
        return self._answer.sampler.logprobs

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Calls of declared tools: `{"type": "function", "function": {"name", "arguments"}}`.

        The text streams with the calls in it; read them at its end, when it is known what they are.
        """
        return parse_tool_calls(self.text, self._answer.tools)[1]

    def events(self) -> Iterator[tuple[str, str]]:
        """`("reasoning" | "text", piece)` pairs as they come."""
        return self._stream

    def __iter__(self) -> Iterator[str]:
        return _Texts(self._stream)

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
        """Ends the answer where it is; what came so far counts. May be called from any thread.

        While another thread is drawing a token, the answer ends, there, before the next.
        """
        self._answer.run.cancel()
        if self._stream.close() and not self.finish:
            self._answer.end("cancel")


class Answerer(Protocol):
    """What a conversation asks: :class:`qwen35.api.Qwen35`."""

    def require_open(self) -> None:
        """Raises Closed when the model is closed, or its parent process's."""

    @property
    def reply(self) -> Callable[..., Reply]:
        """Answers messages: `Qwen35.reply`."""


class _Texts:
    """The text of events. No generator: it serves any thread, and fails again where they do."""

    __slots__ = ("_events",)

    def __init__(self, events: Iterator[tuple[str, str]]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            kind, piece = next(self._events)
            if kind == "text":
                return piece


class Conversation(Uncopied):
    """Turns with one model. Made by `Qwen35.conversation`; any number of them share a model.

    A turn enters the history when its answer ends. An answer that was stopped stays as far as it came; a turn
    that failed, or was stopped before its answer began, leaves no trace. Reasoning is kept in `messages` and,
    as the model's format has it, not shown to the model again once the next question is asked.

    One answer at a time: what the next question means depends on how the last answer ends. While a reply is
    neither read to its end, closed nor dropped, whatever would change the history (`ask`, `answer_tools`,
    `undo`, `clear`, `load`, `system`) raises UsageError at once, from any thread. It does not wait: the
    reader may be the very thread that asks, and a history that depends on who was faster is worth nothing.
    Otherwise every method may be called from any thread; `messages` and `tools` are the caller's to guard.
    """

    instead = "begin another with model.conversation() and give it a copy of `messages`"

    def __init__(self, model: Answerer, system: str | None = None, *, tools: Tools = None) -> None:
        self._model = model
        self.tools = tools
        #: The turns in the Hugging Face form, the system message first if there is one.
        self.messages: list[dict[str, Any]] = []
        self._current: weakref.ref[_Answer] | None = None
        self._lock = reentrant()
        self.system = system

    @property
    def system(self) -> str | None:
        """The system message's text; setting it changes it for the turns to come, None removes it."""
        first = self.messages[:1]
        return str(first[0]["content"]) if first and first[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        is_text("system", text, none=True)
        with self._settled():
            if self.system is not None:
                del self.messages[0]
            if text is not None and text.strip():
                self.messages.insert(0, {"role": "system", "content": text})

    @property
    def turns(self) -> int:
        """Questions asked and answered."""
        return sum(message["role"] == "user" for message in self.messages)

    def ask(
        self, text: str, *, images: Any = (), options: AnswerOptions | None = None, **changes: Any
    ) -> Reply:
        """Asks the next question; read the answer from the reply. Images come before the text.

        Options are those of `Qwen35.reply`, but `tools`, which are the conversation's. Raises what
        `Qwen35.reply` raises, and UsageError while the last reply is half read; the conversation is then as
        it was.
        """
        is_text("text", text)
        return self._add([user_message(text, images)], AnswerOptions.of(options, changes))

    def answer_tools(
        self, results: Sequence[str], *, options: AnswerOptions | None = None, **changes: Any
    ) -> Reply:
        """Gives the results of the last answer's tool calls, in their order; options as `ask`'s."""
        if (
            not isinstance(results, Sequence)
            or isinstance(results, (str, bytes))
            or not all(isinstance(result, (str, list)) for result in results)
        ):
            raise wants("results", results, "give a list of strings, one a call")
        chosen = AnswerOptions.of(options, changes)
        return self._add([{"role": "tool", "content": result} for result in results], chosen)

    def _add(self, new: list[dict[str, Any]], options: AnswerOptions) -> Reply:
        if options.tools is not None:
            raise UsageError("tools are the conversation's", "tools", "set its `tools`")

        def done(reply: Reply) -> None:
            keep(reply)
            if options.done is not None:
                options.done(reply)

        def keep(reply: Reply) -> None:
            if reply.finish == "error" or (reply.finish == "cancel" and not reply.tokens):
                return
            content, calls = parse_tool_calls(reply.text, self.tools or ())
            message = {"role": "assistant", "content": content, "reasoning_content": reply.reasoning}
            self.messages += [*new, message | ({"tool_calls": calls} if calls else {})]

        self._model.require_open()  # in a forked child there may be nobody left to open the lock
        with self._settled():
            messages = [*self.messages, *new]
            reply = self._model.reply(messages, replace(options, tools=self.tools, done=done))
            self._current = weakref.ref(reply._answer)
        return reply

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """For what changes the history or goes on from it."""
        with self._lock:
            current = self._current() if self._current is not None else None
            if current is not None and not current.over:
                raise UsageError(
                    "the last answer of this conversation is not read to its end",
                    "",
                    "read its reply, or close it, first",
                )
            yield

    def undo(self) -> str | None:
        """Takes back the last question with all that followed; its text, or None when there was none."""
        with self._settled():
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
        with self._settled():
            self.messages[:] = [m for m in self.messages[:1] if m["role"] == "system"]

    def save(self, path: str | Path) -> None:
        """Writes the conversation as JSON, whole or not at all, for its user alone. Images are kept as paths.

        Raises UsageError for an image that did not come from a file, OSError when writing fails.
        """
        is_path("path", path)
        path = Path(path)
        for message in self.messages:
            for item in message["content"] if isinstance(message["content"], list) else ():
                if "image" in item and not isinstance(item["image"], (str, Path)):
                    raise UsageError("an image that came from memory cannot be saved", str(path))
        data = {"format": _FORMAT, "version": 1, "messages": self.messages, "tools": self.tools}
        write_whole(path, (_written(data, str(path)) + "\n").encode(), private=True)

    def load(self, path: str | Path) -> None:
        """Replaces the conversation by a saved one. Raises UsageError for any other file."""
        is_path("path", path)
        path = Path(path)
        try:
            text = read_regular(path, _LARGEST).decode("utf-8")
            data = json.loads(text, parse_constant=_no_number)
            _written(data, str(path))
        except OSError as error:
            raise UsageError(f"cannot read the conversation: {error.strerror}", str(path)) from None
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise UsageError("this is no saved conversation", str(path), "give a file that /save wrote")
        if data.get("version") != 1:
            version = brief(data.get("version"))
            raise UsageError(f"unknown version {version}", str(path), "use a newer program")
        messages, tools = data.get("messages"), data.get("tools")
        if not isinstance(messages, list) or not all(map(_sound, messages)):
            raise UsageError("the saved conversation is damaged", str(path))
        if tools is not None and not (isinstance(tools, list) and all(isinstance(t, dict) for t in tools)):
            raise UsageError("the saved conversation's tools are damaged", str(path))
        with self._settled():
            self.messages, self.tools = messages, tools


_FORMAT = "qwen35-conversation"
_LARGEST = 16 << 20


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _written(data: Any, where: str) -> str:
    """A conversation as JSON that `load` reads again. Raises UsageError for one that JSON cannot hold."""
    try:
        text = json.dumps(
            data, ensure_ascii=False, indent=1, allow_nan=False, default=lambda p: str(Path(p).resolve())
        )
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:  # half a character is a ValueError, too
        raise UsageError(f"the conversation is not what a file can hold: {error!s:.200}", where) from None
    if size >= _LARGEST:  # a newline comes after it
        raise UsageError(f"the conversation takes {size:,} bytes, and a file at most {_LARGEST:,}", where)
    return text


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
