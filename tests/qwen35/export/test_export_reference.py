"""What `export` writes loads in the public reference runtime: its rules, as a strict reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen35.bundle import Bundle
from qwen35.export import export_main
from qwen35.find import DEFAULT_BUNDLE
from tests.support import reference_rules
from tests.support.synthetic import SHAPES, write_checkpoint

QUICK = ["--chunk", "16", "--max-prompt", "32", "--quiet"]


def test_a_random_bundle(tmp_path: Path) -> None:
    assert export_main(["--random", "tiny", "--out", str(tmp_path / "b"), "--quiet"]) == 0
    reference_rules.load(tmp_path / "b")


@pytest.mark.parametrize("shape", ["vision", "tied"])
def test_a_checkpoint(tmp_path: Path, shape: str) -> None:
    write_checkpoint(tmp_path / "hf", SHAPES[shape])
    assert export_main([str(tmp_path / "hf"), "--out", str(tmp_path / "b"), *QUICK]) == 0
    reference_rules.load(tmp_path / "b")
    lines = (tmp_path / "b" / "manifest.txt").read_text().splitlines()
    assert "tokcase - ," in lines
    assert [case.ids for case in Bundle.open(tmp_path / "b").tokcases if not case.text] == [()]


def test_the_built_in_model() -> None:
    reference_rules.load(DEFAULT_BUNDLE)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("manifest.txt", "tokcase - ,", "tokcase -", "2 fields"),
        ("tokenizer.json", '"vocab": {', '"vocab": {"gap": 99999, ', "vocab id"),
    ],
)
def test_the_reader_is_strict(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    assert export_main(["--random", "tiny", "--out", str(tmp_path / "b"), "--quiet"]) == 0
    path = tmp_path / "b" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(AssertionError, match=message):
        reference_rules.load(tmp_path / "b")
