"""`python -m qwen35 serve`: the engine behind OpenAI's HTTP API (extra `serve`).

    cli        options, the listening socket, signals, the start line
    app        routes, who may ask, errors in OpenAI's form
    answering  one request: admitted, read, queued, made in the model's thread, sent, cancelled
    connection how long a client may take to ask
    queue      the bounded queue before the model
    job        an answer made in a thread and read on the event loop
    fields     reading a JSON body: types, ranges, what is refused
    options    sampling, lengths, tools and formats that every endpoint shares
    messages   OpenAI's messages and pictures in the engine's form; items: the Responses API's
    calls      what of the text may be shown while it may hold tool calls
    question   what chat completions and responses ask for alike
    chat, completions, responses   each endpoint's body and its answers, whole and streamed
    store      responses that later requests go on from
    metrics    Prometheus figures

Starlette and uvicorn do the HTTP; nothing here is imported by the main job.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from qwen35.errors import UsageError

__all__ = ["lacking", "serve_main"]

_NEEDED = {"starlette": "starlette", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}


def lacking() -> list[str]:
    """The packages of the extra that are not installed."""
    return [name for module, name in _NEEDED.items() if importlib.util.find_spec(module) is None]


def serve_main(argv: Sequence[str]) -> int:
    """The subcommand; the exit status. Raises UsageError where the extra is not installed."""
    missing = lacking()
    if missing and not {"-h", "--help"} & set(argv):
        raise UsageError(
            f"serve needs {', '.join(missing)}",
            "",
            "install this package's extra [serve], or: pip install " + " ".join(missing),
        )
    from qwen35.serve.cli import main

    return main(list(argv))
