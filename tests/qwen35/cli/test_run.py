"""The command line inside this process: what its options reach, what a terminal is shown and when."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qwen35.api import Info, Qwen35
from qwen35.cli import main, output
from qwen35.cli.answers import answer_options
from qwen35.cli.args import parse
from qwen35.cli.run import load_model, run
from qwen35.errors import Cancelled, ImageError, UsageError
from qwen35.sampling import GREEDY, Sampling
from tests.support.mock_model import fake
from tests.support.program import ROOT

SAMPLE = str(ROOT / "qwen35" / "data" / "sample.png")


class Terminal(io.StringIO):
    """A stream that is a terminal; `flushed` is what was there at the last flush."""

    flushed = ""

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.flushed = self.getvalue()


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs words over a mock that says what was asked, or `model`; status, stdout and stderr."""

    def ran(*words: str, stdin: str = "", model: Qwen35 | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        made = model or fake(tmp_path, lambda q: f"You said: {q}")
        status = run(parse([str(tmp_path), *words]), lambda options: made)
        told = capsys.readouterr()
        return status, told.out, told.err

    return ran


def loaded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Qwen35.load is called with; it fails."""
    calls: list[dict[str, Any]] = []

    def load(path: Any, max_ctx: int, device: str, **more: Any) -> None:
        calls.append({"path": path, "max_ctx": max_ctx, "device": device, **more})
        raise UsageError("not today")

    monkeypatch.setattr(Qwen35, "load", load)
    return calls


WAYS = ["--chains", "off", "--weights", "map", "--wait", "12.5", "--steps", "7"]
GIVEN = {"chains": "off", "weights": "map", "wait": 12.5, "steps": "7"}
USUAL = dict.fromkeys(GIVEN)


@pytest.mark.parametrize(
    ("words", "want", "quiet"),
    [
        (["-p", "x"], {"path": None, "max_ctx": 8192, "device": "auto", "cache_bytes": 0, **USUAL}, False),
        (["--interactive", "--cache-mb", "9"], {"cache_bytes": 0}, False),
        (["--chat"], {"cache_bytes": 512 << 20}, False),
        (["--chat", "--cache-mb", "3", "-q"], {"cache_bytes": 3 << 20}, True),
        (["b/", "-p", "x", "--max-ctx", "99", "--device", "emu"],
         {"path": "b/", "max_ctx": 99, "device": "emu"}, False),
        (["-p", "x", *WAYS], GIVEN, False),
    ],
)  # fmt: skip
def test_options_that_reach_the_load(
    words: list[str], want: dict[str, Any], quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = loaded(monkeypatch)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=iter([0.0, 1.0, 2.0]).__next__))
    with pytest.raises(UsageError, match="not today"):
        load_model(parse(words))
    assert {name: calls[0][name] for name in want} == want
    assert (calls[0]["note"] is None) is quiet
    calls[0]["progress"](1, 4)
    assert ("qwen35: weights 25%" in terminal.getvalue()) is not quiet


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ([], {"path": None, "max_ctx": 8192, "device": "auto", "cache_bytes": 1 << 30, **USUAL}),
        (["b/", "--max-ctx", "99", "--device", "emu", "--cache-mb", "3", *WAYS],
         {"path": "b/", "max_ctx": 99, "device": "emu", "cache_bytes": 3 << 20, **GIVEN}),
    ],
)  # fmt: skip
def test_options_that_reach_the_servers_load(
    words: list[str], want: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn")
    calls = loaded(monkeypatch)
    assert main(["serve", "--port", "0", *words]) == 2
    assert {name: calls[0][name] for name in want} == want and calls[0]["note"] is output.notice


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(
    ("reader", "words", "told"),
    [
        (
            "read_prompt",
            ["--prompt-file", "-"],
            "waiting for the prompt: nothing comes from stdin; Ctrl-C ends",
        ),
        ("read_prompt", ["--prompt-file", "f"], "waiting for the prompt: nothing comes from f; Ctrl-C ends"),
        ("read_piped", ["-p", "x"], "reading stdin to its end, for the prompt; < /dev/null leaves it out"),
        (
            "read_picture",
            ["-p", "x", "--image", "-"],
            "waiting for the picture: nothing comes from stdin; Ctrl-C ends",
        ),
    ],
)
def test_what_is_waited_for_is_told(
    reader: str,
    words: list[str],
    told: str,
    quiet: bool,
    program: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def reads(given: Any, *more: Any, **options: Any) -> Any:
        more[-1]()  # nothing comes
        return (ROOT / "qwen35/data/sample.png").read_bytes() if reader == "read_picture" else "x"

    monkeypatch.setattr(f"qwen35.cli.run.{reader}", reads)
    seen = pytest.raises(ImageError, match="no vision tower") if reader == "read_picture" else None
    err = ""
    with seen or contextlib.nullcontext():
        err = program(*words, *["-q"] * quiet)[2]
    assert (f"qwen35: {told}\n" in err + capsys.readouterr().err) is not quiet


def test_a_commands_status_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("qwen35.info.info_main", lambda words: given.append(words) or 7)
    assert main(["info", "a", "--json"]) == 7 and given == [["a", "--json"]]


SETTINGS = {
    "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 1.5,
    "presence_penalty": -2.0, "frequency_penalty": 3.0, "seed": 11,
}  # fmt: skip


def test_options_that_reach_the_answer(tmp_path: Path) -> None:
    model = fake(tmp_path)
    model.info = replace(model.info, sampling=None, hidden=1024)

    def options(*words: str, thinking: bool = False, images: bool = False) -> Any:
        parsed = parse(["-p", "x", *words])
        parsed.schema = None
        return answer_options(
            parsed, model, thinking=thinking, images=images, cancel=bool, progress=output.Progress()
        )

    base = options()
    assert base.sampling == model.default_sampling()
    assert (base.max_new, base.loops, base.draft, base.allow_special, base.stop) == (
        512,
        True,
        False,
        False,
        (),
    )
    assert options(thinking=True, images=True).sampling == model.default_sampling(thinking=True, images=True)
    assert options(thinking=True).thinking
    for name, value in SETTINGS.items():
        got = options(f"--{name.replace('_', '-')}={value}").sampling
        assert got == model.default_sampling().updated(**{name: value})
    every = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    assert options(*every).sampling == Sampling(**SETTINGS)  # type: ignore[arg-type]
    assert options("--greedy", "--seed", "3").sampling == GREEDY.updated(seed=3)
    assert (options("--no-loop-check").loops, options("--loop-tokens", "9").loops) == (False, 9)
    got = options("--draft", "--allow-special", "--max-new", "5", "--stop", "a", "--stop", "b")
    assert (got.draft, got.allow_special, got.max_new, got.stop) == (True, True, 5, ("a", "b"))


@pytest.mark.parametrize("words", [["-p", "x"], ["--interactive"], ["--chat"]])
def test_a_document_that_is_not_whole_fails_every_way_to_ask(
    words: list[str], program: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"const": 7}, "minItems": 9, "maxItems": 9}')
    lines = "" if "-p" in words else "x\ny\n"
    for more, status in ((["--max-new", "3"], 1), (["--max-new", "2000", "--no-loop-check"], 0)):
        model = fake(tmp_path)
        got, out, err = program(
            *words, "--json-schema", str(schema), "--quiet", *more, stdin=lines, model=model
        )
        told = err.count("qwen35: error: the JSON is not complete\n")
        assert (got, told) == (status, status * max(lines.count("\n"), 1)), err
        if not status:
            assert "".join(out.split()) == f"[{','.join('7' * 9)}]" * max(lines.count("\n"), 1)


def test_reasoning_that_never_ends_is_told(
    program: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """With what helps, where the answer was cut."""
    for most, told in (("9", ": allow it more tokens (--max-new)\n"), ("500", "\n")):
        model = fake(tmp_path, lambda q: "hm, " * 30)
        status, out, err = program("-p", "x", "--thinking", "--max-new", most, "--hide-thinking", model=model)
        assert (status, out) == (0, "\n")
        assert f"qwen35: the answer is reasoning alone, and ended before any text{told}" in err


def test_the_worst_of_several_questions_is_the_status(
    program: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """And an empty line is none."""
    lines = "\n" + "word " * 100 + "\nhi\n \n"
    for how in ("--interactive", "--chat"):
        model = fake(tmp_path, lambda q: f"You said: {q}", max_ctx=60)
        status, out, err = program(how, "--quiet", "--stats", "none", stdin=lines, model=model)
        assert (status, out) == (1, "You said: hi\n") and err.count("the context holds 60") == 1


def test_progress_is_shown_after_half_a_second_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: now[0]))
    terminal = Terminal()
    progress, steps = output.Progress(terminal), []
    for seconds, what, done in (
        (0.25, "prompt", 1000), (0.5, "prompt", 1100), (0.625, "prompt", 0), (0.75, "prompt", 1200),
        (0.8125, "prompt", 1300), (1.0, "weights", 1000), (1.25, "picture", 3999), (1.5, "picture", 4000),
        (1.75, "picture", 4000), (2.0, "prompt", 5000),
    ):  # fmt: skip
        now[0] = seconds
        before = len(terminal.getvalue())
        progress(what, done, 4000)
        steps.append(terminal.getvalue()[before:])
        assert terminal.flushed == terminal.getvalue()
    line = "\r\x1b[K"
    assert steps == [
        "", "", "", f"{line}qwen35: prompt 1,200 of 4,000 tokens", "", f"{line}qwen35: weights 25%",
        f"{line}qwen35: picture 100%", line, "", "",
    ]  # fmt: skip
    now[0] = 9.0
    progress("prompt", 1, 2)
    progress.close()
    assert terminal.getvalue().endswith(f"prompt 1 of 2 tokens{line}") and terminal.flushed.endswith(line)
    for stream, enabled in ((Terminal(), False), (io.StringIO(), True)):
        silent = output.Progress(stream, enabled)
        now[0] += 5
        silent("prompt", 1, 2)
        silent.close()
        assert stream.getvalue() == ""


EVENTS = [("reasoning", "a"), ("reasoning", "b"), ("reasoning", ""), ("text", "c"), ("reasoning", "d\n")]
DIM, PLAIN = "\x1b[2m", "\x1b[22m"


@pytest.mark.parametrize(
    ("where", "tty", "out", "err"),
    [
        ("stderr", False, "c\ne\n", "ab\nd\n"),
        ("stderr", True, "c\ne\n", f"{DIM}ab{PLAIN}\n{DIM}d\n{PLAIN}"),
        ("stdout", False, "ab\nc\nd\ne\n", ""),
        ("stdout", True, f"{DIM}ab{PLAIN}\nc\n{DIM}d\n{PLAIN}e\n", ""),
        ("hide", True, "ce\n", ""),
    ],
)
def test_where_an_answers_parts_go(
    where: str, tty: bool, out: str, err: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is there at once; nothing but reasoning still ends its line, and stdout's."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    streams = Terminal(), Terminal()
    if not tty:
        monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    shown = output.Answer(where, *streams)
    for kind, piece in [*EVENTS, ("text", "e")]:
        shown.write(kind, piece)
        assert [one.flushed for one in streams] == [one.getvalue() for one in streams]
    shown.end()
    assert [one.getvalue() for one in streams] == [one.flushed for one in streams] == [out, err]
    for stream in streams:
        stream.seek(0)
        stream.truncate()
    alone = output.Answer(where, *streams)
    alone.write("reasoning", "a")
    alone.end()
    assert streams[0].getvalue().endswith("\n") and streams[0].flushed == streams[0].getvalue()
    dim = f"{DIM}a{PLAIN}\n" if tty else "a\n"
    assert [one.getvalue() for one in streams] == {
        "stderr": ["\n", dim],
        "stdout": [dim + "\n", ""],
        "hide": ["\n", ""],
    }[where]


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, False),
    ],
)
def test_terminals_that_want_no_colour(
    env: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert output.coloured(Terminal()) is coloured and not output.coloured(io.StringIO())


def test_characters_that_a_terminal_is_not_given() -> None:
    """Up to the ones beside them, which are."""
    spelled = ["\0", "\x08", "\x0b", "\x1f", "\x7f", "\x80", "\x9f", *"\u202a\u202e\u2066\u2069"]
    shown = [*"\t\n ~\xa0\u2029\u202f\u2065\u206aä"]
    for one in spelled:
        code = ord(one)
        assert output.writable(one, Terminal()) == (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
    assert [output.writable(one, Terminal()) for one in shown] == shown
    for one in spelled + shown:
        assert output.writable(one, io.StringIO()) == one
    latin = io.TextIOWrapper(io.BytesIO(), "latin-1")
    assert output.writable("ä\u2603", latin) == "ä?"


@pytest.mark.parametrize(("debug", "whole"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_an_error_in_full_is_asked_for(
    debug: str | None, whole: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QWEN35_DEBUG", raising=False)
    if debug is not None:
        monkeypatch.setenv("QWEN35_DEBUG", debug)
    output.report(UsageError("why", "where", "how"))
    told = capsys.readouterr().err
    assert told.endswith("qwen35: error: why (where): how\n") and ("UsageError: " in told) is whole


@pytest.mark.parametrize("builtin", [False, True])
@pytest.mark.parametrize("emulated", [False, True])
def test_what_is_running_is_told_with_the_way_to_the_real_model(
    builtin: bool, emulated: bool, program: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    model = fake(tmp_path, lambda q: "ok")
    model.info = Info("mock", tmp_path, builtin, "/dev/accel/accel0", emulated, 2, 64, 0, 4, weights="bfp16")
    line = program("-p", "x", model=model)[2].splitlines()[0]
    where = f"{'an emulated NPU,' if emulated else 'the NPU'} /dev/accel/accel0"
    bundle = "" if builtin else f", bundle {tmp_path}"
    assert line.startswith(
        f"qwen35: running mock (4 layers of 64, bfp16){bundle}, on {where}, 2 hardware contexts"
    )
    assert (" download " in line) is builtin and (" export " in line) is (builtin and emulated)
    assert program("-p", "x", "-q", model=fake(tmp_path, lambda q: "ok"))[2] == ""


def test_where_the_time_went(program: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    model: Any = fake(tmp_path, lambda q: "ok")
    stages = [("gemv.lin", 1200, 3.0), ("host.norms", 5, 1.0)]
    model.model.timing = SimpleNamespace(items=lambda: stages)
    model.model.ways = ["chains on"]
    model.device = SimpleNamespace(pool=SimpleNamespace(loads=3, swaps=2, resident=1), close=int)
    rows = [
        "timing: gemv.lin               1,200 calls       3,000.0 ms  75.0%",
        "timing: host.norms                 5 calls       1,000.0 ms  25.0%",
        "timing: chains on",
        "timing: contexts: 3 loaded, 2 swapped, 1 resident",
    ]
    words = ["-p", "x", "-q", "--timing"]
    assert program(*words, model=model)[2].splitlines() == [f"qwen35: {row}" for row in rows]
    stages[:] = [("idle", 1, 0.0)]
    model = fake(tmp_path, lambda q: "ok")
    model.model.timing = SimpleNamespace(items=lambda: stages)
    assert program(*words, model=model)[2].split() == [
        "qwen35:",
        "timing:",
        "idle",
        "1",
        "calls",
        "0.0",
        "ms",
    ]
    assert program(*words)[2] == ""  # a model without stages, ways or a device


def test_what_a_conversation_tells(program: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    saved, long = tmp_path / "talk.json", "x" * 61
    for name, lines in (("one", "one\n"), ("two", "one\ntwo\n")):
        program("--chat", "-q", stdin=f"{lines}/save {saved}.{name}\n")
    said = program("--chat", "--stats", "none", stdin=f"""/stats
{long}
/undo
{long[1:]}
/undo
/clear
/system
/system Be kind.
/clear
/system -
/think
/think
/load {saved}.one
/load {saved}.two
/save {saved}
/save
/load
/retry
/stats
/quit
never
""")[2].splitlines()[1:]  # fmt: skip
    context = said.pop(-1)
    assert (
        context.startswith("qwen35: session: 3 questions, ")
        and " of 4,096 tokens, 3 states kept (" in context
    )
    assert context.endswith(" MB)") and " of 512 MB" in context
    assert said.pop(-1).startswith("qwen35: last answer: prompt ")
    assert [line.removeprefix("qwen35: ") for line in said] == [
        "session: 0 questions, 0 answer tokens, context 0 of 4,096 tokens, 0 states kept (0 of 512 MB)",
        f"took back: {'x' * 60}...",
        f"took back: {'x' * 60}",
        "forgotten",
        "system message: none",
        "system message: Be kind.",
        "forgotten; the system message stays",
        "system message: none",
        "thinking is on, greedy",
        "thinking is off, greedy",
        f"loaded 1 turn from {saved}.one",
        f"loaded 2 turns from {saved}.two",
        f"saved 2 turns to {saved}",
        "error: /save needs a file name",
        "error: /load needs a file name",
    ]
    model = fake(tmp_path, lambda q: "ok", cache_bytes=0)
    assert program("--chat", stdin="/stats\n", model=model)[2].endswith("tokens, no cache\n")


def test_pictures_wait_for_the_next_question(
    program: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come back where the question leaves no trace, and are asked about again with it."""
    asked: list[tuple[str, list[Any]]] = []
    model = fake(tmp_path, lambda q: f"You said: {q}")
    reply = model.reply

    def without_pictures(messages: Any, options: Any) -> Any:
        content = messages[-1]["content"]
        images = [i["image"] for i in content if "image" in i] if isinstance(content, list) else []
        text = content if isinstance(content, str) else content[-1]["text"]
        asked.append((text, images))
        if text == "fail":
            raise ZeroDivisionError
        if text == "stop":
            options = replace(options, cancel=lambda: True)
        plain = [{**m, "content": m["content"] if isinstance(m["content"], str) else m["content"][-1]["text"]}
                 for m in messages]  # fmt: skip
        return reply(plain, options)

    monkeypatch.setattr(model, "reply", without_pictures)
    monkeypatch.setattr(model, "check_image", lambda image: asked.append(("checked", [image])))
    talk = "fail\none\ntwo\n/retry\n/image b.png 'c d.png'\n/retry\nthree\n"
    talk += "/image e.png\n/image\nfour\n/retry\nstop\nnever\n"
    status, _, err = program("--chat", "--image", SAMPLE, "--stats", "none", stdin=talk, model=model)
    checks = [images for text, images in asked if text == "checked"]
    assert checks == [[SAMPLE], ["b.png"], ["c d.png"], ["e.png"]]
    assert [(text, images) for text, images in asked if text != "checked"] == [
        ("fail", [SAMPLE]), ("one", [SAMPLE]), ("two", []), ("two", []), ("two", []),
        ("three", ["b.png", "c d.png"]), ("four", []), ("four", []), ("stop", []),
    ]  # fmt: skip
    told = [line.removeprefix("qwen35: ") for line in err.splitlines()]
    assert [line for line in told if "before the next question" in line] == [
        "2 pictures before the next question",
        "1 picture before the next question",
        "0 pictures before the next question",
    ]
    assert told[-1] == "the question was taken back" and status == 130


def test_pictures_of_a_question_that_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qwen35.cli.chat import Chat

    options = parse(["--chat", "--quiet", "--stats", "none"])
    options.schema = None
    chat = Chat(fake(tmp_path, str), options)
    items = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "what?"}]
    chat.conversation.messages = [
        {"role": "user", "content": items},
        {"role": "assistant", "content": "a whale"},
    ]
    asked: list[Any] = []

    def ask(text: str, *, images: Any, options: Any) -> Any:
        asked.append((text, images))
        raise Cancelled("no")

    monkeypatch.setattr(chat.conversation, "ask", ask)
    with pytest.raises(Cancelled):
        chat.commands["/retry"][0]("")
    assert asked == [("what?", ["a.png"])] and chat.conversation.turns == 1
    assert chat.images == []
