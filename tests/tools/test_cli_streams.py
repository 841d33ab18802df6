"""`--json` of subcommands where stdout cannot be written: one line on stderr, exit status 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amdxdna.cli import COMMANDS
from amdxdna.emu.kernels import stream
from tests.support.emulation import ROOT
from tests.support.program import python

EMULATED = ["--device", "emu:threads=1,quiet"]
WORDS = {
    "doctor": EMULATED,
    "info": EMULATED,
    "contexts": EMULATED,
    "power": EMULATED,
    "sensors": EMULATED,
    "telemetry": EMULATED,
    "errors": EMULATED,
    "snapshot": ["--output", "{folder}/snapshot.zip", *EMULATED],
    "xclbin": ["{folder}/example/{xclbin}"],
    "insts": ["{folder}/code"],
    "example": ["{folder}/new"],
    "run": ["{folder}/example/{xclbin}", "{folder}/code", "--in", "4096", "--out", "4096", *EMULATED],
    "selftest": EMULATED,
    "bench": ["--seconds", "0.01", *EMULATED],
    # These write their document to stderr and leave stdout to the program: only faults of theirs go there.
    "trace": ["--nonsense", "--", "true"],
    "emulate": ["--nonsense", "--", "true"],
    "pyxrt": ["--nonsense", "--", "true.py"],
}


#: Of qwen35, those that --json gives a document of their own.
QWEN35 = {"info": [], "image": ["{folder}/image", "--dir", "--no-kernel"]}


def test_every_subcommand_is_here() -> None:
    assert set(WORDS) == set(COMMANDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the subcommands are given to read."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "code").write_bytes(stream.copy(4096))
    python("-m", "amdxdna", "example", folder / "example", check=True)
    return folder


@pytest.mark.parametrize("name", [*WORDS, *(f"qwen35 {name}" for name in QWEN35)])
@pytest.mark.parametrize("sink", ["full", "closed", "none"])
def test_stdout_that_takes_nothing(files: Path, name: str, sink: str) -> None:
    (xclbin,) = (path.name for path in (files / "example").glob("*.xclbin"))
    package, _, name = name.rpartition(" ")
    given = QWEN35[name] if package else WORDS[name]
    words = [word.format(folder=files, xclbin=xclbin) for word in given]
    made = (str(files / "new"), str(files / "image"))
    words = [f"{word}-{sink}" if word.startswith(made) else word for word in words]
    if sink in ("full", "none"):
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, out = os.pipe()
        os.close(reader)
    try:
        command = [sys.executable, "-m", package or "amdxdna", name, "--json", *words]
        if sink == "none":
            command = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.PIPE}
        ended = subprocess.run(command, cwd=ROOT, text=True, timeout=300, **quiet)
    finally:
        os.close(out)
    lines = ended.stderr.splitlines()
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 1, ended.stderr
    # Of a reader who left, qwen35 says nothing: it is how `| head` ends.
    assert len(lines) == (0 if package and sink == "closed" else 1), lines
    assert not lines or lines[0].startswith(f"{package or 'amdxdna'}: ")
