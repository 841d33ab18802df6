"""Tokens that run ahead in one pass: their logits, the state at any of them, and what ends them."""

from __future__ import annotations

import numpy as np
import pytest

from qwen35.errors import ModelError, PromptTooLong
from tests.support.model_bundle import model, tokens

SHAPES = ("tied", "grouped", "untied")


def parts(text):
    """The state's arrays."""
    state = text.snapshot()
    assert state.draft is None
    rows = [array for block in state.blocks for pair in block.rows for array in pair]
    return state.conv, state.matrices, *rows


def prompts(text, ids, first, count):
    """Logits and state after a prompt of `first` ids and another of `count`."""
    text.reset()
    text.prefill(ids[:first])
    return text.prefill(ids[first : first + count]), parts(text)


@pytest.mark.parametrize("name", SHAPES)
def test_rows_and_states_are_those_of_a_prompt(name):
    ids = tokens(name, 60)
    with model(name) as text:
        assert text.draft_limit == 15
        for accepted in (1, 2, 7, 15, 16):
            rows = [prompts(text, ids, 30, count)[0] for count in range(1, accepted + 1)]
            want = prompts(text, ids, 30, accepted)
            text.reset()
            text.prefill(ids[:30])
            got = [text.decode(ids[30], ids[31:46])]
            got += [text.decode(token) for token in ids[31 : 30 + accepted]]
            assert text.length == text.position == 30 + accepted
            assert np.array_equal(np.stack(got), np.stack(rows))
            text.prefill([99])  # another token ends the draft
            after = text.snapshot()
            text.reset()
            text.prefill(ids[:30])
            text.prefill(ids[30 : 30 + accepted])
            text.prefill([99])
            assert all(np.array_equal(a, b) for a, b in zip(parts(text), _arrays(after), strict=True))
            assert np.array_equal(want[0], rows[-1])


def _arrays(state):
    return state.conv, state.matrices, *(a for block in state.blocks for pair in block.rows for a in pair)


@pytest.mark.parametrize("accepted", [1, 6, 16])
def test_tokens_behind_a_draft_are_those_behind_a_prompt(accepted):
    ids = tokens("grouped", 60)
    with model("grouped") as text:
        prompts(text, ids, 30, accepted)
        want = [text.decode(token) for token in (7, 8, 9)]
        text.reset()
        text.prefill(ids[:30])
        text.decode(ids[30], ids[31:46])
        for token in ids[31 : 30 + accepted]:
            text.decode(token)
        assert np.array_equal(np.stack([text.decode(token) for token in (7, 8, 9)]), np.stack(want))
        # the same logits as one token after another gives, up to rounding
        text.reset()
        text.prefill(ids[:30])
        for token in ids[30 : 30 + accepted]:
            text.decode(token)
        assert np.abs(text.decode(7) - want[0]).max() < 0.35


def test_a_draft_from_an_empty_state_and_one_after_another():
    ids = tokens("tied", 40)
    with model("tied") as text:
        want = [text.prefill(ids[:1]), text.prefill(ids[1:9])]
        text.prefill(ids[9:14])
        want.append(text.decode(5))
        text.reset()
        got = [text.decode(ids[0], ids[5:8])]
        text.decode(ids[1], [*ids[2:9], ids[9] + 1])
        got += [text.decode(token) for token in ids[2:9]][-1:]
        text.decode(ids[9], [*ids[10:14], 3])
        for token in ids[10:14]:
            text.decode(token)
        got.append(text.decode(5))
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
        assert text.length == text.position == 15


def test_a_draft_comes_back_with_its_snapshot():
    ids = tokens("grouped", 70)
    with model("grouped") as text:
        text.prefill(ids[:30])
        text.decode(ids[30], ids[31:45])
        text.decode(ids[31])
        kept = text.snapshot()
        want = [text.decode(token) for token in (*ids[32:40], 99, 98)]
        for _ in range(2):
            text.reset()
            text.prefill(tokens("grouped", 60, seed=5))
            text.restore(kept)
            assert text.length == text.position == 32
            again = text.snapshot()
            text.decode(3)
            text.restore(again)
            assert np.array_equal([text.decode(token) for token in (*ids[32:40], 99, 98)], want)
        text.restore(kept)
        everything = [text.decode(token) for token in (*ids[32:45], 99)]
        text.reset()
        text.prefill(ids[:30])
        text.prefill(ids[30:45])
        assert np.array_equal(text.decode(99), everything[-1])


@pytest.mark.parametrize("after", [1, 6, 13, 16])
def test_an_interrupted_draft_leaves_the_state_before_it(monkeypatch, after):
    from qwen35.model.dispatch import Dispatch

    ids = tokens("tied", 50)
    with model("tied") as text:
        text.prefill(ids[:20])
        want = [text.decode(ids[20], ids[21:30]), text.decode(ids[21]), text.decode(99)]
        text.reset()
        text.prefill(ids[:20])
        finish, left = Dispatch.finish, [after]

        def interrupted(dispatch):
            finish(dispatch)
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Dispatch, "finish", interrupted)
            text.decode(3, tokens("tied", 15, seed=3))
        assert text.length == text.position == 20
        got = [text.decode(ids[20], ids[21:30])]
        for what in ("row", "end"):
            left[0] = 2
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Dispatch, "finish", interrupted)
                text.decode(ids[21] if what == "row" else 99)
            assert text.length == text.position == (21 if what == "row" else 22)
            if what == "row":
                got.append(text.decode(ids[21]))
        got.append(text.decode(99))
        assert np.array_equal(np.stack(got), np.stack(want))


def test_an_interruption_while_the_state_is_settled(monkeypatch):
    from qwen35.model.deltanet import DeltaNet

    ids = tokens("tied", 50)
    with model("tied") as text:
        text.prefill(ids[:20])
        text.prefill(ids[20:31])
        want = text.decode(5)
        text.reset()
        text.prefill(ids[:20])
        text.decode(ids[20], ids[21:31])
        prefill, left = DeltaNet.prefill, [2]

        def interrupted(*arguments):
            prefill(*arguments)
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(DeltaNet, "prefill", interrupted)
            text.decode(99)
        assert text.length == 21
        for token in ids[21:31]:  # all of it: the pass's own end is gone, and made again
            text.decode(token)
        assert np.array_equal(text.decode(5), want)


def test_drafts_that_are_refused():
    ids = tokens("tied", 40)
    with model("tied", max_ctx=30) as text:
        text.prefill(ids[:20])
        want = text.snapshot()
        with pytest.raises(ModelError, match="a draft of 16 tokens: give at most 15"):
            text.decode(1, ids[:16])
        with pytest.raises(PromptTooLong) as caught:
            text.decode(1, ids[:10])
        assert (caught.value.tokens, caught.value.limit) == (31, 30)
        with pytest.raises(ModelError, match="outside the vocabulary"):
            text.decode(1, [5, 340])
        assert text.length == 20 and np.array_equal(text.snapshot().matrices, want.matrices)
        text.decode(1, ids[:9])
        for token in ids[:9]:
            text.decode(token)
        assert text.length == 30
        with pytest.raises(PromptTooLong):
            text.decode(2)


def test_another_models_snapshot_leaves_the_draft():
    ids = tokens("tied", 40)
    with model("tied") as text, model("tied") as other:
        other.prefill(ids[:5])
        text.prefill(ids[:20])
        want = [text.decode(ids[20], ids[21:30]), text.decode(ids[21])]
        with pytest.raises(ModelError):
            text.restore(other.snapshot())
        assert text.length == 22
        want.append(text.decode(ids[22]))
        text.reset()
        text.prefill(ids[:20])
        assert np.array_equal(want[-1], text.prefill(ids[20:23]))
