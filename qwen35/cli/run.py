"""Runs the options: loads the model, says what is running, asks, reports."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from qwen35.cli.entries import read_line, read_prompt
from qwen35.cli.output import Answer, Progress, notice, report
from qwen35.cli.signals import Interrupt
from qwen35.errors import UsageError

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.conversation import Reply
    from qwen35.sampling import Sampling
    from qwen35.stats import Stats

__all__ = ["load_model", "loops_of", "run", "sampling_of", "show", "told"]


def run(options: argparse.Namespace, load: Callable[[argparse.Namespace], Qwen35] | None = None) -> int:
    """Runs the parsed options; the exit status."""
    prompt = _prompt(options)
    options.schema = None
    if options.json_schema is not None:
        from qwen35.structured import read_schema

        options.schema = read_schema(options.json_schema)
    if not options.chat and prompt is None and not options.interactive:
        raise UsageError("nothing was asked", "", "use --prompt TEXT, --prompt-file, --interactive or --chat")
    _reconfigure()
    with _closing(load or load_model, options) as model:
        if not options.quiet:
            _introduce(model)
        if options.chat:
            from qwen35.cli.chat import Chat

            status = Chat(model, options).loop()
        elif options.interactive:
            status = _interactive(model, options)
        else:
            status = _ask(model, options, prompt or "")
        if options.timing:
            _report_timing(model)
    return status


def load_model(options: argparse.Namespace) -> Qwen35:
    """The model that the options name."""
    from qwen35.api import Qwen35

    with contextlib.closing(Progress(enabled=not options.quiet)) as told:
        return Qwen35.load(
            options.bundle,
            options.max_ctx,
            options.device,
            cache_bytes=options.cache_mb << 20 if options.chat else 0,
            progress=lambda done, total: told("weights", done, total),
            note=None if options.quiet else notice,
            chains=options.chains,
            weights=options.weights,
            wait=options.wait,
        )


@contextlib.contextmanager
def _closing(load: Callable[[argparse.Namespace], Qwen35], options: argparse.Namespace) -> Iterator[Qwen35]:
    model = load(options)
    try:
        yield model
    finally:
        model.close()


def _reconfigure() -> None:
    """Text goes out as UTF-8 pieces at once; what a terminal cannot show is replaced, not fatal."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _prompt(options: argparse.Namespace) -> str | None:
    if options.prompt is not None:
        text: str = options.prompt
    elif options.prompt_file is not None:
        text = read_prompt(options.prompt_file, options.max_ctx)
    else:
        return None
    if not text.strip():
        raise UsageError("the prompt is empty", options.prompt_file or "--prompt")
    return text


def _introduce(model: Qwen35) -> None:
    from qwen35.api import REAL_BUNDLE, REAL_CHECKPOINT

    line = f"running {model.info.line()}"
    if model.info.builtin and model.info.emulated:
        # The published bundle's kernels are compiled for the NPU; the emulated one runs what export writes.
        line += (
            f"; for the real model: hf download {REAL_CHECKPOINT} --local-dir CHECKPOINT, "
            "python -m qwen35 export CHECKPOINT --out DIR, python -m qwen35 DIR"
        )
    elif model.info.builtin:
        line += f"; for the real model: hf download {REAL_BUNDLE} --local-dir DIR, python -m qwen35 DIR"
    notice(line)


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


def loops_of(options: argparse.Namespace) -> bool | int:
    """What the options say of answers that repeat themselves, as `Qwen35.reply` takes it."""
    return False if options.no_loop_check else options.loop_tokens or True


def show(reply: Reply, options: argparse.Namespace, clear: Callable[[], None]) -> None:
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
    told(reply.stats, options)


def told(stats: Stats, options: argparse.Namespace) -> None:
    """Writes the statistics of one answer as the options want them."""
    if options.stats == "json":
        with contextlib.suppress(OSError):
            print(json.dumps(stats.as_dict()), file=sys.stderr, flush=True)
    elif options.stats == "text" and not options.quiet:
        notice(stats.line())


def _ask(model: Qwen35, options: argparse.Namespace, prompt: str) -> int:
    progress = Progress(enabled=not options.quiet)
    with Interrupt() as interrupt, contextlib.closing(progress):
        reply = model.chat(
            prompt,
            options.system,
            options.thinking,
            options.max_new,
            options.image,
            sampling=sampling_of(options, model, thinking=options.thinking, images=bool(options.image)),
            stop=options.stop,
            json_schema=options.schema,
            allow_special=options.allow_special,
            loops=loops_of(options),
            cancel=interrupt.pressed,
            progress=progress,
        )
        show(reply, options, progress.close)
    if reply.finish == "cancel":
        return 130
    return 0 if reply.complete else 1


def _interactive(model: Qwen35, options: argparse.Namespace) -> int:
    """One prompt a line, each on its own; a prompt that fails is reported and the next one read."""
    status = 0
    while True:
        try:
            line = read_line(sys.stdin.buffer, options.max_ctx)
        except UsageError as error:
            report(error)
            status = 1
            continue
        if line is None:
            return status
        if line.strip():
            try:
                if (one := _ask(model, options, line)) == 130:
                    return 130
                status = max(status, one)
            except BrokenPipeError:
                raise
            except Exception as error:
                report(error)
                status = 1


def _report_timing(model: Any) -> None:
    """Seconds by projection and host stage over the whole run, the longest first, and the contexts' swaps."""
    timing = getattr(model.model, "timing", None)
    stages = timing.items() if timing is not None else []
    total = sum(seconds for _, _, seconds in stages)
    rows = []
    for name, calls, seconds in stages:
        share = f"{100 * seconds / total:.1f}%" if total else ""
        rows.append(f"qwen35: timing: {name:<18} {calls:>9,} calls {seconds * 1000:>13,.1f} ms {share:>6}\n")
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write("".join(rows))
        sys.stderr.flush()
    for line in getattr(model.model, "ways", ()):
        notice(f"timing: {line}")
    pool = getattr(model.device, "pool", None)
    if pool is not None:
        notice(f"timing: contexts: {pool.loads} loaded, {pool.swaps} swapped, {pool.resident} resident")
