"""The conversation in a terminal: a pseudo-terminal types, and reads what a person would see."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A program on a pseudo-terminal. `screen` is all it wrote, escape sequences and returns left out."""

    def __init__(self, *words: str, **env: str) -> None:
        self.raw, self.over = b"", False
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.environ.update(env)
            os.execv(sys.executable, [sys.executable, "-m", "tests.support.cli_driver", *words])

    @property
    def screen(self) -> str:
        return ESCAPES.sub(b"", self.raw).decode("utf-8", "replace").replace("\r", "")

    def read(self, seconds: float) -> bool:
        """Reads what comes within `seconds`; False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.raw += data
        self.over = not data
        return not self.over

    def wait(self, text: str, after: int = 0, seconds: float = 120) -> int:
        """Waits until `text` is on the screen behind `after`; where it ends."""
        end = time.monotonic() + seconds
        while (at := self.screen.find(text, after)) < 0:
            assert time.monotonic() < end, f"no {text!r} in:\n{self.screen[after:]}"
            assert self.read(0.1) or text in self.screen[after:], f"ended without {text!r}:\n{self.screen}"
        return at + len(text)

    def sees(self, text: str, after: int, seconds: float) -> bool:
        """Whether `text` comes within `seconds`, or before the end."""
        end = time.monotonic() + seconds
        while text not in self.screen[after:] and time.monotonic() < end and self.read(0.05):
            pass
        return text in self.screen[after:]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def ask(self, text: str, answer: str) -> None:
        """Types a line, waits for the answer and for the next prompt."""
        start = len(self.screen)
        self.type(text + "\n")
        self.wait("\n> ", self.wait(answer, start))

    def finish(self, seconds: float = 120) -> int:
        """Reads to the end; the exit status (negative for a signal)."""
        end = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < end, f"does not end:\n{self.screen}"
        status = os.waitpid(self.pid, 0)[1]
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history"


@pytest.fixture
def terminal(history: Path) -> Iterator[Terminal]:
    program = Terminal("--chat", MOCK_DELAY="0.002", QWEN35_HISTORY=str(history), TERM="xterm")
    program.wait("\n> ")
    yield program
    program.kill()


def test_a_conversation(terminal: Terminal, history: Path) -> None:
    assert "chat, thinking off, greedy; /help lists commands, Ctrl-D ends" in terminal.screen
    terminal.ask("hello there", "You said: hello there\n")
    terminal.ask("and again", "You said: and again\n")
    assert "cached)" in terminal.screen
    terminal.type("\x04")
    assert terminal.finish() == 0
    assert history.read_text().split("\n")[:2] == ["hello there", "and again"]
    assert history.stat().st_mode & 0o777 == 0o600


def test_the_history_is_not_written_through_a_link(history: Path) -> None:
    history.parent.mkdir()
    victim = history.with_name("victim")
    victim.write_text("precious\n")
    victim.chmod(0o644)
    history.symlink_to(victim)
    program = Terminal("--chat", MOCK_DELAY="0.002", QWEN35_HISTORY=str(history), TERM="xterm")
    try:
        program.wait("\n> ")
        program.ask("hello there", "You said: hello there\n")
        program.type("\x04")
        assert program.finish() == 0
    finally:
        program.kill()
    assert victim.read_text() == "precious\n"
    assert victim.stat().st_mode & 0o777 == 0o644


def test_line_editing_and_history(terminal: Terminal) -> None:
    terminal.ask("first", "You said: first\n")
    terminal.ask("\x1b[A", "You said: first\n")  # up
    terminal.ask("abd\x7fc", "You said: abc\n")  # backspace
    terminal.ask("/hel\t", "this list")  # completion


def test_a_line_goes_on_after_a_backslash(terminal: Terminal) -> None:
    start = len(terminal.screen)
    terminal.type("one\\\n")
    terminal.wait(". ", start)
    terminal.ask("two", "You said: one\ntwo\n")


def test_pasted_lines_are_one_entry(terminal: Terminal, history: Path) -> None:
    """As a terminal sends them in bracketed paste mode, which the program has to ask for."""
    assert b"\x1b[?2004h" in terminal.raw
    start = len(terminal.screen)
    terminal.type("\x1b[200~one\rtwo\\\r  three\r\x1b[201~")
    terminal.wait("three", start)
    assert "You said" not in terminal.screen[start:]
    terminal.ask(" and more", "You said: one\ntwo\\\n  three\n and more\n")
    terminal.ask("four\\\nfive", "You said: four\nfive\n")
    terminal.ask("\x1b[A\x1b[A", "You said: one\ntwo\\\n  three\n and more\n")
    terminal.type("\x04")
    assert terminal.finish() == 0
    again = Terminal("--chat", QWEN35_HISTORY=str(history), TERM="xterm")
    try:
        again.wait("\n> ")
        again.ask("\x1b[A\x1b[A", "You said: four\nfive\n")
        again.ask("\x1b[A\x1b[A", "You said: one\ntwo\\\n  three\n and more\n")
    finally:
        again.kill()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_the_history_outlives_a_closed_terminal(
    terminal: Terminal, history: Path, number: signal.Signals
) -> None:
    terminal.ask("hello there", "You said: hello there\n")
    terminal.ask("hello there", "You said: hello there\n")
    terminal.ask("and again", "You said: and again\n")
    os.kill(terminal.pid, number)
    assert terminal.finish() == -number
    assert history.read_text() == "hello there\nand again\n"


def test_file_names(history: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "my talks").mkdir(parents=True)
    (home / "it's a talk.json").mkdir()
    terminal = Terminal("--chat", QWEN35_HISTORY=str(history), TERM="xterm", HOME=str(home))
    try:
        terminal.wait("\n> ")
        terminal.ask("one", "You said: one\n")
        for typed, file in (
            ("~/a.json", "a.json"),
            ("'~/b c.json'", "b c.json"),
            ("~/d\\ e.json", "d e.json"),
            ("~/two words.json", "two words.json"),
            ("~/my\tf.json", "my talks/f.json"),
            ('"~/my t\tg h.json"', "my talks/g h.json"),
        ):
            terminal.ask(f"/save {typed}", f"saved 1 turn to {home / file}")
            assert json.loads((home / file).read_text())["format"] == "qwen35-conversation"
        terminal.ask("/load ~/my\\ talks/g\t", f"loaded 1 turn from {home}/my talks/g h.json")
        terminal.ask("/image ~/a.json 'b", "no closing quotation in the file names")
        terminal.ask("/image ~/nothing.png", "no vision tower")
        terminal.ask("/retry\t ~/a\t", "You said: one\n")  # not a command that takes files
    finally:
        terminal.kill()


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("/image pic", ["pic\\ one.png", "pictures/"]),
        ("/image pic\\ o", ["one.png"]),
        ("/image 'pic ", ["one.png'"]),
        ('/image "pic', ['"pic one.png"', '"pictures/']),
        ("/image a.png pictures/", ["pictures/it\\'s.png", "pictures/x.png"]),
        ("/image 'pictures/", ["'pictures/x.png'"]),
        ("/image ./pic", ["./pic\\ one.png", "./pictures/"]),
        ("/image ~/pic", ["~/pic\\ one.png", "~/pictures/"]),
        ("/image .", [".hidden"]),
        ("/image nothing", []),
        ("/image no/such/", []),
        ("/image q", ['q\\"q']),
    ],
)
def test_completion(line: str, want: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qwen35.cli.paths import complete

    (tmp_path / "pictures").mkdir()
    for name in ("pic one.png", "pictures/x.png", "pictures/it's.png", ".hidden", 'q"q', "esc\x1b"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert complete(line, max(line.rfind(mark) for mark in " \t\n") + 1) == want


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(history: Path) -> None:
    terminal = Terminal("--chat", MOCK_DELAY="0.05", QWEN35_HISTORY=str(history))
    try:
        terminal.wait("\n> ")
        terminal.type("long\n")
        terminal.wait("word3")
        terminal.type("\x03")
        terminal.wait("\n> ", terminal.wait("stopped by you"))
        assert "word299" not in terminal.screen and "Traceback" not in terminal.screen
        terminal.ask("still there", "You said: still there\n")
        start = len(terminal.screen)
        terminal.type("half a line")
        terminal.wait("half a line", start)  # the line editor has the terminal: Ctrl-C is its own now
        for _ in range(30):  # Python's input() may sleep through the one that comes just before its wait
            terminal.type("\x03")
            if terminal.sees("ends", start, seconds=1.0):
                break
        end = terminal.wait("> ", terminal.wait("Ctrl-D or /exit ends", start))
        for _ in range(30):  # a second one that came late takes a line with it
            terminal.type("/think off\n")
            if terminal.sees("thinking is off", end, seconds=1.0):
                break
        terminal.ask("/undo", "took back: still there")
        terminal.ask("/undo", "took back: long")
        terminal.type("/exit\n")
        assert terminal.finish() == 0
    finally:
        terminal.kill()


def test_whoever_leans_on_ctrl_c_reads_no_python(history: Path) -> None:
    """At a keyboard's repeat rate: the chat goes on, or ends with status 130."""
    terminal = Terminal("--chat", QWEN35_HISTORY=str(history))
    try:
        terminal.wait("\n> ")
        terminal.type("half a line")
        terminal.wait("half a line")
        for _ in range(60):
            terminal.type("\x03")
            if terminal.sees("stopped", 0, seconds=0.03) or terminal.over:
                break
        for _ in range(60):  # one that came just before input()'s wait takes a line with it
            if terminal.sees("stopped", 0, seconds=1.0) or terminal.over:
                break
            terminal.type("\x15/exit\n")
        assert terminal.finish() in (0, 130)
        for word in ("Traceback", "Exception", "object address", "lost sys", "Error"):
            assert word not in terminal.screen, terminal.screen
    finally:
        terminal.kill()


def test_commands(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    terminal.ask("/system Be kind.", "system message: Be kind.")
    terminal.ask("one", "You said: one\n")
    terminal.ask("/retry", "You said: one\n")
    terminal.ask(f"/save {file}", f"saved 1 turn to {file}")
    terminal.ask("/clear", "forgotten; the system message stays")
    terminal.ask("/undo", "nothing to take back")
    terminal.ask(f"/load {file}", "loaded 1 turn")
    terminal.ask("/stats", "2 states kept")
    terminal.ask("/think", "thinking is on")
    terminal.ask("think hard", "Done with think hard.\n")
    terminal.ask("/think off", "thinking is off")
    terminal.ask("/think maybe", "use /think on or /think off")
    terminal.ask("/image x.png", "no vision tower")
    terminal.ask("/bogus", "no command /bogus")
    terminal.ask("/help", "Ctrl-C stops an answer")
    terminal.ask("//literal", "You said: /literal\n")
    assert [m["role"] for m in json.loads(file.read_text())["messages"]] == ["system", "user", "assistant"]


def test_reasoning_is_dimmed_and_ends_before_the_answer(terminal: Terminal) -> None:
    terminal.ask("/think on", "thinking is on")
    start = len(terminal.raw)
    terminal.ask("think", "Done with think.\n")
    shown = terminal.raw[start:].replace(b"\r", b"")
    assert b"\x1b[2mFirst think.\nThen more.\n\x1b[22mDone with think.\n" in shown


def test_a_models_control_characters_do_not_reach_the_terminal(terminal: Terminal) -> None:
    start = len(terminal.raw)
    terminal.ask("hostile", "a \\x1b[31mred\\x07\\x9b2J b")
    assert b"\x1b[31m" not in terminal.raw[start:] and b"\x07" not in terminal.raw[start:]


def test_an_error_ends_the_turn_and_not_the_session(terminal: Terminal) -> None:
    terminal.ask("device fails", "error: timer expired (/dev/accel/accel0)")
    terminal.ask("fine", "You said: fine\n")
    terminal.type("\x04")
    assert terminal.finish() == 0 and "Traceback" not in terminal.screen


def test_a_hang_up_ends_it(terminal: Terminal) -> None:
    terminal.ask("one", "You said: one\n")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.finish() == -signal.SIGTERM
