"""Compiled bundles that say things otherwise than the published one: what runs all the same is a warning.

The rules are the public reference runtime's, which checks hardly anything: what it loads and runs loads and
runs here (tests/support/reference_rules.py has its rules for records and index).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amdxdna.device import Device
from qwen35.bundle import Bundle, BundleError
from qwen35.info.describe import describe, lines
from qwen35.model.text import TextModel
from tests.support import reference_rules
from tests.support.model_bundle import bundle_path, run, tokens

Edit = Callable[[str], str]


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def swap(start: str, old: str, new: str) -> Edit:
    """Replaces in the first line that begins so."""

    def edit(text: str) -> str:
        line = line_of(text, start)
        assert old in line
        return text.replace(line, line.replace(old, new, 1), 1)

    return edit


def again(start: str) -> Edit:
    """Repeats the first record that begins so, behind it."""
    return lambda text: text.replace(line_of(text, start), "\n".join([line_of(text, start)] * 2), 1)


UNUSUAL = {
    "a stride of down that is not gu's": ("manifest", swap("gemm down", "lda=6144", "lda=2048"), "lda=2048"),
    "down's stride less than K": ("manifest", swap("gemm down", "lda=6144", "lda=1024"), "less than K=2048"),
    "gu's stride in columns of B": (
        "manifest",
        swap("gemm gu", "c_stride=6144", "c_stride=12288"),
        "differs from gu's c_stride=12288",
    ),
    "the tower's fc2": (
        "manifest",
        swap("gemm v_fc2", "lda=4096", "lda=1024"),
        "lda=1024 differs from fc1's",
    ),
    "fewer columns than the model": ("manifest", swap("gemm att", "N=5120", "N=5056"), "N=5056"),
    "a gemv said twice": (
        "manifest",
        again("gemv o "),
        "of a compiled bundle the last counts",
    ),
    "a number with a sign": ("manifest", swap("gemv o ", "M=2048", "M=+2048"), "'+2048' has a sign"),
    "a param with a sign": ("manifest", swap("param heads", "8", "+8"), "param heads: '+8' has a sign"),
    "an index with signs": ("index", swap("l0.h.ln1", "f32 2048", "f32 +2048"), "a number has a sign"),
    "a stream shorter than its gemm says": (
        "manifest",
        swap("gemm o ", "b_bytes=4718592", "b_bytes=4718656"),
        "takes 4,718,656",
    ),
    "test cases that cannot be read": ("manifest", swap("tokcase 6869", "1,2", "1,x"), "is not a list of"),
    "a reference said twice": ("manifest", again("ref one"), "'one' is repeated"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_only_unusual_is_a_warning(published: Path, name: str) -> None:
    where, edit, words = UNUSUAL[name]
    file = published / ("manifest.txt" if where == "manifest" else "tensors.txt")
    before = file.read_text()
    file.write_text(edit(before))
    assert file.read_text() != before
    bundle = Bundle.open(published)
    assert any(words in str(warning) for warning in bundle.warnings), bundle.warnings
    told = lines(describe(bundle))
    assert any(line.startswith("unusual  ") and words in line for line in told)
    assert bundle.gemms["down"].lda == bundle.gemms["gu"].c_stride


def test_the_published_bundle_is_not_unusual(published: Path) -> None:
    assert Bundle.open(published).warnings == []


def test_files_elsewhere(published: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Absolute paths, and paths that leave the directory."""
    elsewhere = tmp_path_factory.mktemp("kernels")
    (elsewhere / "stream.bin").write_bytes(b"\1\2\3\4" * 8)
    manifest = published / "manifest.txt"
    text = swap("gemv o ", "kernels/stream.bin", str(elsewhere / "stream.bin"))(manifest.read_text())
    text = swap("gemv down ", "kernels/stream.bin", f"../{published.name}/kernels/stream.bin")(text)
    manifest.write_text(text.replace("tokcase - \n", "tokcase - ,\n"))
    reference_rules.manifest(published)
    bundle = Bundle.open(published)
    assert len(bundle.warnings) == 2
    assert bundle.insts(bundle.gemvs["o"].insts) == b"\1\2\3\4" * 8
    manifest.write_text(manifest.read_text().replace(str(elsewhere), "/nowhere/at/all"))
    with pytest.raises(BundleError, match="is not in the bundle"):
        Bundle.open(published)


@pytest.mark.parametrize(
    ("where", "edit", "words"),
    [
        ("manifest", swap("gemm lin", "lda=2048", "lda=1024"), "lda=1024 is less than"),
        ("manifest", swap("gemm o ", "c_stride=2048", "c_stride=1024"), "c_stride=1024"),
        ("manifest", swap("gemm lin", "M=256", "M=128"), "a chunk has 256 rows"),
        ("manifest", swap("gemv gu", "M=12288", "M=6144"), "the model has 12288"),
        ("manifest", swap("gemm v_qkv", "N=3072", "N=1024"), "the model has 3072"),
        ("manifest", swap("param max_prompt", "2048", "4096"), ""),
        ("index", lambda text: re.sub(r"head0 u8 \d+ (\d+) \d+", r"head0 u8 80 \1 80", text), "bfp16 takes"),
        ("manifest", again("param D"), "repeated"),
        ("manifest", again("xclbin gemm"), "repeated"),
    ],
)
def test_what_the_runtime_relies_on_is_refused(
    published: Path,
    where: str,
    edit: Edit,
    words: str,
) -> None:
    file = published / ("manifest.txt" if where == "manifest" else "tensors.txt")
    text = edit(file.read_text())
    if "max_prompt 4096" in text:  # a pass of more chunks than a stream takes needs down's true stride
        text = swap("gemm down", "lda=6144", "lda=2048")(text)
        words = "differs from gu's c_stride"
    file.write_text(text)
    with pytest.raises(BundleError, match=re.escape(words)):
        Bundle.open(published)


def test_a_head_that_ends_with_the_vocabulary(published: Path) -> None:
    edit = swap("param vocab", "248320", "248096")
    (published / "manifest.txt").write_text(edit((published / "manifest.txt").read_text()))
    index = (published / "tensors.txt").read_text()
    held = (49664 - 224) * 2048 // 8 * 9
    for size in (held, held - 72 * 256):
        (published / "tensors.txt").write_text(
            re.sub(r"head4 u8 \d+ (\d+) \d+", rf"head4 u8 {size} \1 {size}", index)
        )
        if size == held:
            assert any("head4" in str(warning) for warning in Bundle.open(published).warnings)
        else:
            with pytest.raises(BundleError, match="head4"):
                Bundle.open(published)


@pytest.mark.parametrize(
    "edit",
    [
        swap("gemm down", "lda=192", "lda=64"),
        swap("gemm gu", "c_stride=192", "c_stride=320"),
        swap("gemm o ", "b_bytes=", "b_bytes=1"),
        swap("gemv o ", "K=", "K=+"),
    ],
)
def test_it_runs_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Where records differ and kernels do not, answers are the same: the kernels hold the true strides."""
    import shutil

    folder = Path(shutil.copytree(bundle_path("tied"), tmp_path / "b"))
    ids = tokens("tied", 40)

    def rows() -> np.ndarray:
        with (
            Device.open("emu:threads=1,quiet") as device,
            TextModel(Bundle.open(folder), device, 128) as text,
        ):
            return run(text, ids, 36)

    want = rows()
    (folder / "manifest.txt").write_text(edit((folder / "manifest.txt").read_text()))
    with pytest.raises(BundleError):
        Bundle.open(folder)  # our own export is never unusual
    monkeypatch.setattr(Bundle, "emulated", False)
    assert Bundle.open(folder).warnings
    assert np.array_equal(rows(), want)


def test_check_tells_warnings() -> None:
    from qwen35.check.proof import checks

    warning = BundleError("m", 3, "gemv o: 'o' is repeated")
    odd: Any = SimpleNamespace(
        unusual_lines=[str(warning), "m: records of an unknown kind are not read: x"],
        sums={},
        tokcases=(),
        references=(),
    )
    found = [finding.line for finding in checks(None, odd)]  # type: ignore[arg-type]
    assert any("bundle: unusual: m: records of an unknown kind" in line for line in found)
    assert any("bundle: unusual: gemv o: 'o' is repeated (m:3)" in line for line in found)
