"""A few new tokens of a prompt by steps of decode: the same state and answer, up to rounding. The choice."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from amdxdna.device import Device
from qwen35.bundle import Bundle
from qwen35.engine import Input, PrefixCache, Session
from qwen35.errors import UsageError
from qwen35.model.options import Options
from qwen35.model.steps import MOST, measured
from qwen35.model.text import TextModel
from qwen35.stats import Stats
from tests.support.model_bundle import bundle_path, forward, tokens

PAST = 40


@contextmanager
def stepping(steps, name="tied", device="threads=1,quiet", max_ctx=256):
    with (
        Device.open(f"emu:{device}") as opened,
        TextModel(Bundle.open(bundle_path(name)), opened, max_ctx, options=Options(steps=steps)) as text,
    ):
        yield text


def passes(text):
    """Calls of GEMM kernels so far: only passes have them."""
    return sum(calls for stage, calls, _ in text.timing.items() if stage.startswith("gemm"))


@pytest.mark.parametrize("name", ["tied", "grouped", "untied"])
@pytest.mark.parametrize("new", [1, 2, 3, 4])
def test_few_new_tokens_go_as_decode_runs_them(name, new):
    ids = tokens(name, PAST + new, seed=new)
    with stepping(4, name) as text:
        text.prefill(ids[:PAST])
        before = text.snapshot()
        *_, want = [text.decode(token) for token in ids[PAST:]]
        state = text.snapshot()
        text.restore(before)
        text.timing.reset()
        assert np.array_equal(text.prefill(ids[PAST:]), want) and not passes(text)
        assert text.timing.items() and sum(n for s, n, _ in text.timing.items() if s == "gemv.head") == 1
        found = text.snapshot()
        assert (found.length, found.position) == (PAST + new, PAST + new)
        assert np.array_equal(found.matrices, state.matrices) and np.array_equal(found.conv, state.conv)
        assert np.array_equal(text.decode(7), (text.restore(state), text.decode(7))[1])
    exact = forward(name, False)(ids)[-1]
    assert np.abs(want - exact).max() < 0.3


def test_one_more_goes_as_a_pass():
    ids = tokens("tied", PAST + 5)
    with stepping(0) as text:
        text.prefill(ids[:PAST])
        want = text.prefill(ids[PAST:])
    with stepping(4) as text:
        text.prefill(ids[:PAST])
        text.timing.reset()
        assert np.array_equal(text.prefill(ids[PAST:]), want) and passes(text)


def test_a_short_prompt_has_an_empty_state_before_it():
    ids = tokens("tied", 3)
    with stepping(3) as text:
        text.prefill(tokens("tied", 30, seed=3))
        text.reset()
        *_, want = [text.decode(token) for token in ids]
        text.reset()
        assert np.array_equal(text.prefill(ids), want)


def test_marks_among_the_new_tokens():
    ids = tokens("grouped", PAST + 4)
    with stepping(4, "grouped") as text:
        text.prefill(ids[:PAST])
        before = text.snapshot()
        text.prefill(ids[PAST : PAST + 1])
        one = text.snapshot()
        text.prefill(ids[PAST + 1 : PAST + 3])
        three, want = text.snapshot(), text.prefill(ids[PAST + 3 :])
        text.restore(before)
        assert np.array_equal(text.prefill(ids[PAST:], borders=[1, 2, 3], marks=[1, 3]), want)
        for mark, state in ((1, one), (3, three)):
            found = text.border_snapshot(mark)
            assert (found.length, found.position) == (PAST + mark, PAST + mark)
            assert np.array_equal(found.matrices, state.matrices) and np.array_equal(found.conv, state.conv)
            kept = found
        text.restore(kept)
        assert np.array_equal(text.prefill(ids[PAST + 3 :]), want)


def test_other_positions_than_texts_go_as_a_pass():
    ids = tokens("tied", PAST + 2)
    where = np.full((3, 2), PAST)
    with stepping(4) as text:
        for positions, by_pass in (
            (np.arange(PAST, PAST + 2), False),
            (np.tile(np.arange(PAST, PAST + 2), (3, 1)), False),
            (where, True),
        ):
            text.reset()
            text.prefill(ids[:PAST])
            text.timing.reset()
            text.prefill(ids[PAST:], positions=positions)
            assert bool(passes(text)) == by_pass


@pytest.mark.parametrize("which", range(3))
def test_what_fails_half_way_leaves_the_state(which, monkeypatch):
    """The state's own side is written by none of the steps."""
    ids = tokens("tied", PAST + 3)
    with stepping(3) as text:
        text.prefill(ids[:PAST])
        before = text.snapshot()
        want = text.prefill(ids[PAST:])
        text.restore(before)
        rows, taken = text.embedding.row, []

        def row(token, out):
            taken.append(token)
            if len(taken) > which:
                raise KeyboardInterrupt
            rows(token, out)

        with monkeypatch.context() as patch:
            patch.setattr(text.embedding, "row", row)
            with pytest.raises(KeyboardInterrupt):
                text.prefill(ids[PAST:])
        assert (text.length, text.position) == (PAST, PAST)
        assert np.array_equal(text.prefill(ids[PAST:]), want)


def test_the_memory_of_the_side_between_is_counted_while_it_is_there():
    ids = tokens("tied", PAST)
    with stepping(3) as text:
        text.prefill(ids)
        before = text.state_bytes
        text.prefill(ids[:1])
        assert text.state_bytes == before
        text.prefill(ids[:2])
        assert text.state_bytes > before
        text.reset()
        text.prefill(ids)
        assert text.state_bytes == before


def test_a_session_steps_behind_what_it_kept():
    ids = tokens("tied", PAST + 2)
    prompt, stats = Input(ids, [PAST]), Stats()
    with stepping(2) as text:
        session = Session(text, PrefixCache(1 << 28))
        first = session.prime(prompt)
        text.timing.reset()
        again = session.prime(prompt, stats)
        assert stats.cached_tokens == PAST and not passes(text)
        exact = forward("tied", False)(ids)[-1]
        assert max(np.abs(logits - exact).max() for logits in (first, again)) < 0.3


@pytest.mark.parametrize(
    ("whole", "step", "last", "count"),
    [
        (0.210, 0.048, 0.0587, 3),  # a Ryzen AI 9 HX 370 by amdxdna.emu.timing
        (0.210, 0.048, 0.0001, 4),
        (0.210, 0.0001, 0.0002, 16),
        (0.050, 0.048, 0.0587, 0),
        (0.060, 0.048, 0.0587, 0),  # less, but by no tenth
        (0.066, 0.048, 0.0587, 1),
    ],
)
def test_the_choice_by_costs(whole, step, last, count):
    steps = measured(lambda n: whole, lambda n: last + (n - 1) * step)
    assert steps.count == count and "measured" in steps.why
    noise = iter([1.0, 1.5])  # one of two trials was disturbed
    slow = measured(lambda n: whole * next(noise), lambda n: last + (n - 1) * step)
    assert slow.count == count


def test_auto_leaves_no_trace_but_the_choice():
    ids = tokens("tied", PAST)
    with stepping("auto") as text, stepping(0) as plain:
        assert 0 <= text.steps.count <= 16 and (text.length, text.state_bytes) == (0, plain.state_bytes)
        assert any("measured at load" in line for line in text.ways)
        assert not text.timing.items()
        assert np.array_equal(text.prefill(ids), plain.prefill(ids))


@pytest.mark.parametrize("max_ctx", [1, 2])
def test_auto_where_the_context_is_too_short_to_measure(max_ctx):
    with stepping("auto", max_ctx=max_ctx) as text:
        assert any("too few to measure" in line for line in text.ways)
        assert np.isfinite(text.prefill([1] * max_ctx)).all()


def test_the_default_is_passes_alone():
    with stepping(Options().steps) as text:
        assert text.steps.count == 0 and any("by passes alone" in line for line in text.ways)


@pytest.mark.parametrize(
    "wrong", ["", "fast", "-1", "4.5", "1e3", str(MOST + 1), "9" * 5000, True, 2.5, None]
)
def test_steps_that_are_none(wrong):
    with pytest.raises(UsageError, match=r"steps.*auto, or a whole number from 0 to 64"):
        Options(steps=wrong) if not isinstance(wrong, str) else Options.of(steps=wrong or "x")


def test_steps_by_argument_and_environment():
    assert Options.of(environ={}).steps == 0
    assert Options.of(environ={"QWEN35_STEPS": "3"}).steps == 3
    assert Options.of(steps="2", environ={"QWEN35_STEPS": "3"}).steps == 2
    assert Options.of(steps=0, environ={"QWEN35_STEPS": "auto"}).steps == 0
    assert Options.of(environ={"QWEN35_STEPS": "auto"}).steps == "auto"
