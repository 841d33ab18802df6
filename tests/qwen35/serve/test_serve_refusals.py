"""qwen35.serve: who may ask, what is refused, and what bodies and heads are bounded by."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mock_model import fake

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from tests.support.serving import WAIT, Running, body, content, ended, head, serving, until


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
        first, _, text = ended(raw).decode().partition("\r\n\r\n")
    return int(first.split()[1]), text


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
        raw.sendall(head(10, "Authorization: Bearer secret") + b"{")
        assert b" 408 " in raw.recv(1000)


def test_a_body_that_does_not_come_takes_no_place(tmp_path: Path, http: Any) -> None:
    with (
        fake(tmp_path, lambda question: "ok") as model,
        serving(model, limits={"queue": 0}) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT))
            raw.sendall(head(5000) + b"{")
        until(lambda: server.service.queue.nbytes == 3)
        assert http.post(f"{server.url}/chat/completions", json=body("Hi")).status_code == 200
        until(lambda: server.service.queue.nbytes == 3)


def test_who_goes_on_with_a_body_that_was_answered_is_let_go(tmp_path: Path) -> None:
    """Too large, no such path, no key: the answer does not wait for the body, nor the place for its end."""
    limits = {"reading": 0.5, "body": 1000}
    with fake(tmp_path, lambda question: "ok") as model, serving(model, limits=limits) as server:
        for path, status in (("/v1/chat/completions", 413), ("/v1/nothing", 404)):
            with socket.socket() as raw:
                raw.settimeout(WAIT)
                with server.resting():
                    raw.connect(("127.0.0.1", server.port))
                    raw.sendall(head(100_000, path=path))
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
        first, _, text = got.partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 400 ")
        assert json.loads(text)["error"]["code"] == "invalid_http"
    assert not [record for record in caplog.records if record.exc_info]


def test_bodies_are_bounded_together(tmp_path: Path, http: Any) -> None:
    """However many may wait: four of the largest are held, also of clients that do not end theirs."""
    limits = {"body": 10_000, "queue": 50}
    with fake(tmp_path, lambda question: "ok") as model, serving(model, limits=limits) as server:
        url = f"{server.url}/chat/completions"
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT))
                raw.sendall(head(10_000) + b" " * 9_900)
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
