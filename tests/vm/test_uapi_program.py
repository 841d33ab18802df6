"""The C program that knows only the uAPI, on Linux's own driver, and its trace there by ptrace.

The same program runs under `amdxdna emulate` in tests/tools/test_cli_emulate.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen35.rootfs.loaded import loaded_by
from qwen35.rootfs.python import APP, HOME, PythonRoot
from tests.support.emulation import FILE_OPERATIONS, NODE, c_program, device_programs

from . import debs, guest
from .conftest import CHECKOUT

PYTHON = f"PYTHONHOME={HOME} PYTHONPATH=/{APP} python3 -B -s"
MODULES = [
    *("amdxdna.cli.trace", "amdxdna.__main__", "amdxdna.trace.ptrace", "amdxdna.trace.summary"),
    *("amdxdna.trace.text", "amdxdna.trace.timeline", "amdxdna.emu.seccomp.spawn", "amdxdna.errors"),
    *("locale", "shutil", "traceback"),
]
PROGRAM = f"/sequence {NODE} /copy.pdi /copy.insts"
PARTS = 13


@pytest.fixture(scope="module")
def machine(rig: debs.Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[guest.Machine]:
    """A guest with the program and the tracer in it."""
    folder = tmp_path_factory.mktemp("uapi")
    archive = guest.base_tree(rig, f"cd /{APP} && {PYTHON} -m {guest.AGENT}")
    root = PythonRoot(archive, CHECKOUT)
    root.interpreter()
    root.loaded(loaded_by([guest.AGENT, *MODULES], CHECKOUT))
    archive.file("files", c_program(static=True, name="files").read_bytes(), 0o755)
    archive.file("sequence", c_program(static=True).read_bytes(), 0o755)
    blob, code = device_programs(folder)
    archive.file("copy.pdi", blob.read_bytes())
    archive.file("copy.insts", code.read_bytes())
    (folder / "initrd").write_bytes(guest.packed(archive))
    machine = guest.boot(lambda attempt: guest.Machine(rig, folder / attempt, folder / "initrd"))
    yield machine
    machine.close()


def shell(machine: guest.Machine, command: str) -> str:
    """What a command printed; it must succeed."""
    machine.rebind()
    answer = machine.request("shell", command=command, timeout=200)
    assert answer.value.get("status") == 0, answer.value
    guest.check_log(answer.log)
    return str(answer.value["output"])


def test_program_on_the_drivers_node(machine: guest.Machine) -> None:
    lines = shell(machine, PROGRAM).splitlines()
    assert len(lines) == PARTS
    assert all(line.startswith("ok: ") for line in lines)


def test_file_operations(machine: guest.Machine) -> None:
    """The same lines as on the emulated node (tests/tools/test_cli_emulate.py)."""
    assert shell(machine, f"mkdir -p /tmp && /files {NODE}") == FILE_OPERATIONS.read_text()


def test_its_trace(machine: guest.Machine, tmp_path: Path) -> None:
    """The tracer's own mechanism (a filter and ptrace) on a real node: every call, decoded."""
    output = shell(machine, f"cd /{APP}; {PYTHON} -m amdxdna trace -q -o /tmp/t -- {PROGRAM} && cat /tmp/t")
    printed, _, text = output.partition("\n{")
    assert printed.count("ok: ") == PARTS
    header, *calls, last = (json.loads(line) for line in ("{" + text).splitlines())
    assert header["source"] == "ptrace"
    first = [line for line in calls if line["open"] == 1]
    assert [line["call"] for line in first[:4]] == ["open", "CREATE_BO", "GET_BO_INFO", "mmap"]
    assert int(first[3]["out"]["address"], 16) % (64 << 20) == 0
    runs = [line for line in first if line["call"] == "EXEC_CMD" and "errno" not in line]
    strange = [line for line in runs if line["packet"].get("instructions", {}).get("bytes") != 24]
    assert not strange, json.dumps(strange[:3])
    assert all("bo" in buffer for line in runs for buffer in line["packet"]["buffers"])
    failed = Counter((line["call"], line["errno"]) for line in calls if "errno" in line)
    assert failed[("EXEC_CMD", "EALREADY")] == failed[("SYNCOBJ_TIMELINE_WAIT", "EINTR")] == 1
    assert "undecoded" not in json.dumps([line for line in calls if "errno" not in line])
    summary = last["summary"]
    assert summary["opens"] == 4
    assert summary["states"]["COMPLETED"] == summary["submits"]
    closed = [line for line in calls if line["call"] == "close"]
    assert len(closed) == 4
