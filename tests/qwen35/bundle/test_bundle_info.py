"""`info`: the figures it tells, --verify, --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen35.bundle import Bundle, BundleError
from qwen35.errors import UsageError
from qwen35.export.exporter import export_random
from qwen35.export.plan import Options
from qwen35.info.cli import info_main
from qwen35.info.describe import describe, lines
from tests.support.synthetic import SHAPES
from tests.support.synthetic_bundle import Habits, write_bundle


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = Options(chunk=32, max_prompt=64, max_pixels=65536, vision_chunk=32)
    return export_random("tiny", tmp_path_factory.mktemp("info") / "b", options, quiet=True)


def test_facts_of_an_untied_bundle(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "b", SHAPES["untied"], None, Habits(contexts=True)))
    facts = describe(bundle, 1000)
    assert facts["model"] == {
        "hidden": 128,
        "mlp": 256,
        "layers": 8,
        "linear_layers": 6,
        "vocab": 384,
        "tied": False,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 32,
        "linear_heads": 4,
        "linear_key_heads": 2,
    }
    # per layer: in, o, gu, two down slices; then three head dispatches of 136 rows
    lin, att = 512, 384
    weights = 6 * lin * 128 + 2 * att * 128 + 8 * (128 * 128 + 512 * 128 + 2 * 128 * 128) + 3 * 136 * 128
    assert facts["bytes"]["text"] == weights // 8 * 9
    assert facts["bytes"]["embedding"] == 384 * 128 * 2
    assert facts["bytes"]["vision"] == facts["bytes"]["references"] == 0
    told = sum(facts["bytes"].values()) - facts["bytes"]["blob"]
    assert told <= facts["bytes"]["blob"] < told + 64 * len(bundle.tensors)  # and the alignment
    assert facts["contexts"] == {
        "gemm": "kernels/gemm.xclbin",
        "gemv": "kernels/gemv.xclbin",
        "mlp": "kernels/gemm.xclbin",
    }
    assert facts["streams"] == 5 * 4 + 6
    assert facts["memory"]["kv_cache"] == 2 * 1000 * 2 * (2 * 32) * 2
    # S [4, 64, 32] in float32 and three inputs of 384 channels in bf16, twice
    assert facts["memory"]["states"] == 2 * 6 * (4 * 4 * 64 * 32 + 2 * 3 * 384)
    rows = 64
    assert facts["memory"]["prompt_buffers"] == 2 * (rows * 128 + rows * lin + rows * 256 + 256)
    assert (facts["device"], facts["name"], facts["checksums"], facts["tokenizer_cases"]) == (
        "emulated",
        "Qwen3.5",
        0,
        3,
    )
    text = "\n".join(lines(facts))
    assert "untied head" in text and "embedding" in text and "vision" not in text.split("kernels")[0]
    assert "do not run on hardware" in text


def test_a_compiled_bundle_says_what_it_needs(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "b", SHAPES["tied"])
    for file in path.glob("kernels/*.bin"):
        file.write_bytes(b"\x01\0\0\0" + file.read_bytes())
    facts = describe(Bundle.open(path))
    assert facts["device"] == "compiled"
    assert "the emulator does not interpret them" in "\n".join(lines(facts))


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((2048, 6144, 24, 248320), "Qwen3.5-2B"),
        ((4096, 12288, 32, 248320), "Qwen3.5-9B"),
        ((2048, 6144, 23, 248320), "Qwen3.5"),
    ],
)
def test_names(exported: Path, shape: tuple[int, int, int, int], name: str) -> None:
    from dataclasses import replace

    bundle = Bundle.open(exported)
    d, inner, layers, vocab = shape
    kinds = ("lin",) * layers
    bundle.__dict__["config"] = replace(
        bundle.config, hidden_size=d, intermediate_size=inner, layer_types=kinds, vocab_size=vocab
    )
    assert bundle.name == name


def test_command(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert info_main([str(exported)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"bundle   {exported}"
    assert [line.split()[0] for line in out] == [
        "bundle",
        "model",
        "vision",
        "weights",
        "kernels",
        "device",
        "memory",
        "checks",
        "options",
    ]
    assert info_main([str(exported), "--json", "--verify", "--max-ctx", "100"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["verified"] == facts["checksums"] == len(list(exported.rglob("*"))) - 2
    assert facts["vision"] == {
        "hidden": 256,
        "mlp": 768,
        "blocks": 2,
        "heads": 4,
        "weights": "w8",
        "max_pixels": 65536,
        "max_patches": 1024,
    }
    assert facts["memory"]["kv_cache"] == 1 * 100 * 2 * 128 * 2


def test_verify_finds_a_flipped_bit_and_says_when_there_is_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = write_bundle(tmp_path / "plain", SHAPES["tied"])
    with pytest.raises(BundleError, match="nothing to verify"):
        info_main([str(plain), "--verify"])
    path = export_random("tiny", tmp_path / "b", Options(vision="none"), quiet=True)
    assert info_main([str(path), "--verify", "--quiet"]) == 0
    assert "files, every byte as exported\n" in capsys.readouterr().out
    manifest = (path / "manifest.txt").read_text()
    (path / "manifest.txt").write_text(
        "".join(line for line in manifest.splitlines(True) if not line.startswith("sum tokenizer.json"))
    )
    assert info_main([str(path), "--verify", "--quiet"]) == 0
    assert capsys.readouterr().out.endswith(
        "every byte as exported; not verified, since no checksum is recorded: tokenizer.json\n"
    )
    (path / "manifest.txt").write_text(manifest)
    data = bytearray((path / "tensors.bin").read_bytes())
    data[-1] ^= 0x80
    (path / "tensors.bin").write_bytes(data)
    with pytest.raises(BundleError, match=r"contents differ.*tensors\.bin"):
        info_main([str(path), "--verify", "--quiet"])


def test_records_of_an_unknown_kind_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_bundle(tmp_path / "plain", SHAPES["tied"])
    before = (path / "manifest.txt").read_text()
    assert not Bundle.open(path).unread
    (path / "manifest.txt").write_text(before + "gemmx a b\nfoo 1\ngemmx c\n")
    count = len(before.splitlines())
    assert info_main([str(path)]) == 0
    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("unusual"))
    assert told.endswith(
        "manifest.txt: records of an unknown kind are not read: "
        f"'gemmx' (line {count + 1} and 1 more), 'foo' (line {count + 2})"
    )


def test_params_and_fields_of_an_unknown_name_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_bundle(tmp_path / "plain", SHAPES["tied"])
    before = (path / "manifest.txt").read_text()
    assert not Bundle.open(path).unread_names
    count = len(before.splitlines())
    text = before.replace("gemv o ", "gemv o flavour=3 ").replace("gemv lin ", "gemv lin flavour=2 ")
    (path / "manifest.txt").write_text(text + "param colour blue\n")
    assert info_main([str(path)]) == 0
    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("unusual"))
    first = min(n for n, line in enumerate(text.splitlines(), 1) if "flavour" in line)
    assert told.endswith(
        "manifest.txt: params and fields of an unknown name are not read: "
        f"'flavour=' (line {first} and 1 more), 'colour' (line {count + 1})"
    )


def test_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        info_main(["--what"])
    with pytest.raises(Exception, match="nowhere"):
        info_main([str(tmp_path / "nowhere")])
