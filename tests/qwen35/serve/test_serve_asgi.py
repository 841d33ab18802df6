"""qwen35.serve's endpoint called as servers call it: what is sent, logged and counted, however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from amdxdna.errors import CommandFailed, DeviceLost
from qwen35 import Qwen35
from qwen35.errors import (
    Cancelled,
    Closed,
    ImageError,
    ModelError,
    PromptTooLong,
    TemplateError,
    TokenizerError,
    UsageError,
)
from tests.support.mock_model import fake

for _name in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(_name)

from qwen35.serve.answering import Answering, Limits, Service  # noqa: E402
from qwen35.serve.chat import Chat  # noqa: E402
from qwen35.serve.errors import ApiError, api_error  # noqa: E402
from qwen35.serve.fields import Fields, parse_json  # noqa: E402
from qwen35.serve.items import Items  # noqa: E402
from qwen35.serve.messages import Reader  # noqa: E402
from qwen35.serve.options import Served  # noqa: E402

WAIT = 120
PATH = "/v1/chat/completions"
WORDS = "word " * 60


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Qwen35]:
    with fake(tmp_path, lambda q: WORDS, delay=0.002) as made:
        yield made


class Client:
    """One request of an ASGI server. `fails` is the number of the message that cannot be sent."""

    def __init__(self, service: Service, fails: int = 0, **body: Any) -> None:
        self.service, self.fails, self.sent = service, fails, list[dict[str, Any]]()
        self.aborted = 0
        data = json.dumps({"messages": [{"role": "user", "content": "Hi"}], **body}).encode()
        self.given = [{"type": "http.request", "body": data, "more_body": False}]
        self.leave = asyncio.Event()
        self.state = {"abort": self.abort}

    def abort(self) -> None:
        self.aborted += 1

    async def receive(self) -> dict[str, Any]:
        if self.given:
            return self.given.pop()
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if self.fails and len(self.sent) + 1 >= self.fails:
            raise OSError("the connection is broken")
        self.sent.append(message)

    async def ask(self) -> None:
        scope = {
            "type": "http", "method": "POST", "path": PATH, "client": ("127.0.0.1", 1), "state": self.state,
            "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip
        await Answering(self.service, Chat)(scope, self.receive, self.send)  # type: ignore[arg-type]

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()


def served(
    model: Qwen35, work: Callable[[Service, list[str]], Coroutine[Any, Any, None]], **limits: Any
) -> dict[str, float]:
    """Runs clients of one service; the counters afterwards."""
    said: list[str] = []
    found: dict[str, float] = {}

    async def run() -> None:
        bounds = Limits(**{"timeout": WAIT, "body": 1 << 20, "grace": 0.01, "queue": 4, **limits})
        service = Service(Served(model, ("mock",)), bounds, said.append)
        try:
            await asyncio.wait_for(work(service, said), WAIT)
            assert (service.queue.inside, service.queue.nbytes, service.jobs) == (0, 0, set())
            rows = (line.rpartition(" ") for line in service.metrics.text().decode().splitlines())
            found.update({key: float(value) for key, _, value in rows if "{" in key or "_count" in key})
        finally:
            service.close()

    asyncio.run(run())
    return found


def told(counters: dict[str, float]) -> dict[str, float]:
    """Answers by status, and by why they were cut."""
    names = {"status": "qwen35_requests_total{", "why": "qwen35_cancelled_total{"}
    return {
        key.rpartition("=")[2].strip('"}'): value
        for name in names.values()
        for key, value in counters.items()
        if key.startswith(name)
    }


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_sent_logged_and_counted(model: Qwen35, stream: bool) -> None:
    async def work(service: Service, said: list[str]) -> None:
        client = Client(service, stream=stream)
        await client.ask()
        assert client.status == 200 and client.sent[-1].get("more_body", False) is False
        if stream:
            events = client.text.split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""] and all(
                one.startswith("data: ") for one in events[:-1]
            )
        else:
            assert json.loads(client.text)["choices"][0]["message"]["content"] == WORDS
        assert len(said) == 1 and said[0].startswith(f"{PATH} 200 ") and said[0].endswith(" s")
        assert 0 <= float(said[0].split()[2]) < WAIT and client.aborted == 0

    counters = served(model, work)
    assert told(counters) == {"200": 1} and counters["qwen35_request_seconds_count"] == 1


@pytest.mark.parametrize("fails", [1, 3])
def test_a_connection_that_breaks_ends_the_answer(model: Qwen35, fails: int) -> None:
    """Nothing goes on for nobody."""

    async def work(service: Service, said: list[str]) -> None:
        client = Client(service, fails, stream=True)
        await client.ask()
        assert len(client.sent) == fails - 1  # no error behind what was begun
        assert said[0] == f"{PATH}: OSError, a fault of this program" and f"{PATH} 500 " in said[1]

    assert told(served(model, work)) == {"500": 1}
    whole = len(model.tokenizer.encode(WORDS))
    assert sum(kind == "decode" for kind, _ in model.model.calls) < whole  # type: ignore[attr-defined]


def test_a_client_that_leaves_is_counted_as_such(model: Qwen35) -> None:
    async def work(service: Service, said: list[str]) -> None:
        client = Client(service, stream=True)
        asked = asyncio.ensure_future(client.ask())
        while len(client.sent) < 3:
            await asyncio.sleep(0.001)
        client.leave.set()
        await asked
        assert (
            "499" in said[0]
            and json.loads(client.text.rpartition("data: ")[2])["error"]["code"] == "cancelled"
        )

    assert told(served(model, work)) == {"499": 1, "cancelled": 1}


def test_a_server_that_ends_tells_those_who_wait_and_cuts_the_others(model: Qwen35) -> None:
    """Its tasks are cancelled; who has nothing yet hears 503, who reads a stream finds it broken."""

    async def work(service: Service, said: list[str]) -> None:
        clients = [Client(service, stream=True), Client(service)]
        tasks = [asyncio.ensure_future(client.ask()) for client in clients]
        while len(clients[0].sent) < 3 or service.queue.waiting < 1:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        assert [client.aborted for client in clients] == [1, 0] and clients[1].status == 503
        assert json.loads(clients[1].text)["error"]["code"] == "shutdown"
        assert len(said) == 2 and all(f"{PATH} 503 " in line for line in said)

    assert told(served(model, work)) == {"503": 2}


def test_a_server_that_drains_takes_nobody_and_gives_the_running_answer_its_grace(model: Qwen35) -> None:
    async def work(service: Service, said: list[str]) -> None:
        clients = [Client(service), Client(service)]
        tasks = [asyncio.ensure_future(client.ask()) for client in clients]
        while service.queue.waiting < 1 or not service.queue.running:
            await asyncio.sleep(0.001)
        service.drain()
        await tasks[1]
        late = Client(service)
        await late.ask()
        assert not tasks[0].done() or clients[0].status == 503
        await tasks[0]
        for client in (*clients, late):
            assert client.status == 503 and json.loads(client.text)["error"]["code"] == "shutdown"

    assert told(served(model, work, grace=0.05)) == {"503": 3, "shutdown": 1}


def test_more_than_may_wait_is_refused_before_it_is_read(model: Qwen35) -> None:
    async def work(service: Service, said: list[str]) -> None:
        first = Client(service, max_tokens=9)
        task = asyncio.ensure_future(first.ask())
        while not service.queue.running:
            await asyncio.sleep(0.001)
        other = Client(service)
        await other.ask()
        assert other.status == 429 and len(other.given) == 1
        await task
        assert first.status == 200

    assert told(served(model, work, queue=0)) == {"200": 1, "429": 1}


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
def test_the_largest_body(model: Qwen35, over: int, status: int) -> None:
    async def work(service: Service, said: list[str]) -> None:
        client = Client(service, max_tokens=1)
        service.limits.body = len(client.given[0]["body"]) - over
        await client.ask()
        assert client.status == status

    assert told(served(model, work)) == {str(status): 1}


@pytest.mark.parametrize(
    ("error", "status", "code", "param", "more"),
    [
        (ApiError(418, "x", code="c", param="p"), 418, "c", "p", {}),
        (PromptTooLong(5, 4), 400, "context_length_exceeded", "messages", {}),
        (Closed("x"), 503, "closed", None, {}),
        (UsageError("stop is bad", "--stop-words", "do"), 400, None, "stop_words", {}),
        (UsageError("x is bad", "x", "do"), 400, None, None, {}),
        (ImageError("x"), 400, "invalid_image", None, {}),
        (TemplateError("x"), 400, None, "messages", {}),
        (TokenizerError("x"), 400, None, "messages", {}),
        (DeviceLost("gone"), 503, "device_lost", None, {"Retry-After": "1"}),
        (CommandFailed("x"), 503, "device_error", None, {}),
        (MemoryError(), 503, "out_of_memory", None, {}),
        (ModelError("x"), 500, None, None, {}),
        (Cancelled("x"), 500, None, None, {}),
        (ZeroDivisionError("x"), 500, None, None, {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_client_is_told_of_an_error(
    error: Exception, status: int, code: str | None, param: str | None, more: dict[str, str]
) -> None:
    made = api_error(error)
    assert (made.status, made.code, made.param, made.headers) == (status, code, param, more)
    if isinstance(error, UsageError) and not isinstance(error, Closed):
        assert made.message == ("stop is bad: do" if param else "x is bad (x): do")


def test_how_deep_a_body_may_be() -> None:
    """100 arrays and objects in each other, the body itself among them."""
    deep = b'{"a":' + b"[" * 99 + b"]" * 99 + b"}"
    assert parse_json(deep).items("a") is not None
    with pytest.raises(ApiError, match="more than 100 deep"):
        parse_json(deep.replace(b"[]", b"[[]]"))
    for wrong in (b"[]", b"3", b"null", b'{"a": NaN}', b"{", b'{"a": "\xff"}'):
        with pytest.raises(ApiError, match="JSON") as caught:
            parse_json(wrong)
        assert caught.value.status == 400


def test_fields_by_their_kinds() -> None:
    """null is absent; a wrong kind is named by its place."""
    body = Fields(
        {"t": "x", "f": True, "l": [1], "e": [], "o": {"t": 1}, "n": None, "w": 3.0, "s": [{"a": 1}]}
    )
    assert (body.text("t"), body.flag("f"), body.items("l"), body.items("e")) == ("x", True, [1], [])
    assert body.text("n") is body.items("n") is body.inner("n") is body.number("n", 0, 1) is None
    assert body.whole("n", 0, 1) is body.choice("n", "ab") is None and not list(body.each("n"))
    assert (body.flag("n"), body.flag("n", True), "n" in body, "e" in body) == (False, True, False, True)
    assert (body.whole("w", 0, 3), type(body.whole("w", 0, 3)), body.number("w", 3, 4)) == (3, int, 3.0)
    assert [one.whole("a", 0, 1) for one in body.each("s")] == [1]
    assert Fields({"w": 2.0**53}).number("w", 0, 1e300) == 2**53
    inner = body.inner("o")
    assert inner is not None
    for read, message in (
        (lambda: body.text("f"), r"^f must be a string$"),
        (lambda: body.flag("t"), r"^t must be true or false$"),
        (lambda: body.items("t"), r"^t must be an array$"),
        (lambda: body.inner("l"), r"^l must be an object$"),
        (lambda: inner.text("t"), r"^o\.t must be a string$"),
        (lambda: list(body.each("l")), r"^l\[0\] must be an object$"),
        (lambda: body.text("n", required=True), r"^n is missing$"),
        (lambda: body.items("n", required=True), r"^n is missing$"),
        (lambda: body.items("e", required=True), r"^e must not be empty$"),
        (lambda: body.choice("t", ("a", "b")), r"^t is 'x' and must be one of a, b$"),
        (lambda: Fields({"w": 2.0**53}).whole("w", 0, 2**60), r"^w must be a whole number$"),
    ):
        with pytest.raises(ApiError, match=message):
            read()


def test_reasoning_by_either_name() -> None:
    both = {"role": "assistant", "content": "a", "reasoning_content": "one", "reasoning": "two"}
    for given, want in ((both, "one"), ({**both, "reasoning_content": None}, "two")):
        body = Fields({"messages": [{"role": "user", "content": "q"}, given]})
        made = Reader(0).chat(body.each("messages"))
        assert made[1] == {"role": "assistant", "content": "a", "reasoning_content": want}


USER = {"role": "user", "content": "q"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
FLAT = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


def chat(*messages: dict[str, Any], images: int = 0) -> list[dict[str, Any]]:
    return Reader(images).chat(Fields({"messages": list(messages)}).each("messages"))


def test_pictures_of_a_request_are_counted() -> None:
    """Also those of the conversation that it goes on from."""
    two = {"role": "user", "content": [PICTURE, {"type": "text", "text": "and"}, FLAT]}
    (made,) = chat(two, images=2)
    assert made["content"] == [
        {"type": "image", "image": b"\0"},
        {"type": "text", "text": "and"},
        {"type": "image", "image": b"\0"},
    ]
    with pytest.raises(ApiError, match="may hold 1 pictures") as caught:
        chat(two, images=1)
    assert (caught.value.status, caught.value.code) == (400, "too_many_images")
    before = Items(3)
    before.read(Fields({"input": [{"role": "user", "content": [FLAT, FLAT]}]}))
    for most, status in ((3, None), (2, 400)):
        after = Items(most, before.messages)
        body = Fields({"input": [{"role": "user", "content": [FLAT]}]})
        if status:
            with pytest.raises(ApiError, match="may hold 2 pictures"):
                after.read(body)
        else:
            after.read(body)


def test_messages_of_every_kind() -> None:
    parts = [{"type": kind, "text": kind} for kind in ("text", "input_text", "output_text")]
    refusal = {"type": "refusal", "refusal": "no"}
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    other = {"id": "1", "function": {"name": "g", "arguments": {"b": 2}}}
    made = chat(
        {"role": "developer", "content": "one"},
        {"role": "system", "content": [*parts, refusal]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call, other, {"function": {"name": "h"}}]},
        {"role": "tool", "content": "none"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "r"}]},
    )
    assert made[0] == {"role": "system", "content": "one\n\ntextinput_textoutput_textno"}
    assert [one["function"] for one in made[2]["tool_calls"]] == [
        {"name": "f", "arguments": {"a": 1}},
        {"name": "g", "arguments": {"b": 2}},
        {"name": "h", "arguments": {}},
    ]
    assert made[2]["content"] == "" and [m["content"] for m in made[3:]] == [
        [{"type": "text", "text": "r"}],
        "none",
    ]
    assert chat(USER, {"role": "assistant", "content": "", "tool_calls": []})[1] == {
        "role": "assistant", "content": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        ([{"content": "x"}], "messages[0].role", "is missing"),
        ([{"role": "system", "content": "x"}], "messages", "holds no user message"),
        ([{"role": "user", "content": 3}], "messages[0].content", "a string or an array"),
        ([{"role": "user", "content": []}], "messages[0].content", "is empty"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type", "is missing"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "is missing"),
        (
            [{"role": "user", "content": [{"type": "refusal"}]}],
            "messages[0].content[0].refusal",
            "is missing",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0].content[0].image_url",
            "data: URL",
        ),
        ([{"role": "system", "content": [PICTURE]}, USER], "messages[0].content", "must be text"),
        ([USER, {"role": "tool", "content": "r"}], "messages[1].role", "without a call"),
        (
            [USER, {"role": "assistant", "tool_calls": [{}]}],
            "messages[1].tool_calls[0].function",
            "is missing",
        ),
        *(
            (
                [
                    USER,
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": given}}]},
                ],
                "messages[1].tool_calls[0].function.arguments",
                message,
            )
            for given, message in (
                ("{", "is no JSON"),
                ("[]", "must be a JSON object"),
                (3, "must be a JSON"),
            )
        ),
        (
            [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[1].tool_calls[0].function.name",
            "is missing",
        ),
    ],
)
def test_messages_that_are_none(messages: list[dict[str, Any]], param: str, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        chat(*messages, images=3)
    assert caught.value.param == param and caught.value.status == 400
