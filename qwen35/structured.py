"""Answers that fit a JSON schema: tokens that would break it are masked before one is chosen.

The grammar is the work of the optional `llguidance` package (extra `json`). Its masks follow the text a token
stands for, so any tokenisation of a fitting document is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen35.errors import UsageError
from qwen35.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["JsonConstraint", "JsonGrammars", "read_schema"]


def read_schema(path: str | Path) -> Any:
    """The JSON schema in a file. Raises UsageError for a file that is none."""
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read the schema: {error.strerror}", str(path)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the schema is not JSON: {error}", str(path)) from None
    if not isinstance(schema, (dict, bool)):
        raise UsageError("a schema is a JSON object", str(path))
    return schema


class JsonGrammars:
    """Makes constraints for one tokenizer; the first takes about two seconds at the real vocabulary size."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, stop: Sequence[int]) -> None:
        """`vocab` is the logits' length, `stop` the tokens that end an answer.

        Raises UsageError where the llguidance package is missing or no token ends an answer.
        """
        try:
            import llguidance
        except ImportError:
            raise UsageError(
                "the llguidance package is missing", "--json-schema", "install this package's extra [json]"
            ) from None
        stop = [token for token in stop if token < vocab]
        if not stop:
            raise UsageError("the bundle's param stop names no token of the vocabulary", "--json-schema",
                             "leave the schema out")
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab, stop))
        self._library = llguidance
        self._tokens = llguidance.LLTokenizer(wrapper, n_vocab=vocab, eos_token=stop, slices=[])
        self._vocab = vocab
        self._stop = stop[-1]
        self._think_end = tokenizer.token_id("</think>")

    def constraint(self, schema: Any, *, thinking: bool = False) -> JsonConstraint:
        """For one answer. With `thinking` it holds from the end of the reasoning on.

        Raises UsageError for a schema that the library refuses, with its reason.
        """
        matcher = self._library.LLMatcher
        grammar = matcher.grammar_from_json_schema(json.dumps(schema), defaults={"whitespace_flexible": True})
        fault = matcher.validate_grammar(grammar, self._tokens)
        if fault:
            raise UsageError(f"the schema cannot be used: {fault}", "--json-schema")
        if thinking and self._think_end is None:
            raise UsageError("the tokenizer has no </think>", "--json-schema", "leave --thinking out")
        after = self._think_end if thinking else None
        return JsonConstraint(matcher(self._tokens, grammar), self._vocab, self._stop, after)


class JsonConstraint:
    """The state of one constrained answer. Not thread-safe."""

    def __init__(self, matcher: Any, vocab: int, stop: int, after: int | None) -> None:
        """Holds once the token `after` was chosen, or from the start for None; `stop` ends the answer."""
        import numpy as np

        self._matcher = matcher
        self._stop = stop
        self._after = after
        self._bits = np.zeros(-(-vocab // 32), np.int32)

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole document."""
        return self._after is None and bool(self._matcher.is_accepting())

    def mask(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of `scores` in which tokens that would break the schema are -inf."""
        import numpy as np

        if self._after is not None:
            return scores
        if self._matcher.is_stopped():  # the document cannot go on: only an end is left
            ended = np.full_like(scores, -np.inf)
            ended[self._stop] = 0
            return ended
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: len(scores)]
        return np.where(allowed, scores, np.float32(-np.inf))

    def accept(self, token: int) -> None:
        """Notes the chosen token."""
        if self._after is not None:
            if token == self._after:
                self._after = None
        elif not self._matcher.is_stopped():
            self._matcher.consume_token(token)


class _Vocabulary:
    """The view of a tokenizer that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab: int, stop: Sequence[int]) -> None:
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocab)]
        self.special_token_ids = sorted(token for token in tokenizer.added.values() if token < vocab)
        self.eos_token_id = stop[-1]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))
