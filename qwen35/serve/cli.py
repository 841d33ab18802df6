"""The command line of `serve`: options, the listening socket, signals, the start line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amdxdna.entry import require_memory
from qwen35.arguments import TRAINED_CTX
from qwen35.cli.args import Parser, add_number
from qwen35.cli.output import notice
from qwen35.cli.run import open_model
from qwen35.errors import ModelError, UsageError, one_line
from qwen35.serve.hosts import host_name

if TYPE_CHECKING:
    from qwen35.api import Qwen35

__all__ = ["build", "main"]

ADDRESS_SPACE, DATA = 416 << 20, 64 << 20
"""Address space and private memory beyond the main job's, for the HTTP libraries, threads' stacks and heaps,
and grammars. Measured with the built-in model on two cores: under 800 MiB of address space in all everything
is answered, at 700 no schema is, and at 620 Python may hang in the middle of an answer, deaf to signals;
under 208 MiB of private memory everything is, at 192 it crashes at a schema."""
FILES = 32
"""Descriptors: its own (12 with the built-in model), and some connections'."""
TELLING = 1.0
"""Seconds in which the clients of answers that a second signal ends are told; then connections are cut."""
SPARE = 5
"""Seconds beyond the grace in which a cut answer tells its client; then its connection is closed."""


def build() -> Parser:
    """The parser of `python -m qwen35 serve`."""
    parser = Parser(
        prog="qwen35 serve",
        description="Answers programs that speak OpenAI's HTTP API, with one model on one device.",
        epilog="Paths: /v1/chat/completions, /v1/responses, /v1/completions, /v1/models, /health,\n"
        "/metrics. A client is given the base URL http://HOST:PORT/v1. SIGINT, SIGTERM or SIGHUP ends the\n"
        "server: waiting requests get 503 at once, the running answer has --grace seconds; a second\n"
        "signal, but for SIGHUP, ends it at once.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "bundle", nargs="?", metavar="BUNDLE", help="directory (default: QWEN35_BUNDLE, else built-in)"
    )
    where = parser.add_argument_group("where to listen and who may ask")
    where.add_argument(
        "--host", default="127.0.0.1", help="address or name (default %(default)s: this machine)"
    )
    add_number(where, "--port", int, 0, 65535, "N", "default %(default)s; 0 takes a free one", 8000)
    where.add_argument(
        "--api-key",
        default=os.environ.get("QWEN35_API_KEY", ""),
        metavar="KEY",
        help="clients must send it (default: QWEN35_API_KEY, which ps does not show)",
    )
    where.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin ask from a browser; * for all; repeatable",
    )
    where.add_argument(
        "--allow-host",
        action="append",
        type=_host,
        default=[],
        metavar="NAME",
        help="let clients call this server by this name, beside localhost, addresses and --host; * for all; "
        "repeatable",
    )
    answer = parser.add_argument_group("how to answer, where a request does not say")
    answer.add_argument("--thinking", action="store_true", help="let the model reason first")
    answer.add_argument(
        "--draft",
        action="store_true",
        help="let what stands in the prompt run ahead where the answer repeats it (a request's own: `draft`)",
    )
    most = "most tokens of any answer (default: what the context has room for)"
    add_number(answer, "--max-new", int, 1, 1 << 20, "N", most, 0)
    answer.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that requests may give the model, beside its own; repeatable",
    )
    bounds = parser.add_argument_group("bounds")
    waiting = "requests that may wait; more get 429 (default %(default)s)"
    add_number(bounds, "--queue", int, 0, 100_000, "N", waiting, 64)
    whole = "seconds a request may take with its wait (default 600)"
    add_number(bounds, "--timeout", float, 0.01, 86_400, "S", whole, 600.0)
    grace = "seconds the running answer has when the server is ended (default 10)"
    add_number(bounds, "--grace", float, 0, 86_400, "S", grace, 10.0)
    add_number(bounds, "--max-body-mb", int, 1, 1024, "N", "largest request (default %(default)s)", 32)
    pictures = "pictures a request may hold (default %(default)s)"
    add_number(bounds, "--max-images", int, 0, 1000, "N", pictures, 16)
    run = parser.add_argument_group("where to run")
    run.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="auto (an NPU, else emulated), emu, emu:key=value,..., a path, a number",
    )
    tokens = "tokens of a conversation (default %(default)s)"
    add_number(run, "--max-ctx", int, 1, TRAINED_CTX, "N", tokens, 8192)
    kept = "memory for states kept of prompts (default %(default)s; 0 keeps none)"
    add_number(run, "--cache-mb", int, 0, 1 << 20, "N", kept, 1024)
    run.add_argument("--chains", choices=["auto", "on", "off"], default=None, help="command chains")
    run.add_argument("--weights", choices=["auto", "copy", "map"], default=None, help="copied or mapped")
    run.add_argument(
        "--wait",
        type=float,
        default=None,
        metavar="SECONDS",
        help="how long to wait for a command that makes no progress",
    )
    run.add_argument(
        "--steps", default=None, metavar="N", help="up to N new tokens of a prompt as single tokens, or auto"
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="no line a request")
    return parser


def _host(text: str) -> str:
    if text != "*" and (not text or host_name(text) != text.lower().removesuffix(".")):
        raise argparse.ArgumentTypeError("a name as it stands in a URL, without scheme and port")
    return text


def main(argv: list[str], load: Callable[[argparse.Namespace], Qwen35] | None = None) -> int:
    """Runs the server until a signal ends it; the exit status. `load` makes the model, for tests."""
    options = build().parse_args(argv)
    try:
        options.api_key.encode("ascii")
    except UnicodeEncodeError:
        raise UsageError("the key must be ASCII", "--api-key") from None
    require_memory(ADDRESS_SPACE, DATA)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < FILES:  # asyncio and uvicorn end with reports where one of their own cannot be opened
        raise ModelError(
            f"{files} files may be open (ulimit -n) and a server needs {FILES}", "", "raise the limit"
        )
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(bind(options.host, options.port))  # a taken port is told at once
        model = load(options) if load else open_model(options, options.cache_mb << 20, notice)
        stack.callback(model.close)
        return _serve(model, options, listening)


def bind(host: str, port: int, stalled: float = 60.0) -> socket.socket:
    """A bound socket that does not listen yet: nobody is let in before the model is there.

    A connection whose client reads nothing for `stalled` seconds ends, so that its place is not lost.
    """
    where = f"--host {host} --port {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio sends small pieces at once (TCP_NODELAY) only on sockets that name their protocol.
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit it; it counts while the client's window is closed, too (man 7 tcp).
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled * 1000))
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        text = getattr(error, "strerror", None) or str(error)
        remedy = "choose another address or port"
        raise UsageError(f"cannot listen: {one_line(text)}", where, remedy) from None
    return bound


class _Lines(logging.Handler):
    """What the server's libraries say, as lines of this program, each once: a client may cause many."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Says it, with the exception that it is about."""
        text = record.getMessage().partition("\n")[0]
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        text = one_line(text)
        if text not in self._told and len(self._told) < 50:
            self._told.add(text)
            notice(text)


def _serve(model: Qwen35, options: argparse.Namespace, listening: socket.socket) -> int:
    import uvicorn

    from qwen35.serve.answering import Limits, Service
    from qwen35.serve.app import make_app
    from qwen35.serve.connection import patient
    from qwen35.serve.options import Served

    names = tuple(dict.fromkeys([model.info.name, *_hub_id(options.bundle), *options.name]))
    served = Served(model, names, options.thinking, options.max_new, options.max_images, options.draft)
    limits = Limits(options.timeout, options.max_body_mb << 20, options.grace, options.queue)
    service = Service(served, limits, None if options.quiet else notice)
    app = make_app(
        service, api_key=options.api_key, origins=options.cors, hosts=[options.host, *options.allow_host]
    )
    config = uvicorn.Config(
        app,
        http=patient(limits.reading),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(options.grace) + SPARE,
    )

    class Server(uvicorn.Server):
        """Says where it listens, and drains when it is told to end."""

        loop: asyncio.AbstractEventLoop | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            self.loop = asyncio.get_running_loop()
            await super().startup(sockets)
            notice(f"serving {model.info.line()}, at {_address(listening)}")
            if not (options.api_key or _loopback(listening)):
                notice("anybody who reaches this address may ask: give --api-key")

        def handle_exit(self, sig: int, frame: Any) -> None:
            again = self.should_exit
            super().handle_exit(sig, frame)
            if again:
                self.force_exit = True
                if self.loop is not None:
                    self.loop.call_soon_threadsafe(self.cut, self.loop)

        def hang_up(self, sig: int, frame: Any) -> None:
            """A closing terminal may send several: further ones are no wish to end at once."""
            if not self.should_exit:
                self.handle_exit(signal.SIGTERM, frame)

        def cut(self, loop: asyncio.AbstractEventLoop) -> None:
            service.cut()
            loop.call_later(TELLING, self.abort)

        def abort(self) -> None:
            # From Python 3.12.1 on the end of a server waits for that of every connection.
            for connection in list(self.server_state.connections):
                connection.transport.abort()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if service.queue.inside:
                notice(
                    f"ending: {service.queue.waiting} waiting are refused, {service.queue.running} running "
                    f"have {options.grace:g} s"
                )
            service.drain()
            await super().shutdown(sockets)
            if self.force_exit and (tasks := set(self.server_state.tasks)):
                await asyncio.wait(tasks, timeout=TELLING)

    lines = _Lines()
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).handlers = [lines]
        logging.getLogger(name).propagate = False
    server = Server(config)

    def ended(number: int, frame: Any) -> None:
        """Before the run: it ends at once. uvicorn raises what ended the run once more, when all is done."""
        server.should_exit = True

    before = {number: signal.signal(number, ended) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.getsignal(signal.SIGHUP)
    if before[signal.SIGHUP] is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, server.hang_up)
    try:
        server.run([listening])
    finally:
        service.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _hub_id(bundle: str | None) -> list[str]:
    """The id of the Hugging Face Hub that the bundle was asked for by, if it was."""
    from qwen35.bundle.hub import is_id

    named = bundle or os.environ.get("QWEN35_BUNDLE", "")
    return [named] if is_id(named) else []


def _loopback(bound: socket.socket) -> bool:
    import ipaddress

    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
