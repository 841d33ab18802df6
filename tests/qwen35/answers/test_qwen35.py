"""qwen35.api over doubles: what is closed and when, defaults, what an answer is given and counts."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwen35 import GREEDY, AnswerOptions, Info, Qwen35, Sampling
from qwen35.errors import Closed, UsageError
from qwen35.prompt import assemble
from qwen35.sampling import card_sampling
from qwen35.template import Data
from tests.support.mock_model import HashModel, fake, tokenizer


class Part:
    """Something that is closed, or fails at it."""

    def __init__(self, name: str, closed: list[str], fails: bool = False) -> None:
        self.name, self.closed, self.fails = name, closed, fails
        self.pool = SimpleNamespace(swaps=3, loads=5, resident=1)

    def close(self) -> None:
        self.closed.append(self.name)
        if self.fails:
            raise OSError(self.name)


def made(tmp_path: Path, closed: list[str], **options: Any) -> Qwen35:
    words = tokenizer(tmp_path)
    parts = {name: Part(name, closed) for name in ("vision", "device")}
    return Qwen35(HashModel(words.vocab_size), words, **{**parts, **options})


def test_closing_frees_everything_once(tmp_path: Path) -> None:
    closed: list[str] = []
    model = made(tmp_path, closed)
    model.model.close = lambda: closed.append("model")  # type: ignore[attr-defined]
    model.prefill([1, 2, 3])
    model.chat("x", max_new=2).result()
    cache = model.session.cache
    assert cache is not None and len(cache) == 1
    with model as same:
        assert same is model
    model.close()
    assert closed == ["vision", "model", "device"] and len(cache) == 0
    for use in (model.require_open, model.check_image, lambda: model.decode(1), lambda: model.complete("x")):
        with pytest.raises(Closed):
            use(*([None] if use == model.check_image else []))


def test_a_part_that_cannot_be_closed_keeps_no_other_open(tmp_path: Path) -> None:
    closed: list[str] = []
    model = made(tmp_path, closed, vision=Part("vision", closed, fails=True))
    with pytest.raises(OSError, match="vision"):
        model.close()
    assert closed == ["vision", "device"]


def test_defaults(tmp_path: Path) -> None:
    """As they are written: of a model made of parts, of `load`, of an answer."""
    bare = made(tmp_path, [])
    assert bare.info == Info("a model") and bare.stop == () and bare.session.pass_tokens == 0
    assert bare.session.cache is not None and bare.session.cache.budget == 512 << 20
    assert made(tmp_path, [], cache_bytes=0).session.cache is None
    assert bare.info.line() == "a model, bundle None, on the NPU "
    assert replace(bare.info, vocab=7).vision is bare.info.emulated is bare.info.builtin is False
    load = inspect.signature(Qwen35.load).parameters
    assert (load["max_ctx"].default, load["device"].default, load["cache_bytes"].default) == (
        8192,
        "auto",
        512 << 20,
    )
    options = AnswerOptions()
    assert (options.max_new, options.loops, options.keep) == (512, True, True)
    assert not (options.thinking or options.draft or options.allow_special or options.begin)
    for hidden in (1024, 4096):
        bare.info = replace(bare.info, hidden=hidden)
        assert bare.default_sampling() == card_sampling(hidden, thinking=False, images=False)
    assert bare.default_sampling(thinking=True) == card_sampling(4096, thinking=True)
    assert len(list(bare.generate([1]))) == 512


@pytest.mark.parametrize("loops", [0, -1, 1 << 31, 1.5, "x", None])
def test_numbers_of_tokens_that_are_no_loop(loops: Any) -> None:
    with pytest.raises(UsageError, match="loops"):
        AnswerOptions(loops=loops)
    assert AnswerOptions(loops=1).loops == 1 and AnswerOptions(loops=(1 << 31) - 1).loop_detector
    assert AnswerOptions(loops=False).loop_detector() is None


def test_options_and_what_changes_them() -> None:
    base = AnswerOptions(max_new=5)
    assert AnswerOptions.of(base, {}) is base and AnswerOptions.of(base, {"draft": True}).max_new == 5
    assert AnswerOptions.of(None, {"max_new": 3}).max_new == 3
    with pytest.raises(TypeError):
        AnswerOptions.of(base, {"colour": 1})


def test_swaps_and_loads_are_those_of_the_answer(tmp_path: Path) -> None:
    model = made(tmp_path, [])
    reply = model.chat("x", max_new=2, sampling=Sampling(seed=5))
    model.device.pool.swaps, model.device.pool.loads = 10, 7
    stats = reply.result().stats
    assert (stats.swaps, stats.loads, stats.seed) == (7, 2, 5)


def test_a_text_is_gone_on_with_and_its_prompt_kept(tmp_path: Path) -> None:
    """All but its last token; markers in it are text, and what a chat takes besides means nothing."""
    model = fake(tmp_path)
    text = "Once <|im_end|> upon"
    ids = model.tokenizer.encode(text)
    for given in (text, ids, np.array(ids)):
        plain = model.complete(given, max_new=4).result()
        more = model.complete(given, max_new=4, begin="x", thinking=True, tools=[{"name": "f"}]).result()
        assert more.tokens == plain.tokens and plain.stats.prompt_tokens == len(ids)
        assert more.stats.cached_tokens == len(ids) - 1
    assert model.complete(text, max_new=4, keep=False).result().stats.cached_tokens == 0
    special = model.complete(text, max_new=1, allow_special=True).result()
    assert special.stats.prompt_tokens < len(ids)
    assert list(assemble([Data(text)], model.tokenizer).ids) == ids


def test_what_is_not_kept_is_computed_again(tmp_path: Path) -> None:
    model = fake(tmp_path)
    cached = [
        model.chat("x", "sys", keep=keep, max_new=1).result().stats.cached_tokens for keep in (False, True)
    ]
    assert cached == [0, 0] and len(model.session.cache or ()) == 2
    assert model.chat("x", "sys", max_new=1, keep=False).result().stats.cached_tokens == 0
    assert model.chat("x", "sys", max_new=1).result().stats.cached_tokens > 0


def test_progress_tells_of_what(tmp_path: Path) -> None:
    model, told = fake(tmp_path, lambda q: "ok"), []
    reply = model.chat("x", progress=lambda *step: told.append(step)).result()
    total = reply.stats.prompt_tokens
    assert told == [("prompt", 0, total), ("prompt", total, total)]


def test_an_answer_begins_with_what_it_is_given(tmp_path: Path) -> None:
    """Markers in it are tokens."""
    model = fake(tmp_path)
    model.chat("x", begin="<tool_call>\n", max_new=1, sampling=GREEDY).result()
    history = [token for part in model.model.history for token in part]  # type: ignore[attr-defined]
    assert model.tokenizer.decode(history).endswith("</think>\n\n<tool_call>\n")
    assert history.count(model.tokenizer.added["<tool_call>"]) == 1
