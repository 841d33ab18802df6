"""The package's C under AddressSanitizer and UndefinedBehaviorSanitizer, while its own tests run over it.

The extensions are built apart, beside a copy of the packages and tests, and a second interpreter runs a
selection of the tests there. AMDXDNA_SANITIZED_TESTS names others (words of a pytest command).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "sanitized"
SELECTION = {
    "the binding": [
        "tests/binding/test_node.py",
        "tests/binding/test_buffer.py",
        "tests/binding/test_wrap.py",
        "tests/binding/test_heap.py",
    ],
    "the emulated device": [
        "tests/emu/test_emu_node.py",
        "tests/emu/test_emu_driver.py",
        "tests/emu/test_emu_driver_timeouts.py",
        "tests/emu/test_emu_memory.py",
        "tests/emu/test_emu_inline.py",
        "tests/emu/test_emu_kernels_run.py",
    ],
    "host math": [
        "tests/qwen35/formats/test_formats_bfp16.py",
        "tests/qwen35/formats/test_formats_bf16.py",
        "tests/qwen35/pictures/test_image_resize.py",
        "tests/qwen35/pictures/test_vision_host.py",
    ],
    "hostile programs": [
        "tests/emu/test_emulate_hostile.py",
        *(f"tests/emu/test_emulate_fuzz.py::test_nonsense_is_answered[{seed}]" for seed in (1, 2)),
        "tests/tools/test_trace_ptrace.py::test_pages_of_a_driver_are_read_by_the_program_itself",
    ],
}
SKIPPED = "resident or huge or minor_nine or given_back"
"""What measures memory or time, which sanitizers take more of."""


def _runtime() -> str:
    """The sanitizer's library, to be loaded before anything else."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build the sanitized extensions with")
    path = subprocess.check_output([compiler, "-print-file-name=libasan.so"], text=True).strip()
    if not os.path.isabs(path):
        pytest.skip("gcc has no libasan here")
    return path


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Builds the copy; the environment of its interpreter."""
    runtime = _runtime()
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("AMDXDNA_", "PYTEST"))
    }
    subprocess.run(
        [sys.executable, "build_ffi.py"],
        cwd=ROOT,
        check=True,
        timeout=600,
        capture_output=True,
        env={**environ, "AMDXDNA_SANITIZE": "address,undefined"},
    )
    for name in ("amdxdna", "qwen35", "tests"):
        for path in (COPY / name).rglob("*.py"):
            path.unlink()
        shutil.copytree(
            ROOT / name,
            COPY / name,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("*.so", "__pycache__", "default"),
        )
    for name in ("pyproject.toml", "build_ffi.py", "README.md"):
        shutil.copy(ROOT / name, COPY / name)
    return {
        **environ,
        "LD_PRELOAD": runtime,
        "PYTHONPATH": str(COPY),
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # An interpreter frees nothing at its end; ptrace and the leak check exclude each other.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=1",
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", SELECTION)
def test_no_report(what: str, environment: dict[str, str]) -> None:
    tests = SELECTION[what]
    if given := os.environ.get("AMDXDNA_SANITIZED_TESTS"):
        tests = shlex.split(given)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"not ({SKIPPED})", *tests],
        cwd=COPY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    said = ended.stdout[-6000:] + ended.stderr[-6000:]
    assert "Sanitizer" not in said and "runtime error:" not in said, said
    # What fails is what the same tests say without sanitizers, or for being several times as slow.
    passed = re.search(r"(\d+) passed", ended.stdout)
    failed = re.search(r"(\d+) failed", ended.stdout)
    assert ended.returncode in (0, 1) and passed, said
    assert 20 * int(failed[1] if failed else 0) <= int(passed[1]), said


@pytest.mark.slow
def test_a_fault_would_be_reported(environment: dict[str, str]) -> None:
    """The same interpreter, made to read behind its memory: the report comes, and the process ends."""
    code = (
        "from amdxdna._native import ffi, lib\n"
        "lib.xdna_mentions(b'path', ffi.new('char[]', b'token'))  # a list without its end"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=COPY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "AddressSanitizer" in ended.stderr, ended.stdout + ended.stderr
    assert ended.returncode != 0
