"""Answers of one model take turns: each gives what it gives alone, whoever draws beside it and however."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35 import GREEDY, Qwen35, Sampling
from qwen35.conversation import Reply
from qwen35.engine import Input, PrefixCache, Session, generate
from qwen35.errors import Cancelled, Closed, PromptTooLong, UsageError
from qwen35.sampling import Sampler
from qwen35.turns import Turns
from tests.support.mock_model import HashModel, State, fake
from tests.support.models import export

DEVICE = "emu:threads=1,quiet"
WAIT = 120


def prompts(seed: int, count: int) -> list[Input]:
    """Some share a beginning, so that kept states are used between the turns."""
    rng = random.Random(seed)
    common = [rng.randrange(64) for _ in range(20)]
    found = []
    for _ in range(count):
        ids = common[: rng.choice([0, 8, 20])] + [rng.randrange(64) for _ in range(rng.randrange(1, 40))]
        found.append(Input(ids, [b for b in (8, 20) if b < len(ids)]))
    return found


def alone(prompt: Input, index: int) -> list[int]:
    session = Session(HashModel(), None, 7)
    return list(generate(session, prompt, Sampler(Sampling(seed=index)), max_new=15))


@pytest.mark.parametrize("cache", [None, 100_000, 2_500])
@pytest.mark.parametrize("seed", range(6))
def test_generations_in_turns_are_those_alone(seed: int, cache: int | None) -> None:
    """HashModel's logits depend on every token and cut of the state: a state not one's own changes them."""
    rng = random.Random(seed)
    asked = prompts(seed, 5)
    session = Session(HashModel(), PrefixCache(cache) if cache else None, 7)
    runs = [generate(session, p, Sampler(Sampling(seed=i)), max_new=15) for i, p in enumerate(asked)]
    got: list[list[int]] = [[] for _ in asked]
    left = list(range(len(asked)))
    while left:
        index = rng.choice(left)
        token = next(runs[index], None)
        if token is None:
            left.remove(index)
        else:
            got[index].append(token)
    assert got == [alone(p, i) for i, p in enumerate(asked)]


def test_bare_models_take_turns_too() -> None:
    model = HashModel()
    first, second = generate(model, [1, 2], max_new=6), generate(model, [3], max_new=6)
    pairs = list(zip(first, second, strict=True))
    want = [list(generate(HashModel(), ids, max_new=6)) for ids in ([1, 2], [3])]
    assert [list(column) for column in zip(*pairs, strict=True)] == want


def test_an_answer_alone_takes_no_snapshot() -> None:
    model = HashModel()
    model.snapshot = lambda: pytest.fail("a snapshot")  # type: ignore[method-assign, assignment, return-value]
    for _ in range(2):
        assert len(list(generate(Session(model, None), [1, 2, 3], max_new=9))) == 9
        half = generate(Session(model, None), [1, 2, 3], max_new=9)
        next(half)
        del half  # dropped: nothing of it is kept for anybody


def test_what_a_suspended_answer_keeps_goes_with_it() -> None:
    """Without a garbage collection."""
    kept: list[weakref.ref[Any]] = []

    class Watched(HashModel):
        def snapshot(self) -> Any:
            made = _Kept(tuple(self.history), self.nbytes)
            kept.append(weakref.ref(made))
            return made

    class _Kept(State):
        pass

    gc.disable()
    try:
        session = Session(Watched(), None)
        first, second = generate(session, [1], max_new=9), generate(session, [2], max_new=9)
        next(first), next(second)
        assert len(kept) == 1 and kept[0]() is not None
        next(first)
        assert len(kept) == 2 and kept[0]() is None and kept[1]() is not None
        del second
        assert kept[1]() is None
        second = generate(session, [2], max_new=9)
        next(second)
        assert kept[-1]() is not None
        second.close()
        assert kept[-1]() is not None  # the first one's
        first.close()
        assert kept[-1]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["error", "interrupt", "cancel", "too long", "close"])
def test_what_happens_to_one_answer_leaves_the_other_right(how: str) -> None:
    class Failing(HashModel):
        fail: BaseException | None = None

        def decode(self, token: int) -> np.ndarray:
            if self.fail is not None:
                fail, self.fail = self.fail, None
                raise fail
            return super().decode(token)

    model = Failing(max_ctx=60)
    session = Session(model, PrefixCache(), 7)
    good, bad = generate(session, range(30), max_new=20), generate(session, range(20), max_new=20)
    got = [next(good), next(good)]
    next(bad)
    if how == "error":
        model.fail = OSError(62, "timer expired")
        with pytest.raises(OSError, match="timer"):
            next(bad)
    elif how == "interrupt":
        model.fail = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            next(bad)
    elif how == "cancel":
        passes: list[int] = []
        with pytest.raises(Cancelled):
            next(
                generate(
                    session,
                    range(40),
                    cancel=lambda: len(passes) > 1,
                    progress=lambda done, total: passes.append(done),
                )
            )
    elif how == "too long":
        with pytest.raises(PromptTooLong):
            next(generate(session, range(61)))
    else:
        bad.close()
    assert got + list(good) == list(generate(Session(HashModel(max_ctx=60), None, 7), range(30), max_new=20))


@pytest.mark.parametrize("where", ["snapshot", "restore"])
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_a_switch_that_fails_loses_nobodys_state(where: str, error: BaseException) -> None:
    class Failing(HashModel):
        fail = ""

        def _maybe(self, what: str) -> None:
            if self.fail == what:
                self.fail = ""
                raise error

        def snapshot(self) -> State:
            self._maybe("snapshot")
            return super().snapshot()

        def restore(self, snapshot: State) -> None:
            self.history = []
            self._maybe("restore")
            super().restore(snapshot)

    model = Failing()
    session = Session(model, None)
    first, second = (generate(session, [seed], max_new=6) for seed in (1, 2))
    got = [next(first)]
    next(second)
    model.fail = where
    third = generate(session, [3], max_new=6)
    if where == "snapshot":
        with pytest.raises(type(error)):
            next(third)
        assert list(second) == list(generate(HashModel(), [2], max_new=6))[1:]
    else:
        with pytest.raises(type(error)):
            next(first)  # its generator is over; the one suspended meanwhile is not
        assert list(second) == list(generate(HashModel(), [2], max_new=6))[1:]
        return
    assert got + list(first) == list(generate(HashModel(), [1], max_new=6))


def test_what_runs_inside_a_step_cannot_wait_for_itself() -> None:
    """A signal handler, say. A callback between steps may use the model."""

    class Handler(HashModel):
        inside: Callable[[], Any] | None = None

        def decode(self, token: int) -> np.ndarray:
            if self.inside is not None:
                self.inside()
            return super().decode(token)

    model = Handler()
    session = Session(model, None)
    want = list(generate(HashModel(), [1], max_new=6))
    run = generate(session, [1], max_new=6)
    tokens = [next(run)]

    def handler() -> None:
        model.inside = None
        for use in (lambda: next(generate(session, [2])), session.turns.close):
            with pytest.raises(UsageError, match="at work below this call"):
                use()

    model.inside = handler
    assert tokens + list(run) == want
    beside = generate(session, [1], max_new=6, cancel=lambda: not list(generate(session, [2], max_new=2)))
    assert list(beside) == want


def test_one_reader_at_a_time_and_a_cancel_from_elsewhere(tmp_path: Path) -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(HashModel):
        def decode(self, token: int) -> np.ndarray:
            entered.set()
            assert go.wait(WAIT)
            return super().decode(token)

    model = Slow()
    run = generate(model, [1], max_new=50)
    got = [next(run)]
    with ThreadPoolExecutor(1) as beside:
        rest = beside.submit(lambda: list(run))
        assert entered.wait(WAIT)
        with pytest.raises(UsageError, match="read elsewhere"):
            next(run)
        run.close()
        go.set()
        got += rest.result(WAIT)
    assert run.finish == "cancel" and got == list(generate(HashModel(), [1], max_new=2))


def threads(work: list[Callable[[], Any]]) -> list[Any]:
    """All begun at one moment."""
    barrier = threading.Barrier(len(work))

    def one(job: Callable[[], Any]) -> Any:
        barrier.wait(WAIT)
        return job()

    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result(WAIT) for future in [pool.submit(one, job) for job in work]]


@pytest.mark.parametrize("slice_s", [0.0, 0.25])
def test_threads_on_one_model(slice_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen35.turns.TURN_SECONDS", slice_s)
    asked = prompts(11, 8)
    session = Session(HashModel(), PrefixCache(5_000), 7)

    def job(index: int) -> Callable[[], list[int]]:
        return lambda: list(generate(session, asked[index], Sampler(Sampling(seed=index)), max_new=15))

    assert threads([job(i) for i in range(8)]) == [alone(p, i) for i, p in enumerate(asked)]


def test_nobody_waits_for_another_answers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short answer comes to its end while an endless one is drawn without a pause."""
    monkeypatch.setattr("qwen35.turns.TURN_SECONDS", 0.0)
    session = Session(HashModel(max_ctx=10**9), None)
    over = threading.Event()
    endless = generate(session, [1], max_new=10**9, cancel=over.is_set)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(lambda: sum(1 for _ in endless))
        try:
            short = pool.submit(lambda: list(generate(session, [2], max_new=10))).result(WAIT)
        finally:
            over.set()
        assert short == list(generate(HashModel(), [2], max_new=10))
        assert long.result(WAIT) > 0 and endless.finish == "cancel"


def test_closing_while_threads_draw(tmp_path: Path) -> None:
    model = fake(tmp_path, max_ctx=10**6)
    begun = threading.Barrier(4)

    def draw() -> str:
        run = model.generate([1, 2], 10**6, stop=False)
        next(run)
        begun.wait(WAIT)
        try:
            for _ in run:
                pass
        except Closed as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(3) as pool:
        drawn = [pool.submit(draw) for _ in range(3)]
        begun.wait(WAIT)
        model.close()
        assert {one.result(WAIT) for one in drawn} == {"this model is closed: load it again"}
    assert isinstance(model.session.turns, Turns)


def test_two_threads_ask_one_conversation(tmp_path: Path) -> None:
    """One of them is answered, the other told at once; the history holds the one whole."""
    model = fake(tmp_path, lambda q: f"You said: {q}", delay=0.001)
    talk = model.conversation()

    def ask(text: str) -> str:
        try:
            reply = talk.ask(text)
        except UsageError as error:
            return str(error)
        barrier.wait(WAIT)
        return str(reply)

    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(ask, text) for text in ("one", "two")]
        wait(jobs, WAIT, FIRST_COMPLETED)  # the one who is refused
        barrier.wait(WAIT)
        got = sorted(job.result(WAIT) for job in jobs)
    assert got[0].startswith("You said: ") and "not read to its end" in got[1]
    assert [m["content"] for m in talk.messages] == [got[0].removeprefix("You said: "), got[0]]


# The real path: a bundle with a vision tower on the emulated NPU.


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("turns"), "vision")


@pytest.fixture(scope="module")
def model(bundle: Path) -> Iterator[Qwen35]:
    with Qwen35.load(bundle, 1024, DEVICE) as loaded:
        yield loaded


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
PICTURES = [np.random.default_rng(i).integers(0, 256, (32, 48, 3), np.uint8) for i in range(2)]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}},
    "required": ["a"],
    "additionalProperties": False,
}


def asked(model: Qwen35) -> list[Callable[[], Reply]]:
    """Answers of every kind, made anew at each call."""

    def user(text: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": text}]

    kinds: list[Callable[[], Reply]] = [
        lambda: model.chat("What is a whale?", max_new=12, sampling=GREEDY),
        lambda: model.chat("What is a dog?", max_new=12, sampling=Sampling(top_k=20, seed=4)),
        lambda: model.chat("So?", thinking=True, max_new=10, sampling=Sampling(presence_penalty=1, seed=5)),
        lambda: model.chat("And this?", images=[PICTURES[0]], max_new=8, sampling=GREEDY),
        lambda: model.chat("Or these?", images=PICTURES, max_new=8, sampling=Sampling(seed=6)),
        lambda: model.reply(user("Add."), tools=TOOLS, max_new=8, sampling=GREEDY),
        lambda: model.chat("A long one. " + "The sea is cold. " * 40, max_new=8, sampling=GREEDY),
        lambda: model.chat("Stop here", max_new=30, sampling=GREEDY, stop=["e", "a", "o", "i"]),
        lambda: model.conversation("Few words.").ask("Who?", max_new=8, sampling=GREEDY),
    ]
    with contextlib.suppress(ImportError):
        import llguidance  # noqa: F401

        kinds.append(lambda: model.chat("JSON", json_schema=SCHEMA, max_new=30, sampling=GREEDY))
        kinds.append(lambda: model.chat("JSON", json_schema=SCHEMA, max_new=30, sampling=Sampling(seed=3)))
    return kinds


def told(reply: Reply) -> tuple[Any, ...]:
    return reply.tokens, reply.text, reply.reasoning, reply.finish, reply.tool_calls, reply.note


@pytest.fixture(scope="module")
def wanted(model: Qwen35) -> list[tuple[Any, ...]]:
    return [told(make().result()) for make in asked(model)]


@pytest.mark.parametrize("seed", range(3))
def test_answers_of_every_kind_in_turns(model: Qwen35, wanted: list[tuple[Any, ...]], seed: int) -> None:
    rng = random.Random(seed)
    replies = [make() for make in asked(model)]
    left = [reply.events() for reply in replies]
    while left:
        events = rng.choice(left)
        if next(events, None) is None:
            left.remove(events)
    assert [told(reply) for reply in replies] == wanted


@pytest.mark.parametrize("slice_s", [0.0, 0.25])
def test_answers_of_every_kind_in_threads(
    model: Qwen35, wanted: list[tuple[Any, ...]], slice_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen35.turns.TURN_SECONDS", slice_s)
    jobs: list[Callable[[], Any]] = [
        lambda make=make: told(make().result())
        for make in asked(model)  # type: ignore[misc]
    ]
    assert threads(jobs) == wanted


def test_answers_of_every_kind_under_asyncio(model: Qwen35, wanted: list[tuple[Any, ...]]) -> None:
    async def one(make: Callable[[], Reply]) -> tuple[Any, ...]:
        reply = await asyncio.to_thread(make)
        events = reply.events()
        while await asyncio.to_thread(next, events, None) is not None:
            pass
        return told(reply)

    async def all_of_them() -> list[tuple[Any, ...]]:
        return list(await asyncio.gather(*map(one, asked(model))))

    assert asyncio.run(asyncio.wait_for(all_of_them(), WAIT)) == wanted


def test_prefill_and_decode_beside_answers(model: Qwen35, wanted: list[tuple[Any, ...]]) -> None:
    ids = [3, 50, 7, 200, 9]
    want = [model.prefill(ids), *(model.decode(token) for token in (5, 6, 7))]
    reply = asked(model)[3]()
    got = [model.prefill(ids)]
    for token in (5, 6, 7):
        next(reply.events())
        got.append(model.decode(token))
    assert all(map(np.array_equal, got, want))
    assert told(reply.result()) == wanted[3]


def test_decode_needs_a_prompt(bundle: Path, tmp_path: Path) -> None:
    model = fake(tmp_path)
    model.chat("x", max_new=3).result()
    with pytest.raises(UsageError, match="call prefill first"):
        model.decode(1)


def test_half_read_answers_and_a_forked_child(model: Qwen35, wanted: list[tuple[Any, ...]]) -> None:
    """The child is refused without waiting, though a thread of the parent was in a step at the fork."""
    inside, go = threading.Event(), threading.Event()
    reply = asked(model)[0]()
    next(reply.events())

    def hold() -> None:
        with model.session.turns.alone():
            inside.set()
            go.wait(WAIT)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert inside.wait(WAIT)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for use in (reply.result, lambda: model.chat("x"), lambda: model.prefill([1])):
                    with pytest.raises(Closed, match="parent process"):
                        use()
                reply.close()
                model.close()
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        go.set()
        holder.join(WAIT)
    assert told(reply.result()) == wanted[0]
