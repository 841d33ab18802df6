"""The acceptance run's report, and its end by a signal."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qwen35.accept import Acceptance, Item, Verdict, accept_main
from qwen35.accept import run as module
from qwen35.accept.report import Report
from tests.support.model_bundle import bundle_path
from tests.support.program import python

EMU = "emu:threads=1,quiet"


def test_the_command_and_its_report(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "penelope")
    home = tmp_path / "home" / "penelope"
    home.mkdir(parents=True)
    folder = Path(shutil.copytree(bundle_path("tied"), home / "bundle"))
    words = [str(folder), "--device", EMU, "--out", str(tmp_path / "r.json"), "--quiet"]
    assert accept_main(words) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "a trial on the emulated NPU"
    assert lines[-7].startswith("PASS: ") and "use: QWEN35_CHAINS=auto" in out
    assert lines[-3] == "this was the emulated NPU: nothing is proved about a real one"
    text = (tmp_path / "r.json").read_text()
    found = json.loads(text)
    assert found["passed"] and found["finished"] and found["emulated"] and "penelope" not in text
    assert found["shape"] == 1
    assert {item["item"] for item in found["items"]} >= {"driver", "chains", "prompts"}
    assert found["options"] == {"QWEN35_CHAINS": "auto", "QWEN35_WEIGHTS": "copy"}
    assert {way: told["verdict"] for way, told in found["ways"].items()} == {
        "single commands": "proved",
        "command chains": "proved",
        "weights in user memory": "do not use",
    }
    assert found["state"] == "finished" and found["bundle"].startswith("manifest ")
    assert str(folder) not in text and tmp_path.name not in text


@pytest.mark.parametrize("name", ["b", "bundle", "passed"])
def test_a_bundles_relative_name_is_no_word_of_the_report(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copytree(bundle_path("tied"), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    run = Acceptance(Path(name), EMU)
    text = f"no such file ({tmp_path / name}/tensors.txt), beside {tmp_path / name}s; a bundle passed"
    made = Report(run).made([Item("bundle", Verdict.FAIL, text)], "finished")
    assert set(made) >= {"bundle", "passed", "items", "ways"}
    assert made["items"][0]["text"].startswith("no such file (<bundle>/tensors.txt), beside /")
    assert made["items"][0]["text"].endswith(f"/{name}s; a bundle passed")
    assert made["bundle"].startswith("manifest ") and "<" not in made["bundle"]


def test_what_tells_of_a_person_or_a_machine_is_taken_out_of_every_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("USER", "penelope")
    private = [
        "/home/ulysses/x",
        "penelope",
        "serial number: 5CG1234XYZ",
        "a1:b2:c3:d4:e5:f6",
        "p@example.org",
    ]
    private.append("12345678-9abc-def0-1234-56789abcdef0")
    for given in private:
        item = Item(
            "load", Verdict.FAIL, f"on {given} it fails", {"why": [given], f"at/{given}": {"k": given}}
        )
        text = json.dumps(Report(Acceptance(bundle_path("tied"), EMU)).made([item], "finished"))
        for secret in ("ulysses", "penelope", "5CG1234XYZ", "a1:b2", "p@example", "56789abcdef0"):
            assert secret not in text, text
        assert "it fails" in text


def test_ctrl_c_keeps_what_was_found(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    close = module.Acceptance.close

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("qwen35.accept.ways.chains", interrupted)
    monkeypatch.setattr(module.Acceptance, "close", lambda self: (closed.append(1), close(self)))
    words = [str(bundle_path("tied")), "--device", EMU, "--out", str(tmp_path / "r.json"), "-q"]
    assert accept_main(words) == 130
    found = json.loads((tmp_path / "r.json").read_text())
    assert not found["finished"] and not found["passed"] and closed and found["state"] == "interrupted"
    names = [item["item"] for item in found["items"]]
    assert "gemv head" in names and "chains" not in names
    assert "INCOMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize("at", ["qwen35.accept.cli.notice", "qwen35.accept.report.Report.made"])
def test_an_impatient_second_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def interrupted(self):
        yield Item("x", Verdict.OK, "")
        raise KeyboardInterrupt

    real, came = pkgutil.resolve_name(at), []

    def once(*arguments):
        if arguments[-1] in ("stopped", "interrupted") and not came:
            came.append(1)
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module.Acceptance, "items", interrupted)
    monkeypatch.setattr(at, once)
    report = tmp_path / "r.json"
    try:
        assert accept_main([str(bundle_path("tied")), "--device", EMU, "--out", str(report), "-q"]) == 130
    except KeyboardInterrupt:
        pytest.fail("it is not forgiven")
    assert came and json.loads(report.read_text())["state"] == "interrupted"
    told = capsys.readouterr()
    assert "INCOMPLETE" in told.out and told.err == "qwen35: stopped\n"


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    from qwen35.cli import main

    assert main(["accept", str(bundle_path("tied")), "--out", str(tmp_path / "no" / "r.json")]) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_report_of_a_run_that_is_ended_never_reads_as_passed(
    tmp_path: Path, number: signal.Signals
) -> None:
    report = tmp_path / "r.json"
    report.write_text('{"passed": true, "finished": true}')
    words = ["accept", str(bundle_path("tied")), "--device", f"{EMU},slow=*:2000", "--out", str(report), "-q"]
    with subprocess.Popen(
        [sys.executable, "-m", "qwen35", *words], stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        lines = iter(program.stdout.readline, "")
        assert any(line.startswith("ok   driver") for line in lines)
        program.send_signal(number)
        rest, told = program.communicate(timeout=60)
    found = json.loads(report.read_text())
    assert not found["passed"] and not found["finished"]
    assert {item["item"] for item in found["items"]} >= {"load", "driver"}
    if number == signal.SIGKILL:
        assert found["state"] == "running"
        return
    assert program.returncode == 130 and found["state"] == "interrupted"
    assert "INCOMPLETE" in rest or "FAIL" in rest
    assert told.splitlines()[-1] == "qwen35: stopped"
    assert os.listdir(tmp_path) == ["r.json"]


SIGNAL_IN_A_FINALIZER = """
import signal, sys, time
from qwen35.accept.run import Acceptance
from qwen35.cli import main

class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

def items(self, real=Acceptance.items):
    for item in real(self):
        if item.name == "driver" and sys.argv[1] == "ending":
            Last()
        yield item
        if item.name == "driver" and sys.argv[1] != "ending":
            Last()

def close(self, real=Acceptance.close):
    time.sleep(0.5)  # until that signal would come again
    real(self)
    print("closed")

Acceptance.items, Acceptance.close = items, close
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("interrupt", ["handled", "ignored", "ending"])
def test_a_signal_whose_exception_python_drops_stops_the_run(tmp_path: Path, interrupt: str) -> None:
    """SIGINT is ignored in a background job. It stops the run once: the device is given back whole."""
    report = tmp_path / "r.json"
    words = ["accept", str(bundle_path("tied")), "--device", EMU, "--out", str(report), "-q"]
    done = python("-c", SIGNAL_IN_A_FINALIZER, interrupt, *words)
    assert (done.returncode, done.stderr) == (130, "qwen35: stopped\n")
    assert "closed" in done.stdout.splitlines()
    found = json.loads(report.read_text())
    assert found["state"] == "interrupted" and not found["passed"]
    assert "prompts" not in {item["item"] for item in found["items"]}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_libraries_are_loaded(tmp_path: Path, number: signal.Signals) -> None:
    report = tmp_path / "r.json"
    report.write_text('{"passed": true, "finished": true}')
    words = ["accept", str(bundle_path("tied")), "--device", EMU, "--out", str(report), "-q"]
    with subprocess.Popen(
        [sys.executable, "-m", "qwen35", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as program:
        until = time.monotonic() + 60
        while json.loads(report.read_text())["passed"] and time.monotonic() < until:
            time.sleep(0.002)
        program.send_signal(number)
        _, told = program.communicate(timeout=60)
    assert program.returncode == 130 and told == "qwen35: stopped\n"
    found = json.loads(report.read_text())
    assert found["passed"] is False and found["state"] == "interrupted"


def test_a_run_that_cannot_begin_is_not_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qwen35.cli import main

    report = tmp_path / "r.json"
    assert main(["accept", str(tmp_path / "nowhere"), "--device", EMU, "--out", str(report), "-q"]) == 1
    found = json.loads(report.read_text())
    assert (found["state"], found["why"]) == ("failed", "there is no such bundle") and not found["passed"]

    def broken(self):
        raise RuntimeError

    monkeypatch.setattr(module.Acceptance, "items", broken)
    with pytest.raises(RuntimeError):
        accept_main([str(bundle_path("tied")), "--device", EMU, "--out", str(report), "-q"])
    assert json.loads(report.read_text())["state"] == "failed"


def test_reports_that_go_into_pipes_and_full_devices(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qwen35.cli import main

    def short(self):
        yield Item("x", Verdict.OK, "it works")

    monkeypatch.setattr(module.Acceptance, "items", short)
    monkeypatch.setattr("amdxdna.output.READER_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ["accept", str(bundle_path("tied")), "--device", EMU, "-q", "--out"]
    assert main([*words, str(pipe)]) == 2
    assert "nobody reads this pipe" in capsys.readouterr().err
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main([*words, str(pipe)]) == 0
    assert json.loads(os.read(reader, 1 << 20))["passed"]
    os.close(reader)
    capsys.readouterr()
    assert main([*words, "/dev/null", "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == "" and told.out.endswith("}\n") and json.loads(told.out)["passed"]
    assert main([*words, "/dev/full"]) == 1
    told = capsys.readouterr()
    assert "PASS: 1 ok" in told.out and "report:" not in told.out
    assert told.err == "qwen35: error: the report cannot be written: No space left on device (/dev/full)\n"
