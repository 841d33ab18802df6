"""qwen35.serve: 32 clients for a stated time, AMDXDNA_LOAD seconds (else a few), with all that clients do.

Every answer is compared with the same request alone; the queue, what is kept, and the process's memory stay
within their bounds; malformed requests and clients that leave change nothing for the others.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35 import Qwen35, Sampling
from tests.support.descriptors import descriptors
from tests.support.mock_model import HashModel, fake

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from tests.support.serving import WAIT, Running, serving  # noqa: E402

SECONDS = float(os.environ.get("AMDXDNA_LOAD", "3"))
CLIENTS, QUEUE, KEPT, STORED = 32, 12, 8_000, 20_000
GROWTH = 48 << 20
"""Bytes that the process may grow after its first quarter: buffers of 32 connections, no leak."""
FEW = 8
"""Threads, and descriptors, that may be there afterwards and were not before: none a client or request."""
JSON = {"Content-Type": "application/json"}
BAD: tuple[Any, ...] = (
    b"",
    b"{",
    b"\xff\xfe{}",
    b"[]",
    b'{"messages": 3}',
    b'{"input": [{"role": "user"}]}',
    b"null",
    b"1e999",
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}',
    b'{"prompt": [-1]}',
)


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Questions of growing conversations with a shared beginning, for the three endpoints."""
    made: list[tuple[str, dict[str, Any]]] = []
    for number in range(12):
        messages: list[dict[str, Any]] = [{"role": "system", "content": "One model, many clients."}]
        for turn in range(3):
            messages = [*messages, {"role": "user", "content": f"Client {number}, turn {turn}?"}]
            settings = {"seed": number * 7 + turn, "temperature": 1}
            made.append(("chat/completions", {"messages": messages, "max_tokens": 10, **settings}))
            made.append(("responses", {"input": messages, "max_output_tokens": 10, **settings}))
            messages = [*messages, {"role": "assistant", "content": "Yes."}]
        made.append(
            ("completions", {"prompt": f"Once {number}", "max_tokens": 8, "seed": number, "temperature": 1})
        )
    return made


def alone(model: Qwen35, server: Running, path: str, body: dict[str, Any]) -> str:
    """What the engine says to a conversation that has it to itself; a completion is asked for one by one."""
    if path == "completions":
        return said(path, httpx.post(f"{server.url}/{path}", json=body, timeout=WAIT))
    most = body.get("max_tokens") or body["max_output_tokens"]
    messages = body.get("messages") or body["input"]
    return str(model.reply(messages, max_new=most, sampling=Sampling(seed=body["seed"])))


def said(path: str, answer: Any) -> str:
    """The text of a whole answer or of a stream."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        found = answer.json()
        if path == "responses":
            return "".join(
                part["text"]
                for item in found["output"]
                if item["type"] == "message"
                for part in item["content"]
            )
        choice = found["choices"][0]
        return str(choice["text"] if path == "completions" else choice["message"]["content"])
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    if path == "responses":
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
        return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert answer.text.endswith("data: [DONE]\n\n")
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(c["text"] if path == "completions" else c["delta"].get("content") or "" for c in choices)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Load:
    """What the clients share. `wrong` are the answers that were not as alone."""

    def __init__(self, server: Running, want: list[tuple[str, dict[str, Any], str]]) -> None:
        self.server, self.want = server, want
        self.until = 0.0
        self.ready = threading.Barrier(CLIENTS, self.begin)
        self.full = threading.Event()
        """Somebody was refused."""
        self.wrong: list[Any] = []
        self.counts = {"right": 0, "refused": 0, "left": 0, "malformed": 0}
        self.lock = threading.Lock()

    def begin(self) -> None:
        self.until = time.monotonic() + SECONDS

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def client(self, number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(timeout=WAIT) as http:
            self.ready.wait(WAIT)
            rounds = 0
            while time.monotonic() < self.until or rounds < 4:
                rounds += 1
                path, body, want = rng.choice(self.want)
                url, dice = f"{self.server.url}/{path}", rng.random()
                if dice < 0.15:
                    got = http.post(url, content=rng.choice(BAD), headers=JSON)
                    assert 400 <= got.status_code < 500 and got.json()["error"]["message"], got.text
                    self.count("malformed")
                elif dice < 0.3:
                    self.leave(http, url, body, rng)
                else:
                    got = http.post(url, json=body | {"stream": rng.random() < 0.5})
                    if got.status_code == 429:
                        assert int(got.headers["retry-after"]) >= 1
                        self.full.set()
                        self.count("refused")
                        time.sleep(0.01)
                    elif got.status_code != 200 or said(path, got) != want:
                        self.wrong.append((path, body, want, got.status_code, got.text))
                    else:
                        self.count("right")

    def leave(self, http: Any, url: str, body: dict[str, Any], rng: random.Random) -> None:
        """Goes away after some of the answer, or while it waits."""
        self.count("left")
        try:
            patience = rng.uniform(0.02, 0.2)
            with http.stream("POST", url, json=body | {"stream": True}, timeout=patience) as got:
                for _ in zip(range(rng.randrange(4)), got.iter_lines(), strict=False):
                    pass
        except httpx.TimeoutException:
            pass


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    (tmp_path / "alone").mkdir()
    with fake(tmp_path / "alone", cache_bytes=0) as model, serving(model) as server:
        want = [(path, body, alone(model, server, path, body)) for path, body in requests()]
    assert len({text for _, _, text in want}) > len(want) / 3
    limits = {"queue": QUEUE, "stored": STORED}
    with fake(tmp_path, cache_bytes=KEPT) as model, serving(model, limits=limits) as server:
        made, decode = Load(server, want), model.model.decode

        def held(token: int) -> np.ndarray:
            assert made.full.wait(WAIT)
            return decode(token)

        model.model.decode = held  # type: ignore[method-assign]
        yield made


def test_32_clients_for_a_time(load: Load) -> None:
    service = load.server.service
    model = service.served.model
    bounds, sizes, over = [0, 0, 0], [], threading.Event()
    threads, files = set(threading.enumerate()), descriptors()

    def bounded(owner: Any, which: int) -> None:
        """Notes what it holds after each addition."""
        add = owner.add

        def added(*what: Any, **more: Any) -> None:
            add(*what, **more)
            bounds[which] = max(bounds[which], owner.nbytes)

        owner.add = added

    bounded(service.store, 1)
    bounded(model.session.cache, 2)

    def watch() -> None:
        while not over.wait(0.02):
            bounds[0] = max(bounds[0], service.queue.inside)
            if load.until:
                sizes.append(resident())
        sizes.append(resident())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(load.client, number) for number in range(CLIENTS)]:
                done.result()
    finally:
        over.set()
        watching.join()
    end = time.monotonic() + WAIT
    while service.queue.inside or (left := len(descriptors() - files)) > FEW:
        assert time.monotonic() < end, (service.queue.inside, descriptors() - files)
        time.sleep(0.01)
    begun = len(set(threading.enumerate()) - threads)
    told = {
        "more threads": begun,
        "more descriptors": left,
        "MiB": [size >> 20 for size in (sizes[0], max(sizes), sizes[-1])],
        "most": bounds,
    }
    print(f"{SECONDS:g} s, {CLIENTS} clients: {load.counts}, {len(load.wrong)} wrong, {told}")
    assert not load.wrong, load.wrong[:2]
    assert all(load.counts.values()), load.counts
    assert bounds[0] <= QUEUE + 1 and bounds[1] <= STORED and bounds[2] <= KEPT, bounds
    assert max(sizes) - max(sizes[: len(sizes) // 4 + 1]) < GROWTH
    assert begun <= FEW
    path, body, want = load.want[0]
    assert said(path, httpx.post(f"{load.server.url}/{path}", json=body, timeout=WAIT)) == want
    assert isinstance(model.model, HashModel)
