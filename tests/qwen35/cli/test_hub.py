"""Bundles by Hugging Face ids: the cache, what is downloaded, what is said when neither helps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from qwen35.bundle.hub import is_id
from qwen35.errors import ModelError
from qwen35.find import DEFAULT_BUNDLE, find_bundle
from tests.support.hub_server import SHA as REVISION
from tests.support.hub_server import cached, files_of, hub_of
from tests.support.program import python

pytest.importorskip("huggingface_hub")
ROOT = Path(__file__).parents[3]


def run(home: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    patience = dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), "120")
    hub = patience | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return python("-m", "qwen35", *words, env=hub | environ)


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


def test_only_what_is_needed_is_downloaded(tmp_path: Path) -> None:
    """With its progress on stderr, once; the second time nobody is asked."""
    other = {"README.md": b"words", "other.bin": bytes(1000), "kernels/spare.bin": b"x"}
    with hub_of({"owner/name": {**files_of(DEFAULT_BUNDLE), **other}}) as (url, asked):
        ask = ("--prompt", "What is a penguin?", "--device", "emu:quiet", "--greedy", "-q")
        done = run(tmp_path, "owner/name", *ask, HF_ENDPOINT=url, HF_HUB_OFFLINE="0")
        assert done.returncode == 0 and "bird" in done.stdout, done.stderr
        got = {path.partition("/resolve/")[2].partition("/")[2] for path in asked if "/resolve/" in path}
        assert got <= set(files_of(DEFAULT_BUNDLE)) and {"manifest.txt", "tensors.bin"} <= got
        asked.clear()
        assert run(tmp_path, "owner/name", *ask, HF_ENDPOINT=url, HF_HUB_OFFLINE="0").returncode == 0
        assert not [path for path in asked if "owner" in path]
    assert run(tmp_path, "owner/name", *ask).returncode == 0  # offline


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("some/checkpoint", "export CHECKPOINT --out DIR"),
        ("some/nothing", "no such repository"),
        ("some/checkpoint@x", "no revision 'x'"),
    ],
)
def test_what_the_hub_answers_is_one_line(tmp_path: Path, name: str, says: str) -> None:
    with hub_of({"some/checkpoint": {"config.json": b"{}"}}) as (url, _):
        done = run(tmp_path, name, "--prompt", "x", HF_ENDPOINT=url, HF_HUB_OFFLINE="0")
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and says in done.stderr, done.stderr


@pytest.mark.parametrize("words", [("--prompt", "x"), ("info",)])
def test_a_hub_that_is_not_there_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Asked once: no retries, and no lines about them."""
    words = ("info", "some/model") if words == ("info",) else ("some/model", *words)
    done = run(tmp_path, *words, HF_ENDPOINT="http://127.0.0.1:1", HF_HUB_OFFLINE="0")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "refused" in done.stderr and "go online" in done.stderr and "fault" not in done.stderr


def test_info_of_the_published_bundle_is_known_offline(tmp_path: Path) -> None:
    done = run(tmp_path, "info", "brishen/iron-qwen3.5-2b-npu2")
    assert done.returncode == 0 and done.stdout.startswith("model    Qwen/Qwen3.5-2B, which is not here")
    assert done.stderr.count("\n") == 1 and "what is known of it without" in done.stderr


def test_info_of_an_id_is_the_bundle_or_what_a_checkpoint_costs(tmp_path: Path) -> None:
    shape = {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "vocab_size": 248320}
    files = {"config.json": json.dumps({"text_config": shape}).encode(), "model.safetensors": bytes(999)}
    with hub_of({"owner/name": files_of(DEFAULT_BUNDLE), "some/tuned": files}) as (url, _):
        got = run(tmp_path, "info", "owner/name", "--json", HF_ENDPOINT=url, HF_HUB_OFFLINE="0")
        want = run(tmp_path, "info", "--json")
        facts, same = json.loads(got.stdout), json.loads(want.stdout)
        assert facts.pop("bundle") != same.pop("bundle") and facts == same
        tuned = json.loads(
            run(tmp_path, "info", "some/tuned", "--json", HF_ENDPOINT=url, HF_HUB_OFFLINE="0").stdout
        )
        assert tuned["size"] == "2b"
        assert tuned["emulated"]["download"] == sum(map(len, files.values()))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (b'"' + bytes(17 << 20) + b'"', "cannot be read: longer than 16,777,216 bytes"),
        (b"{", "is no JSON: Expecting property name"),
        (b"[" * 10**5, "is no JSON: arrays and objects lie too deep in each other"),
        (b"[]", "is no object"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_config_that_is_wrong_is_told_as_it_is(tmp_path: Path, config: bytes, says: str) -> None:
    with hub_of({"some/checkpoint": {"config.json": config}}) as (url, _):
        done = run(tmp_path, "info", "some/checkpoint", HF_ENDPOINT=url, HF_HUB_OFFLINE="0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith(f"qwen35: error: its config.json {says}"), done.stderr
    assert done.stderr.endswith("(some/checkpoint)\n")


def test_a_cache_that_cannot_be_written_is_told_with_its_name(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.touch()
    with hub_of({"some/checkpoint": {"config.json": b"{}"}}) as (url, _):
        done = run(home, "info", "some/checkpoint", HF_ENDPOINT=url, HF_HUB_OFFLINE="0")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"Not a directory ({home}" in done.stderr and "HF_HOME" in done.stderr


def test_a_typing_mistake_in_a_path_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundles").mkdir()
    monkeypatch.chdir(tmp_path)
    assert is_id("bundle/mine") and not is_id("bundles/mine")
    with pytest.raises(ModelError, match="there is no such bundle"):
        find_bundle("bundles/mine")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a/b", True),
        ("a/b@main", True),
        ("./a/b", False),
        ("/a/b", False),
        ("a", False),
        ("a/b/c", False),
        ("../b", False),
        ("a/..", False),
        ("a/b@", False),
        ("a b/c", False),
    ],
)
def test_what_may_be_an_id(text: str, want: bool) -> None:
    assert is_id(text) is want
