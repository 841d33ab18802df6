"""`export --refs`, then `check`, for every format of the weights and of the tower; what the formats cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35.bundle import Bundle
from qwen35.check import check_main
from qwen35.export import export_main
from qwen35.export.standard import picture_size, standard_picture
from qwen35.formats import bfp6s
from qwen35.images import smart_resize
from tests.support.synthetic import SHAPES, VisionShape, smaller, weights, write_checkpoint, write_safetensors

SHAPE = smaller(SHAPES["untied"], layers=4, tied=True, vision=VisionShape())
QUICK = ["--chunk", "32", "--max-prompt", "128", "--quiet"]


def export(folder: Path, out: str, *more: str) -> Path:
    assert export_main([str(folder / "hf"), "--out", str(folder / out), *QUICK, *more]) == 0
    return folder / out


def check(bundle: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = check_main([str(bundle), "--device", "emu:threads=1,quiet", "--json", "--max-ctx", "512", "-q"])
    report = json.loads(capsys.readouterr().out)
    return status, {finding["name"]: finding for finding in report["findings"]}


@pytest.fixture(scope="module")
def as_bfp6s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose matrices bfp6s holds exactly, so that the references are of the bundle's weights."""
    folder = tmp_path_factory.mktemp("bfp6s")
    write_checkpoint(folder / "hf", SHAPE, 5, shards=1)
    tensors = weights(SHAPE, 5)
    packed = ("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight", "embed_tokens.weight")
    for name, value in tensors.items():
        if name.endswith(packed) and "visual" not in name:
            tensors[name] = bfp6s.decode(bfp6s.encode(value), *value.shape)
    write_safetensors(folder / "hf" / "model.safetensors", tensors, dict.fromkeys(tensors, "F32"))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bfp16")
    write_checkpoint(folder / "hf", SHAPE, 5)
    return folder


@pytest.mark.peer
@pytest.mark.parametrize("vision", ["w8", "bfp16x2"])
@pytest.mark.parametrize("text", ["bfp16", "bfp6s"])
def test_an_exported_bundle_passes_its_check(
    text: str, vision: str, plain: Path, as_bfp6s: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    folder = plain if text == "bfp16" else as_bfp6s
    bundle = export(folder, vision, "--refs", "--format", text, "--vision", vision)
    status, found = check(bundle, capsys)
    assert status == 0, found
    for name in ("plain steps", "thinking steps", "picture picture", "picture tower", "picture steps"):
        assert found[name]["passed"] is True
    assert found["plain steps"]["steps"] >= 8 and found["picture tower"]["cosine"] > 0.999
    assert Bundle.open(bundle).config.gemv_format == text


@pytest.mark.peer
def test_what_bfp6s_costs_in_logits(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """10 dB more noise in the weights: logits are three times as far from float32, no more."""
    pytest.importorskip("torch")
    worst = {}
    for text in ("bfp16", "bfp6s"):
        bundle = export(plain, text, "--refs", "--format", text, "--vision", "none")
        _, found = check(bundle, capsys)
        worst[text] = max(found[f"{name} logits"]["largest_difference"] for name in ("plain", "thinking"))
    print(f"largest difference from float32's logits: {worst}")
    assert worst["bfp16"] < worst["bfp6s"] < 6 * worst["bfp16"]


def test_bfp6s_weights_are_found_again(as_bfp6s: Path) -> None:
    bundle = Bundle.open(export(as_bfp6s, "again", "--format", "bfp6s", "--vision", "none"))
    packed = np.array(bundle.tensors.bytes("l0.g.down0"))
    decoded = bfp6s.decode(packed, SHAPE.hidden, SHAPE.hidden)
    np.testing.assert_array_equal(bfp6s.decode(bfp6s.encode(decoded), *decoded.shape), decoded)


@pytest.mark.parametrize(
    ("step", "low", "high", "size"),
    [
        (32, 65536, 1 << 20, (256, 288)),
        (32, 65536, 65536, (256, 256)),  # nothing but this square
        (16, 3072, 4096, (48, 64)),
        (16, 4096, 5000, (48, 96)),
        (8, 1, 64, (8, 8)),
        (8, 1, 200, (8, 16)),  # there are wide ones, from one patch on
    ],
)
def test_the_standard_picture_needs_no_resizing(
    step: int, low: int, high: int, size: tuple[int, int]
) -> None:
    """Pillow's and torchvision's resizing differ: the patches are the same only where neither resizes."""
    assert picture_size(step, low, high) == size
    assert smart_resize(*size, step, low, high) == size
    assert standard_picture(*size).shape == (*size, 3)


@pytest.mark.peer
def test_pictures_of_a_smaller_tower_option(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    bundle = export(plain, "small", "--refs", "--vision", "w8", "--max-pixels", "256")
    assert Bundle.open(bundle).tensors.get("ref.picture.rgb").shape == (16, 16, 3)
    _, found = check(bundle, capsys)
    assert found["picture picture"]["passed"] is True
    again = export(plain, "adopted", "--refs", "--kernels", str(bundle))
    assert Bundle.open(again).tensors.get("ref.picture.rgb").shape == (16, 16, 3)
    assert check(again, capsys)[1]["picture picture"]["passed"] is True
