"""One answer on the command line: its options, its text as it comes, its note and statistics."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from qwen35.cli.output import Answer, Progress, notice

if TYPE_CHECKING:
    from qwen35.api import Info, Qwen35
    from qwen35.conversation import Reply
    from qwen35.options import AnswerOptions
    from qwen35.sampling import Sampling
    from qwen35.stats import Stats

__all__ = ["answer_options", "sampling_of", "show", "report_stats"]


def answer_options(
    options: argparse.Namespace,
    model: Qwen35,
    *,
    thinking: bool,
    images: bool,
    cancel: Callable[[], bool],
    progress: Progress,
) -> AnswerOptions:
    """The options of one answer."""
    from qwen35.options import AnswerOptions

    return AnswerOptions(
        thinking=thinking,
        max_new=options.max_new,
        sampling=sampling_of(options, model, thinking=thinking, images=images),
        stop=options.stop,
        json_schema=options.schema,
        allow_special=options.allow_special,
        loops=False if options.no_loop_check else options.loop_tokens or True,
        draft=options.draft,
        cancel=cancel,
        progress=progress,
    )


def sampling_of(options: argparse.Namespace, model: Qwen35, *, thinking: bool, images: bool) -> Sampling:
    """The sampling that the options ask for, over the model's defaults."""
    from qwen35.sampling import GREEDY

    base = GREEDY if options.greedy else model.default_sampling(thinking=thinking, images=images)
    return base.updated(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=options.seed,
    )


def show(reply: Reply, options: argparse.Namespace, info: Info, clear: Callable[[], None]) -> None:
    """Streams a reply, then its note and statistics. `clear` takes the progress line away."""
    hidden = options.hide_thinking or options.quiet
    answer = Answer("stdout" if options.show_thinking else "hide" if hidden else "stderr")
    try:
        for kind, piece in reply.events():
            clear()
            answer.write(kind, piece)
    finally:
        clear()
        reply.close()
        answer.end()
    if not reply.complete and reply.finish != "cancel":
        notice(f"error: {reply.note}")
    elif reply.note and not options.quiet:
        notice(reply.note)
    report_stats(reply.stats, options, info)


def report_stats(stats: Stats, options: argparse.Namespace, info: Info) -> None:
    """Writes the statistics of one answer as the options want them; as JSON with what answered, and where."""
    if options.stats == "json":
        values = {"model": info.name, "device": info.device, "emulated": info.emulated, **stats.as_dict()}
        with contextlib.suppress(OSError):
            print(json.dumps(values), file=sys.stderr, flush=True)
    elif options.stats == "text" and not options.quiet:
        notice(stats.line())
