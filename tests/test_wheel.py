"""One wheel for every Python from 3.10 on: built once, installed where there is no compiler, and used."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTENSIONS = {
    "amdxdna/_native.abi3.so",
    "amdxdna/emu/_kernels.abi3.so",
    "qwen35/_host.abi3.so",
    "qwen35/rootfs/_blas.abi3.so",
}
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
CHOSEN = os.environ.get("AMDXDNA_PYTHONS", "")
"""Versions to try, or "all"; without it the oldest and the newest that are here."""

pytestmark = pytest.mark.slow


def run(*words: str | Path, where: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "QWEN35", "AMDXDNA"))}
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        cwd=where,
        env=environment | more,
        timeout=600,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.o", "*.egg-info", ".*")
    for name in ("amdxdna", "qwen35"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "build_ffi.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder / "source")
    done = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, folder / "source")
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("the build's own requirements cannot be installed here")
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@functools.cache
def interpreter(version: str) -> str:
    """A Python of that version on this machine; empty where there is none."""
    homes = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep)]
    homes += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    for program in (home / f"python{version}" for home in homes):
        if program.is_file() and run(program, "-c", "import venv, ensurepip").returncode == 0:
            return str(program)
    return ""


@functools.cache
def chosen() -> list[str]:
    """The versions to try."""
    if CHOSEN:
        return list(VERSIONS) if CHOSEN == "all" else CHOSEN.split(",")
    here = [version for version in VERSIONS if interpreter(version)]
    return [here[0], here[-1]] if here else []


@pytest.mark.skipif("AMDXDNA_REQUIRE_PEERS" not in os.environ, reason="nothing is required")
def test_a_python_is_here() -> None:
    """Otherwise the wheel would be tried by none."""
    assert [version for version in chosen() if interpreter(version)], "no Python to try: install python3-venv"


def test_contents(wheel: Path) -> None:
    assert wheel.name.endswith("-cp310-abi3-linux_x86_64.whl") or "aarch64" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert {name for name in names if name.endswith(".so")} == EXTENSIONS
    assert "Requires-Python: >=3.10" in text
    assert {"amdxdna/py.typed", "qwen35/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests/") or name.endswith((".c", ".o"))]
    for folder in (ROOT / "qwen35" / "data", ROOT / "qwen35" / "train" / "data"):
        wanted = {f"{path.relative_to(ROOT)}" for path in folder.rglob("*") if path.is_file()}
        assert wanted and wanted <= names


@pytest.mark.parametrize("version", VERSIONS)
def test_every_python_runs_the_main_job_without_a_compiler(wheel: Path, tmp_path: Path, version: str) -> None:
    program = interpreter(version)
    if not program:
        pytest.skip(f"there is no Python {version} here")
    if version not in chosen():
        pytest.skip("between the oldest and the newest: AMDXDNA_PYTHONS=all tries it")
    assert run(program, "-m", "venv", tmp_path / "venv").returncode == 0
    python = tmp_path / "venv" / "bin" / "python"
    done = run(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", wheel, CC="/bin/false")
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("the dependencies cannot be installed for this Python")
    assert done.returncode == 0, done.stderr
    words = ["-m", "qwen35", "--prompt", "What is a penguin?", "--greedy", "--device", "emu"]
    got = run(python, "-W", "error", *words, where=tmp_path)
    want = run(sys.executable, *words)
    assert got.returncode == want.returncode == 0, got.stderr
    assert got.stdout == want.stdout != ""
    assert run(python, "-m", "amdxdna", "--help", where=tmp_path).returncode == 0
