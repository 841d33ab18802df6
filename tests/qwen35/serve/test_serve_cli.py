"""`python -m qwen35 serve` as a process: the start line, signals, what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

for _name in ("starlette", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(_name)

from tests.support.hub_server import cached  # noqa: E402
from tests.support.program import python  # noqa: E402

ROOT = Path(__file__).parents[3]
WAIT = 120


PATIENT = f"""
import sys
from qwen35.cli import main
from qwen35.serve import cli
cli.TELLING, cli.SPARE = {WAIT}.0, {WAIT}
sys.exit(main())
"""
"""A server that gives the clients of answers it cuts longer to hear of it."""


@contextmanager
def started(
    *options: str, program: tuple[str, ...] = ("-m", "qwen35")
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its base URL and the lines of its stderr so far."""
    words = [sys.executable, *program, "serve", "--device", "emu:threads=1,quiet", "--port", "0"]
    words += options
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(WAIT, process.kill)
    timer.start()
    lines: list[str] = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"serving .* at (http://\S+)", line):
                yield process, found[1], lines
                break
        else:
            pytest.fail("".join(lines))
    finally:
        process.kill()
        process.communicate()
        timer.cancel()


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=WAIT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_says_what_runs_where_and_ends_on_a_signal(number: signal.Signals) -> None:
    if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("under nohup it stays ignored")
    with started() as (process, url, lines):
        assert "emulated NPU" in lines[-1] and "127.0.0.1" in url
        body = {"messages": [{"role": "user", "content": "What is a penguin?"}], "temperature": 0}
        answer = json.load(post(url, body))["choices"][0]["message"]["content"]
        assert "bird" in answer
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0, err
        assert out == "" and "penguin" not in err and "Traceback" not in err
        assert "/v1/chat/completions 200" in err


@pytest.mark.parametrize("grace", ["0", "110"])
def test_the_running_answer_ends_within_the_grace_or_is_told(grace: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "What is a penguin?"}],
        "stream": True,
        "temperature": 100,
        "max_tokens": 300 if grace == "0" else 60,
        "logit_bias": {},
    }
    with started("--grace", grace, program=("-c", PATIENT)) as (process, url, _):
        with post(url, body) as stream:
            first = stream.readline()
            process.send_signal(signal.SIGTERM)
            rest = (first + stream.read()).decode()
        assert process.wait(WAIT) == 0
        last = rest.strip().rpartition("data: ")[2]
        if grace == "110":
            assert last == "[DONE]"
        else:  # or it was over before the signal came
            assert last == "[DONE]" or json.loads(last)["error"]["code"] == "shutdown"


def test_a_closing_terminal_leaves_the_running_answer_its_grace() -> None:
    """The shell and the kernel may each send SIGHUP."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("under nohup it stays ignored")
    body = {
        "messages": [{"role": "user", "content": "What is a penguin?"}],
        "stream": True,
        "temperature": 100,
        "max_tokens": 200,
        "logit_bias": {},
    }
    with started("--grace", "110") as (process, url, _):
        with post(url, body) as stream:
            first = stream.readline()
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            for line in process.stderr:
                if "ending: " in line:
                    break
            process.send_signal(signal.SIGHUP)
            rest = (first + stream.read()).decode()
        assert rest.strip().rpartition("data: ")[2] == "[DONE]"
        _, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0 and "Traceback" not in err, err


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_signal_ends_the_running_answer(stream: bool) -> None:
    """Its client is told, in the form of all errors."""
    pytest.importorskip("llguidance")
    numbers = {"type": "array", "minItems": 3000, "items": {"type": "integer"}}
    body = {
        "messages": [{"role": "user", "content": "What is a dog?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": numbers}},
        "temperature": 1.5,
        "stream": stream,
    }
    with (
        started("--grace", "600", program=("-c", PATIENT)) as (process, url, _),
        ThreadPoolExecutor(1) as pool,
    ):

        def ask() -> str:
            try:
                return str(post(url, body).read().decode())
            except urllib.error.HTTPError as error:
                assert error.code == 503
                return str(error.read().decode())

        asked = pool.submit(ask)
        health = f"{url.removesuffix('/v1')}/health"
        while json.load(urllib.request.urlopen(health, timeout=WAIT))["running"] == 0:
            assert not asked.done(), asked.result()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        for line in process.stderr:
            if "ending: " in line:
                break
        process.send_signal(signal.SIGINT)
        last = asked.result(WAIT).strip().rpartition("data: ")[2]
        assert json.loads(last)["error"]["code"] == "shutdown"
        _, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0 and "/v1/chat/completions 503" in err and "xception" not in err, err


def test_the_hub_id_that_it_was_started_with_names_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    cached(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with started("owner/name") as (_, url, _):
        listed = json.load(urllib.request.urlopen(f"{url}/models", timeout=WAIT))["data"]
        assert [one["id"] for one in listed][1:] == ["owner/name"]
        body = {"messages": [{"role": "user", "content": "What is a penguin?"}], "max_tokens": 2}
        assert json.load(post(url, body | {"model": "owner/name"}))["object"] == "chat.completion"


def test_names_that_are_allowed() -> None:
    with started("--allow-host", "One.Example", "--allow-host", "two.example", "--host", "localhost") as (
        _,
        url,
        _,
    ):
        for name, status in (("one.example", 200), ("two.example:80", 200), ("three.example", 403)):
            request = urllib.request.Request(f"{url}/models", headers={"Host": name})
            try:
                got = urllib.request.urlopen(request, timeout=WAIT).status
            except urllib.error.HTTPError as error:
                got = error.code
            assert got == status


def test_more_clients_than_descriptors() -> None:
    """Those beyond are let go, which takes no thousand lines; the others are answered."""
    import resource

    with started() as (process, url, _), contextlib.ExitStack() as stack:
        port = int(url.rpartition(":")[2].partition("/")[0])
        soft = len(list(Path(f"/proc/{process.pid}/fd").iterdir())) + 20
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, soft))
        body = {"messages": [{"role": "user", "content": "What is a penguin?"}], "max_tokens": 2}
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), WAIT)).sendall(b"\0\r\n\r\n")
        stack.close()
        end = time.monotonic() + WAIT / 2
        while True:
            with contextlib.suppress(OSError):
                assert json.load(post(url, body))["object"] == "chat.completion"
                break
            assert time.monotonic() < end, "it answers no more"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0 and "Traceback" not in err
        assert err.count("\n") < 20, err


def spare_port() -> str:
    """A free one that no other program is given by the system meanwhile, as clients' connections are."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    spare = [port for port in range(10_000, 60_000) if not low <= port <= high] or [0]
    random.Random(os.getpid()).shuffle(spare)
    for port in spare:
        with socket.socket() as bound, contextlib.suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return str(bound.getsockname()[1])
    raise AssertionError("no port is free")


def test_killed_and_started_again() -> None:
    port = spare_port()
    with started("--port", port) as (process, url, _):
        process.kill()
        process.wait(WAIT)
    with started("--port", port) as (_, again, _):
        assert again == url
        body = {"messages": [{"role": "user", "content": "What is a penguin?"}]}
        assert json.load(post(again, body))["object"] == "chat.completion"


def run(*words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    script = f"{code}\nimport sys\nfrom qwen35.cli import main\nsys.exit(main({['serve', *words]!r}))"
    return python("-c", script)


def test_without_the_extra_one_line_says_what_to_install() -> None:
    hide = (
        "import sys, importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'starlette' else find(name, *a)"
    )
    done = run(code=hide)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "extra [serve]" in done.stderr and "starlette" in done.stderr
    assert run("--help", code=hide).returncode == 0


def test_mistakes_are_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for words in (
            ["--port", str(taken.getsockname()[1])],
            ["--host", "no.such.host.invalid"],
            ["--port", "70000"],
            ["--nothing"],
            ["--allow-host", "http://name"],
            ["--allow-host", "name:8000"],
            ["no-such-bundle"],
        ):
            done = run(*words)
            assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, done.stderr
            assert "Traceback" not in done.stderr


def test_numbers_have_bounds() -> None:
    from qwen35.errors import UsageError
    from qwen35.serve.cli import build

    with pytest.raises(UsageError, match="unrecognized arguments: --max-c=5"):  # nothing is guessed
        build().parse_args(["--max-c=5"])
    for option, low, high, default in (
        ("port", 0, 65535, 8000),
        ("max-new", 1, 1 << 20, 0),
        ("queue", 0, 100_000, 64),
        ("timeout", 0.01, 86_400, 600),
        ("grace", 0, 86_400, 10),
        ("max-body-mb", 1, 1024, 32),
        ("max-images", 0, 1000, 16),
        ("max-ctx", 1, 262_144, 8192),
        ("cache-mb", 0, 1 << 20, 1024),
    ):
        name = option.replace("-", "_")
        assert vars(build().parse_args([]))[name] == default
        for value in (low, high):
            assert vars(build().parse_args([f"--{option}={value}"]))[name] == value
        for value in (low - 0.001 if isinstance(low, float) else low - 1, high + 1):
            with pytest.raises(UsageError, match=f"is out of range: it must be {low} to {high}:"):
                build().parse_args([f"--{option}={value}"])


def test_the_largest_body_is_that_of_the_option() -> None:
    """A client that waits to be told to go on with its body is told so up to the last byte."""
    with started("--max-body-mb", "3") as (_, url, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        for length, status in ((3 << 20, b"HTTP/1.1 100 "), ((3 << 20) + 1, b"HTTP/1.1 413 ")):
            with socket.create_connection(("127.0.0.1", port), WAIT) as raw:
                raw.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length
                )
                assert raw.recv(13) == status


def test_nothing_of_it_is_left_in_its_process(tmp_path: Path) -> None:
    """The model's thread ends before the model is closed; handlers, threads and the port are as before."""
    from qwen35.serve import cli
    from tests.support.mock_model import fake

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = set(threading.enumerate()), [signal.getsignal(one) for one in signals]
    port, model, beside, said = spare_port(), fake(tmp_path, lambda question: "word"), [], []
    close = model.close
    model.close = lambda: [beside.extend(threading.enumerate()), close()]  # type: ignore[method-assign]

    def ask() -> None:
        try:
            while not said:
                with contextlib.suppress(urllib.error.URLError):
                    body = {"messages": [{"role": "user", "content": "Hi"}]}
                    said.append(json.load(post(f"http://127.0.0.1:{port}/v1", body)))
                time.sleep(0.01)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    client = threading.Thread(target=ask, daemon=True)
    client.start()
    kept = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises the signal once more
    try:
        assert cli.main(["--port", port, "--quiet"], lambda options: model) == 0
    finally:
        signal.signal(signal.SIGTERM, kept)
    client.join(WAIT)
    assert said[0]["choices"][0]["message"]["content"] == "word"
    assert set(beside) <= before[0] | {client}
    assert set(threading.enumerate()) <= before[0]
    assert [signal.getsignal(one) for one in signals] == before[1]
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # fails beside one that listens
        again.bind(("127.0.0.1", int(port)))


def test_too_little_address_space_is_told_at_the_start() -> None:
    """620 MiB were enough to begin, and not to end."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (620 << 20,) * 2)"
    done = run("--port", "0", "--device", "emu:threads=1,quiet", code=limit)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "address space is limited to 620 MiB" in done.stderr


def test_the_main_job_imports_nothing_of_it() -> None:
    code = (
        "import sys; from qwen35.cli import main; main(['--prompt', 'What is a penguin?', '-q'])\n"
        "assert not {'starlette', 'uvicorn', 'prometheus_client', 'asyncio'} & set(sys.modules)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_pieces_are_sent_at_once() -> None:
    """Without TCP_NODELAY each answer waits 40 ms for the client's acknowledgement."""
    import asyncio

    from qwen35.serve.cli import bind

    async def run() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            name = writer.get_extra_info("socket")
            seen.set_result(name.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind("127.0.0.1", 0) as bound:
            server = await asyncio.start_server(connected, sock=bound)
            _, writer = await asyncio.open_connection(*bound.getsockname())
            found = await asyncio.wait_for(seen, WAIT)
            writer.close()
            server.close()
            return found

    assert asyncio.run(run())


def inside(model: Any, *words: str, ask: Any) -> int:
    """Runs `serve` in this process while `ask(port)` does in a thread; its status."""
    from qwen35.serve import cli

    port = spare_port()

    def client() -> None:
        try:
            end = time.monotonic() + WAIT
            while time.monotonic() < end:
                with contextlib.suppress(OSError), socket.create_connection((address, int(port)), WAIT):
                    break
                time.sleep(0.01)
            ask(int(port))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    address = words[words.index("--host") + 1] if "--host" in words else "127.0.0.1"
    thread = threading.Thread(target=client, daemon=True)
    kept = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises the signal once more
    thread.start()
    try:
        return cli.main(["--port", port, *words], lambda options: model)
    finally:
        signal.signal(signal.SIGTERM, kept)
        thread.join(WAIT)


@pytest.mark.parametrize(
    ("words", "where", "warned"),
    [
        ([], "http://127.0.0.1:{}/v1", False),
        (["--host", "127.0.0.2", "--quiet"], "http://127.0.0.2:{}/v1", False),
        (["--host", "0.0.0.0"], "http://0.0.0.0:{}/v1", True),
        (["--host", "0.0.0.0", "--api-key", "secret"], "http://0.0.0.0:{}/v1", False),
        (["--host", "::1"], "http://[::1]:{}/v1", False),
    ],
)
def test_the_start_line_and_who_may_ask(
    words: list[str], where: str, warned: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tests.support.mock_model import fake

    if "::1" in words:
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::1", 0))
            except OSError:
                pytest.skip("no IPv6 here")
    asked: list[int] = []
    assert inside(fake(tmp_path, str), *words, ask=asked.append) == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].endswith(f", at {where.format(*asked)}") and "serving mock" in lines[0]
    assert ("qwen35: anybody who reaches this address may ask: give --api-key" in lines) is warned


def test_what_its_libraries_say_is_told_once_and_not_for_ever(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import logging

    from tests.support.mock_model import fake

    def ask(port: int) -> None:
        log = logging.getLogger("uvicorn.error")
        log.info("silent")
        for _ in range(2):
            log.warning("first line\nsecond")
            try:
                raise ValueError("why")
            except ValueError:
                logging.getLogger("asyncio").exception("failed")
        for number in range(60):
            log.error("line %d", number)

    assert inside(fake(tmp_path, str), "--quiet", ask=ask) == 0
    told = [line.removeprefix("qwen35: ") for line in capfd.readouterr().err.splitlines()[1:]]
    assert told == ["first line", "failed: ValueError: why", *(f"line {n}" for n in range(48))]


def test_the_names_a_model_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own, the one it was started by, and those given, each once."""
    from tests.support.mock_model import fake

    monkeypatch.setenv("QWEN35_BUNDLE", "owner/name")
    listed: list[Any] = []

    def ask(port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=WAIT) as got:
            listed.extend(one["id"] for one in json.load(got)["data"])
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        with post(f"http://127.0.0.1:{port}/v1", body) as got:
            listed.append(json.load(got)["choices"][0]["message"]["content"])

    assert inside(fake(tmp_path, str), "--name", "a", "--name", "a", "--max-new", "2", ask=ask) == 0
    assert listed == ["mock", "owner/name", "a", "Hi"]
    assert "qwen35: /v1/chat/completions 200 " in capfd.readouterr().err


def test_keys_that_no_header_can_hold() -> None:
    from qwen35.errors import UsageError
    from qwen35.serve import cli

    with pytest.raises(UsageError, match="the key must be ASCII"):
        cli.main(["--api-key", "schl\u00fcssel"])
