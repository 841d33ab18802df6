"""Models without arithmetic, for tests of everything above one.

`HashModel` answers by a digest of all its tokens: any difference in the state shows in the logits.
`ScriptModel` says given texts. `fake` makes a whole Qwen35 of one, on the synthetic byte-level tokenizer.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from qwen35.api import Info, Qwen35
from qwen35.sampling import GREEDY
from qwen35.tokenizer import Tokenizer
from tests.support import synthetic


@dataclass(frozen=True)
class State:
    """A snapshot: the tokens and where calls were cut."""

    history: tuple[tuple[int, ...], ...]
    nbytes: int
    shared: tuple[tuple[int, int], ...] = ()

    def parts(self) -> list[tuple[int, int]]:
        return [(id(self), self.nbytes), *self.shared]


class HashModel:
    """Logits drawn from a digest of the tokens and of where calls were cut, as rounding depends on it."""

    draft_limit = 0

    def __init__(self, vocab: int = 64, max_ctx: int = 4096, nbytes: int = 1000) -> None:
        self.vocab, self.max_ctx, self.nbytes = vocab, max_ctx, nbytes
        self.history: list[tuple[int, ...]] = []
        self.at_marks: dict[int, State] = {}
        self.calls: list[tuple[str, int]] = []

    @property
    def length(self) -> int:
        return sum(map(len, self.history))

    def reset(self) -> None:
        self.history = []
        self.calls.append(("reset", 0))

    def prefill(
        self,
        ids: Sequence[int],
        *,
        positions: Any = None,
        embeddings: Any = None,
        borders: Sequence[int] = (),
        marks: Sequence[int] = (),
    ) -> np.ndarray:
        assert len(ids) and self.length + len(ids) <= self.max_ctx
        self.calls.append(("prefill", len(ids)))
        self.at_marks = {}
        assert set(marks) <= set(borders)
        for start, stop in pairwise([0, *borders, len(ids)]):
            if start:
                self.at_marks |= {start: self.snapshot()} if start in marks else {}
            self.history.append(tuple(ids[start:stop]))
        return self.logits()

    def decode(self, token: int, draft: Sequence[int] = ()) -> np.ndarray:
        assert len(draft) <= self.draft_limit and self.length + len(draft) < self.max_ctx
        self.calls.append(("decode", 1 + len(draft)))
        self.history.append((token,))
        return self.logits()

    def logits(self) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(repr(self.history).encode()).digest()[:8], "little")
        return np.random.default_rng(seed).standard_normal(self.vocab).astype(np.float32) * 3

    def snapshot(self) -> State:
        return State(tuple(self.history), self.nbytes)

    def border_snapshot(self, mark: int) -> State:
        assert mark == min(self.at_marks)
        return self.at_marks.pop(mark)

    def restore(self, snapshot: State) -> None:
        self.history = list(snapshot.history)
        self.calls.append(("restore", self.length))


@dataclass(frozen=True)
class _ScriptState(State):
    said: int = 0


class ScriptModel(HashModel):
    """Says `answer(question)`, where the question is the text of the last user message, then <|im_end|>."""

    def __init__(
        self, tokenizer: Tokenizer, answer: Callable[[str], str], delay: float = 0.0, max_ctx: int = 4096
    ) -> None:
        super().__init__(tokenizer.vocab_size, max_ctx)
        self.tokenizer, self.answer, self.delay = tokenizer, answer, delay
        self.said = 0

    def snapshot(self) -> State:
        return _ScriptState(tuple(self.history), self.nbytes, said=self.said)

    def restore(self, snapshot: State) -> None:
        super().restore(snapshot)
        self.said = snapshot.said if isinstance(snapshot, _ScriptState) else 0

    def prefill(self, ids: Sequence[int], **options: Any) -> np.ndarray:
        self.said = 0
        return super().prefill(ids, **options)

    def decode(self, token: int, draft: Sequence[int] = ()) -> np.ndarray:
        self.said += 1
        return super().decode(token, draft)

    def logits(self) -> np.ndarray:
        time.sleep(self.delay)
        text = self.tokenizer.decode([token for part in self.history for token in part], skip_special=False)
        question = text.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>\n")[0]
        script = self.tokenizer.encode(self.answer(question), allow_special=True)
        script.append(self.tokenizer.added["<|im_end|>"])
        out = np.zeros(self.vocab, np.float32)
        out[script[min(self.said, len(script) - 1)]] = 10
        return out


def tokenizer(directory: Path) -> Tokenizer:
    """The synthetic tokenizer, written to `directory`."""
    path = Path(directory) / "tokenizer.json"
    path.write_text(synthetic.tokenizer_json(), encoding="utf-8")
    return Tokenizer(path)


def fake(
    directory: Path,
    answer: Callable[[str], str] | None = None,
    *,
    delay: float = 0.0,
    max_ctx: int = 4096,
    **options: Any,
) -> Qwen35:
    """A Qwen35 that says `answer(question)`, or a HashModel's tokens without one; greedy by default."""
    words = tokenizer(directory)
    model = HashModel(words.vocab_size, max_ctx)
    if answer is not None:
        model = ScriptModel(words, answer, delay, max_ctx)
    info = Info("mock", Path(directory), device="mock", emulated=True, sampling=GREEDY)
    stop = [words.added["<|endoftext|>"], words.added["<|im_end|>"]]
    return Qwen35(model, words, stop=stop, info=info, **options)
