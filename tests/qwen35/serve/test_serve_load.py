"""qwen35.serve under load: many clients, the queue's bound, clients that leave, time-outs, a lost device."""

from __future__ import annotations

import contextlib
import copy
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

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from tests.support.serving import WAIT, Running, late_in_the_middle, serving  # noqa: E402


@pytest.fixture
def http() -> Iterator[Any]:
    limits = httpx.Limits(max_connections=64)
    with httpx.Client(timeout=WAIT, limits=limits) as client:
        yield client


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def figure(http: Any, server: Running, name: str) -> float:
    lines = http.get(f"{server.root}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def content(answer: Any) -> str:
    """The text of a whole answer or of a stream."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    return "".join(chunk.get("content") or "" for chunk in chunks)


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
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\n\r\n"
            ).encode()
            with socket.create_connection(("127.0.0.1", server.port), WAIT) as raw:
                cut = [len(head) - 9, len(head) + 5, len(head + data)][round_ % 3]
                raw.sendall((head + data)[:cut])
                if round_ == 2:
                    until(lambda: made.decoded > 0)  # one at least leaves in the middle of its answer
                time.sleep(rng.random() * 0.2)
            asked += cut > len(head)
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
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
        )
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
        head, _, text = got.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
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


def test_a_body_that_does_not_come_takes_no_place(tmp_path: Path, http: Any) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with (
        fake(tmp_path, lambda question: "ok") as model,
        serving(model, limits={"queue": 0}) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT))
            raw.sendall(head + b"Content-Length: 5000\r\n\r\n{")
        until(lambda: server.service.queue.nbytes == 3)
        assert http.post(f"{server.url}/chat/completions", json=body("Hi")).status_code == 200
        until(lambda: server.service.queue.nbytes == 3)


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


def ended(raw: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    got = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while part := raw.recv(65536):
            got += part
    return got


def test_who_goes_on_with_a_body_that_was_answered_is_let_go(tmp_path: Path) -> None:
    """Too large, no such path, no key: the answer does not wait for the body, nor the place for its end."""
    limits = {"reading": 0.5, "body": 1000}
    with fake(tmp_path, lambda question: "ok") as model, serving(model, limits=limits) as server:
        for path, status in (("/v1/chat/completions", 413), ("/v1/nothing", 404)):
            with socket.socket() as raw:
                raw.settimeout(WAIT)
                with server.resting():
                    raw.connect(("127.0.0.1", server.port))
                    raw.sendall(
                        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        "Content-Length: 100000\r\n\r\n".encode()
                    )
                assert raw.recv(12).endswith(str(status).encode())
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    raw.sendall(b" ")
                ended(raw)


GARBAGE = (
    (b"\0\1\2\r\n\r\n", b""),
    (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b""),
    (b"GET / HTTP/1.1\r\n\r\n", b""),
    (b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", b""),
    (b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n\r\n"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0\r\n\r\n"),
)


@pytest.mark.parametrize(("first", "then"), GARBAGE)
def test_what_is_no_http(plain: Running, caplog: pytest.LogCaptureFixture, first: bytes, then: bytes) -> None:
    """400 in the form of all errors; behind an answer the connection ends, and nothing is raised."""
    with socket.create_connection(("127.0.0.1", plain.port), WAIT) as raw:
        raw.sendall(first)
        got = raw.recv(15) if then else b""
        with contextlib.suppress(OSError):
            raw.sendall(then)
        got += ended(raw)
    assert got.startswith(b"HTTP/1.1 ")
    if not then:
        head, _, text = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(text)["error"]["code"] == "invalid_http"
    assert not [record for record in caplog.records if record.exc_info]


def test_requests_of_one_connection_are_answered_in_their_order(tmp_path: Path) -> None:
    """Pipelining: several are sent before the first answer is read."""
    with (
        fake(tmp_path, lambda question: f"You said: {question}") as model,
        serving(model) as server,
        socket.create_connection(("127.0.0.1", server.port), WAIT) as raw,
    ):
        for number in range(5):
            data = json.dumps(body(f"number {number}")).encode()
            close = b"Connection: close\r\n" * (number == 4)
            raw.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n%s\r\n%s" % (len(data), close, data)
            )
        got = b""
        while part := raw.recv(65536):
            got += part
        answers = got.decode().split("HTTP/1.1 200 OK")[1:]
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


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with (
        fake(tmp_path_factory.mktemp("plain"), lambda q: f"You said: {q}") as model,
        serving(model, limits={"body": 20_000}, api_key="secret", origins=("http://good",)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with (
        fake(tmp_path_factory.mktemp("named"), lambda q: q) as model,
        serving(model, hosts=("good.example",)) as running,
    ):
        yield running


KEY = {"Authorization": "Bearer secret"}


def test_who_may_ask(plain: Running, http: Any) -> None:
    url = f"{plain.url}/chat/completions"
    for headers in (
        {},
        {"Authorization": "Bearer secre"},
        {"Authorization": "Bearer secretx"},
        {"Authorization": "Basic secret"},
        {"Authorization": "secret"},
    ):
        for method, path in (("POST", url), ("GET", f"{plain.url}/models"), ("GET", f"{plain.root}/metrics")):
            got = http.request(method, path, headers=headers)
            assert got.status_code == 401 and got.json()["error"]["type"] == "authentication_error"
    assert http.get(f"{plain.root}/health").status_code == 200
    assert http.post(url, json=body("Hi"), headers=KEY).status_code == 200
    got = http.post(url, json=body("Hi"), headers=KEY | {"Origin": "http://evil"})
    assert got.status_code == 403 and "access-control-allow-origin" not in got.headers
    got = http.post(url, json=body("Hi"), headers=KEY | {"Origin": "http://good"})
    assert got.status_code == 200 and got.headers["access-control-allow-origin"] == "http://good"


def answered(port: int, head: str, path: str = "/v1/models") -> tuple[int, str]:
    """Status and body of a GET with these lines in its head."""
    with socket.create_connection(("127.0.0.1", port), WAIT) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode("latin-1"))
        got = b""
        while part := raw.recv(65536):
            got += part
    head, _, text = got.decode().partition("\r\n\r\n")
    return int(head.split()[1]), text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8000", 200),
        ("192.168.0.7", 200),
        ("[::1]:8000", 200),
        ("localhost", 200),
        ("LocalHost.:8000", 200),
        ("chat.localhost", 200),
        ("Good.Example:80", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("notlocalhost", 403),
        ("a.good.example", 403),
        ("localhost@evil.example", 403),
        ("evil.example@localhost", 403),
        ("localhost/health?", 403),
        ("127.0.0.1:80/health#", 403),
        ("[::1", 403),
        ("[::1].evil.example", 403),
        ("localhost:evil", 403),
        ("localhost, evil.example", 403),
        ("\xe4", 403),
        ("", 403),
    ],
)
def test_by_which_name_it_may_be_asked(named: Running, host: str, status: int) -> None:
    """A page that leads its own name to this machine is of the server's origin: only its name tells it."""
    got, text = answered(named.port, f"Host: {host}\r\n")
    assert got == status
    error = json.loads(text).get("error")
    if status == 403:
        assert error["code"] == "host_not_allowed" and "--allow-host" in error["message"]


def test_a_name_is_not_always_asked_for(named: Running, plain: Running) -> None:
    """Browsers send one always; HTTP/1.0 has none. No name gets past the key."""
    with socket.create_connection(("127.0.0.1", named.port), WAIT) as raw:
        raw.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in raw.recv(1000)
    for host in ("localhost", "localhost/health?", "x/health?"):
        assert answered(plain.port, f"Host: {host}\r\n")[0] in (401, 403)


def test_bodies_are_bounded_in_size_and_time(
    plain: Running, http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{plain.url}/chat/completions"
    got = http.post(url, json=body("x" * 30_000), headers=KEY)
    assert got.status_code == 413 and got.json()["error"]["code"] == "body_too_large"
    pieces = (b" " * 1000 for _ in range(30))
    got = http.post(url, content=pieces, headers=KEY | {"Content-Type": "application/json"})
    assert got.status_code == 413
    assert http.post(url, content=b"{}", headers=KEY).status_code == 415
    monkeypatch.setattr(plain.service.limits, "reading", 0.2)
    with socket.create_connection(("127.0.0.1", plain.port), WAIT) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n"
            b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
        )
        assert b" 408 " in raw.recv(1000)


def test_bodies_are_bounded_together(tmp_path: Path, http: Any) -> None:
    """However many may wait: four of the largest are held, also of clients that do not end theirs."""
    limits = {"body": 10_000, "queue": 50}
    with fake(tmp_path, lambda question: "ok") as model, serving(model, limits=limits) as server:
        url = f"{server.url}/chat/completions"
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT))
                raw.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n"
                    b"Content-Type: application/json\r\n\r\n" + b" " * 9_900
                )
            until(lambda: server.service.queue.nbytes == 4 * 9_900)
            assert http.post(url, json=body("Hi")).status_code == 200
            got = http.post(url, json=body("x" * 500))
            assert got.status_code == 429 and got.json()["error"]["code"] == "queue_full"
        until(lambda: server.service.queue.nbytes == 0)
        assert http.post(url, json=body("x" * 500)).status_code == 200


def test_deep_bodies_are_refused(plain: Running, http: Any) -> None:
    """Not read, rendered or echoed by recursion to its end."""
    for depth, status in ((90, 200), (110, 400), (500, 400)):
        schema: Any = {}
        for _ in range(depth - 5):
            schema = {"items": schema}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        flat = {"type": "function", "name": "f", "parameters": schema}
        got = http.post(f"{plain.url}/chat/completions", json=body("Hi", tools=[tool]), headers=KEY)
        assert got.status_code == status, got.text
        got = http.post(f"{plain.url}/responses", json={"input": "Hi", "tools": [flat]}, headers=KEY)
        assert got.status_code == status, got.text


def test_many_small_things_are_read_in_a_time_that_grows_with_their_number() -> None:
    """While a body is read nobody else is answered."""
    from qwen35.serve.fields import parse_json
    from qwen35.serve.items import Items
    from qwen35.serve.messages import Reader
    from qwen35.serve.options import read_tools

    def call(i: int) -> dict[str, Any]:
        return {"id": str(i), "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def flat(kind: str, i: int, **more: Any) -> dict[str, Any]:
        return {"type": f"function_call{kind}", "call_id": str(i), **more}

    def bodies(n: int) -> dict[str, dict[str, Any]]:
        user, numbers = {"role": "user", "content": "q"}, range(n)
        called = {"role": "assistant", "tool_calls": [call(i) for i in numbers]}
        results = [{"role": "tool", "tool_call_id": str(i), "content": str(i)} for i in reversed(numbers)]
        return {
            "tools": {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in numbers]},
            "calls": {"messages": [user, called, *results]},
            "system": {"messages": [{"role": "system", "content": "s" * 900}] * n + [user]},
            "items": {
                "input": [
                    user,
                    *(flat("", i, name="f", arguments="{}") for i in numbers),
                    *(flat("_output", i, output=str(i)) for i in reversed(numbers)),
                ]
            },
            "said": {"input": [user] + [{"role": "assistant", "content": "s" * 900}] * n},
        }

    def read(given: dict[str, Any]) -> list[dict[str, Any]]:
        body = parse_json(json.dumps(given).encode())
        if "messages" in given:
            return Reader(0).chat(body.each("messages"))
        if "tools" in given:
            return read_tools(body).declared
        items = Items(0)
        items.read(body)
        return items.messages

    for name, given in bodies(16_000).items():
        began = time.thread_time()  # the processor's: tenths of a second, which a busy machine leaves so
        read(given)
        assert time.thread_time() - began < 3, name
    few = bodies(500)
    assert [m["content"] for m in read(few["calls"])[2:]] == [str(i) for i in range(500)]
    assert [m["content"] for m in read(few["items"])[2:]] == [str(i) for i in range(500)]
    assert read(few["said"])[1]["content"] == "s" * 900 * 500
    assert read(few["system"])[0]["content"] == "\n\n".join(["s" * 900] * 500)


def test_a_body_holds_so_many_arrays_and_objects() -> None:
    from qwen35.serve.fields import parse_json

    parse_json(b'{"a":[%s]}' % b",".join([b"[]"] * 99_998))
    with pytest.raises(Exception, match="holds more than 100,000 arrays and objects"):
        parse_json(b'{"a":[%s]}' % b",".join([b"{}"] * 99_999))
    parse_json(
        b'{"a":[%s]}' % b",".join([b"1"] * 500_001)
    )  # a prompt of the largest context, and as much again
    with pytest.raises(Exception, match="holds more than 500,000 commas"):
        parse_json(b'{"a":[%s]}' % b",".join([b"1"] * 500_002))


def test_what_is_no_json_is_said_without_advice_for_python(plain: Running, http: Any) -> None:
    for data, said in (
        (b'{"seed":%s}' % (b"9" * 5000), "the body is not JSON: a number has too many digits"),
        (b"[" * 19_000, "the body is not JSON: arrays and objects lie too deep in each other"),
    ):
        got = http.post(
            f"{plain.url}/chat/completions", content=data, headers=KEY | {"Content-Type": "application/json"}
        )
        assert got.status_code == 400 and got.json()["error"]["message"] == said


def test_no_such_path_or_method(plain: Running, http: Any) -> None:
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/", 404),
    ):
        got = http.request(method, plain.root + path, headers=KEY)
        assert got.status_code == status and got.json()["error"]["message"]


GOOD = {
    "model": "mock",
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "stop": ["a"],
    "temperature": 1,
    "max_tokens": 5,
    "stream": False,
    "top_p": 0.5,
    "seed": 1,
    "response_format": {"type": "text"},
    "tool_choice": "auto",
}
GOODS = {
    "chat/completions": GOOD,
    "completions": {"prompt": "Once", "max_tokens": 3, "stop": ["a"], "seed": 1, "top_k": 2, "stream": False},
    "responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}], "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "r"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "store": True,
        "instructions": "i",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "none"},
        "include": [],
        "metadata": {},
        "max_output_tokens": 3,
        "previous_response_id": None,
    },
}
ODD = [
    [],
    {},
    "",
    "\ud800",
    "x" * 300,
    -1,
    1e400,
    2**70,
    True,
    [[]],
    [None],
    {"type": 1},
    [{}],
    0.5,
    "file:///x",
]


def spoil(rng: random.Random, path: str) -> bytes:
    """A body with one or a few faults, now and then no JSON at all."""
    made = json.loads(json.dumps(GOODS[path]))
    for _ in range(rng.randrange(1, 4)):
        at: Any = made
        while True:
            key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.7:
                at = at[key]
                continue
            at[key] = copy.deepcopy(rng.choice(ODD))
            break
    data = json.dumps(made).encode()
    how = rng.random()
    if how < 0.1:
        return data[: rng.randrange(len(data))]
    if how < 0.2:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
    if how < 0.25:
        return b"[" * rng.randrange(1, 19_000)
    return data


def test_a_thousand_malformed_requests(plain: Running, http: Any) -> None:
    """Each a 4xx in OpenAI's form, or what was spoilt did not matter; the server goes on."""
    rng = random.Random(5)
    headers = KEY | {"Content-Type": "application/json"}
    malformed = 0
    before = set(threading.enumerate())
    while malformed < 1000:
        path = rng.choice([*GOODS, "chat/completions"])
        data = spoil(rng, path)
        got = http.post(f"{plain.url}/{path}", content=data, headers=headers)
        if got.status_code == 200:
            assert b"base64" not in data  # what was spoilt was the picture, and the rest is a question
            continue
        malformed += 1
        assert 400 <= got.status_code < 500, (got.status_code, data[:3000], got.text)
        assert set(got.json()["error"]) == {"message", "type", "param", "code"}
    assert content(http.post(f"{plain.url}/chat/completions", json=body("Hi"), headers=KEY)) == "You said: Hi"
    assert len(set(threading.enumerate()) - before) < 100  # a pool's, and none a request
