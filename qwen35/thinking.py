"""Parts an answer's text, as it streams, into reasoning and what is said."""

from __future__ import annotations

import re

__all__ = ["ThinkSplitter"]

_OPEN, _CLOSE, _CALL, _CALL_END, _FENCE = _MARKS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "```",
)  # fmt: skip
_FUNCTION, _FUNCTION_END = "<function=", "</function>"  # of a call
_MARK = re.compile("|".join(_MARKS))
_LONGEST = max(map(len, _MARKS)) - 1
_QUOTES = {"`": "`", '"': '"', "'": "'", "“": "”", "‘": "’", "«": "»"}
_QUOTE = re.compile("[`\"'“”‘’«»\n]")
_STRAIGHT = "\"'"  # open behind nothing, space or a bracket; else they close, or are inches and apostrophes
_Pairs = list[tuple[str, str]]


class ThinkSplitter:
    """Parts an answer's text into reasoning and answer, however the pieces are cut.

    Reasoning is what stands between `<think>` and `</think>`, as often as it comes; it is open from the start
    when `thinking`. What is not closed runs to the end. The newlines behind a block belong to neither side.

    So it is without `thinking`, too: a model that reasons unasked is common, a bare marker in what it says is
    rare. An answer of nothing but reasoning is told by `Reply.note`.

    A block inside a block belongs to it. But a model may name the marker in its reasoning and close once, so
    text behind a `</think>` that leaves another block open waits: for the next `</think>`, which makes it
    reasoning, or for the end of the answer, which makes it text.

    A `<think>` that is quoted is text (between backticks or quotation marks of one line, in a code fence or a
    tool call, from its `<function=` or `{` to its end), and so is a `</think>` that closes nothing. With
    `again` False only a block that begins the answer counts: JSON may hold the markers anywhere.
    """

    def __init__(self, thinking: bool, again: bool = True) -> None:
        self._again = again
        self._nested = True
        self._state = "reasoning" if thinking else "start"
        self._depth = 1 if thinking else 0
        self._behind = 0  # blocks opened and not closed in the text that waits
        self._waiting: list[str] = []
        self._held = ""  # may be the start of a marker
        self._before = ""  # the character before what comes
        self._span = ""  # what closes the code span or quotation
        self._quoting = {_FENCE: False, _CALL: False}
        self._call = ""  # the call's text so far: how it begins
        self._call_end = ""  # how it ends so far
        self._last = "\n"  # of the reasoning

    @property
    def reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._state == "reasoning"

    def feed(self, piece: str) -> list[tuple[str, str]]:
        """`("reasoning" | "text", text)` pairs that `piece` makes certain."""
        out: _Pairs = []
        text = self._held + piece
        at = 0
        for match in _MARK.finditer(text):
            self._plain(text[at : match.start()], out)
            self._mark(match.group(), out)
            at = match.end()
        rest = text[at:]
        keep = 0
        if "<" in rest[-_LONGEST:] or rest.endswith("`"):
            keep = max((n for mark in _MARKS for n in range(len(mark)) if rest.endswith(mark[:n])), default=0)
        self._held = rest[len(rest) - keep :]
        self._plain(rest[: len(rest) - keep], out)
        return out

    def flush(self) -> list[tuple[str, str]]:
        """What was held back, at the end of the answer."""
        out: _Pairs = []
        held, self._held = self._held, ""
        self._plain(held, out)
        if self._state == "waiting":
            behind = "".join(self._waiting[1:])
            self._waiting, self._state, self._nested = [], "gap", False
            self._begin_part()
            out += self.feed(behind)
            self._plain(self._held, out)
            self._held = ""
        elif self._state == "start" and self._waiting:
            self._say("text", "".join(self._waiting), out)
            self._waiting = []
        return out

    def _say(self, kind: str, text: str, out: _Pairs) -> None:
        if not text:
            return
        if kind == "reasoning":
            self._last = text[-1]
        if out and out[-1][0] == kind:
            out[-1] = kind, out[-1][1] + text
        else:
            out.append((kind, text))

    def _plain(self, text: str, out: _Pairs) -> None:
        """Text without a marker."""
        self._track(text)
        if self._state == "start":
            self._waiting.append(text)
            if not text.strip():
                return
            text = self._begin()
        elif self._state == "gap":
            text = text.lstrip("\n")
            if text:
                self._state = "text"
        if self._state == "waiting":
            self._waiting.append(text)
        else:
            self._say("reasoning" if self._state == "reasoning" else "text", text, out)

    def _track(self, text: str) -> None:
        """Learns which quotations `text` opens and closes."""
        if not text:
            return
        if self._quoting[_CALL]:
            begun = (self._call + text).lstrip()
            self._call = begun[: len(_FUNCTION)]
            self._call_end = (self._call_end + text).rstrip()[-len(_FUNCTION_END) :]
            named = self._before == _CALL and text[0] not in "\n<{"
            if named or not (_FUNCTION.startswith(self._call) or begun.startswith("{")):
                self._quoting[_CALL] = False
        if not self._quoting[_FENCE]:
            for match in _QUOTE.finditer(text):
                found, at = match.group(), match.start()
                before = text[at - 1] if at else self._before[-1:]
                if found == "\n" or found == self._span:
                    self._span = ""
                elif not self._span and (
                    found not in _STRAIGHT or not before or before.isspace() or before in "([{>"
                ):
                    self._span = _QUOTES.get(found, "")
        self._before = text[-1]

    def _begin(self) -> str:
        """The white space before the answer, which is not reasoning."""
        self._state = "text"
        text = "".join(self._waiting)
        self._waiting = []
        return text

    def _mark(self, mark: str, out: _Pairs) -> None:
        state = self._state
        if mark == _OPEN and (not self._call or self._call_end.endswith(_FUNCTION_END)):
            self._quoting[_CALL] = False  # only named, or its end is missing
        quoted = bool(self._span) or any(self._quoting.values())
        self._before = mark
        if mark in self._quoting:
            self._quoting[mark] = mark == _CALL or not self._quoting[mark]
            self._span = ""
            if mark == _CALL:
                self._call = self._call_end = ""
        elif mark == _CALL_END:
            self._quoting[_CALL] = False
        opens = mark == _OPEN and not quoted
        if opens and (state == "start" or (self._again and state in ("gap", "text"))):
            self._open(out)
        elif state == "reasoning":
            if mark == _CLOSE:
                self._close()
            else:
                self._depth += opens and self._nested
                self._say("reasoning", mark, out)
        elif state == "waiting":
            self._waiting.append(mark)
            if opens:
                self._behind += 1
            elif mark == _CLOSE and self._behind:
                self._behind -= 1
            elif mark == _CLOSE:
                inner, self._waiting = "".join(self._waiting[:-1]), []
                self._say("reasoning", inner, out)
                self._close()
        else:
            if state == "start":
                mark = self._begin() + mark
            self._state = "text"
            self._say("text", mark, out)

    def _open(self, out: _Pairs) -> None:
        self._waiting = []
        if self._last != "\n":
            self._say("reasoning", "\n", out)
        self._state, self._depth = "reasoning", 1
        self._begin_part()

    def _close(self) -> None:
        self._depth -= 1
        self._state = "waiting" if self._depth else "gap"
        self._waiting, self._behind = [_CLOSE] if self._depth else [], 0
        self._begin_part()

    def _begin_part(self) -> None:
        self._before = self._span = ""
        self._quoting = dict.fromkeys(self._quoting, False)
