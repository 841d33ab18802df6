"""The command line: what goes to stdout, what to stderr, exit statuses, one-line errors, Ctrl-C."""

from __future__ import annotations

import compileall
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import qwen35
from tests.support.program import ENV, ROOT, SECONDS, holding, python


def run(
    *words: str, stdin: str | bytes = "", module: str = "tests.support.cli_driver", **env: str
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of one run."""
    with holding(stdin if isinstance(stdin, bytes) else stdin.encode()) as pipe:
        done = python("-m", module, *words, stdin=pipe, env=env, encoding=None)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def one_error(err: str) -> str:
    """The only line of stderr, which is an error in the house form."""
    assert err.count("\n") == 1 and err.startswith("qwen35: error: ") and "Traceback" not in err, err
    return err


def test_the_answer_alone_is_on_stdout() -> None:
    status, out, err = run("--prompt", "höre 🐧")
    assert (status, out) == (0, "You said: höre 🐧\n")
    lines = err.splitlines()
    assert all(line.startswith("qwen35: ") for line in lines) and len(lines) == 2
    assert "running mock" in lines[0] and "emulated NPU" in lines[0]
    assert "prompt" in lines[1] and "first token" in lines[1] and "answer" in lines[1]


def test_an_answer_that_ends_in_a_newline_gets_no_second() -> None:
    assert run("--prompt", "two lines", "-q")[1] == "one\ntwo\n"


def test_a_pipe_gets_the_text_as_it_is() -> None:
    assert run("--prompt", "hostile", "-q")[1] == "a \x1b[31mred\x07\x9b2J b\n"


def test_quiet_says_nothing_else() -> None:
    assert run("--prompt", "x", "--quiet") == (0, "You said: x\n", "")


def test_statistics_as_json() -> None:
    status, _, err = run("--prompt", "x", "--stats", "json")
    values = json.loads(err.splitlines()[-1])
    assert status == 0 and values["finish"] == "stop" and values["new_tokens"] > 3
    assert values["prompt_tokens"] > values["cached_tokens"] == 0 and values["first_token_s"] > 0
    assert run("--prompt", "x", "--stats", "none")[2].count("\n") == 1


@pytest.mark.parametrize(
    ("words", "stdout", "stderr"),
    [
        ([], "Done with think.\n", "First think.\nThen more.\n"),
        (["-q"], "Done with think.\n", ""),
        (["--hide-thinking"], "Done with think.\n", ""),
        (["--show-thinking"], "First think.\nThen more.\nDone with think.\n", ""),
    ],
)
def test_where_reasoning_goes(words: list[str], stdout: str, stderr: str) -> None:
    assert run("--prompt", "think", "--thinking", *words)[:2] == (0, stdout)
    err = run("--prompt", "think", "--thinking", *words)[2]
    assert "".join(line + "\n" for line in err.splitlines() if not line.startswith("qwen35: ")) == stderr


def test_options_reach_the_answer() -> None:
    assert run("--prompt", "a b c", "--stop", " b", "-q")[1] == "You said: a\n"
    assert run("--prompt", "long", "--max-new", "3", "--stats", "json")[2].count('"finish": "length"') == 1
    status, out, err = run("--prompt", "loop", "--max-new", "2000", "--loop-tokens", "100")
    assert status == 0 and 100 < len(out) < 200 and "repeats the same" in err
    for words in [], ["--no-loop-check"]:
        assert len(run("--prompt", "loop", "--max-new", "400", "-q", *words)[1]) > 500
    assert run("--prompt", "x", "--no-loop-check", "--loop-tokens", "9")[0] == 2
    for words in [], ["--draft"]:
        err = run("--prompt", "loop", "--max-new", "100", "--stats", "json", *words)[2]
        assert ('"draft_passes": 0' in err) is not bool(words)


def test_prompt_files(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffaus Datei\n".encode())
    assert run("--prompt-file", str(file), "-q")[1] == "You said: aus Datei\n"
    assert run("--prompt-file", "-", "-q", stdin="aus stdin")[1] == "You said: aus stdin\n"


def test_interactive_answers_each_line_on_its_own() -> None:
    status, out, err = run("--interactive", "--stats", "json", stdin="one\n\ntwo\r\nlast without newline")
    assert status == 0 and out == "You said: one\nYou said: two\nYou said: last without newline\n"
    stats = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert len(stats) == 3 and all(s["cached_tokens"] == 0 for s in stats)


def test_interactive_goes_on_after_an_error() -> None:
    long = "word " * 200
    status, out, err = run(
        "--interactive", "--max-ctx", "80", "-q", stdin=f"one\n{long}\ndevice fails\ntwo\n"
    )
    assert status == 1 and out == "You said: one\nY\nYou said: two\n"
    first, second = err.splitlines()
    assert "tokens and the context holds 80" in first and "timer expired (/dev/accel/accel0)" in second


def test_chat_over_a_pipe_has_no_prompts_and_remembers() -> None:
    talk = "one\n/think on\nthink\n/stats\n/undo\n/think off\n//slash\n/nonsense\n"
    status, out, err = run("--chat", "--stats", "json", stdin=talk)
    assert out == "You said: one\nDone with think.\nYou said: /slash\n"
    assert "> " not in out + err and "no command /nonsense" in err and status == 1
    assert "took back: think" in err and "states kept" in err
    stats = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [s["cached_tokens"] > 0 for s in stats] == [False, True, True]


def test_chat_saves_and_loads(tmp_path: Path) -> None:
    file = tmp_path / "my talk.json"
    assert run("--chat", "--system", "Be kind.", "-q", stdin=f"one\n/save {file}\n")[0] == 0
    saved = json.loads(file.read_text())["messages"]
    assert [m["content"] for m in saved] == ["Be kind.", "one", "You said: one"]
    status, out, err = run(
        "--chat", stdin=f"/load {file}\n/undo\n/retry\n/load {file}\n/retry\n/exit\nnever\n"
    )
    assert out == "You said: one\n" and status == 1 and "no question to ask again" in err


def test_a_full_conversation_says_how_to_make_room() -> None:
    talk = "one\n" + "word " * 30 + "\n/undo\ntwo\n"
    status, out, err = run("--chat", "-q", "--max-ctx", "100", stdin=talk)
    assert status == 1 and "context holds 100: make room with /undo or /clear" in err.splitlines()[0]
    assert out == "You said: one\nYou said: two\n"


def test_chat_goes_on_after_a_failing_device() -> None:
    status, out, err = run("--chat", "-q", stdin="one\ndevice fails\ntwo\n")
    assert out == "You said: one\nY\nYou said: two\n" and status == 1
    assert err == "qwen35: error: timer expired (/dev/accel/accel0)\n"


def test_pictures_without_a_tower() -> None:
    status, _, err = run("--prompt", "x", "--image", "qwen35/data/sample.png", "-q")
    assert status == 1 and "no vision tower" in one_error(err)
    status, out, err = run("--chat", "-q", stdin="/image a.png\nx\n")
    assert status == 1 and out == "You said: x\n" and "no vision tower" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "nothing was asked"),
        (["--prompt", "x", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["--prompt", "x", "y", "z"], "'y z' is taken for a question, and --prompt asks already"),
        (["--prompt", "x", "--chat"], "not allowed with"),
        (["--prompt", " \n"], "the prompt is empty (--prompt)"),
        (["--prompt", "x", "--max-new", "0"], "must be 1 to 1048576"),
        (["--prompt", "x", "--max-new", "many"], "no number"),
        (["--prompt", "x", "--top-p", "0"], "above 0"),
        (["--prompt", "x", "--temperature", "nan"], "out of range"),
        (["--prompt", "x", "--seed", "-1"], "0 to 2^64 - 1"),
        (["--prompt", "x", "--greedy", "--top-k", "3"], "--greedy and --top-k exclude each other"),
        (["--prompt", "x", "--stop", ""], "--stop: must not hold an empty string"),
        (["--prompt", "x", "--stop", "a" * 8193], "--stop: must hold at most 64 strings and"),
        (["--prompt", "x", "--stats", "xml"], "invalid choice"),
        (
            ["--prompt-file", "/nonexistent/file"],
            "cannot read the prompt: No such file or directory (/nonexistent",
        ),
        (["--interactive", "--image", "a.png"], "not with --interactive"),
        (["--prompt", b"\xff\xfe"], "not valid UTF-8 at character 1"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(words: list[str], text: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "") and text in one_error(err)


def test_numbers_have_bounds() -> None:
    """The outermost values are taken, and those beyond refused by a rule that names both ends."""
    from qwen35.cli.args import parse
    from qwen35.errors import UsageError

    with pytest.raises(UsageError, match="unrecognized arguments: --max-c=5"):  # nothing is guessed
        parse(["--prompt", "x", "--max-c=5"])
    for option, low, high in (
        ("max-new", 1, 1 << 20),
        ("top-k", 0, 1 << 20),
        ("loop-tokens", 1, 1 << 20),
        ("seed", 0, 2**64 - 1),
        ("max-ctx", 1, 262_144),
        ("cache-mb", 0, 1 << 20),
        ("temperature", 0, 100),
        ("top-p", 1e-9, 1),
        ("min-p", 0, 1),
        ("repetition-penalty", 0.01, 100),
        ("presence-penalty", -100, 100),
        ("frequency-penalty", -100, 100),
    ):
        for value in (low, high):
            assert vars(parse(["--prompt", "x", f"--{option}={value}"]))[option.replace("-", "_")] == value
        step = 1 if isinstance(low, int) and high > 100 else 1e-10
        for value in (low - step, high + step * 1000):
            with pytest.raises(UsageError, match=rf"--{option}: .* is out of range: it must be ") as caught:
                parse(["--prompt", "x", f"--{option}={value}"])
            if option not in ("top-p", "seed"):
                assert str(caught.value).endswith(f"it must be {low} to {high}: see python -m qwen35 --help")


def test_a_prompt_file_that_is_no_text(tmp_path: Path) -> None:
    status, _, err = run("--prompt-file", "-", stdin=b"abc\xff")
    assert status == 2 and "not UTF-8 at byte 3 (stdin)" in one_error(err)
    status, _, err = run("--prompt-file", str(tmp_path))
    assert status == 2 and "Is a directory" in one_error(err)


def test_failures_are_one_line_and_status_1() -> None:
    status, out, err = run("fail", "--prompt", "x")
    assert (status, out) == (1, "") and one_error(
        err
    ) == "qwen35: error: no such model (fail): name another\n"
    status, _, err = run("bug", "--prompt", "x")
    assert status == 1 and "unexpected RuntimeError: a bug of two lines" in one_error(err)
    status, _, err = run("bug", "--prompt", "x", QWEN35_DEBUG="1")
    assert status == 1 and err.startswith("Traceback") and err.count("qwen35: error: ") == 1
    status, _, err = run("--prompt", "word " * 300, "--max-ctx", "100", "-q")
    assert status == 1 and "context holds 100" in one_error(err) and "--max-ctx" in err


def test_help_and_version_need_no_model() -> None:
    for module in ("qwen35", "tests.support.cli_driver"):
        status, out, err = run("--help", module=module)
        assert status == 0 and err == "" and "--prompt" in out and max(map(len, out.splitlines())) <= 110
    assert run("--version", module="qwen35")[1].startswith("qwen35 0.")


def test_a_typing_mistake_imports_nothing_heavy() -> None:
    code = (
        "import sys; from qwen35.cli import main; status = main(['--prompt', 'x', '--nonsense']);"
        "heavy = ('numpy', 'tokenizers', 'cffi', 'amdxdna._native');"
        "print(status, [m for m in heavy if m in sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout == "2 []\n"


@pytest.mark.parametrize(
    ("setup", "words", "text"),
    [
        ("missing", ["{path}"], "there is no such bundle ({path}): give a directory with a manifest.txt"),
        ("empty", ["{path}"], "this is no bundle ({path})"),
        ("checkpoint", ["{path}"], "it is a checkpoint; make a bundle of it: python -m qwen35 export {path}"),
        ("env", [], "there is no such bundle (QWEN35_BUNDLE={path})"),
    ],
)
def test_a_bundle_that_is_none(tmp_path: Path, setup: str, words: list[str], text: str) -> None:
    path = tmp_path / "b"
    if setup in ("empty", "checkpoint"):
        path.mkdir()
    if setup == "checkpoint":
        (path / "config.json").write_text("{}")
    env = {"QWEN35_BUNDLE": str(path)} if setup == "env" else {}
    status, out, err = run(*[w.format(path=path) for w in words], "--prompt", "x", module="qwen35", **env)
    assert (status, out) == (1, "") and text.format(path=path) in one_error(err)


def test_a_command_of_another_installation(tmp_path: Path) -> None:
    """A subcommand whose module is absent is neither listed nor taken for a bundle."""
    code = (
        "import sys; from qwen35.cli import args, main;"
        "args.COMMANDS['absent'] = ('qwen35.absent', 'nothing'); sys.exit(main(['absent', 'x']))"
    )
    done = python("-c", code)
    assert done.returncode == 2 and "no command absent" in one_error(done.stderr)


def start(*words: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.cli_driver", *words],
        stdin=subprocess.PIPE if {"--interactive", "--chat"} & set(words) else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**ENV, **env},
    )


def test_an_answer_is_flushed_as_it_comes_and_ctrl_c_ends_it_cleanly() -> None:
    with start("--prompt", "long", MOCK_DELAY="0.05") as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.read(5) == b"word0"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=SECONDS)
    assert program.returncode == 130
    assert out.endswith(b"\n") and b"word299" not in out
    assert b"stopped by you" in err and b"Traceback" not in err


def test_a_second_ctrl_c_is_immediate() -> None:
    with start("--prompt", "long", MOCK_DELAY="600", MOCK_TELLS="1", MOCK_GRACE="600") as program:
        assert program.stderr is not None
        while program.stderr.readline() != b"computing\n":
            assert program.poll() is None
        end = time.monotonic() + SECONDS
        while program.poll() is None and time.monotonic() < end:  # two that come at once are one signal
            program.send_signal(signal.SIGINT)
            time.sleep(0.3)
        _, err = program.communicate(timeout=SECONDS)
    assert program.returncode == -signal.SIGINT and b"Traceback" not in err


@pytest.mark.parametrize("chat", [False, True])
def test_a_step_that_does_not_end_after_ctrl_c(chat: bool, tmp_path: Path) -> None:
    """A single answer is given up; a conversation says what it waits for and goes on."""
    step = {"MOCK_UNTIL": str(tmp_path / "end"), "MOCK_TELLS": "1", "MOCK_GRACE": "0.1"}
    with start(*(["--chat"] if chat else ["--prompt", "long"]), **step) as program:
        assert program.stderr is not None
        if chat:
            assert program.stdin is not None
            program.stdin.write(b"long\n")
            program.stdin.flush()
        while program.stderr.readline() != b"computing\n":
            assert program.poll() is None
        program.send_signal(signal.SIGINT)
        told = b"waiting for the step under way" if chat else b"hardware context is given up"
        while told not in (line := program.stderr.readline()):
            assert line
        if chat:
            (tmp_path / "end").touch()
        err = program.stderr.read()
        assert program.wait(SECONDS) == 130 and b"Traceback" not in err
    assert (b"stopped by you" if chat else b"qwen35: stopped\n") in err


def test_ctrl_c_while_waiting_for_a_line() -> None:
    with start("--interactive", MOCK_TELLS="1") as program:
        assert program.stderr is not None
        while program.stderr.readline() != b"reading\n":
            assert program.poll() is None
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=SECONDS)
    assert program.returncode == 130 and out == b"" and b"stopped" in err and b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    with start("--prompt", "long", MOCK_DELAY="0.02") as program:
        assert program.stdout is not None and program.stderr is not None
        program.stdout.read(5)
        program.stdout.close()
        err = program.stderr.read()
        assert program.wait(SECONDS) == 1
    assert b"Traceback" not in err and b"error" not in err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_any_output_encoding_will_do(encoding: str) -> None:
    status, out, _ = run("--prompt", "x", "-q", PYTHONIOENCODING=encoding)
    assert (status, out) == (0, "You said: x\n")
    words = ["-m", "tests.support.cli_driver", "--prompt", "ä🐧", "-q"]
    done = python(*words, env={"PYTHONIOENCODING": encoding}, encoding=encoding)
    assert done.returncode == 0 and done.stdout.startswith("You said: ")


def test_a_closed_stderr_is_no_failure() -> None:
    command = ["sh", "-c", f"exec {sys.executable} -m tests.support.cli_driver --prompt x 2>&-"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=ENV, timeout=SECONDS)
    assert done.returncode == 0 and done.stdout == b"You said: x\n"


def test_commands_are_offered_without_their_source(tmp_path: Path) -> None:
    """Images hold compiled modules alone."""
    shutil.copytree(
        Path(qwen35.__file__).parent,
        tmp_path / "qwen35",
        ignore=shutil.ignore_patterns("data", "train", "csrc", "__pycache__"),
    )
    assert compileall.compile_dir(tmp_path, quiet=1, legacy=True)
    for source in tmp_path.rglob("*.py"):
        source.unlink()
    done = python(
        "-c",
        "from qwen35.cli.args import available_commands, COMMANDS\n"
        "assert set(available_commands()) == set(COMMANDS)",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["--interactive", "--chat"])
def test_a_ctrl_c_as_an_answer_ends_is_not_lost(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its last token: the next question is not asked."""
    from qwen35.cli.args import parse
    from qwen35.cli.run import run
    from tests.support.mock_model import fake

    def load(options: object) -> object:
        model = fake(tmp_path, lambda question: f"You said: {question}")
        logits = model.model.logits  # type: ignore[attr-defined]

        def last() -> object:
            made = logits()
            if int(made.argmax()) == model.tokenizer.added["<|im_end|>"]:
                signal.raise_signal(signal.SIGINT)
            return made

        model.model.logits = last  # type: ignore[attr-defined]
        return model

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert run(parse([str(tmp_path), how, "--quiet", "--stats", "none"]), load) == 130  # type: ignore[arg-type]
    assert capsys.readouterr().out == "You said: one\n"


def test_a_ctrl_c_as_the_answer_ends_leaves_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm that its handler sets has no handler any more: it would end the process two seconds later."""
    from qwen35.cli import signals

    real = signal.setitimer

    def disarm(which: int, seconds: float) -> object:
        before = real(which, seconds)
        if not seconds and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)
        return before

    monkeypatch.setattr(signals.signal, "setitimer", disarm)
    with signals.Interrupt():
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
