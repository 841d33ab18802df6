"""`export` as a command: statuses, one-line errors, progress, Ctrl-C."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qwen35.bundle import Bundle
from qwen35.export import export_main
from qwen35.export.cli import parser
from qwen35.export.plan import Options
from qwen35.export.progress import Progress, clock
from tests.support.synthetic import SHAPES, write_checkpoint

QUICK = ["--chunk", "16", "--max-prompt", "32"]


def test_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "hf", SHAPES["vision"])
    assert export_main([str(tmp_path / "hf"), "--out", str(tmp_path / "b"), *QUICK]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(f"export: {tmp_path}/b, ")
    bundle = Bundle.open(tmp_path / "b")
    assert bundle.config.vision is not None and bundle.config.vision.weights == "w8"
    assert bundle.manifest.path.read_text().splitlines()[1] == "# Qwen3.5 for the emulated NPU: checkpoint hf"
    ids = {case.text: case.ids for case in bundle.tokcases}
    assert ids[""] == () and ids["a b"] == (64, 280) and len(ids) >= 10
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
    for text, wanted in ids.items():
        assert tuple(tokenizer.encode(text).ids) == wanted


@pytest.mark.parametrize(
    ("words", "prefix", "told"),
    [
        ([], "model.visual.", False),
        ([], "odd.visual.", True),
        (["--quiet"], "odd.visual.", False),
        (["--vision", "none"], "odd.visual.", False),
    ],
)
def test_how_a_checkpoint_was_read_is_told_where_it_is_unusual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], prefix: str, told: bool
) -> None:
    write_checkpoint(tmp_path / "hf", SHAPES["vision"])
    index = tmp_path / "hf/model.safetensors.index.json"
    index.write_text(index.read_text().replace("model.visual.", prefix))
    for file in (tmp_path / "hf").glob("*.safetensors"):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        renamed = {name.replace("model.visual.", prefix): value for name, value in header.items()}
        text = json.dumps(renamed).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    assert export_main([str(tmp_path / "hf"), "--out", str(tmp_path / "b"), *QUICK, *words]) == 0
    out, err = capsys.readouterr()
    assert out == "" and (err == "") == ("--quiet" in words)
    lines = [line for line in err.splitlines() if "tower" in line]
    assert lines == (
        ["export: the vision tower's tensors begin with odd.visual., not model.visual."] if told else []
    )


def test_quiet_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--random", "tiny", "--out", str(tmp_path / "b"), "--vision", "none", "--quiet"]
    assert export_main(arguments) == 0
    assert capsys.readouterr() == ("", "")
    assert export_main([*arguments, "--seed", "3"]) == 1
    assert "--force" in capsys.readouterr().err
    before = (tmp_path / "b/tensors.bin").read_bytes()
    assert export_main([*arguments, "--seed", "3", "--force"]) == 0
    assert (tmp_path / "b/tensors.bin").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere"], 1, "no such directory (nowhere): give a checkpoint's directory"),
        (["Qwen/Qwen3.5-2B"], 1, "no such directory (Qwen/Qwen3.5-2B): not downloaded yet: "),
        ([], 2, "give a checkpoint directory or --random SIZE"),
        (["x", "--random", "tiny"], 2, "one of the two"),
        (["--random", "huge"], 2, "known sizes are"),
        (["--random", "tiny", "--chunk", "7"], 2, "is no multiple of --chunk 7"),
        (["--random", "tiny", "--tokenizer", "no.json"], 1, "no.json"),
        (["--random", "tiny", "--format", "bfp6s", "--head-rows", "4"], 2, "--head-rows 4"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    assert export_main([*arguments, "--out", str(tmp_path / "b")]) == status
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and message in err
    assert list(tmp_path.iterdir()) == []


def test_no_space_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1 << 20}))
    assert export_main(["--random", "tiny", "--out", str(tmp_path / "b")]) == 1
    assert "0.00 GB are free" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_so_much_space_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors' bytes and 64 MiB, to the last byte."""
    assert export_main(["--random", "tiny", "--out", str(tmp_path / "a"), "--quiet"]) == 0
    enough = (tmp_path / "a" / "tensors.bin").stat().st_size + (64 << 20)
    for free, status in ((enough, 0), (enough - 4096, 1)):  # tensors.bin is padded to whole pages
        monkeypatch.setattr("shutil.disk_usage", lambda path, free=free: type("Usage", (), {"free": free}))
        assert export_main(["--random", "tiny", "--out", str(tmp_path / str(status)), "--quiet"]) == status


def test_what_is_not_asked_for_is_what_the_options_say() -> None:
    given = vars(parser().parse_args(["--out", "b"]))
    wanted = vars(Options())
    assert {name: given["format" if name == "gemv_format" else name] for name in wanted if name in given} == {
        name: value for name, value in wanted.items() if name in given
    }
    assert given["format"] == wanted["gemv_format"] and given["seed"] == 0
    assert {"chunk", "max_prompt", "head_rows", "vision", "max_pixels"} < {*given} & {*wanted} | {"seed"}


SLOW = """
import sys, time
from qwen35.export import export_main, random
real = random.random_stream
def slow(*args):
    for piece in real(*args):
        print("piece", flush=True)
        time.sleep(0.05)
        yield piece
random.random_stream = slow
sys.exit(export_main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, "--random", "tiny", "--out", str(tmp_path / "b")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    for _ in range(3):
        assert child.stdout.readline() == b"piece\n"
    assert [path.name[:11] for path in tmp_path.iterdir()] == [".b.partial-"]
    child.send_signal(number)
    _, err = child.communicate()
    assert child.returncode == 130
    assert b"stopped; nothing was written" in err and b"Traceback" not in err
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = Terminal()
    with Progress("export", 1000_000_000, stream=stream) as progress:
        for _ in range(10):
            now[0] += 1.0
            progress.add(100_000_000)
    lines = stream.getvalue().split("\r")
    assert stream.getvalue().count("\n") == 1
    assert lines[1].rstrip() == "export:  10%  100 of 1,000 MB  100 MB/s  0:09 left"
    assert lines[-1].strip() == "export: 100%  1,000 of 1,000 MB  100 MB/s  0:00 left"


def test_progress_in_a_log_is_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with Progress("export", 100_000_000, stream=stream) as progress:
        for _ in range(100):
            now[0] += 0.5
            progress.add(1_000_000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0] == "export:  20%  20 of 100 MB  2 MB/s  0:40 left"
    assert lines[-1].startswith("export: 100%")


def test_short_writes_say_nothing_in_a_log() -> None:
    stream = io.StringIO()
    with Progress("export", 10, stream=stream) as progress:
        progress.add(10)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (9.6, "0:10"), (61, "1:01"), (3725, "1:02:05")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.peer
@pytest.mark.parametrize("name", ["tied", "vision"])
def test_references_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.set_num_threads(1)
    write_checkpoint(tmp_path / "hf", SHAPES[name])
    assert export_main([str(tmp_path / "hf"), "--out", str(tmp_path / "b"), *QUICK, "--refs"]) == 0
    bundle = Bundle.open(tmp_path / "b")
    wanted = [("plain", False, False), ("thinking", True, False), ("picture", False, True)]
    told = [(one.name, one.thinking, one.image) for one in bundle.references]
    assert told == (wanted if name == "vision" else wanted[:2])
    for one in bundle.references:
        steps = bundle.tensors.info(f"ref.{one.name}.tokens").elements
        assert 1 <= steps <= 64
        assert bundle.tensors.expect(f"ref.{one.name}.top_logits", "f32", steps, 16)[0, 0] > 0
        tokens = bundle.tensors.get(f"ref.{one.name}.tokens")
        np.testing.assert_array_equal(bundle.tensors.get(f"ref.{one.name}.top_ids")[:, 0], tokens)
    assert bundle.verify() == len(bundle.sums) and len(bundle.tokcases) >= 10
    assert "reference runs in float32" in capsys.readouterr().err


def test_references_without_the_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "hf", SHAPES["tied"])
    monkeypatch.setitem(sys.modules, "torch", None)
    assert export_main([str(tmp_path / "hf"), "--out", str(tmp_path / "b"), "--refs"]) == 2
    assert "torch is not installed (--refs)" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
