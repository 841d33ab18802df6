"""A bundle of the published model's shape, with all that its compiler may do otherwise than our export.

2B sizes, 24 layers, the tower, kernels that are not ours; tensors.bin is a hole of its full size, of which
opening reads nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen35.bundle import Bundle
from qwen35.info.describe import describe, lines
from tests.support.published import MLP, D


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_it_opens_as_it_is(published: Path) -> None:
    bundle = Bundle.open(published)
    config = bundle.config
    assert not bundle.emulated and config.tie_word_embeddings and config.gemv_format == "bfp16"
    assert (config.n_lin, config.n_att, config.o_in, config.rope_theta) == (8192, 5120, D, 1e7)
    assert config.vision is not None and config.vision.n_fc2 == config.vision.n_merge == 4
    assert bundle.gemms["down"].stream(8).ctx == "mlp" and bundle.gemms["v_m2"].max_chunks == 4
    assert bundle.tensors.expect("l0.h.conv", "f32", 6144, 4).shape == (6144, 4)
    assert [case.ids for case in bundle.tokcases] == [(), (1, 2)]
    assert bundle.manifest.params["origin"].text == "a line of free text  with = signs"


def test_info_tells_what_it_is(published: Path) -> None:
    facts = describe(Bundle.open(published))
    assert (facts["name"], facts["device"], facts["checksums"]) == ("Qwen3.5-2B", "compiled", 0)
    assert 1.9e9 < facts["memory"]["weights"] < 2.8e9
    assert any("compiled kernels" in line for line in lines(facts))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("manifest.txt", "param v.weights w8\n", ""),
        ("manifest.txt", "param mrope_section 11,11,10\n", ""),
        ("manifest.txt", f"N={2 * MLP} lda={D} c_stride={MLP}", f"N={MLP} lda={D} c_stride={MLP}"),
        ("manifest.txt", f"c_stride={MLP} b_bytes", f"c_stride={MLP}  b_bytes"),
        ("manifest.txt", "w_words=", "w_words=9"),
        ("manifest.txt", "\n", "\r\n"),
        ("tensors.txt", "vis.b0.proj.f ", "vis.b0.proj.factors "),
    ],
)
def test_it_opens_with_what_a_compiler_may_do_otherwise(
    published: Path, file: str, old: str, new: str
) -> None:
    edit(published / file, old, new)
    assert Bundle.open(published).config.vision is not None


def test_bfp6s_streams(published: Path) -> None:
    """Six and a half bits a weight in the text model, nine in the tower."""
    entries = []
    for line in (published / "tensors.txt").read_text().splitlines():
        name, dtype, _, at, size = line.split()
        text = dtype == "u8" and not name.startswith("vis.")
        fewer = int(size) * 13 // 18 if text else int(size)
        entries.append(f"{name} {dtype} {fewer} {at} {fewer}")
    (published / "tensors.txt").write_text("\n".join(entries) + "\n")
    records = []
    for line in (published / "manifest.txt").read_text().splitlines():
        words = line.split(" ")
        for i, word in enumerate(words):
            key, _, value = word.partition("=")
            if key in ("b_bytes", "w_words") and not words[1].startswith("v_"):
                words[i] = f"{key}={int(value) * 13 // 18}"
        records.append(" ".join(words))
    (published / "manifest.txt").write_text("\n".join([*records, "param gemv_format bfp6s"]) + "\n")
    assert Bundle.open(published).config.gemv_format == "bfp6s"
