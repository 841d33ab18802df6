"""Runs the options: loads the model, says what is running, asks, reports."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amdxdna.entry import require_memory
from amdxdna.programs import own_program
from amdxdna.streams import StdoutError
from qwen35.cli.answers import answer_options, show
from qwen35.cli.entries import STDIN, Endless, read_line, read_picture, read_piped, read_prompt
from qwen35.cli.output import Progress, notice, report
from qwen35.cli.signals import Interrupt
from qwen35.errors import UsageError
from qwen35.extras import require

if TYPE_CHECKING:
    from qwen35.api import Qwen35

__all__ = ["load_model", "open_model", "run"]


def run(options: argparse.Namespace, load: Callable[[argparse.Namespace], Qwen35] | None = None) -> int:
    """Runs the parsed options; the exit status."""
    require_memory()
    prompt = _prompt(options)
    options.schema = None
    if options.json_schema is not None:
        from qwen35.structured import read_schema

        options.schema = read_schema(options.json_schema)
    _check_before_loading(options)
    _reconfigure()
    with contextlib.closing((load or load_model)(options)) as model:
        if not options.quiet:
            _introduce(model)
        if options.chat:
            from qwen35.cli.chat import Chat  # one question needs none of it

            status = Chat(model, options).loop()
        elif options.interactive:
            status = _interactive(model, options)
        else:
            status = _ask(model, options, prompt or "")
        if options.timing:
            _report_timing(model)
    return status


def open_model(options: argparse.Namespace, cache_bytes: int, note: Callable[[str], None] | None) -> Qwen35:
    """The model that the options name, with `cache_bytes` for states kept."""
    from qwen35.api import Qwen35

    with contextlib.closing(Progress(enabled=not options.quiet)) as progress:
        return Qwen35.load(
            options.bundle,
            options.max_ctx,
            options.device,
            cache_bytes=cache_bytes,
            progress=lambda done, total: progress("weights", done, total),
            note=note,
            chains=options.chains,
            weights=options.weights,
            wait=options.wait,
            steps=options.steps,
        )


def load_model(options: argparse.Namespace) -> Qwen35:
    """The model of the main job."""
    cache_bytes = options.cache_mb << 20 if options.chat else 0
    return open_model(options, cache_bytes, None if options.quiet else notice)


def _reconfigure() -> None:
    """Text goes out as UTF-8 pieces at once; what a terminal cannot show is replaced, not fatal."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _prompt(options: argparse.Namespace) -> str | None:
    """What is asked, from option, file and stdin; None for a conversation or lines of stdin."""
    if options.chat or options.interactive:
        return None
    parts: list[str] = []
    if options.prompt is not None:
        parts.append(options.prompt)
    if options.prompt_file is not None:

        def silent() -> None:
            what = "stdin" if options.prompt_file == "-" else options.prompt_file
            if not options.quiet:
                notice(f"waiting for the prompt: nothing comes from {what}; Ctrl-C ends")

        parts.append(read_prompt(options.prompt_file, options.max_ctx, silent))
    if not all(part.strip() for part in parts):
        raise UsageError("the prompt is empty", options.prompt_file or "--prompt")
    if options.prompt_file not in STDIN and not STDIN & set(options.image):

        def waiting() -> None:
            if not options.quiet:
                notice("reading stdin to its end, for the prompt; < /dev/null leaves it out")

        parts.append(read_piped(options.max_ctx, waiting, sockets=not parts))
    # One text alone is asked as it is; a line between parts, which end without one.
    parts = [part for part in parts if part.strip()]
    if not parts:
        raise UsageError(
            "nothing was asked",
            "",
            "give a question in quotes, --prompt TEXT, --prompt-file, --interactive or --chat",
        )
    return parts[0] if len(parts) == 1 else "\n\n".join(part.strip("\r\n") for part in parts)


def _check_before_loading(options: argparse.Namespace) -> None:
    """Raises what can be told of pictures and schema before gigabytes of weights are read."""
    if options.schema is not None:
        require("json", "--json-schema")
    if options.image:
        from qwen35.imageformats import MAX_BYTES
        from qwen35.images import check_file

        def waiting() -> None:
            if not options.quiet:
                notice("waiting for the picture: nothing comes from stdin; Ctrl-C ends")

        for index, image in enumerate(options.image):
            if image in STDIN:
                options.image[index] = image = read_picture(MAX_BYTES, waiting)
            check_file(image)


def _introduce(model: Qwen35) -> None:
    from qwen35.bundle.sizes import REAL_BUNDLE, REAL_CHECKPOINT

    line, hf = f"running {model.info.line()}", own_program("hf")
    if model.info.builtin and model.info.emulated:
        # The published bundle's kernels are compiled for the NPU; the emulated one runs what export writes.
        line += (
            f"; for the real model: {hf} download {REAL_CHECKPOINT} --local-dir CHECKPOINT, "
            f"python -m qwen35 export CHECKPOINT --out DIR, python -m qwen35 DIR; "
            f"what it costs: python -m qwen35 info 2b"
        )
    elif model.info.builtin:
        line += f"; for the real model: {hf} download {REAL_BUNDLE} --local-dir DIR, python -m qwen35 DIR"
    notice(line)


def _ask(model: Qwen35, options: argparse.Namespace, prompt: str) -> int:
    progress = Progress(enabled=not options.quiet)
    with Interrupt(ends=True) as interrupt, contextlib.closing(progress):
        reply = model.chat(
            prompt,
            options.system,
            images=options.image,
            options=answer_options(
                options,
                model,
                thinking=options.thinking,
                images=bool(options.image),
                cancel=interrupt.pressed,
                progress=progress,
            ),
        )
        show(reply, options, model.info, progress.close)
    # One that comes as the answer ends stops no answer; of several questions it stops the next.
    if reply.finish == "cancel" or (options.interactive and interrupt.pressed()):
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
            if isinstance(error, Endless):
                return status
            continue
        if line is None:
            return status
        if line.strip():
            try:
                if (one := _ask(model, options, line)) == 130:
                    return 130
                status = max(status, one)
            except (BrokenPipeError, StdoutError):
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
