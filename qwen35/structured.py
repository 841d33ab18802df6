"""Answers that fit a JSON schema: tokens that would break it are masked before one is chosen.

The grammar is the work of the optional `llguidance` package (extra `json`). Its masks follow the text a token
stands for, so any tokenisation of a fitting document is allowed.

White space between the parts of a document is one space, or a newline and an indent: a model that likes
spaces could go on with them for ever. A schema's own `x-guidance` (the library's key for such options) may
say otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amdxdna.files import read_regular
from qwen35.errors import ModelError, UsageError, why_no_json
from qwen35.extras import require
from qwen35.schema import has_finite_document, size_fault
from qwen35.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["JsonConstraint", "JsonGrammars", "read_schema"]

#: The library's options (its docs/json_schema.md, "Whitespace handling"): 16 levels of an indent of two.
_SPACES: Any = {"whitespace_flexible": True, "whitespace_pattern": r"[ ]|\n([ ]{0,32}|\t{0,16})"}


_MOST_BYTES = 16 << 20


def read_schema(path: str | Path) -> Any:
    """The JSON schema in a file: an object, true or false. Raises UsageError for a file that is none."""
    try:
        schema = json.loads(read_regular(path, _MOST_BYTES).decode("utf-8-sig"), parse_constant=_no_number)
    except OSError as error:
        raise UsageError(f"cannot read the schema: {error.strerror}", str(path)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the schema is not JSON: {why_no_json(error)}", str(path)) from None
    _text(schema, str(path))
    return schema


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _text(schema: Any, where: str) -> str:
    """The schema as JSON. Raises UsageError for what is no schema at all."""
    if schema is False:
        raise UsageError("no document fits the schema false", where)
    if schema is True:
        return "{}"  # the same: every document fits
    if not isinstance(schema, dict):
        raise UsageError("a schema is a JSON object, true or false", where)
    if fault := size_fault(schema):
        raise UsageError(f"the schema {fault}", where, "use a simpler one")
    try:
        text = json.dumps(schema, allow_nan=False)
        json.dumps(schema, ensure_ascii=False).encode()
        finite = has_finite_document(schema)
    except RecursionError:
        raise UsageError("the schema is nested too deeply", where) from None
    except UnicodeEncodeError:
        raise UsageError("the schema holds half a character (a lone surrogate)", where) from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"the schema is not JSON: {why_no_json(error)}", where) from None
    if not finite:
        raise UsageError("the schema refers to itself without an end: no document fits", where)
    return text


class JsonGrammars:
    """Makes constraints for one tokenizer; the first takes about two seconds at the real vocabulary size."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, stop: Sequence[int]) -> None:
        """`vocab` is the logits' length, `stop` the tokens that end an answer.

        Raises UsageError where the llguidance package is missing or no token ends an answer.
        """
        require("json", "--json-schema")
        import llguidance

        stop = [token for token in stop if token < vocab]
        if not stop:
            raise UsageError(
                "the bundle's param stop names no token of the vocabulary",
                "--json-schema",
                "leave the schema out",
            )
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab, stop))
        self._library = llguidance
        self._tokens = llguidance.LLTokenizer(wrapper, n_vocab=vocab, eos_token=stop, slices=[])
        self._vocab = vocab
        self._stop = stop[-1]
        self._think_end = tokenizer.token_id("</think>")

    def constraint(self, schema: Any, *, thinking: bool = False) -> JsonConstraint:
        """The constraint for one answer. With `thinking` it applies from the end of the reasoning on.

        Raises UsageError for a schema that the library refuses, with its reason.
        """
        text = _text(schema, "--json-schema")
        if thinking and self._think_end is None:
            raise UsageError("the tokenizer has no </think>", "--json-schema", "leave --thinking out")
        matcher = self._library.LLMatcher  # log_level 0: what it has to say comes with its errors
        try:
            grammar = matcher.grammar_from_json_schema(text, defaults=_SPACES)
            fault = matcher.validate_grammar(grammar, self._tokens)
            if not fault:
                state = matcher(self._tokens, grammar, log_level=0)
                state.compute_bitmask()  # a schema that nothing can begin shows only here
                fault = _reason(state) if state.is_error() else ""
        except ValueError as error:
            fault = str(error)
        if fault:
            raise UsageError(f"the schema cannot be used: {fault:.300}", "--json-schema")
        after = self._think_end if thinking else None
        return JsonConstraint(matcher(self._tokens, grammar, log_level=0), self._vocab, self._stop, after)


def _reason(matcher: Any) -> str:
    """The first line of a failed matcher's own report; the rest is its state."""
    return str(matcher.get_error()).partition("\n")[0] or str(matcher.stop_reason())


class JsonConstraint:
    """The state of one constrained answer. Not thread-safe."""

    def __init__(self, matcher: Any, vocab: int, stop: int, after: int | None) -> None:
        """Applies once the token `after` was chosen, or from the start for None; `stop` ends the answer."""
        import numpy as np

        self._matcher = matcher
        self._stop = stop
        self._after = after
        self._bits = np.zeros(-(-vocab // 32), np.int32)

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole document."""
        return self._after is None and not self._matcher.is_error() and bool(self._matcher.is_accepting())

    @property
    def closed(self) -> bool:
        """Whether the text so far is a whole document that nothing could follow."""
        return self.complete and bool(self._matcher.is_stopped())

    def mask(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of `scores` in which tokens that would break the schema are -inf.

        Raises ModelError where the library gives up (its limits on a grammar's states).
        """
        import numpy as np

        if self._after is not None:
            return scores
        self._check()
        if self._matcher.is_stopped():  # the document cannot go on: only an end is left
            ended = np.full_like(scores, -np.inf)
            ended[self._stop] = 0
            return ended
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: len(scores)]
        return np.where(allowed, scores, np.float32(-np.inf))

    def _check(self) -> None:
        if self._matcher.is_error():
            fault = f"the document cannot go on: {_reason(self._matcher):.300}"
            raise ModelError(fault, "--json-schema", "use a simpler schema")

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
