"""Bundles by Hugging Face ids: the cache, what is downloaded, what is said when neither helps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qwen35.api import DEFAULT_BUNDLE, find_bundle
from qwen35.bundle.hub import is_id
from qwen35.errors import ModelError

hub = pytest.importorskip("huggingface_hub")
ROOT = Path(__file__).parents[1]
REVISION = "0123456789abcdef0123456789abcdef01234567"


def cached(home: Path) -> Path:
    """The built-in bundle as the hub's cache keeps `owner/name`."""
    folder = home / "hub" / "models--owner--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    snapshot = folder / "snapshots" / REVISION
    shutil.copytree(DEFAULT_BUNDLE, snapshot)
    return snapshot


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    import os

    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-m", "qwen35", *words], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, env=environment)


def test_from_the_cache_else_one_line(tmp_path: Path) -> None:
    snapshot = cached(tmp_path)
    ask = ("--prompt", "What is a penguin?", "--device", "emu:quiet", "--greedy")
    for name in ("owner/name", f"owner/name@{REVISION}", "owner/name@main"):
        done = run(tmp_path, name, *ask)
        assert done.returncode == 0 and "bird" in done.stdout, done.stderr
    for name in ("owner/other", "owner/name@other"):
        done = run(tmp_path, name, *ask)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert name in done.stderr and "cache" in done.stderr
    (snapshot / "tokenizer.json").unlink()  # an interrupted download
    assert run(tmp_path, "owner/name", *ask).returncode == 1


def test_only_what_is_needed_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def snapshot(**options: Any) -> str:
        if options.get("local_files_only"):
            raise hub.errors.LocalEntryNotFoundError("not there")
        asked.append(options)
        return str(DEFAULT_BUNDLE)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    monkeypatch.setattr(hub, "hf_hub_download", lambda *a, **k: str(DEFAULT_BUNDLE / "manifest.txt"))
    assert find_bundle("owner/name@v1") == DEFAULT_BUNDLE
    (options,) = asked
    assert (options["repo_id"], options["revision"]) == ("owner/name", "v1")
    names = {str(path.relative_to(DEFAULT_BUNDLE)) for path in DEFAULT_BUNDLE.rglob("*") if path.is_file()}
    assert names <= set(options["allow_patterns"])
    assert not any("*" in pattern for pattern in options["allow_patterns"])
    assert "README.md" not in options["allow_patterns"]


def test_a_checkpoint_is_to_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*words: Any, **options: Any) -> str:
        raise hub.errors.EntryNotFoundError("404")

    monkeypatch.setattr(hub, "snapshot_download", missing)
    monkeypatch.setattr(hub, "hf_hub_download", missing)
    with pytest.raises(ModelError, match="export CHECKPOINT --out DIR"):
        find_bundle("Qwen/Qwen3.5-2B")


@pytest.mark.parametrize(("text", "want"), [
    ("a/b", True), ("a/b@main", True), ("./a/b", False), ("/a/b", False), ("a", False), ("a/b/c", False),
    ("../b", False), ("a/..", False), ("a/b@", False), ("a b/c", False),
])
def test_what_may_be_an_id(text: str, want: bool) -> None:
    assert is_id(text) is want
