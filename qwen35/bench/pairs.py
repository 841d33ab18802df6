"""Prompts and tokens, ours and a peer's in turns: both meet the same state of the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from amdxdna.emu.kernels.measure import read_bandwidth
from qwen35.bench.figures import Printer, median, ratios
from qwen35.bench.peers import Peer
from qwen35.bench.text import Subject

__all__ = ["compare", "speed_figures", "turns"]

PROBE = 0.03
"""Seconds of a look at memory bandwidth: a few readings, close to the run beside it."""
_LIMITS = {
    ("prompt", "llama", 23): "at most x 1.0",
    ("prompt", "llama", 778): "at most x 0.6",
    ("prompt", "transformers", 778): "at most x 1.0",
    ("decode", "llama", 512): "at least x 1.2, aim x 1.4",
}


def speed_figures(
    subject: Subject,
    out: Printer,
    peers: Sequence[Peer],
    prompts: Sequence[int],
    contexts: Sequence[int],
    compared: int,
    tokens: int,
    repeats: int,
    threads: int = 0,
) -> None:
    """Seconds of `prompts`, tokens a second at `contexts`; of these `compared` also with the peers.

    Ratios are ours over theirs: of seconds smaller is better, of tokens a second larger. At `compared` memory
    bandwidth is measured beside every run of ours: a token reads every weight once, so that is its floor.
    """
    beside: list[float] = []
    for length in prompts:
        subject.prompt(length)  # buffers and kernels of this length
        ours, theirs = turns(
            peers, repeats, partial(subject.prompt, length), {"prompt": length, "new": 0}, "prompt"
        )
        out.add("prompt", median(chain.from_iterable(ours)), "s", tokens=length)
        compare(out, "prompt", "s", length, "tokens", peers, ours, theirs)
        if length % subject.model.config.chunk:
            ours, theirs = turns(
                peers, repeats, partial(subject.prompt, length, True), {"prompt": length, "new": 0}, "prompt"
            )
            out.add("prompt_filled", median(chain.from_iterable(ours)), "s", tokens=length)
            compare(out, "prompt_filled", "s", length, "tokens", peers, ours, theirs)
    seconds = {}
    for context in contexts:
        others = peers if context == compared else ()

        def token(context: int = context) -> float:
            seconds = subject.token(context, tokens)
            if context == compared:
                beside.append(
                    subject.model.weights.nbytes / seconds / read_bandwidth(threads=threads, seconds=PROBE)
                )
            return seconds

        ours, theirs = turns(others, repeats, token, {"prompt": context, "new": tokens}, "token")
        seconds[context] = median(chain.from_iterable(ours))
        out.add("decode", 1 / seconds[context], "tokens/s", context=context)
        compare(
            out,
            "decode",
            "tokens/s",
            context,
            "context",
            others,
            *([[1 / each for each in row] for row in rows] for rows in (ours, theirs)),
        )
        for place, peer in enumerate(others):
            reached = zip(ours[place], theirs[place], beside[place :: len(others)], strict=True)
            out.add(
                "decode_ratio_limit",
                median(their / our / share for our, their, share in reached),
                "x",
                context=context,
                peer=peer.name,
                of="tokens at all of the bandwidth measured beside each",
            )
    if beside:
        out.add(
            "decode_bandwidth",
            median(beside),
            "x",
            context=compared,
            of="memory bandwidth measured beside each run",
        )
    first, last = min(seconds), max(seconds)
    if last > first:
        out.add(
            "context_growth",
            seconds[last] / seconds[first],
            "x",
            "at most x 1.5",
            context=f"{last} over {first}",
        )


def turns(
    peers: Sequence[Peer], repeats: int, run: Callable[[], float], request: dict[str, int], answer: str
) -> tuple[list[list[float]], list[list[float]]]:
    """(ours, theirs) by peer: seconds of runs in turns. Without a peer, ours alone."""
    ours: list[list[float]] = [[] for _ in range(max(len(peers), 1))]
    theirs: list[list[float]] = [[] for _ in peers]
    for _ in range(repeats):
        for place, mine in enumerate(ours):
            mine.append(run())
            if peers:
                theirs[place].append(peers[place].ask(**request)[answer])
    return ours, theirs


def compare(
    out: Printer,
    figure: str,
    unit: str,
    size: int,
    what: str,
    peers: Sequence[Peer],
    ours: list[list[float]],
    theirs: list[list[float]],
) -> None:
    """The peers' medians, and the medians of the ratios of ours to theirs."""
    for peer, mine, other in zip(peers, ours, theirs, strict=False):
        where: dict[str, Any] = {what: size, "peer": peer.name}
        out.add(f"{figure}_peer", median(other), unit, **where)
        out.add(
            f"{figure}_ratio",
            ratios(mine, other),
            "x",
            _LIMITS.get((figure, peer.kind, size), ""),
            **where,
            pairs=len(other),
        )
