"""qwen35.serve under load: many clients, the queue's bound, clients that leave, time-outs, a lost device."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amdxdna.emu.faults import Fault
from amdxdna.errors import DeviceLost
from qwen35 import Qwen35, Sampling
from qwen35.api import Info
from tests.support.mock_model import HashModel, ScriptModel, fake, tokenizer

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from tests.support.serving import (
    WAIT,
    Running,
    body,
    content,
    ended,
    head,
    late_in_the_middle,
    serving,
    until,
)


def figure(http: Any, server: Running, name: str) -> float:
    lines = http.get(f"{server.root}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_32_clients_get_what_each_gets_alone(tmp_path: Path, http: Any) -> None:
    """Growing conversations, some streamed, over a model whose tokens depend on every bit of its state."""
    system = {"role": "system", "content": "You are one model with many clients."}

    def talk(client: int, ask: Callable[[list[Any], int, bool], str]) -> list[str]:
        messages: list[Any] = [system]
        said = []
        for turn in range(3):
            messages.append({"role": "user", "content": f"Client {client % 20}, turn {turn}?"})
            said.append(ask(messages, client * 10 + turn, (client + turn) % 2 == 0))
            messages.append({"role": "assistant", "content": said[-1]})
        return said

    with fake(tmp_path) as model, serving(model, limits={"queue": 12}) as server:
        full, most = threading.Event(), [0]
        decode = model.model.decode

        def held(token: int) -> np.ndarray:
            assert full.wait(WAIT)  # until somebody was refused
            return decode(token)

        model.model.decode = held  # type: ignore[method-assign]

        def over_http(messages: list[Any], seed: int, stream: bool) -> str:
            request = {"messages": messages, "seed": seed, "temperature": 1, "max_tokens": 12}
            request["stream"] = stream
            while True:
                got = http.post(f"{server.url}/chat/completions", json=request)
                most[0] = max(most[0], server.service.queue.inside)
                if got.status_code != 429:
                    assert got.status_code == 200, got.text
                    return content(got)
                assert got.json()["error"]["code"] == "queue_full"
                assert int(got.headers["retry-after"]) >= 1
                full.set()
                time.sleep(0.02)

        with ThreadPoolExecutor(32) as pool:
            got = list(pool.map(lambda client: talk(client, over_http), range(32)))
        assert full.is_set() and most[0] <= 13
        cached, whole = (
            figure(http, server, "qwen35_cached_tokens_total"),
            figure(http, server, "qwen35_prompt_tokens_total"),
        )
        assert cached > whole / 4
        answered = 'qwen35_requests_total{path="/v1/chat/completions",status="200"}'
        until(lambda: figure(http, server, answered) == 96)
        until(lambda: server.service.queue.inside == 0)
    (tmp_path / "alone").mkdir()
    with fake(tmp_path / "alone", cache_bytes=0) as model:

        def alone(messages: list[Any], seed: int, stream: bool) -> str:
            return str(model.reply(messages, max_new=12, sampling=Sampling(seed=seed)))

        assert got == [talk(client, alone) for client in range(32)]


class Slow(ScriptModel):
    """Counts its tokens, which take a moment."""

    decoded = 0

    def decode(self, token: int) -> np.ndarray:
        self.decoded += 1
        return super().decode(token)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Qwen35, Slow]]:
    words = tokenizer(tmp_path)
    made = Slow(words, lambda question: "word " * 400, 0.01)
    stop = [words.added["<|im_end|>"]]
    with Qwen35(made, words, stop=stop, info=Info("mock", sampling=Sampling(temperature=0))) as model:
        yield model, made


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer(slow: tuple[Qwen35, Slow], http: Any, stream: bool) -> None:
    model, made = slow
    rng, asked = random.Random(int(stream)), 0
    whole = len(model.tokenizer.encode("word " * 400))
    with serving(model) as server:
        for round_ in range(9):
            before = made.decoded
            data = json.dumps(body("Hi", stream=stream)).encode()
            begun = head(len(data))
            with socket.create_connection(("127.0.0.1", server.port), WAIT) as raw:
                cut = [len(begun) - 9, len(begun) + 5, len(begun + data)][round_ % 3]
                raw.sendall((begun + data)[:cut])
                if round_ == 2:
                    until(lambda: made.decoded > 0)  # one at least leaves in the middle of its answer
                time.sleep(rng.random() * 0.2)
            asked += cut > len(begun)
            until(lambda: figure(http, server, 'qwen35_requests_total{path="/v1/chat') == asked)  # noqa: B023
            assert server.service.queue.inside == 0
            rest = made.decoded
            assert rest - before < whole
            time.sleep(0.05)
            assert made.decoded == rest  # the model is at rest
        assert 0 < figure(http, server, 'qwen35_cancelled_total{why="cancelled"}') <= 3
        got = http.post(f"{server.url}/chat/completions", json=body("Hi", max_tokens=3))
        assert got.status_code == 200 and got.json()["usage"]["completion_tokens"] == 3


def long_answer(server: Running, stream: bool = True) -> socket.socket:
    """A client that has asked for much more than fits into the buffers of its connection, and reads none."""
    server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    data = json.dumps(body("Hi", stream=stream, logprobs=True, top_logprobs=20)).encode()
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    with server.resting():
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(head(len(data)) + data)
    return raw


def test_who_does_not_read_keeps_nobody_waiting(tmp_path: Path, http: Any) -> None:
    """Model and place are free once everything is said, the connection once nothing was read for a time."""
    with (
        fake(tmp_path, lambda question: "word " * 150) as model,
        serving(model, limits={"queue": 0}) as server,
    ):
        with long_answer(server):
            until(lambda: bool(server.service.jobs) and server.service.queue.inside == 0)
            got = http.post(f"{server.url}/chat/completions", json=body("Hi", max_tokens=3))
            assert got.status_code == 200 and server.service.jobs
        until(lambda: not server.service.jobs)
    with fake(tmp_path, lambda question: "word " * 150) as model, serving(model, stalled=1) as server:
        with long_answer(server):
            until(lambda: figure(http, server, 'qwen35_requests_total{path="/v1/chat') == 1)
        assert http.post(f"{server.url}/chat/completions", json=body("Hi", max_tokens=3)).status_code == 200


def test_who_does_not_read_has_no_more_time_than_others(tmp_path: Path, http: Any) -> None:
    limits = {"timeout": 1}
    with (
        fake(tmp_path, lambda question: "word " * 150) as model,
        serving(model, limits=limits, stalled=10 * WAIT) as server,
        long_answer(server) as raw,
    ):
        until(lambda: figure(http, server, 'qwen35_cancelled_total{why="timeout"}') == 1)
        raw.settimeout(WAIT)
        assert b"[DONE]" not in ended(raw)


def test_who_reads_a_whole_answer_slowly_gets_all_of_it(tmp_path: Path) -> None:
    """Also in a connection that stays open for more requests, of which one would be due by then."""
    with (
        fake(tmp_path, lambda question: "word " * 150) as model,
        serving(model, limits={"reading": 0.4}) as server,
        long_answer(server, stream=False) as raw,
    ):
        until(lambda: server.server.server_state.total_requests == 1 and not server.service.jobs)
        time.sleep(1.0)
        raw.settimeout(WAIT)
        got = b""
        while b"\r\n\r\n" not in got:
            got += raw.recv(4096)
        lines, _, text = got.partition(b"\r\n\r\n")
        length = int(lines.lower().partition(b"content-length:")[2].split()[0])
        while len(text) < length and (part := raw.recv(65536)):
            text += part
        assert json.loads(text)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_ends_well_was_not_cancelled(tmp_path: Path, http: Any, stream: bool) -> None:
    with fake(tmp_path, lambda question: "a few words") as model, serving(model) as server:
        for _ in range(3):
            got = http.post(f"{server.url}/chat/completions", json=body("Hi", stream=stream))
            assert content(got) == "a few words"
        until(lambda: figure(http, server, 'qwen35_requests_total{path="/v1/chat') == 3)
        assert figure(http, server, "qwen35_cancelled_total{") == 0


def test_who_begins_no_request_is_let_go(tmp_path: Path) -> None:
    """Also behind a whole one, in the same connection."""
    begun = (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
    with (
        fake(tmp_path, lambda question: "ok") as model,
        serving(model, limits={"reading": 0.5}) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = []
        with server.resting():
            for sent in begun:
                raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT))
                raw.sendall(sent)
                clients.append(raw)
        assert [ended(raw).count(b"200 OK") for raw in clients] == [0, 0, 1]


def test_requests_of_one_connection_are_answered_in_their_order(tmp_path: Path) -> None:
    """Pipelining: several are sent before the first answer is read."""
    with (
        fake(tmp_path, lambda question: f"You said: {question}") as model,
        serving(model) as server,
        socket.create_connection(("127.0.0.1", server.port), WAIT) as raw,
    ):
        for number in range(5):
            data = json.dumps(body(f"number {number}")).encode()
            raw.sendall(head(len(data), *["Connection: close"] * (number == 4)) + data)
        answers = ended(raw).decode().split("HTTP/1.1 200 OK")[1:]
        assert len(answers) == 5
        for number, answer in enumerate(answers):
            assert f'"content":"You said: number {number}"' in answer


def test_a_client_that_leaves_the_queue_is_no_longer_in_it(slow: tuple[Qwen35, Slow], http: Any) -> None:
    model, _ = slow
    with (
        serving(model, limits={"queue": 1}) as server,
        http.stream("POST", f"{server.url}/chat/completions", json=body("Hi", stream=True)) as first,
    ):
        lines = first.iter_lines()
        next(lines)
        with long_answer(server):
            until(lambda: server.service.queue.waiting == 1)
        until(lambda: server.service.queue.waiting == 0)
        assert server.service.queue.running == 1
        first.close()
        until(lambda: server.service.queue.inside == 0)


def test_a_request_has_its_time(
    slow: tuple[Qwen35, Slow], http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = slow
    with serving(model, limits={"timeout": 0.4}) as server:
        got = http.post(f"{server.url}/chat/completions", json=body("Hi"))
        assert got.status_code == 504 and got.json()["error"]["code"] == "timeout"
        with monkeypatch.context() as patch:
            late_in_the_middle(patch)
            got = http.post(f"{server.url}/chat/completions", json=body("Hi", stream=True))
        last = json.loads(got.text.strip().rpartition("data: ")[2])
        assert got.status_code == 200 and last["error"]["code"] == "timeout"
        server.service.limits.timeout = WAIT
        assert http.post(f"{server.url}/chat/completions", json=body("Hi", max_tokens=2)).status_code == 200


def test_an_ending_server_tells_those_that_wait(slow: tuple[Qwen35, Slow], http: Any) -> None:
    model, _ = slow
    with serving(model, limits={"grace": 0.1}) as server, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(http.post, f"{server.url}/chat/completions", json=body("Hi")) for _ in range(2)]
        until(lambda: server.service.queue.inside == 2)
        server.server.should_exit = True
        for each in asked:
            got = each.result(WAIT)
            assert got.status_code == 503 and got.json()["error"]["code"] == "shutdown"


def test_a_lost_device_costs_one_request(tmp_path: Path, http: Any) -> None:
    words = tokenizer(tmp_path)

    class Losing(ScriptModel):
        lose = False

        def decode(self, token: int) -> np.ndarray:
            if self.lose:
                raise DeviceLost("the device is gone")
            return super().decode(token)

        def follow(self, other: HashModel) -> None:
            pass

    first, second = (Losing(words, lambda question: f"You said: {question}") for _ in range(2))
    devices = iter([object(), object()])
    made = Qwen35(
        first,
        words,
        stop=[words.added["<|im_end|>"]],
        info=Info("mock"),
        device=next(devices),
        reopen=lambda: (next(devices), second),
    )  # type: ignore[arg-type, return-value]
    with made as model, serving(model) as server:
        for lose, want in ((False, 200), (True, 503), (False, 200)):
            first.lose = lose
            got = http.post(f"{server.url}/chat/completions", json=body("Hi", temperature=0))
            assert got.status_code == want
            if want == 503:
                assert got.json()["error"]["code"] == "device_lost"
            else:
                assert content(got) == "You said: Hi"
        until(lambda: figure(http, server, "qwen35_device_recoveries_total") == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_an_emulated_device_that_is_removed(http: Any, stream: bool) -> None:
    """Under the built-in model: that request is told, the device is opened again, the next one is right."""
    question = body("What is a penguin?", temperature=0, stream=stream, max_tokens=20)
    with Qwen35.load(None, 1024, "emu:threads=1,quiet,lose=100000") as model, serving(model) as server:
        faults = model.device.node.driver.faults
        url = f"{server.url}/chat/completions"
        want = content(http.post(url, json=question))
        assert "bird" in want
        before = faults.submits
        assert content(http.post(url, json=question)) == want
        submits = faults.submits - before
        for lost, at in enumerate((1, submits // 2, submits), 1):
            first, at = model.device, faults.submits + at
            faults.add(Fault("lose", at, at))
            got = http.post(url, json=question)
            if stream and got.status_code == 200:
                assert json.loads(got.text.strip().rpartition("data: ")[2])["error"]["code"] == "device_lost"
            else:
                assert got.status_code == 503 and got.headers["retry-after"]
                assert got.json()["error"]["code"] == "device_lost"
            for _ in range(2):
                assert content(http.post(url, json=question)) == want
            assert model.device is not first
            until(lambda: figure(http, server, "qwen35_device_recoveries_total") >= lost)  # noqa: B023
            assert figure(http, server, "qwen35_device_recoveries_total") == lost


def test_a_client_that_leaves_at_its_turn_keeps_nobody_waiting() -> None:
    """Called and cancelled before its task runs: it ends, and the next one is called."""
    import asyncio

    from qwen35.serve.errors import ApiError
    from qwen35.serve.job import Job
    from qwen35.serve.queue import FairQueue

    async def run() -> list[str]:
        line, told = FairQueue(10), []

        def never(*_: Any) -> Any:
            raise AssertionError("it was cancelled before")

        async def one(name: str) -> None:
            with line.enter("a") as place:
                job = Job(never, never, place.give_up)
                await place.turn()
                job.cancel(ApiError(499, f"{name} left"))
                job.start(pool, place.done)
                try:
                    async for _ in job.pieces():
                        pass
                except ApiError as error:
                    told.append(str(error))

        with ThreadPoolExecutor(1) as pool:
            await asyncio.wait_for(asyncio.gather(one("first"), one("second")), WAIT)
        assert line.inside == 0 and line.running == 0
        return told

    assert asyncio.run(run()) == ["first left", "second left"]


def test_clients_take_turns() -> None:
    """One asks thrice before two others ask once each: they need not wait for all three."""
    import asyncio

    from qwen35.serve.queue import FairQueue

    async def run() -> list[str]:
        line, order = FairQueue(10), []

        async def one(client: str) -> None:
            with line.enter(client) as place:
                await place.turn()
                order.append(client)
                await asyncio.sleep(0)

        await asyncio.gather(*(one(client) for client in ("a", "a", "a", "b", "a", "c")))
        assert line.inside == 0
        return order

    assert asyncio.run(run()) == ["a", "a", "b", "c", "a", "a"]
