"""The command line's options. Imports nothing heavy: a typing mistake is answered at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from amdxdna.parser import ArgumentParser
from qwen35 import __version__
from qwen35.arguments import MAX_NEW, TRAINED_CTX, stop_fault
from qwen35.cli.entries import STDIN
from qwen35.cli.words import command_line, interpret, refuse_misspelt
from qwen35.errors import UsageError
from qwen35.imageformats import FORMATS, MAX_PIXELS

__all__ = ["COMMANDS", "Parser", "available_commands", "parse"]

#: Subcommand -> (module, what it does). `NAME_main(argv) -> int` of the module is imported when used.
COMMANDS = {
    "export": ("qwen35.export", "make a bundle of a checkpoint"),
    "check": ("qwen35.check", "prove a bundle against its recorded references"),
    "accept": ("qwen35.accept", "try everything a new NPU must do, and report it"),
    "bench": ("qwen35.bench", "measure speed"),
    "serve": ("qwen35.serve", "answer other programs: OpenAI's HTTP API"),
    "image": ("qwen35.rootfs", "write a minimal image that boots and answers"),
    "info": ("qwen35.info", "tell what a bundle holds"),
}


class Parser(ArgumentParser):
    """Says a mistake in one line, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.with_values(message), "", f"see python -m {self.prog} --help")


def available_commands() -> dict[str, str]:
    """The subcommands of this installation: name -> module."""
    return {name: module for name, (module, _) in COMMANDS.items() if _exists(module)}


def _exists(module: str) -> bool:
    """Whether a module of this package is installed, as source or compiled; imports no package above it."""
    path = Path(__file__).parents[2].joinpath(*module.split("."))
    return any(
        path.with_suffix(suffix).is_file() or (path / f"__init__{suffix}").is_file()
        for suffix in (".py", ".pyc")
    )


def _number_of(kind: Callable[[str], Any], low: float, high: float, rule: str = "") -> Callable[[str], Any]:
    """A converter for argparse: a number of `kind` from `low` to `high`, else an error that says `rule`."""
    rule = rule or f"{low} to {high}"

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number: it must be {rule}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is out of range: it must be {rule}")
        return value

    return convert


def add_number(
    group: argparse._ActionsContainer,
    option: str,
    kind: Callable[[str], Any],
    low: float,
    high: float,
    metavar: str,
    text: str,
    default: Any = None,
    rule: str = "",
) -> None:
    """Adds an option that takes a number of `kind` from `low` to `high`, else an error that says `rule`."""
    group.add_argument(
        option, type=_number_of(kind, low, high, rule), metavar=metavar, help=text, default=default
    )


def _text(value: str) -> str:
    """A command-line text; bytes that are not UTF-8 arrive as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"not valid UTF-8 at character {error.start + 1}") from None
    return value


def build() -> Parser:
    """The parser of `python -m qwen35`."""
    known = available_commands()
    commands = "".join(f"\n  {name:<8} {COMMANDS[name][1]}" for name in known)
    parser = Parser(
        prog="qwen35",
        usage="qwen35 [BUNDLE] [QUESTION | --prompt TEXT | --prompt-file FILE | --interactive | --chat] "
        "[options]",
        description="Runs Qwen3.5 on an AMD NPU, or on an emulated one where there is none.",
        epilog=(f"commands (each has --help):{commands}\n\n" if commands else "")
        + "The answer goes to stdout, everything else to stderr. Exit status: 0 answered, 1 failed, 2 wrong\n"
        "usage, 130 stopped with Ctrl-C. QWEN35_BUNDLE names the default bundle; QWEN35_DEBUG=1 shows full\n"
        "reports of errors.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="BUNDLE",
        help="directory (default: QWEN35_BUNDLE, else built-in); a text that is no path is the question",
    )
    add("--version", action="version", version=f"qwen35 {__version__}")

    ask = parser.add_argument_group("what to ask")
    ways = ask.add_mutually_exclusive_group()
    ask.add_argument(
        "--prompt",
        "-p",
        type=_text,
        metavar="TEXT",
        help="ask this and end; what a pipe or file on stdin holds is asked with it",
    )
    ask.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="ask the text of FILE (behind --prompt's) and end; - reads stdin",
    )
    ways.add_argument("--interactive", action="store_true", help="answer each line of stdin on its own")
    ways.add_argument("--chat", action="store_true", help="a conversation; /help lists its commands")
    ask.add_argument("--system", type=_text, metavar="TEXT", help="system message")
    ask.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help=f"a picture of up to {MAX_PIXELS:,} pixels (WebP: {FORMATS['WEBP'].pixels:,}), - for stdin; "
        "repeatable",
    )
    ask.add_argument("--thinking", action="store_true", help="let the model reason first")
    ask.add_argument("--show-thinking", action="store_true", help="reasoning on stdout, not dimmed on stderr")
    ask.add_argument("--hide-thinking", action="store_true", help="do not show the reasoning")
    ask.add_argument("--allow-special", action="store_true", help="markers in the prompt are control tokens")

    how = parser.add_argument_group("how to answer (default: the model card's sampling)")
    whole, real, most = int, float, 1 << 20

    number = partial(add_number, how)
    number("--max-new", whole, 1, most, "N", f"most tokens of an answer (default {MAX_NEW})", MAX_NEW)
    how.add_argument("--greedy", action="store_true", help="always the most probable token")
    number("--temperature", real, 0, 100, "T", "how freely to draw; 0 is greedy")
    number("--top-k", whole, 0, most, "N", "only the N most probable tokens; 0 all")
    rule = "above 0, at most 1"
    number("--top-p", real, 1e-9, 1, "P", "only the most probable tokens up to mass P", rule=rule)
    number("--min-p", real, 0, 1, "P", "only tokens P times as probable as the best")
    number("--repetition-penalty", real, 0.01, 100, "F", "against tokens in prompt or answer")
    number("--presence-penalty", real, -100, 100, "F", "against tokens in the answer")
    number("--frequency-penalty", real, -100, 100, "F", "the same for each time they appear")
    number("--seed", whole, 0, 2**64 - 1, "N", "draw the same answer again", rule="0 to 2^64 - 1")
    how.add_argument(
        "--stop",
        action="append",
        default=[],
        type=_text,
        metavar="TEXT",
        help="end the answer before this text; repeatable",
    )
    how.add_argument(
        "--json-schema",
        metavar="FILE",
        help="answer with JSON that fits the schema in FILE; status 1 when it is not whole",
    )
    number(
        "--loop-tokens",
        whole,
        1,
        most,
        "N",
        "stop an answer whose last N tokens are one pattern over and over (default 1024)",
    )
    how.add_argument("--no-loop-check", action="store_true", help="let an answer repeat itself for ever")
    how.add_argument(
        "--draft",
        action="store_true",
        help="let what stands in the prompt run ahead where the answer repeats it: faster then, and the same "
        "but for rounding",
    )

    run = parser.add_argument_group("where to run")
    run.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="auto (an NPU, else emulated), npu, emu, emu:key=value,... (all: python -m amdxdna emulate "
        "--help), a path, a number",
    )
    tokens = "tokens of a conversation (default 8192)"
    add_number(run, "--max-ctx", whole, 1, TRAINED_CTX, "N", tokens, 8192)
    kept = "memory for states kept between turns (default 512); 0 is off"
    add_number(run, "--cache-mb", whole, 0, most, "N", kept, 512)

    run.add_argument(
        "--chains",
        choices=["auto", "on", "off"],
        default=None,
        help="command chains (default auto: where a trial at load proves them)",
    )
    run.add_argument(
        "--weights",
        choices=["auto", "copy", "map"],
        default=None,
        help="copied into the device's buffers, or mapped for it, which AMD's out-of-tree "
        "driver of March 2026 or newer takes (default auto: as proved)",
    )
    run.add_argument(
        "--wait",
        type=float,
        default=None,
        metavar="SECONDS",
        help="how long to wait for a command that makes no progress, 10 or more (default 10)",
    )
    run.add_argument(
        "--steps",
        default=None,
        metavar="N",
        help="up to N new tokens of a prompt as single tokens, not as a pass, or auto: as many as cost "
        "less; that rounds differently (default 0)",
    )

    tell = parser.add_argument_group("what to report")
    tell.add_argument(
        "--stats",
        choices=["text", "json", "none"],
        default="text",
        help="statistics after each answer, on stderr (default %(default)s)",
    )
    tell.add_argument("--timing", action="store_true", help="seconds by projection and host stage; swaps")
    tell.add_argument("--quiet", "-q", action="store_true", help="only the answer and errors")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """The options of `argv`. Raises UsageError; --help and --version raise SystemExit(0) after printing."""
    parser, commands = build(), available_commands()
    argv = command_line(argv)
    try:
        options = parser.parse_intermixed_args(argv)
    except UsageError:
        if argv and not argv[0].startswith("-"):
            refuse_misspelt(argv, commands)
        raise
    asked = next(
        (
            f"--{name.replace('_', '-')}"
            for name in ("prompt", "prompt_file", "chat", "interactive")
            if getattr(options, name) not in (None, False)
        ),
        "",
    )
    if asked.startswith("--prompt") and (options.chat or options.interactive):
        other = "--chat" if options.chat else "--interactive"
        parser.error(f"argument {other}: not allowed with argument {asked}")
    options.bundle, question = interpret(options.words, asked, commands, bool(options.image))
    if question is not None:
        options.prompt = question
    if options.greedy:
        given = [n for n in ("temperature", "top_k", "top_p", "min_p") if getattr(options, n) is not None]
        if given:
            parser.error(f"--greedy and --{given[0].replace('_', '-')} exclude each other")
    if options.no_loop_check and options.loop_tokens is not None:
        parser.error("--no-loop-check and --loop-tokens exclude each other")
    if fault := stop_fault(options.stop):
        parser.error(f"argument --stop: {fault}")
    if len(stdin := [image for image in options.image if image in STDIN]) and (
        options.chat or options.prompt_file in STDIN or len(stdin) > 1
    ):
        parser.error(f"--image {stdin[0]} takes the whole of stdin for one picture")
    if options.image and options.interactive:
        parser.error("--image goes with --prompt, --prompt-file or --chat, not with --interactive")
    return options
