"""Drafts of an answer: what followed the last tokens where they stood earlier in the context.

"Prompt lookup decoding" (Saxena 2023), with numbers for a model whose pass over many tokens costs several
times what a token costs: only a long match is worth one. Whether there is a draft depends on tokens alone,
never on a clock, so an answer is the same each time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["LONGEST", "MATCH", "Drafts"]

MATCH = 8
"""Tokens that must be equal before a draft is made."""
LONGEST = 64
"""Most tokens of a draft: over so many the cost of a pass is small."""
LEAST = 8
"""Fewer are not worth a pass."""
PASS, ROW = 6.0, 0.25
"""What a pass and each of its tokens cost, in tokens: on a Ryzen AI 9 HX 370 at 2B, by the model of
amdxdna.emu.timing, a pass of one chunk takes 210 ms, a row's last projection and head 12 and a token 48; the
host's part of 64 rows, and of the state at the last that counts, is at most 80 ms on two cores."""
ALLOWED = 0.05
"""Of an answer's time, what drafts that fail may cost beside the first."""


class Drafts:
    """The drafts of one answer. Not thread-safe.

    A pass is paid for with what earlier drafts have saved and with `ALLOWED` of the tokens so far; the first
    needs neither. A scan a token: some microseconds for every thousand tokens of context.
    """

    def __init__(self, ids: Sequence[int], limit: int, stop: Collection[int] = ()) -> None:
        """`ids` the prompt, `limit` the most tokens of a draft that the model takes, `stop` what ends one."""
        import numpy as np

        self._tokens = np.zeros(len(ids) + 256, np.int32)
        self._tokens[: len(ids)] = ids
        self._count = len(ids)
        self._limit, self._stop = min(limit, LONGEST), frozenset(stop)
        self._open: list[int] = []
        self._credit = PASS
        self.passes = self.drafted = self.accepted = 0
        """Passes that were run, tokens that ran ahead in them, and those of them that came true."""

    def next(self, token: int, room: int) -> list[int]:
        """What to give the model with the answer's next token: the tokens that probably follow, or none.

        At most `room` of them. While the answer goes as the last draft has it, there is no other.
        """
        self._append(token)
        if self._open and self._open[0] == token:
            del self._open[0]
            self.accepted += 1
            self._credit = min(self._credit + 1 - ROW, 4 * PASS)
            return []
        self._open = []
        self._credit = min(self._credit + ALLOWED, 4 * PASS)
        most = min(room, self._limit)
        if most < LEAST or self._credit < PASS:
            return []
        draft = self._found(most)
        if len(draft) < LEAST:
            return []
        self._open = list(draft)
        self.passes += 1
        self.drafted += len(draft)
        self._credit += 1 - ROW - PASS
        return draft

    def _append(self, token: int) -> None:
        import numpy as np

        if self._count == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tokens[self._count] = token
        self._count += 1

    def _found(self, most: int) -> list[int]:
        """What follows the latest of the longest matches of the last tokens; one that reaches the end of the
        context goes on in what it gives, as a pattern does that repeats."""
        import numpy as np

        count = self._count
        tokens = self._tokens[:count]
        ends = np.flatnonzero(tokens[: count - 1] == tokens[-1])
        length = 1
        while length < LONGEST and len(ends):
            longer = ends[ends >= length]
            longer = longer[tokens[longer - length] == tokens[count - 1 - length]]
            if not len(longer):
                break
            ends, length = longer, length + 1
        if length < MATCH:
            return []
        at = int(ends[-1]) + 1
        draft: list[int] = []
        for index in range(at, at + most):
            token = int(tokens[index]) if index < count else draft[index - count]
            if token in self._stop:
                break
            draft.append(token)
        return draft
