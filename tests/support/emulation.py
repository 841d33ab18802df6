"""What the tests of `emulate` and `trace` share: running the command, and programs to run under it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from tests.support.program import ROOT, python

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
NODE = "/dev/accel/accel0"
FILE_OPERATIONS = ROOT / "tests" / "data" / "file_operations.txt"
"""What tests/c/files.c prints on any node."""


def run(
    *arguments: str,
    seconds: float = 300,
    env: dict[str, str] | None = None,
    stdin: str = "",
    before: str = "",
) -> subprocess.CompletedProcess[str]:
    """`python -m amdxdna ARGUMENTS` in a process of its own, without this environment's options.

    `before`: Python that this process runs first."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AMDXDNA_")}
    clean |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(env or {})}
    command = [sys.executable, "-m", "amdxdna", *arguments]
    if before:
        code = f"{before}\nimport sys\nfrom amdxdna.cli import main\nsys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=clean,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def emulate(
    *command: str, options: str = "", more: tuple[str, ...] = (), **settings: object
) -> subprocess.CompletedProcess[str]:
    """Runs a program under `emulate`, with emulator options."""
    every = ",".join(part for part in ("threads=1,quiet", options) if part)
    return run("emulate", "-O", every, *more, "--", *command, **settings)  # type: ignore[arg-type]


def emulate_python(
    code: str, *, options: str = "", more: tuple[str, ...] = (), **settings: object
) -> subprocess.CompletedProcess[str]:
    """Runs Python code under `emulate`."""
    return emulate(sys.executable, "-c", code, options=options, more=more, **settings)


def as_nobody(
    first: list[str], *commands: list[str], dumpable: bool = False
) -> subprocess.CompletedProcess[str]:
    """`amdxdna FIRST` as root, then each of `amdxdna COMMANDS` as user 65534, in one process that ends by 0.

    The first imports what may lie where nobody else may read. `dumpable`, as after an exec by that user."""
    return python(
        "-c",
        f"""
import ctypes, os
from amdxdna.cli import main
assert main({first!r}) == 0
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) if {dumpable} else None
assert open('/proc/self/status').read().split('CapEff:')[1].split()[0] == '0' * 16
for words in {commands!r}:
    assert main(words) == 0
""",
    )


@functools.cache
def c_program(static: bool = False, name: str = "sequence") -> Path:
    """A C program of tests/c, compiled. Skips without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = ROOT / "build" / "tests" / (f"{name}-static" if static else name)
    sources = [ROOT / "tests" / "c" / source for source in (f"{name}.c", "npu.c")]
    headers = [ROOT / "tests" / "c" / "npu.h", ROOT / "amdxdna" / "csrc" / "uapi.h"]
    newest = max(path.stat().st_mtime for path in (*sources, *headers))
    if not target.exists() or target.stat().st_mtime < newest:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_name(f"{target.name}.{os.getpid()}")
        flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"] + ["-static"] * static
        command = [compiler, *flags, f"-I{ROOT / 'amdxdna' / 'csrc'}", "-o", made, *sources]
        subprocess.run(command, check=True)
        made.replace(target)
    return target


def device_programs(folder: Path) -> tuple[Path, Path]:
    """The copy kernel's PDI and a stream that adds 1 to 1,024 words, as files."""
    blob, code = folder / "copy.pdi", folder / "copy.insts"
    blob.write_bytes(pdi(Family.COPY))
    code.write_bytes(stream.copy(4096, 1))
    return blob, code
