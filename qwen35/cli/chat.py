"""`--chat`: a conversation in the terminal, or over a pipe."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from amdxdna.streams import StdoutError
from qwen35.cli.answers import answer_options, sampling_of, show
from qwen35.cli.entries import Endless
from qwen35.cli.output import Progress, notice, report
from qwen35.cli.paths import one_path, paths
from qwen35.cli.readline import LineReader
from qwen35.cli.signals import Interrupt
from qwen35.errors import PromptTooLong, UsageError

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.sampling import Sampling
    from qwen35.stats import Stats

__all__ = ["Chat"]

_ENOUGH = 16
"""Questions in a row without room, after which a pipe is not read on: none that follows will have any."""
_FULL = "make room with /undo or /clear, or start again with a larger --max-ctx"


class Chat:
    """The loop: an entry is a question, or a command when it begins with a slash (two for a literal one)."""

    def __init__(self, model: Qwen35, options: argparse.Namespace) -> None:
        self.model = model
        self.options = options
        self.conversation = model.conversation(options.system)
        self.thinking: bool = options.thinking
        self.images: list[str] = list(options.image)
        self.last: Stats | None = None
        self.failed = False
        self.commands: dict[str, tuple[Callable[[str], None], str, str]] = {
            "/help": (self._help, "", "this list"),
            "/clear": (self._clear, "", "forget every turn; the system message stays"),
            "/undo": (self._undo, "", "take the last question and its answer back"),
            "/retry": (self._retry, "", "ask the last question again"),
            "/system": (self._system, "[TEXT]", "show or set the system message; - removes it"),
            "/think": (self._think, "[on|off]", "reason before answering"),
            "/image": (self._image, "FILE...", "put pictures before the next question; none forgets them"),
            "/save": (self._save, "FILE", "write the conversation to a file"),
            "/load": (self._load, "FILE", "go on with a saved conversation"),
            "/stats": (self._stats, "", "what the last answer and the session cost"),
            "/exit": (self._exit, "", "end (Ctrl-D does too)"),
        }
        self._leaving = False
        self._refused = 0
        """Questions in a row that had no room."""
        self._questions = 0
        self._answer_tokens = 0

    def loop(self) -> int:
        """Reads until the end of the input; the exit status."""
        for image in self.images:
            self._check_image(image)
        with LineReader(self.commands, self.options.max_ctx, ("/image", "/save", "/load")) as reader:
            if reader.terminal and not self.options.quiet:
                thinking = "on" if self.thinking else "off"
                how = self._sampling(bool(self.images)).describe()
                notice(f"chat, thinking {thinking}, {how}; /help lists commands, Ctrl-D ends")
            while not self._leaving:
                try:
                    entry = reader.read()
                except KeyboardInterrupt:
                    if not reader.terminal:
                        return 130
                    notice("Ctrl-D or /exit ends the conversation")
                    continue
                except UsageError as error:
                    self.failed = True
                    report(error)
                    if isinstance(error, Endless):
                        break
                    continue
                if entry is None:
                    break
                if self._guarded(entry) == "cancel" and not reader.terminal:
                    return 130
                if self._refused == _ENOUGH and not reader.terminal:
                    notice(f"error: {_ENOUGH} questions in a row had no room: stdin is not read on")
                    break
        return 1 if self.failed and not sys.stdin.isatty() else 0

    def _guarded(self, entry: str) -> str:
        """Runs one entry; an error ends it with one message and leaves the conversation as it was."""
        try:
            if not entry.strip():
                return ""
            if entry.startswith("/") and not entry.startswith("//"):
                self._refused = 0
                self._command(entry)
                return ""
            finish = self._ask(entry[1:] if entry.startswith("//") else entry)
            self._refused = 0
            return finish
        except (BrokenPipeError, StdoutError, KeyboardInterrupt):
            raise
        except Exception as error:
            self.failed = True
            report(error)
            self._refused = self._refused + 1 if isinstance(error, PromptTooLong) else 0
            return ""

    def _sampling(self, images: bool) -> Sampling:
        return sampling_of(self.options, self.model, thinking=self.thinking, images=images)

    def _ask(self, text: str) -> str:
        images, self.images = self.images, []
        progress = Progress(enabled=not self.options.quiet)
        with Interrupt() as interrupt, contextlib.closing(progress):
            try:
                reply = self.conversation.ask(
                    text,
                    images=images,
                    options=answer_options(
                        self.options,
                        self.model,
                        thinking=self.thinking,
                        images=bool(images),
                        cancel=interrupt.pressed,
                        progress=progress,
                    ),
                )
                show(reply, self.options, self.model.info, progress.close)
            except PromptTooLong as error:
                self.images = images
                raise PromptTooLong(error.tokens, error.limit, _FULL, error.least) from None
            except BaseException:
                self.images = images  # the question left no trace: its pictures are still to be asked about
                raise
        self.failed |= not reply.complete
        self.last = reply.stats
        self._questions += 1
        self._answer_tokens += reply.stats.new_tokens
        if reply.finish == "cancel" and not reply.tokens:
            self.images = images
            notice("the question was taken back")
        return "cancel" if interrupt.pressed() else reply.finish

    def _command(self, entry: str) -> None:
        name, _, rest = entry.strip().partition(" ")
        known = {"/quit": "/exit", "/?": "/help"}.get(name, name)
        if known not in self.commands:
            raise UsageError(f"no command {name}", "", "/help lists them; // sends a line that begins with /")
        self.commands[known][0](rest.strip())

    def _help(self, rest: str) -> None:
        for name, (_, arguments, purpose) in self.commands.items():
            sys.stderr.write(f"  {f'{name} {arguments}':<18} {purpose}\n")
        sys.stderr.write(
            "  Pasted lines are one entry; a line that ends in \\ goes on in the next. TAB\n"
            "  completes commands and file names. Ctrl-C stops an answer.\n"
        )
        sys.stderr.flush()

    def _clear(self, rest: str) -> None:
        self.conversation.clear()
        self.images.clear()
        notice("forgotten; the system message stays" if self.conversation.system else "forgotten")

    def _undo(self, rest: str) -> None:
        question = self.conversation.undo()
        if question is None:
            raise UsageError("there is nothing to take back")
        notice(f"took back: {question[:60]}{'...' * (len(question) > 60)}")

    def _retry(self, rest: str) -> None:
        before, pending = list(self.conversation.messages), self.images
        last = next((m for m in reversed(before) if m["role"] == "user"), None)
        question = self.conversation.undo()
        if last is None or question is None:
            raise UsageError("there is no question to ask again")
        content, undone = last["content"], len(self.conversation.messages)
        self.images = [i["image"] for i in content if "image" in i] if isinstance(content, list) else []
        try:
            self._ask(question)
        finally:
            self.images = pending
            if len(self.conversation.messages) == undone:  # failed, or stopped before the answer began
                self.conversation.messages[:] = before

    def _system(self, rest: str) -> None:
        if rest:
            self.conversation.system = None if rest == "-" else rest
        notice(f"system message: {self.conversation.system or 'none'}")

    def _think(self, rest: str) -> None:
        if rest not in ("", "on", "off"):
            raise UsageError(f"/think {rest}", "", "use /think on or /think off")
        self.thinking = not self.thinking if not rest else rest == "on"
        how = self._sampling(bool(self.images)).describe()
        notice(f"thinking is {'on' if self.thinking else 'off'}, {how}")

    def _image(self, rest: str) -> None:
        files = paths(rest)
        for file in files:
            self._check_image(file)
        self.images = [*self.images, *files] if files else []
        count = len(self.images)
        notice(f"{count} picture{'s' * (count != 1)} before the next question")

    def _check_image(self, file: str) -> None:
        self.model.check_image(file)

    def _save(self, rest: str) -> None:
        if not rest:
            raise UsageError("/save needs a file name")
        path = one_path(rest)
        self.conversation.save(path)
        notice(f"saved {self.conversation.turns} turn{'s' * (self.conversation.turns != 1)} to {path}")

    def _load(self, rest: str) -> None:
        if not rest:
            raise UsageError("/load needs a file name")
        path = one_path(rest)
        self.conversation.load(path)
        notice(f"loaded {self.conversation.turns} turn{'s' * (self.conversation.turns != 1)} from {path}")

    def _stats(self, rest: str) -> None:
        if self.last is not None:
            notice(f"last answer: {self.last.line()}")
        cache, kept = self.model.session.cache, "no cache"
        if cache is not None:
            kept = f"{len(cache)} states kept ({cache.nbytes / 2**20:.0f} of {cache.budget >> 20} MB)"
        notice(
            f"session: {self._questions} questions, {self._answer_tokens:,} answer tokens, context "
            f"{self.model.model.length:,} of {self.model.model.max_ctx:,} tokens, {kept}"
        )

    def _exit(self, rest: str) -> None:
        self._leaving = True
