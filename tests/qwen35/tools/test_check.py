"""`check` passes on a good bundle and fails on planted defects, each time at the right figure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from qwen35.bundle import Bundle, BundleError
from qwen35.check import check_main
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from qwen35.export.refs import Request, attach, record
from qwen35.find import DEFAULT_BUNDLE
from qwen35.info import info_main
from tests.support.synthetic import SHAPES, write_checkpoint

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("check")
    write_checkpoint(folder / "hf", SHAPES["vision"], 5, rounded=True)
    picture = np.random.default_rng(1).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    bundle = folder / "bundle"
    options = Options(chunk=32, max_prompt=128, vision_chunk=32, vision="bfp16x2")
    export_checkpoint(Checkpoint(folder / "hf"), bundle, options, quiet=True)
    attach(
        bundle,
        record(
            folder / "hf",
            [
                Request("text", "What is a penguin?", max_new=12),
                Request("think", "Why?", thinking=True, max_new=6),
                Request("picture", "What is this?", picture=picture, max_new=6),
            ],
        ),
        {},
    )
    return bundle


@pytest.fixture
def bundle(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "bundle"))


def run(bundle: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, bool | None], str]:
    status = check_main([str(bundle), "--device", "emu", "--json", "--max-ctx", "512"])
    out = capsys.readouterr().out
    report = json.loads(out)
    assert report["passed"] is (status == 0) and report["shape"] == 1
    return status, {f["name"]: f["passed"] for f in report["findings"]}, out


def test_a_good_bundle_passes(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found, out = run(good, capsys)
    assert status == 0, out
    assert found["checksums"] is None and "checksums" in found
    for name in (
        "text prompt",
        "text steps",
        "text free run",
        "think steps",
        "picture picture",
        "picture tower",
        "picture steps",
    ):
        assert found[name] is True, out


def test_the_built_in_model_passes(capsys: pytest.CaptureFixture[str]) -> None:
    status, found, out = run(DEFAULT_BUNDLE, capsys)
    assert status == 0, out
    assert found["picture picture"] and found["penguin free run"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A right export whose logits are 64 times as large, and whose words come in pairs nearly alike."""
    safetensors = pytest.importorskip("safetensors.torch")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("large")
    write_checkpoint(folder / "hf", SHAPES["tied"], 5, rounded=True)
    for file in (folder / "hf").glob("*.safetensors"):
        tensors = safetensors.load_file(str(file))
        for name, tensor in tensors.items():
            if name.endswith("model.norm.weight"):  # which is added to 1
                tensors[name] = ((tensor.float() + 1) * 64 - 1).to(tensor.dtype)
            if name.endswith("embed_tokens.weight"):
                noise = np.random.default_rng(3).normal(
                    0, 0.01 * float(tensor.float().std()), tensor[1::2].shape
                )
                tensor[1::2] = tensor[:-1:2] + tensor.new_tensor(noise)
        safetensors.save_file(tensors, str(file), metadata={"format": "pt"})
    bundle = folder / "bundle"
    export_checkpoint(Checkpoint(folder / "hf"), bundle, Options(chunk=32, max_prompt=128), quiet=True)
    attach(bundle, record(folder / "hf", [Request("text", "What is a penguin?", max_new=30)]), {})
    return bundle


def test_large_weights_pass_where_a_fixed_mark_fails_them(
    large: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, out = run(large, capsys)
    assert status == 0, out
    monkeypatch.setattr("qwen35.check.proof.SHARE", 0.0)
    status, _, out = run(large, capsys)
    assert status == 1, out


@pytest.mark.parametrize("flip", [0x04, 0x08])
def test_planted_defects_fail_with_large_weights_too(
    large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flip: int
) -> None:
    def change(data: np.ndarray) -> None:
        data[::9] ^= flip

    bundle = Path(shutil.copytree(large, tmp_path / "bundle"))
    patch_tensor(bundle, "l1.g.in", change)
    status, found, out = run(bundle, capsys)
    assert status == 1 and found["text steps"] is False, out


def test_references_without_a_spread_are_judged_as_they_were(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = bundle / "tensors.txt"
    lines = [line for line in index.read_text().splitlines() if ".spread " not in line]
    index.write_text("\n".join(lines) + "\n")
    _, found, out = run(bundle, capsys)
    assert found["text steps"] is found["think steps"] is True, out


def test_lines_for_a_person(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_main([str(good), "--device", "emu", "--max-ctx", "512"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("PASS: ")
    assert any(line.startswith("ok   text steps: ") for line in lines)


def patch_tensor(bundle: Path, name: str, change: Callable[[np.ndarray], None]) -> None:
    info = Bundle.open(bundle).tensors.info(name)
    blob = bundle / "tensors.bin"
    data = np.memmap(blob, np.uint8, "r+", info.offset, (info.nbytes,))
    change(data)
    data.flush()


def flip_exponents(data: np.ndarray) -> None:
    data[::9] ^= 0x04  # of every block


def roll(data: np.ndarray, count: int) -> None:
    data[:] = np.roll(data, count)


@pytest.mark.parametrize(
    ("tensor", "change", "right", "wrong"),
    [
        ("l1.g.in", flip_exponents, "text prompt", "text steps"),
        ("ref.picture.rgb", partial(roll, count=3), "text steps", "picture picture"),  # one pixel
        ("vis.b1.qkv", partial(roll, count=9 * 8), "picture picture", "picture tower"),
    ],
)
def test_a_changed_tensor(
    bundle: Path,
    capsys: pytest.CaptureFixture[str],
    tensor: str,
    change: Callable[[np.ndarray], None],
    right: str,
    wrong: str,
) -> None:
    patch_tensor(bundle, tensor, change)
    status, found, _ = run(bundle, capsys)
    assert (status, found[right], found[wrong]) == (1, True, False)


@pytest.mark.parametrize(
    ("tensor", "flip", "shown"),
    [
        ("l0.g.in", 0xFF, "text steps"),  # a block's exponent: its 8 weights 32 times as large
        ("l1.g.down0", 0x80, "think steps"),  # 2^128 times
        ("vis.b0.qkv", 0xFF, "picture tower"),
    ],
)
def test_one_flipped_exponent(
    bundle: Path, capsys: pytest.CaptureFixture[str], tensor: str, flip: int, shown: str
) -> None:
    def change(data: np.ndarray) -> None:
        data[9 * 100] ^= flip

    patch_tensor(bundle, tensor, change)
    status, found, out = run(bundle, capsys)
    assert status == 1
    assert found["text prompt"] is True and found["checksums"] is False
    assert found[shown] is False, out


def test_logits_that_are_no_numbers(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(data: np.ndarray) -> None:
        data[8:12] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)

    patch_tensor(bundle, "ln_f", change)
    status, found, out = run(bundle, capsys)
    assert status == 1 and found["text steps"] is found["text logits"] is False
    assert "NaN or infinity at 12 of 12 steps" in out


def test_a_flipped_byte_too_small_to_show_in_an_answer(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(data: np.ndarray) -> None:
        data[9 * 40 + 3] ^= 0x01  # the last bit of one mantissa

    assert info_main([str(bundle), "--verify", "--quiet"]) == 0
    patch_tensor(bundle, "l3.g.in", change)
    capsys.readouterr()
    status, found, _ = run(bundle, capsys)
    assert status == 1
    assert [name for name, passed in found.items() if passed is False] == ["checksums"]
    with pytest.raises(BundleError, match=r"contents differ.*tensors\.bin"):
        info_main([str(bundle), "--verify", "--quiet"])


def test_swapped_layers(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = bundle / "tensors.txt"
    swap = {"l0.": "l1.", "l1.": "l0."}
    lines = [swap.get(line[:3], line[:3]) + line[3:] for line in index.read_text().splitlines()]
    index.write_text("\n".join(lines) + "\n")
    status, found, _ = run(bundle, capsys)
    assert status == 1
    assert found["text steps"] is False


def test_wrong_tokenizer(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle / "tokenizer.json"
    table = json.loads(path.read_text())
    vocabulary = table["model"]["vocab"]
    words = [word for word in vocabulary if not word.startswith("<")]
    vocabulary |= dict(zip(words, [vocabulary[w] for w in [*words[1:], words[0]]], strict=True))
    path.write_text(json.dumps(table))
    status, found, _ = run(bundle, capsys)
    assert status == 1
    assert found["text prompt"] is False


@pytest.mark.parametrize(
    ("name", "start", "value", "message"),
    [
        ("top_ids", 4, 1 << 30, "an id is outside the vocabulary of"),
        ("top_ids", 4, -1, "an id is outside the vocabulary of"),
    ],
)
def test_reference_ids_that_cannot_be(bundle: Path, name: str, start: int, value: int, message: str) -> None:
    def change(data: np.ndarray) -> None:
        data[start : start + 4] = np.frombuffer(np.int32(value).tobytes(), np.uint8)

    patch_tensor(bundle, f"ref.text.{name}", change)
    with pytest.raises(BundleError, match=message):
        check_main([str(bundle), "--device", "emu", "--quiet", "--max-ctx", "512"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_spread_that_is_none(bundle: Path, value: float) -> None:
    def change(data: np.ndarray) -> None:
        data[4:8] = np.frombuffer(np.float32(value).tobytes(), np.uint8)

    patch_tensor(bundle, "ref.text.spread", change)
    with pytest.raises(BundleError, match="one that is no spread"):
        check_main([str(bundle), "--device", "emu", "--quiet", "--max-ctx", "512"])


@pytest.mark.parametrize(
    ("name", "entry"),
    [("top_ids", "i32 1,16 0 64"), ("top_logits", "f32 1,16 0 64"), ("tokens", "i32 0 0 0")],
)
def test_references_of_the_wrong_size(bundle: Path, name: str, entry: str) -> None:
    index = bundle / "tensors.txt"
    lines = [
        f"ref.text.{name} {entry}" if line.startswith(f"ref.text.{name} ") else line
        for line in index.read_text().splitlines()
    ]
    index.write_text("\n".join(lines) + "\n")
    with pytest.raises(BundleError, match=r"ref\.text\.top_ids: .* ids and .* logits for .* steps"):
        check_main([str(bundle), "--device", "emu", "--quiet", "--max-ctx", "512"])


def test_nothing_recorded_is_no_pass(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = bundle / "manifest.txt"
    kept = [line for line in manifest.read_text().splitlines() if not line.startswith(("ref ", "tokcase "))]
    manifest.write_text("\n".join(kept) + "\n")
    assert check_main([str(bundle), "--device", "emu"]) == 1
    assert "no records to check" in capsys.readouterr().out
