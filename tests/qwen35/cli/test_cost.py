"""`info` of a model that is not here: sizes as the exporter makes them, the Hub's answers, what fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen35.bundle import Bundle
from qwen35.errors import ModelError
from qwen35.export.exporter import export_random
from qwen35.export.plan import Options
from qwen35.info import cost, describe, info_main
from tests.support.hub_server import hub_of

SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "vocab_size": 2048}
REPOSITORIES = {
    "some/tiny": {"config.json": json.dumps({"text_config": SHAPE}).encode(), "weights": bytes(1000)},
    "some/other": {"config.json": json.dumps({"text_config": {**SHAPE, "hidden_size": 8}}).encode()},
    "some/list": {"config.json": b"[]"},
    "some/empty": {},
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with hub_of(REPOSITORIES) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", f"{url}/")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cost, "SAMPLE_SECONDS", 0.0)  # as where the processor is taken away for longer
    monkeypatch.setattr("qwen35.bundle.hub.SECONDS", 120.0)
    monkeypatch.chdir(tmp_path)


def test_sizes_are_those_of_the_bundle_that_export_writes(hub: None, tmp_path: Path) -> None:
    facts = cost.cost("some/tiny", 1000)
    described = describe(Bundle.open(export_random("tiny", tmp_path / "b", Options(), quiet=True)), 1000)
    sizes = described["bytes"]
    assert facts["emulated"]["bundle"] == sum(sizes[key] for key in ("text", "vision", "host", "embedding"))
    assert facts["emulated"]["memory"] == sum(described["memory"].values())
    assert facts["emulated"]["download"] == sum(map(len, REPOSITORIES["some/tiny"].values()))
    assert facts["emulated"]["export_seconds"] > 0
    assert facts["npu"] is None and facts["size"] == "tiny"


def test_a_published_size_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert info_main(["2b"]) == 0
    out = capsys.readouterr().out
    assert "download brishen/iron-qwen3.5-2b-npu2 --local-dir DIR" in out
    assert "export CHECKPOINT --out DIR" in out
    # 1.89e9 weights of text model and embedding and 0.33e9 of the tower, two bytes each
    named = cost.cost("Qwen/Qwen3.5-2B")
    assert named["size"] == "2b" and 4.3e9 < named["emulated"]["download"] < 4.6e9
    assert 2.4e9 < named["emulated"]["bundle"] < 2.6e9 and named["npu"]["download"] == 2_500_000_000
    assert info_main(["0.8B", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["npu"] is None


@pytest.mark.parametrize("short_of", ["disk", "memory"])
def test_what_does_not_fit_is_said(short_of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cost.cost("0.8b")["emulated"]["fits"] in (True, False)
    lots = 1 << 50
    usage = type("Usage", (), {"free": 1 << 30 if short_of == "disk" else lots})
    monkeypatch.setattr(cost.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(cost.meminfo, "available", lambda: 1 << 30 if short_of == "memory" else lots)
    facts = cost.cost("2b")
    assert not facts["emulated"]["fits"] and not facts["npu"]["fits"]
    assert "does not fit here" in "\n".join(cost.cost_lines(facts))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("some/none", "no such repository"),
        ("some/other", "its shape is none of Qwen3.5's published ones"),
        ("some/list", "is no object"),
        ("some/empty", r"its config.json cannot be read: it is not there"),
        ("some/tiny@x", "no revision 'x'"),
    ],
)
def test_a_model_that_cannot_be_told(hub: None, model: str, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        cost.cost(model)


def test_a_hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ModelError, match=r"the Hub cannot be asked .*refused"):
        cost.cost("some/model")


def test_folders_come_first(tmp_path: Path) -> None:
    (tmp_path / "2b").mkdir()
    (tmp_path / "some").mkdir()
    assert not cost.is_model("2b") and not cost.is_model("./a/b") and not cost.is_model("other/model")
    assert cost.is_model("4b") and cost.is_model("9B") and cost.is_model("Qwen/qwen3.5-2b")
    assert not cost.is_model("bundle") and not cost.is_model("tiny")


WAY = {
    "model": "a/b",
    "download": 1_000_000_000,
    "bundle": 2_000_000_000,
    "memory": 3_000_000_000,
    "fits": True,
}


@pytest.mark.parametrize(
    ("seconds", "listed", "export", "duration"),
    [
        (119.4, "listed", "", "119 s"),
        (120, "computed", "about ", "2 minutes"),
        (5401, "computed", "about ", "90 minutes"),
    ],
)
def test_every_line(
    seconds: float, listed: str, export: str, duration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "own_program", lambda name: f"/bin/{name}")
    facts = {
        "name": "Q",
        "max_ctx": 8192,
        "npu": {**WAY, "fits": False},
        "emulated": {**WAY, "model": "c/d", "download_is": listed, "export_seconds": seconds},
        "free": {"disk": 4_000_000_000, "memory": 5_000_000},
    }
    way = "download 1.00 GB, bundle 2.00 GB, memory about 3.00 GB"
    expected = [
        "model    Q, which is not here; at 8,192 tokens of context",
        f"NPU      {way}: does not fit here",
        "         /bin/hf download a/b --local-dir DIR",
        f"emulated {export}{way}: fits here; "
        f"the export takes about {duration} (measured just now, on this machine) and the reading of the "
        "download",
        "         /bin/hf download c/d --local-dir CHECKPOINT && "
        "/bin/python -m qwen35 export CHECKPOINT --out DIR",
        "here     4.00 GB of disk free in this folder, 5.0 MB of memory free",
    ]
    assert cost.cost_lines(facts) == expected
    none = ["NPU      no bundle of this model with compiled kernels is known"]
    assert cost.cost_lines({**facts, "npu": None}) == expected[:1] + none + expected[3:]
