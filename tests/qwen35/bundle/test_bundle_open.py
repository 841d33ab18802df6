"""Opening bundles in every exporter's habit, and what is refused at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from qwen35.bundle import Bundle, BundleError
from qwen35.find import find_bundle
from tests.support.synthetic import SHAPES, weights
from tests.support.synthetic_bundle import HABITS, bfp16_stream, write_bundle


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("plain"), SHAPES["tied"])


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "bundle"))


def edit(bundle: Path, old: str, new: str, file: str = "manifest.txt") -> int:
    """Replaces `old`, which occurs, in a text file; returns its first line."""
    text = (bundle / file).read_text()
    assert old in text
    (bundle / file).write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_habit_opens_and_gives_the_model(tmp_path: Path, name: str, habit: str) -> None:
    shape, habits = SHAPES[name], HABITS[habit]
    tensors = weights(shape, seed=3)
    bundle = Bundle.open(write_bundle(tmp_path / "b", shape, tensors, habits))
    config = bundle.config
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (
        shape.hidden,
        shape.mlp,
        shape.vocab,
    )
    assert config.layer_types == tuple(shape.layer_types)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.rotary_dim) == (
        4,
        2,
        32,
        8,
    )
    assert (config.linear_num_value_heads, config.linear_num_key_heads) == (shape.lin_heads, shape.lin_kheads)
    assert (config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim) == (
        shape.lin_hk,
        shape.lin_hv,
        4,
    )
    assert (config.rms_norm_eps, config.rope_theta, config.mrope_section) == (1e-6, 1e7, (2, 1, 1))
    assert (config.chunk, config.max_prompt, config.eos_token_id) == (16, 64, (320, 322))
    assert (config.tie_word_embeddings, config.gemv_format) == (shape.tied, "bfp16")
    v, held = shape.vision, config.vision
    assert (v is None) == (held is None)
    if v is not None and held is not None:
        assert (held.hidden_size, held.intermediate_size, held.depth, held.num_heads) == (
            v.hidden,
            v.mlp,
            v.depth,
            v.heads,
        )
        assert (held.out_hidden_size, held.weights, held.image_token_id) == (shape.hidden, habits.vision, 325)
        assert bundle.gemms["v_fc2"].lda == bundle.gemms["v_fc1"].c_stride == 192 + habits.spare
    assert config.n_down == -(-shape.mlp // shape.hidden)
    assert config.head_rows * config.n_head >= shape.vocab
    assert bundle.emulated
    spare = habits.spare
    assert bundle.gemms["lin"].lda == shape.hidden + spare
    assert bundle.gemms["gu"].c_stride == bundle.gemms["down"].lda
    assert bundle.gemms["o"].max_chunks == {None: 4, 1: 1, 9: 9}[habits.chunks]
    assert bundle.gemms["gu"].ctx == ("mlp" if habits.contexts else "gemm")
    assert bundle.insts(bundle.gemms["gu"].stream(1).insts)[:4] == b"EMU1"
    assert bundle.xclbin("gemm") == (tmp_path / "b/kernels/gemm.xclbin").read_bytes()
    assert [case.text for case in bundle.tokcases] == ["", "a b", "What is a penguin?"]
    prefix = "model.language_model." if shape.vision else "model."
    out = tensors[prefix + "layers.1.linear_attn.out_proj.weight"]
    assert bundle.tensors.bytes("l1.g.o").tobytes() == bfp16_stream(out)
    np.testing.assert_array_equal(bundle.tensors.get("ln_f"), tensors[prefix + "norm.weight"])


@pytest.mark.parametrize(
    "file",
    ["manifest.txt", "tensors.txt", "tensors.bin", "tokenizer.json"],
)
def test_a_missing_file_is_named(copy: Path, file: str) -> None:
    (copy / file).unlink()
    with pytest.raises(BundleError, match="no such file") as caught:
        Bundle.open(copy)
    assert caught.value.path == str(copy / file)
    assert caught.value.remedy


@pytest.mark.parametrize("file", ["manifest.txt", "tensors.txt", "tensors.bin", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_regular_file_is_named_with_what_to_do(copy: Path, file: str, kind: str) -> None:
    path = copy / file
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(BundleError, match=r"regular file|Is a directory") as caught:
        Bundle.open(find_bundle(copy))
    assert caught.value.path == str(path)
    assert f"{file} here" in str(caught.value)


@pytest.mark.parametrize("file", ["manifest.txt", "tensors.txt"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_that_an_editor_saved_otherwise_is_told_as_that(copy: Path, file: str, encoding: str) -> None:
    (copy / file).write_text((copy / file).read_text(), encoding)
    with pytest.raises(BundleError) as caught:
        Bundle.open(copy)
    name = encoding.removesuffix("-sig").upper()
    assert (caught.value.path, caught.value.line) == (str(copy / file), 1)
    assert f"saved it as {name} with a byte order mark" in str(caught.value)
    assert "save it as UTF-8 without one" in str(caught.value)


@pytest.mark.parametrize("file", ["kernels/gemm.xclbin", "kernels/down_3.bin", "kernels/v_head.bin"])
def test_a_missing_kernel_is_named_with_its_record(copy: Path, file: str) -> None:
    (copy / file).unlink()
    line = edit(copy, file, file)
    with pytest.raises(BundleError, match=f"'{file}' is not in the bundle") as caught:
        Bundle.open(copy)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("kernels/o_2.bin", b"abcde", "no whole number of 32-bit words"),
        ("kernels/o_2.bin", b"", "0 bytes"),
        ("kernels/gemv.xclbin", b"", "0 bytes"),
    ],
)
def test_kernel_files_of_impossible_size(copy: Path, file: str, data: bytes, message: str) -> None:
    (copy / file).write_bytes(data)
    with pytest.raises(BundleError, match=message):
        Bundle.open(copy)


@pytest.mark.parametrize(
    ("file", "least", "most"), [("kernels/o_2.bin", 4, 64 << 20), ("kernels/gemv.xclbin", 1, 256 << 20)]
)
def test_kernel_files_larger_than_any(copy: Path, file: str, least: int, most: int) -> None:
    with open(copy / file, "r+b") as opened:
        opened.truncate(most + 4)
    with pytest.raises(BundleError, match=f"is {most + 4:,} bytes, outside {least}..{most:,}"):
        Bundle.open(copy)


def test_no_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "no", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(BundleError, match="no such bundle directory"):
            Bundle.open(path)


def test_links_out_of_the_directory_are_followed(copy: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for file in ("tensors.bin", "tokenizer.json", "kernels/o_1.bin"):
        target = blobs / file.replace("/", "_")
        (copy / file).rename(target)
        (copy / file).symlink_to(target)
    assert Bundle.open(copy).config.hidden_size == 64


def test_compiled_streams_are_not_taken_for_emulated_ones(copy: Path) -> None:
    (copy / "kernels/att_1.bin").write_bytes(b"\0\0\1\6" * 8)
    assert not Bundle.open(copy).emulated


def test_verify_reads_every_summed_file(copy: Path) -> None:
    import hashlib

    assert Bundle.open(copy).verify() == 0
    with open(copy / "manifest.txt", "a") as manifest:
        for file in ("tensors.bin", "kernels/o_1.bin"):
            data = (copy / file).read_bytes()
            manifest.write(f"sum {file} {hashlib.sha256(data).hexdigest()} bytes={len(data)}\n")
    seen: list[tuple[int, int]] = []
    assert Bundle.open(copy).verify(lambda done, total: seen.append((done, total))) == 2
    assert seen[-1][0] == seen[-1][1] == (copy / "tensors.bin").stat().st_size + 52
    with open(copy / "tensors.bin", "r+b") as blob:
        blob.seek(1000)
        byte = blob.read(1)
        blob.seek(1000)
        blob.write(bytes([byte[0] ^ 1]))
    with pytest.raises(BundleError, match="contents differ") as caught:
        Bundle.open(copy).verify()
    assert caught.value.path == str(copy / "tensors.bin")
    with open(copy / "tensors.bin", "ab") as blob:
        blob.write(b"\0")
    with pytest.raises(BundleError, match="exported as"):
        Bundle.open(copy).verify()
