"""The text model when an exception comes in the middle: the state is the one before, nothing is in flight."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.model_bundle import model, run, tokens


class Stop:
    """Raises at the end of the n-th run of anything on the device."""

    def __init__(self, monkeypatch, after, error=KeyboardInterrupt):
        from qwen35.model.dispatch import Dispatch

        self.left, self.error, self.original = after, error, Dispatch.finish
        monkeypatch.setattr(Dispatch, "finish", lambda dispatch: self.run(dispatch))

    def run(self, dispatch):
        self.original(dispatch)
        self.left -= 1
        if self.left == 0:
            raise self.error


@pytest.mark.parametrize("after", [1, 6, 14, 17])
def test_an_interrupted_step_leaves_the_state_before_it(monkeypatch, after):
    ids = tokens("tied", 30)
    with model("tied") as text:
        want = run(text, ids, 20)
        text.restore(at := run_to(text, ids[:25], 20))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            Stop(patch, after)
            text.decode(99)
        assert text.length == text.position == 25
        rows = [text.decode(token) for token in ids[25:]]
        assert np.array_equal(np.stack(rows), want[6:])
        assert at.length == 25


def run_to(text, ids, prompt):
    run(text, ids, prompt)
    return text.snapshot()


@pytest.mark.parametrize("after", [1, 9, 17, 30, 34])
def test_an_interrupted_prompt_leaves_the_state_before_it(monkeypatch, after):
    ids = tokens("tied", 200)
    with model("tied", max_prompt=64) as text:
        text.prefill(ids[:30])
        want = text.prefill(ids[30:])
        for start in (0, 30):
            text.reset()
            if start:
                text.prefill(ids[:30])
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                Stop(patch, after)
                text.prefill(tokens("tied", 150, seed=1))
            assert text.length == text.position == start
            if not start:
                text.prefill(ids[:30])
            assert np.array_equal(text.prefill(ids[30:]), want)


@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_nothing_is_in_flight_after_an_interruption(monkeypatch, call):
    from amdxdna.run import Run

    with model("tied") as text:
        text.prefill(tokens("tied", 20))
        drained, drain, wait = [], text.npu.drain, Run.wait
        monkeypatch.setattr(text.npu, "drain", lambda: drained.append(drain()))
        waits = iter(range(1000))

        def interrupted(run, *arguments, **keywords):
            if next(waits) == 4:
                raise KeyboardInterrupt
            return wait(run, *arguments, **keywords)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                text.prefill([1, 2, 3]) if call == "prefill" else text.decode(1)
        assert drained == [True]
        assert all(context.idle() for context in text.device.pool.contexts())


def test_a_device_error_passes_through_and_the_model_goes_on(monkeypatch):
    from amdxdna.errors import CommandFailed

    ids = tokens("tied", 12)
    with model("tied") as text:
        want = run(text, ids, 10)
        text.reset()
        text.prefill(ids[:10])
        with monkeypatch.context() as patch, pytest.raises(CommandFailed):
            Stop(patch, 5, CommandFailed("refused", call="EXEC_CMD", state=5))
            text.decode(ids[10])
        assert np.array_equal(text.decode(ids[10]), want[1])
