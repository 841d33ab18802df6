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
from qwen35.info.describe import describe, lines, memory, size_text
from tests.support.synthetic import SHAPES
from tests.support.synthetic_bundle import Habits, write_bundle


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = Options(chunk=32, max_prompt=64, max_pixels=65536, vision_chunk=32)
    return export_random("tiny", tmp_path_factory.mktemp("info") / "b", options, quiet=True)


def test_facts_of_an_untied_bundle(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "b", SHAPES["untied"], None, Habits(contexts=True)))
    facts = describe(bundle, 1000)
    assert (facts["shape"], facts["version"], facts["max_ctx"]) == (1, 1, 1000)
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
    for kept in ("sum tensors", "sum nothing"):
        lines = [x for x in manifest.splitlines(True) if not x.startswith("sum ") or x.startswith(kept)]
        (path / "manifest.txt").write_text("".join(lines))
        if kept == "sum nothing":
            with pytest.raises(BundleError, match="nothing to verify"):
                info_main([str(path), "--verify"])
            continue
        assert info_main([str(path), "--verify", "--quiet"]) == 0
        kinds = (".bin", ".xclbin", ".json")
        files = sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.suffix in kinds)
        files.remove("tensors.bin")
        told = f"recorded: {', '.join(files[:5])} and {len(files) - 5} more\n"
        assert capsys.readouterr().out.endswith(told)
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
    for number, more in ((5, ""), (6, " and 1 more kinds")):
        (path / "manifest.txt").write_text(before + "".join(f"kind{n} 1\n" for n in range(number)))
        told = ", ".join(f"'kind{n}' (line {count + 1 + n})" for n in range(5))
        assert Bundle.open(path).unread.endswith(f"are not read: {told}{more}")


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


FACTS = {
    "bundle": "/b",
    "name": "N",
    "model": {"layers": 24, "linear_layers": 18, "hidden": 2048, "mlp": 6144, "vocab": 248320, "tied": True},
    "vision": {"blocks": 12, "hidden": 1024, "weights": "w8", "max_pixels": 65536, "max_patches": 1024},
    "format": "bfp16",
    "bytes": {
        "blob": 2_500_000_000,
        "text": 999_999_999,
        "vision": 1_000_000_000,
        "host": 0,
        "embedding": 1_500_000,
        "references": 40_000,
    },
    "contexts": {"gemm": "a", "gemv": "b"},
    "streams": 31,
    "chunk": 256,
    "max_prompt": 2048,
    "device": "emulated",
    "memory": {"weights": 2_000_000_000, "kv_cache": 0, "prompt_buffers": 500_000_000},
    "max_ctx": 8192,
    "tokenizer_cases": 3,
    "references": ["one", "two"],
    "checksums": 9,
    "warnings": ["odd", "strange"],
}


def test_every_line() -> None:
    assert lines(FACTS) == [
        "bundle   /b",
        "model    N: 24 layers (18 linear), hidden 2,048, MLP 6,144, vocabulary 248,320, tied head",
        "vision   12 blocks of 1,024, weights w8, images up to 65,536 pixels (1,024 patches)",
        "weights  2.50 GB: text 1000.0 MB (bfp16), vision 1.00 GB, embedding 1.5 MB, references 0.0 MB",
        "kernels  2 contexts (gemm, gemv), 31 instruction streams, chunks of 256 rows, 2,048 rows a pass",
        "device   the emulated NPU; these kernels do not run on hardware",
        "memory   about 2.50 GB at 8,192 tokens: weights 2.00 GB, prompt buffers 500.0 MB",
        "checks   3 tokenizer cases, 2 reference runs, 9 checksums",
        "unusual  odd",
        "unusual  strange",
    ]
    without = lines({**FACTS, "vision": None, "warnings": []})
    assert len(without) == 7 and not any(line.startswith(("vision", "unusual")) for line in without)


def test_memory_by_hand(exported: Path) -> None:
    """Two bytes an element. Of images: for each patch five widths, fc2's slices and a row of fc1; for each
    merged one its four inputs, their product with four, and four outputs."""
    config = Bundle.open(exported).config
    v = config.vision
    assert v is not None and (v.hidden_size, v.max_patches, v.n_merge) == (256, 1024, 4)
    spans = {
        "lin": (100, 10, 1),
        "att": (90, 20, 2),
        "o": (80, 30, 3),
        "gu": (70, 5000, 7),
        "down": (9999, 25, 4),
    }
    needs = memory(config, {"text": 5, "vision": 7, "host": 11}, 10, {**spans, "v_fc1": (0, 0, 13)})
    assert needs["weights"] == 23
    # reads: the widest A but down's; writes: the largest C, down's in slices; gate and up's own and a row
    assert needs["prompt_buffers"] == 2 * (100 + max(30, 25 * config.n_down) + 5007)
    image = 1024 * (256 * (5 + v.n_fc2) + 13) + 256 * (4 * 256 * 5 + v.out_hidden_size * 4)
    assert needs["image_buffers"] == 2 * image


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0.0 MB"), (999_949_999, "999.9 MB"), (1_000_000_000, "1.00 GB"), (12_345_678_901, "12.35 GB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
