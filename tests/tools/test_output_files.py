"""The files that commands write: whole or not at all, of the right mode, and never through a link."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from amdxdna.cli import main
from amdxdna.cli.arrays import write_array
from amdxdna.cli.common import CommandError
from amdxdna.output import open_appending, open_growing, whole_file, write_whole
from qwen35.conversation import Conversation
from tests.support.descriptors import descriptors
from tests.support.emulation import run
from tests.support.program import python


@pytest.fixture(autouse=True)
def umask() -> object:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_modes(tmp_path: Path) -> None:
    write_whole(tmp_path / "new", b"1")
    write_whole(tmp_path / "private", b"1", private=True)
    kept = tmp_path / "kept"
    kept.write_bytes(b"0")
    kept.chmod(0o604)
    write_whole(kept, b"2")
    opened = tmp_path / "opened"
    opened.write_bytes(b"0")
    opened.chmod(0o644)
    write_whole(opened, b"2", private=True)
    special = tmp_path / "special"
    special.write_bytes(b"0")
    special.chmod(0o4711)
    write_whole(special, b"2")
    assert [mode(tmp_path / n) for n in ("new", "private", "kept", "opened")] == [0o640, 0o600, 0o604, 0o600]
    assert mode(special) == 0o711  # who runs it does so as himself
    assert kept.read_bytes() == opened.read_bytes() == b"2"
    assert sorted(os.listdir(tmp_path)) == ["kept", "new", "opened", "private", "special"]
    longest = tmp_path / ("n" * 255)
    write_whole(longest, b"2")
    assert longest.read_bytes() == b"2"


def test_a_write_that_is_refused_names_the_file(tmp_path: Path) -> None:
    target = tmp_path / "snapshot.json"
    limited = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
    done = python("-m", "amdxdna", "snapshot", target, preexec_fn=limited)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.count("\n") == 1
    assert "ile too large" in done.stderr and str(target) in done.stderr
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("grows", [False, True])
def test_another_users_file_does_not_give_its_mode(
    tmp_path: Path, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.write_bytes(b"0")
    planted.chmod(0o666)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    if grows:
        os.close(open_growing(planted))
    else:
        write_whole(planted, b"1")
    assert mode(planted) == 0o640


WRITERS: dict[str, Callable[[Path], object]] = {
    "whole": lambda path: write_whole(path, b"data"),
    "growing": lambda path: os.close(open_growing(path)),
    "appending": lambda path: os.close(open_appending(path)),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("to", ["file", "none", "folder"])
def test_a_link_is_refused(tmp_path: Path, writer: str, to: str) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(to)
    with pytest.raises(OSError, match="is a link") as caught:
        WRITERS[writer](link)
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "link"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), whole_file(file) as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert file.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"")


def test_a_growing_file_is_a_new_one(tmp_path: Path) -> None:
    """Whoever has the old file open, or a hard link to it, keeps the old bytes."""
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(b"before")
    os.link(file, other)
    fd = open_growing(file)
    os.write(fd, b"after")
    os.close(fd)
    assert (file.read_bytes(), other.read_bytes()) == (b"after", b"before")


@pytest.mark.parametrize("opener", [open_growing, open_appending])
def test_a_descriptor_is_for_writing_as_anybody_would_open_it(
    tmp_path: Path, opener: Callable[[str | Path], int]
) -> None:
    for path in (tmp_path / "new", Path("/dev/null")):
        fd = opener(path)
        try:
            assert os.get_blocking(fd) and os.write(fd, b"data") == 4
        finally:
            os.close(fd)
    assert mode(tmp_path / "new") == 0o640 and (tmp_path / "new").read_bytes() == b"data"


def test_a_refusal_leaves_no_descriptor_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    (tmp_path / "one").touch()
    os.link(tmp_path / "one", tmp_path / "other")
    before = descriptors()
    with pytest.raises(OSError, match="hard links"):
        open_appending(tmp_path / "one")
    monkeypatch.setattr(os, "replace", refuse)
    for writer in ("whole", "growing"):
        with pytest.raises(OSError, match="no"):
            WRITERS[writer](tmp_path / "new")
    assert descriptors() <= before and sorted(os.listdir(tmp_path)) == ["one", "other"]


def test_pipes_and_devices_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"through")
    reader.join(60)
    assert seen == [b"through"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    write_whole("/dev/null", b"gone")
    assert stat.S_ISCHR(os.lstat("/dev/null").st_mode)
    code = "import sys; from amdxdna.output import write_whole; write_whole('/dev/stdout', b'out')"
    assert python("-c", code, check=True).stdout == "out"


@pytest.mark.parametrize("through", ["itself", "a link"])
def test_private_bytes_go_into_no_pipe(tmp_path: Path, through: str) -> None:
    """Whoever put the pipe there has it open."""
    pipe = target = tmp_path / "pipe"
    os.mkfifo(pipe)
    if through == "a link":
        target = tmp_path / "link"
        target.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="for you alone" if through == "itself" else "is a link"):
            write_whole(target, b"secret", private=True)
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
    write_whole("/dev/null", b"gone", private=True)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("read fifo", "victim"),
        ("read fifo", "link"),
        ("read fifo", "read fifo"),
        ("file", "link"),
        ("file", "fifo"),
        ("file", "read fifo"),
        ("none", "link"),
        ("none", "fifo"),
        ("none", "read fifo"),
        ("none", "device"),
    ],
)
def test_what_took_the_place_after_the_look_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, first: str, then: str
) -> None:
    """No byte goes through it, and nobody waits for a pipe's reader; a whole file takes its place instead."""
    victim, target, readers = tmp_path / "victim", tmp_path / "target", []
    victim.write_bytes(b"precious")

    def put(what: str) -> None:
        target.unlink(missing_ok=True)
        if what == "file":
            target.write_bytes(b"old")
        elif what == "victim":
            os.link(victim, target)
        elif what == "link":
            target.symlink_to(victim)
        elif what == "device":
            target.symlink_to("/dev/null")
        elif what != "none":
            os.mkfifo(target)
            if what == "read fifo":
                readers.append(os.open(target, os.O_RDONLY | os.O_NONBLOCK))

    real = os.open

    def swapped(path: str, *more: int, **named: int) -> int:
        monkeypatch.setattr(os, "open", real)
        put(then)
        return real(path, *more, **named)

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    put(first)
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(300)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", swapped)
            if writer == "appending" or "fifo" in first:
                with pytest.raises(OSError) as caught:
                    WRITERS[writer](target)
                assert caught.value.filename == str(target)
            else:
                WRITERS[writer](target)
                assert stat.S_ISREG(target.lstat().st_mode)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        for reader in readers:
            assert os.read(reader, 100) == b""
            os.close(reader)
    assert victim.read_bytes() == b"precious"


def plant(folder: Path, name: str) -> Path:
    """Links of every name that a writer might be expected to use for what it has not finished."""
    victim = folder / "victim"
    victim.write_bytes(b"precious")
    for guess in (f"{name}.part", f".{name}.{os.getpid()}", f"{name}.tmp", f".{name}.part"):
        (folder / guess).symlink_to(victim)
    return victim


def test_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = plant(tmp_path, "report.json")
    target = tmp_path / "report.json"
    words = ["snapshot", "--device", "emu:threads=1,quiet", str(target)]
    assert main(words) == 0
    assert mode(target) == 0o600
    target.unlink()
    target.symlink_to(victim)
    assert main(words) == 1
    assert main([*words, "--force"]) == 1
    assert "link" in capsys.readouterr().err
    assert victim.read_bytes() == b"precious"


def test_conversation(tmp_path: Path) -> None:
    victim = plant(tmp_path, "talk.json")
    target = tmp_path / "talk.json"
    talk = Conversation.__new__(Conversation)
    talk.messages, talk.tools = [{"role": "user", "content": "hello"}], []
    talk.save(target)
    assert mode(target) == 0o600
    assert b"hello" in target.read_bytes()
    target.unlink()
    target.symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        talk.save(target)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("more", [(), ("--emulate",)])
def test_trace(tmp_path: Path, more: tuple[str, ...]) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    link = tmp_path / "link"
    link.symlink_to(victim)
    ended = run("trace", *more, "-o", str(link), "--", "/bin/true")
    assert ended.returncode == 1
    assert "is a link" in ended.stderr
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_trace_of_the_own_process(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    link = tmp_path / "link"
    if kind == "hard":
        os.link(victim, link)
    else:
        link.symlink_to(victim)
    ended = run("info", "--device", "emu:threads=1,quiet", env={"AMDXDNA_TRACE": str(link)})
    assert ended.returncode == 1
    assert ("is a link" if kind == "symbolic" else "hard links") in ended.stderr
    assert "Traceback" not in ended.stderr
    assert victim.read_bytes() == b"precious"


def test_arrays(tmp_path: Path) -> None:
    victim = plant(tmp_path, "out.npy")
    for name in ("out.npy", "out.bin"):
        write_array(str(tmp_path / name), np.arange(4))
        assert mode(tmp_path / name) == 0o640
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to(victim)
        with pytest.raises(CommandError, match="is a link"):
            write_array(str(tmp_path / name), np.arange(4))
    assert victim.read_bytes() == b"precious"
