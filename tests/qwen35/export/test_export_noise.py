"""Signal-to-noise by layer: what `export` reports is what the bundle's streams hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qwen35.bundle import Bundle
from qwen35.bundle.schema import TensorSpec
from qwen35.export import export_main
from qwen35.export.noise import Noise
from qwen35.formats import bfp6s, bfp16, by_name, to_bf16
from tests.support.synthetic import SHAPES, bfp16_round, smaller, write_checkpoint
from tests.support.unpacking import projections

SHAPE = smaller(SHAPES["untied"], layers=4, tied=True)
QUICK = ["--chunk", "16", "--max-prompt", "32"]


def ratio(exact: list[np.ndarray], kept: list[np.ndarray]) -> float:
    signal = sum(np.square(a, dtype=np.float64).sum() for a in exact)
    noise = sum(np.square(np.float64(b) - a).sum() for a, b in zip(exact, kept, strict=True))
    return float(10 * np.log10(signal / noise))


@pytest.mark.parametrize("weights", ["bfp16", "bfp6s"])
def test_every_layer_is_reported_as_its_streams_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: str
) -> None:
    written = write_checkpoint(tmp_path / "hf", SHAPE, 3)
    tensors = {name.removeprefix("model."): value for name, value in written.items()}
    out = tmp_path / "b"
    assert export_main([str(tmp_path / "hf"), "--out", str(out), "--format", weights, "-v", *QUICK]) == 0
    told = capsys.readouterr().err.splitlines()
    bundle = Bundle.open(out)
    for i, kind in enumerate(SHAPE.layer_types):
        exact = projections(SHAPE, tensors, i, kind)
        kept = {
            part: by_name(weights).decode(np.array(bundle.tensors.bytes(f"l{i}.g.{part}")), *matrix.shape)
            for part, matrix in exact.items()
        }
        (line,) = (line for line in told if line.startswith(f"export: layer {i}: "))
        own, other = (
            ratio(list(exact.values()), list(kept.values())),
            ratio(list(exact.values()), [bfp16_round(m) for m in exact.values()]),
        )
        numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", line)]
        assert abs(numbers[0] - own) < 0.3, line
        if weights == "bfp6s":
            assert abs(numbers[1] - other) < 0.3 and numbers[1] - numbers[0] > 8, line
        assert re.search(r"down \d+\.\d, gu \d+\.\d, in \d+\.\d, o \d+\.\d$", line), line
    assert any(line.startswith("export: head: ") for line in told)
    (summary,) = (line for line in told if "signal-to-noise" in line)
    assert f"weights in {weights} have" in summary and ("bfp16 would have" in summary) == (weights == "bfp6s")


def test_a_layer_that_is_encoded_badly_stands_out() -> None:
    rng, noise = np.random.default_rng(0), Noise()
    even = rng.standard_normal((64, 128)).astype(np.float32)
    for layer in range(3):
        weights = rng.standard_normal((64, 128)).astype(np.float32)
        if layer == 1:
            weights[:, ::16] *= 300  # one large weight a block takes the bits of the fifteen others
        item = TensorSpec(f"l{layer}.g.o", "o", layer, rows=64, k=128)
        noise.add(item, to_bf16(weights) if layer else weights, bfp6s.encode(weights), "bfp6s")
        noise.add(item, weights, bfp6s.encode(weights), "bfp6s")
    noise.add(TensorSpec("l1.g.gu", "gu", 1, rows=64, k=128), even, bfp6s.encode(even), "bfp6s")
    assert abs(noise.decibels(1, "gu")[0] - noise.decibels(2, "o")[0]) < 0.5
    low, high = sorted(noise.decibels(1, part)[0] for part in ("o", "gu"))
    assert low < noise.decibels(1)[0] < high and high - low > 1
    others = [noise.decibels(layer)[0] for layer in (0, 2)]
    assert all(33 < value < 35 for value in others)
    assert abs(noise.decibels(1)[0] - others[0]) > 2
    assert noise.layers == [0, 1, 2]


def test_weights_that_are_kept_exactly() -> None:
    noise, weights = Noise(), np.full((8, 128), 0.5, np.float32)
    noise.add(TensorSpec("head0", "head", rows=8, k=128), weights, bfp16.encode(weights), "bfp16")
    assert noise.lines() == ["head: inf dB"] and "inf dB" in noise.summary()
    noise.add(TensorSpec("l0.g.o", "o", 0, rows=8, k=128), 0 * weights, bfp16.encode(0 * weights), "bfp16")
    assert noise.layers == [0, -1]


def test_quiet_and_without_verbose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "hf", SHAPE)
    assert export_main([str(tmp_path / "hf"), "--out", str(tmp_path / "a"), *QUICK]) == 0
    err = capsys.readouterr().err
    assert err.count("dB") == 1 and "layer 0" not in err
    assert export_main([str(tmp_path / "hf"), "--out", str(tmp_path / "b"), "-q", *QUICK]) == 0
    assert capsys.readouterr().err == ""
