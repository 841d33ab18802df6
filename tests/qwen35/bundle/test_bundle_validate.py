"""Params, records and tensors that disagree are refused at opening, by name and line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qwen35.bundle import Bundle, BundleError
from qwen35.bundle.manifest import Manifest
from qwen35.bundle.params import config_params, read_config
from qwen35.bundle.schema import stream_bytes
from tests.support.synthetic import SHAPES
from tests.support.synthetic_bundle import Habits, write_bundle


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    few = Habits(chunks=2)
    return {name: write_bundle(tmp_path_factory.mktemp(name), SHAPES[name], None, few) for name in SHAPES}


@pytest.fixture
def copy(bundles: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles["tied"], tmp_path / "bundle"))


def replace(path: Path, old: str, new: str) -> int:
    """Replaces the one line that starts with `old` (removes it for ""); returns its number."""
    lines = path.read_text().splitlines()
    found = [i for i, line in enumerate(lines) if line.startswith(old)]
    assert len(found) == 1, (old, found)
    lines[found[0] : found[0] + 1] = [new] if new else []
    path.write_text("\n".join(lines) + "\n")
    return found[0] + 1


def fails(bundle: Path, message: str) -> BundleError:
    with pytest.raises(BundleError) as caught:
        Bundle.open(bundle)
    assert message in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("D", "60", "60 is no multiple of 8"),
        ("D", "0", "0 is outside 1"),
        ("D", "9999999999", "is outside"),
        ("D", "sixty", "'sixty' is not a whole number"),
        ("kv_heads", "3", "3 does not divide heads = 4"),
        ("rope_dim", "7", "7 is odd"),
        ("rope_dim", "64", "64 is more than hd = 32"),
        ("layer_types", "lin,att,mix,lin", "must be 1..4096 of lin and att"),
        ("layer_types", ",", "must be 1..4096 of lin and att"),
        ("mrope_section", "11,11", "has 2 numbers instead of three"),
        ("mrope_section", "11,11,x", "'x' is not a whole number"),
        ("eps", "zero", "'zero' is not a positive number"),
        ("rope_theta", "-1", "'-1' is not a positive number"),
        ("n_down", "2", "2 slices of D = 64 do not cover I = 160"),
        ("n_head", "1", "1 times head_rows"),
        ("n_head", "1000", "1000 is more than vocab"),
        ("max_prompt", "8", "8 is less than chunk = 16"),
        ("heads", "8", "8 * hd = 256 differs from lin_heads * lin_hv = 128"),
        ("stop", "320,-1", "'-1' is not a whole number"),
        ("stop", "320,99999", "320,99999 names token 99999, outside vocab = "),
    ],
)
def test_params_that_cannot_be(copy: Path, name: str, text: str, message: str) -> None:
    line = replace(copy / "manifest.txt", f"param {name} ", f"param {name} {text}")
    error = fails(copy, message)
    assert error.path == str(copy / "manifest.txt")
    assert error.line == line


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        *((name, 1, 1 << 20) for name in ("D", "I", "heads", "kv_heads", "hd", "rope_dim", "lin_heads")),
        *((name, 1, 1 << 20) for name in ("lin_hk", "lin_hv", "chunk", "max_prompt")),
        *((name, 1, 1 << 24) for name in ("vocab", "head_rows", "n_head")),
        ("conv_k", 1, 64),
        ("n_down", 1, 4096),
        *((f"v.{name}", 1, 1 << 20) for name in ("D", "I", "heads", "out", "max_patches")),
        *((f"v.{name}", 0, 1 << 24) for name in ("image_token", "vision_start", "vision_end")),
        *((f"v.{name}", 1, 1 << 30) for name in ("min_pixels", "max_pixels")),
        ("v.depth", 1, 4096),
        ("v.pos_side", 1, 4096),
        ("v.patch", 1, 1024),
        ("v.merge", 1, 64),
    ],
)
def test_params_are_within_their_bounds(
    bundles: dict[str, Path], tmp_path: Path, name: str, least: int, most: int
) -> None:
    shutil.copy(bundles["vision"] / "manifest.txt", tmp_path)
    for value in (least - 1, most + 1) if least else (most + 1,):
        line = replace(tmp_path / "manifest.txt", f"param {name} ", f"param {name} {value}")
        with pytest.raises(BundleError, match=rf"{value} is outside {least}\.\.{most} \(") as caught:
            read_config(Manifest.read(tmp_path))
        assert caught.value.line == line


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("heads", "3", "3 does not divide v.D = 64"),
        ("heads", "32", "32 leaves heads of 2 dims: no multiple of 4"),
        ("patch", "8", "64 is less than a patch's 192 values"),
        ("min_pixels", "4097", "4097 is more than v.max_pixels"),
        ("out", "72", "72 differs from D = 64"),
        ("weights", "w9", "'w9' is not one of w8, bfp16x2"),
        ("rope_theta", "0.5", "0.5"),
    ],
)
def test_towers_that_cannot_be(
    bundles: dict[str, Path], tmp_path: Path, name: str, text: str, message: str
) -> None:
    shutil.copy(bundles["vision"] / "manifest.txt", tmp_path)
    replace(tmp_path / "manifest.txt", f"param v.{name} ", f"param v.{name} {text}")
    with pytest.raises(BundleError) as caught:
        read_config(Manifest.read(tmp_path))
    assert message in caught.value.message and "param v." in caught.value.message


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("param lin_kheads 3", "3 does not divide lin_heads = 4"),
        ("param gemv_format int4", "'int4' is not one of bfp16, bfp6s"),
        ("param tied 2", "2 is outside 0..1"),
        ("param tied 0", "tensor embed is missing"),
        ("param v.D 64", "param v.I is missing"),
        ("param sampling wild", "param sampling: 'wild' is no sampling value"),
        ("param sampling temperature=hot", "param sampling: 'temperature=hot' is no number"),
        ("param sampling temperature=-1", "param sampling: temperature"),
    ],
)
def test_params_that_are_too_many(copy: Path, extra: str, message: str) -> None:
    with open(copy / "manifest.txt", "a") as manifest:
        manifest.write(extra + "\n")
    error = fails(copy, message)
    if message.startswith("param sampling"):
        lines = (copy / "manifest.txt").read_text().splitlines()
        assert error.path == str(copy / "manifest.txt") and error.line == len(lines)


def test_a_pictures_token_outside_the_vocabulary(bundles: dict[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copytree(bundles["vision"], tmp_path / "bundle"))
    for name in ("image_token", "vision_start", "vision_end"):
        text = (path / "manifest.txt").read_text()
        line = replace(path / "manifest.txt", f"param v.{name} ", f"param v.{name} 99999")
        error = fails(path, f"param v.{name}: 99999 is outside vocab = ")
        assert error.line == line
        (path / "manifest.txt").write_text(text)


@pytest.mark.parametrize("weights", ["w8", "bfp16x2"])
def test_weights_of_a_tower_that_no_param_tells(tmp_path: Path, weights: str) -> None:
    path = write_bundle(tmp_path, SHAPES["vision"], None, Habits(chunks=1, vision=weights))
    replace(path / "manifest.txt", "param v.weights ", "")
    config = Bundle.open(path).config.vision
    assert config is not None and config.weights == weights


def test_factors_of_a_tower_may_be_left_out_by_a_compiler_alone(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(bundles["vision"], tmp_path / "bundle"))
    replace(path / "tensors.txt", "vis.patch.f ", "")
    fails(path, "tensor vis.patch.f is missing")
    for file in path.glob("kernels/*.bin"):
        file.write_bytes(b"\x01\0\0\0" + file.read_bytes())
    assert Bundle.open(path).config.vision is not None
    replace(path / "tensors.txt", "vis.b0.qkv.f ", "vis.b0.qkv.f f32 8 0 32")
    fails(path, "vis.b0.qkv.f is 8 elements")


@pytest.mark.parametrize("key", ["v_m1", "v_m2"])
def test_rows_of_the_merger_that_would_overlap(bundles: dict[str, Path], tmp_path: Path, key: str) -> None:
    path = Path(shutil.copytree(bundles["vision"], tmp_path / "bundle"))
    line = next(x for x in (path / "manifest.txt").read_text().splitlines() if x.startswith(f"gemm {key} "))
    wide = int(line.split("lda=")[1].split()[0])
    at = replace(path / "manifest.txt", f"gemm {key} ", line.replace(f"lda={wide}", f"lda={wide // 2}"))
    assert fails(path, f"gemm {key}: lda={wide // 2} is less than the merger's rows of {wide}").line == at


@pytest.mark.parametrize(
    "name",
    [
        *("D", "I", "layer_types", "vocab", "eps", "heads", "kv_heads", "hd", "rope_dim", "rope_theta"),
        *("lin_hk", "lin_hv", "lin_heads", "conv_k", "chunk", "max_prompt", "n_down", "head_rows", "n_head"),
        "stop",
    ],
)
def test_every_param_is_needed(copy: Path, name: str) -> None:
    replace(copy / "manifest.txt", f"param {name} ", "")
    fails(copy, f"param {name} is missing")


def test_mrope_section_is_optional(copy: Path) -> None:
    replace(copy / "manifest.txt", "param mrope_section ", "")
    assert Bundle.open(copy).config.mrope_section is None


@pytest.mark.parametrize(
    "name",
    [
        *("l0.g.in", "l3.g.in", "l2.g.o", "l1.g.gu", "l1.g.down0", "l3.g.down2", "l0.h.ln1", "l3.h.ln2"),
        *("l0.h.ba", "l1.h.conv", "l2.h.A", "l0.h.dt_bias", "l0.h.norm", "l3.h.q_norm", "l3.h.k_norm"),
        *("ln_f", "head0", "head2"),
    ],
)
def test_every_tensor_is_needed(copy: Path, name: str) -> None:
    replace(copy / "tensors.txt", name + " ", "")
    error = fails(copy, f"tensor {name} is missing")
    assert error.path == str(copy / "tensors.txt")


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("l0.h.ln1", "f32 63 0 252", "63 elements of f32, not f32 64"),
        ("l0.h.ln1", "bf16 64 0 128", "64 elements of bf16, not f32 64"),
        ("l0.h.ba", "f32 4,64 0 1024", "not f32 8,64"),
        ("l0.h.conv", "f32 384,3 0 4608", "not f32 384,4"),
        ("l0.h.norm", "f32 16 0 64", "not f32 32"),
        ("l3.h.q_norm", "f32 64 0 256", "not f32 32"),
        ("l0.g.in", "u8 36856 0 36856", "36,856 bytes, b_bytes of gemm lin takes 36,864"),
        ("l3.g.o", "u8 9000 0 9000", "9,000 bytes, b_bytes of gemm o takes 9,216"),
        ("l1.g.gu", "u8 23048 0 23048", "23,048 bytes, b_bytes of gemm gu takes 23,040"),
        ("l1.g.down1", "u8 9216 0 9216", "9,216 bytes, b_bytes of gemm down takes 4,608"),
        ("head1", "u8 1000 0 1000", "1,000 bytes, w_words of gemv head takes"),
    ],
)
def test_tensors_of_the_wrong_size(copy: Path, name: str, entry: str, message: str) -> None:
    line = replace(copy / "tensors.txt", name + " ", f"{name} {entry}")
    assert fails(copy, message).line == line


@pytest.mark.parametrize(
    ("record", "old", "new", "message"),
    [
        ("gemm lin ", "M=16", "M=8", "gemm lin: M=8, but a chunk has 16 rows"),
        ("gemm att ", "K=64", "K=56", "gemm att: K=56, the model has 64"),
        ("gemm att ", "N=384", "N=320", "gemm att: N=320, the model has 384"),
        ("gemm gu ", "N=320", "N=128", "gemm gu: N=128, the model has 160"),
        ("gemv gu ", "M=320", "M=336", "gemv gu: M=336 is no whole number of 32 | 32 pairs"),
        ("gemm gu ", "c_stride=192", "c_stride=128", "gemm gu: c_stride=128 is less than a row's 160"),
        ("gemm down ", "lda=192", "lda=184", "gemm down: lda=184 differs from gu's c_stride=192"),
        ("gemm lin ", "a_elems=1024", "a_elems=1023", "a_elems=1023 and c_elems=8192 do not span 16 rows"),
        ("gemm lin ", "c_elems=8192", "c_elems=7680", "a_elems=1024 and c_elems=7680 do not span 16 rows"),
        ("gemm_chunks lin 2", "a_elems=2048", "a_elems=1024", "do not span 32 rows of strides lda=64"),
        ("gemv o ", "K=128", "K=64", "gemv o: K=64, the model has 128"),
        ("gemv head ", "M=", "M=1", "gemv head: M=1"),
    ],
)
def test_records_that_disagree_with_the_model(
    copy: Path, record: str, old: str, new: str, message: str
) -> None:
    lines = (copy / "manifest.txt").read_text().splitlines()
    line = next(text for text in lines if text.startswith(record))
    assert old in line
    at = replace(copy / "manifest.txt", record, line.replace(old, new, 1))
    assert fails(copy, message).line == at


@pytest.mark.parametrize("record", ["gemm lin", "gemm att", "gemm o", "gemm gu", "gemm down"])
def test_every_gemm_is_needed(copy: Path, record: str) -> None:
    lines = (copy / "manifest.txt").read_text().splitlines(keepends=True)
    key = record.split()[1]
    kept = [line for line in lines if not line.startswith((record + " ", f"gemm_chunks {key} "))]
    (copy / "manifest.txt").write_text("".join(kept))
    fails(copy, f"{record} is missing")


@pytest.mark.parametrize("key", ["lin", "att", "o", "gu", "down", "head"])
def test_every_gemv_is_needed(copy: Path, key: str) -> None:
    replace(copy / "manifest.txt", f"gemv {key} ", "")
    fails(copy, f"gemv {key} is missing")


def test_a_compiled_bundle_may_hold_longer_streams_and_shorter_ones_are_told(copy: Path) -> None:
    for file in copy.glob("kernels/*.bin"):
        file.write_bytes(b"\x01\0\0\0" + file.read_bytes())
    replace(copy / "tensors.txt", "l1.g.gu ", "l1.g.gu u8 23048 0 23048")
    assert not Bundle.open(copy).emulated
    replace(copy / "tensors.txt", "l1.g.gu ", "l1.g.gu u8 23032 0 23032")
    (warning,) = Bundle.open(copy).warnings
    assert "23,032 bytes, b_bytes of gemm gu takes 23,040" in str(warning)


@pytest.mark.parametrize(
    ("record", "old", "new"),
    [
        ("gemm gu ", "N=320", "N=160"),  # the columns of C instead of B's
        ("gemv o ", "w_words=", "w_words=9"),  # a unit of the compiler's own
        ("gemm lin ", "a_elems=1024", "a_elems=1"),
        ("gemm_chunks lin 2", "c_elems=16384", "c_elems=1"),
    ],
)
def test_what_a_compiled_bundle_may_count_in_its_own_way(copy: Path, record: str, old: str, new: str) -> None:
    for file in copy.glob("kernels/*.bin"):
        file.write_bytes(b"\x01\0\0\0" + file.read_bytes())
    lines = (copy / "manifest.txt").read_text().splitlines()
    line = next(text for text in lines if text.startswith(record))
    assert old in line
    replace(copy / "manifest.txt", record, line.replace(old, new, 1))
    assert not Bundle.open(copy).emulated


def test_the_head_of_a_compiled_bundle_has_a_known_layout(copy: Path) -> None:
    for file in copy.glob("kernels/*.bin"):
        file.write_bytes(b"\x01\0\0\0" + file.read_bytes())
    line = next(x for x in (copy / "manifest.txt").read_text().splitlines() if x.startswith("gemv head"))
    words = line.split("w_words=")[1].split()[0]
    replace(copy / "manifest.txt", "gemv head ", line.replace(f"w_words={words}", "w_words=10"))
    replace(copy / "tensors.txt", "head0 ", "head0 u8 80 0 80")
    fails(copy, "80 bytes, bfp16 takes")


def test_check_can_be_left_out(copy: Path) -> None:
    replace(copy / "tensors.txt", "ln_f ", "")
    assert "ln_f" not in Bundle.open(copy, check=False).tensors
    fails(copy, "ln_f")


@pytest.mark.parametrize(
    ("rows", "k", "weights", "size"),
    [
        (8, 8, "bfp16", 72),
        (49664, 2048, "bfp16", 49664 * 2048 // 8 * 9),
        (16, 64, "bfp16", 1152),
        (8, 128, "bfp6s", 832),
        (49664, 2048, "bfp6s", 49664 // 8 * 16 * 832),
    ],
)
def test_stream_bytes(rows: int, k: int, weights: str, size: int) -> None:
    assert stream_bytes(rows, k, weights) == size


@pytest.mark.parametrize("name", SHAPES)
def test_a_config_written_as_params_reads_back_the_same(
    bundles: dict[str, Path], tmp_path: Path, name: str
) -> None:
    config = Bundle.open(bundles[name]).config
    params = "".join(f"param {key} {text}\n" for key, text in config_params(config).items())
    (tmp_path / "manifest.txt").write_text("version 1\n" + params)
    assert read_config(Manifest.read(tmp_path)) == config


def test_derived_widths(bundles: dict[str, Path]) -> None:
    config = Bundle.open(bundles["grouped"]).config
    # 2 key heads of 16, 4 value heads of 32; 4 heads and 2 kv heads of 32
    assert (config.lin_key, config.lin_value, config.conv_dim, config.n_lin) == (32, 128, 192, 320)
    assert (config.n_att, config.o_in, config.num_hidden_layers) == (4 * 64 + 2 * 32 + 2 * 32, 128, 4)
