"""What the server costs: answers over HTTP, read by a client in a process of its own, beside the same answers
in this process, and beside llama.cpp's server. What it keeps of several conversations."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen35.bench.figures import Printer, median, ratios
from qwen35.errors import ModelError

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.bench.peers import Peer

__all__ = ["serve_figures"]

MAX_CTX = 1024
CONVERSATIONS, TURNS = 8, 3

# Told apart by its first field, `data: `; everything else of HTTP is the library's.
_CLIENT = """import json, sys, time, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
times, last = [], {}
began = time.perf_counter()
with urllib.request.urlopen(request, timeout=600) as answer:
    for line in answer:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            last.update({key: event[key] for key in ("timings", "usage") if event.get(key)})
            said = [c.get("text") or c.get("delta", {}).get("content") for c in event.get("choices", ())]
            if any(said):
                times.append(time.perf_counter() - began)
print(json.dumps({"first": times[0], "last": times[-1], **last}))"""


def serve_figures(
    path: Path, device: str, out: Printer, peers: Sequence[Peer], tokens: int, repeats: int
) -> None:
    """First token and tokens over HTTP and in process, in turns; the cache's hits over conversations.

    Overheads are what the client waits beyond the times that the server's own engine tells of that answer.
    Raises ModelError when the server does not start.
    """
    from qwen35.api import Qwen35

    with Qwen35.load(path, MAX_CTX, device) as model, _served(path, device) as url:
        mine, ours = [], []
        theirs: list[list[tuple[float, float]]] = [[] for _ in peers]
        for number in range(repeats + 1):  # the first warms up
            text = f"{number}: what is a river, and what is a bird?"
            mine.append(_in_process(model, text, tokens))
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}
            ours.append(_asked(f"{url}/chat/completions", body))
            for place, peer in enumerate(peers):
                prompt = [1 + (37 * number + at) % 1000 for at in range(24)]
                body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
                theirs[place].append(_over(_asked(f"{peer.url()}/v1/completions", body)))
        mine, ours = mine[1:], ours[1:]
        for at, name in enumerate(("serve_first_token", "serve_token")):
            seconds = [(one["first"], _token(one))[at] for one in ours]
            out.add(name, median(seconds) * 1e3, "ms", tokens=tokens)
            out.add(
                f"{name}_ratio",
                ratios(seconds, [one[at] for one in mine]),
                "x",
                tokens=tokens,
                of="over HTTP over the same in process",
                pairs=repeats,
            )
            out.add(f"{name}_overhead", median(_over(one)[at] for one in ours) * 1e6, "us", tokens=tokens)
            for place, peer in enumerate(peers):
                out.add(
                    f"{name}_overhead_peer",
                    median(one[at] for one in theirs[place][1:]) * 1e6,
                    "us",
                    tokens=tokens,
                    peer=peer.name,
                )
        _conversations(url, out)


def _token(one: dict[str, Any]) -> float:
    """Seconds a token after the first, as the client saw them."""
    between = float(one["last"] - one["first"])
    return between / max(int(one["timings"]["predicted_n"]) - 1, 1)


def _over(one: dict[str, Any]) -> tuple[float, float]:
    """Seconds beyond the engine's own, to the first token and a token."""
    times = one["timings"]
    first = times.get("first_token_ms", times["prompt_ms"]) / 1e3
    own = times["predicted_ms"] / 1e3 / max(times["predicted_n"] - 1, 1)
    return one["first"] - first, _token(one) - own


def _in_process(model: Qwen35, text: str, tokens: int) -> tuple[float, float]:
    from qwen35.sampling import GREEDY

    times = []
    began = time.perf_counter()
    reply = model.chat(text, max_new=tokens, sampling=GREEDY)
    for _ in reply:
        times.append(time.perf_counter() - began)
    if not times:
        raise ModelError("the answer is empty: there is nothing to measure", str(model.info.bundle))
    return times[0], (times[-1] - times[0]) / max(reply.stats.new_tokens - 1, 1)


def _asked(url: str, body: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, "-c", _CLIENT, url, json.dumps(body | {"stream": True})]
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ModelError("the client's request failed", url)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _conversations(url: str, out: Printer) -> None:
    """Cached tokens of conversations that go on in turns, each a few questions long."""
    talks: list[list[dict[str, str]]] = [[] for _ in range(CONVERSATIONS)]
    prompt = cached = 0
    for turn in range(TURNS):
        for number, messages in enumerate(talks):
            messages.append({"role": "user", "content": f"Question {turn} of {number}: what is a bird?"})
            body = {"messages": messages, "max_tokens": 8, "temperature": 0}
            request = urllib.request.Request(
                f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=600) as answer:
                found = json.load(answer)
            messages.append({"role": "assistant", "content": found["choices"][0]["message"]["content"]})
            if turn:
                prompt += found["usage"]["prompt_tokens"]
                cached += found["usage"]["prompt_tokens_details"]["cached_tokens"]
    out.add(
        "serve_cached",
        cached / prompt,
        "x",
        conversations=CONVERSATIONS,
        turns=TURNS,
        of="cached tokens over the prompts' from the second turn on",
    )


@contextlib.contextmanager
def _served(path: Path, device: str) -> Iterator[str]:
    """The server in a process of its own; the base URL."""
    words = [
        sys.executable,
        "-m",
        "qwen35",
        "serve",
        str(path),
        "--device",
        device,
        "--port",
        "0",
        "--max-ctx",
        str(MAX_CTX),
        "--quiet",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "QWEN35_API_KEY"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"serving .* at (http://\S+)", line):
                    break
            else:
                raise ModelError("the server did not start", str(path), f"try it: {' '.join(words)}")
            yield found[1]
        finally:
            process.kill()
