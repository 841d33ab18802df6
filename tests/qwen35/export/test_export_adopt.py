"""`--kernels`: weights packed for the kernels of a bundle that exists, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen35.bundle import Bundle, BundleError
from qwen35.export import export_main
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.errors import CheckpointError
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from tests.support.synthetic import SHAPES, VisionShape, smaller, write_checkpoint
from tests.support.synthetic_bundle import HABITS, write_bundle


def packed(bundle: Bundle) -> dict[str, bytes]:
    return {name: bundle.tensors.bytes(name).tobytes() for name in bundle.tensors}


def kernel_lines(bundle: Bundle) -> list[str]:
    text = bundle.manifest.path.read_text().splitlines()
    return sorted(line for line in text if line.split(" ")[0] in ("xclbin", "gemm", "gemm_chunks", "gemv"))


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("name", ["tied", "untied"])
def test_a_fine_tune_runs_on_the_kernels_of_any_habit(tmp_path: Path, name: str, habit: str) -> None:
    shape = SHAPES[name]
    old = Bundle.open(write_bundle(tmp_path / "old", shape, None, HABITS[habit]))
    tensors = write_checkpoint(tmp_path / "hf", shape, seed=9)
    status = export_main(
        [str(tmp_path / "hf"), "--out", str(tmp_path / "new"), "--kernels", str(tmp_path / "old"), "--quiet"]
    )
    assert status == 0
    new = Bundle.open(tmp_path / "new")
    assert new.config == old.config
    assert kernel_lines(new) == kernel_lines(old)
    for key, gemm in new.gemms.items():
        for mine, theirs in zip(gemm.streams, old.gemms[key].streams, strict=True):
            assert new.insts(mine.insts) == old.insts(theirs.insts)
    wanted = Bundle.open(write_bundle(tmp_path / "wanted", shape, tensors, HABITS[habit]))
    assert packed(new) == packed(wanted) != packed(old)
    assert new.verify() == len(new.sums) > 5


@pytest.mark.parametrize("weights", ["w8", "bfp16x2"])
def test_with_a_tower(tmp_path: Path, weights: str) -> None:
    options = Options(chunk=16, max_prompt=48, vision=weights, vision_chunk=32, max_pixels=2048)
    shape = SHAPES["vision"]
    for seed, directory in ((1, "a"), (2, "b")):
        write_checkpoint(tmp_path / directory, shape, seed=seed)
    export_checkpoint(Checkpoint(tmp_path / "a"), tmp_path / "old", options, quiet=True)
    export_checkpoint(Checkpoint(tmp_path / "b"), tmp_path / "wanted", options, quiet=True)
    old = Bundle.open(tmp_path / "old")
    export_checkpoint(Checkpoint(tmp_path / "b"), tmp_path / "new", Options(), kernels=old, quiet=True)
    new, wanted = Bundle.open(tmp_path / "new"), Bundle.open(tmp_path / "wanted")
    assert new.config == wanted.config
    assert packed(new) == packed(wanted) != packed(old)
    assert kernel_lines(new) == kernel_lines(wanted)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (smaller(SHAPES["tied"], hidden=72), "the checkpoint's l0.g.in 512 x 72"),
        (smaller(SHAPES["tied"], mlp=128), "gemm gu is 320 x 64"),
        (smaller(SHAPES["tied"], lin_kheads=2), "gemm lin is 512 x 64 in 36,864 bytes"),
        (smaller(SHAPES["tied"], kv_heads=1), "gemm att is 384 x 64"),
    ],
)
def test_another_shape_is_refused(tmp_path: Path, shape: object, message: str) -> None:
    old = Bundle.open(write_bundle(tmp_path / "old", SHAPES["tied"]))
    write_checkpoint(tmp_path / "hf", shape)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "new", Options(), kernels=old, quiet=True)
    assert message in caught.value.message
    assert not (tmp_path / "new").exists()


def test_another_tower_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", SHAPES["vision"])
    write_checkpoint(tmp_path / "b", smaller(SHAPES["vision"], vision=VisionShape(mlp=192)))
    write_checkpoint(tmp_path / "c", smaller(SHAPES["vision"], vision=VisionShape(mlp=224)))
    options = Options(chunk=16, max_prompt=16, vision_chunk=16)
    export_checkpoint(Checkpoint(tmp_path / "a"), tmp_path / "old", options, quiet=True)
    old = Bundle.open(tmp_path / "old")
    # 160 and 192 are both three slices of 64: the same kernels
    export_checkpoint(Checkpoint(tmp_path / "b"), tmp_path / "new", Options(), kernels=old, quiet=True)
    vision = Bundle.open(tmp_path / "new").config.vision
    assert vision is not None and vision.intermediate_size == 192
    with pytest.raises(CheckpointError, match="gemm v_fc1 is 192 x 64"):
        export_checkpoint(Checkpoint(tmp_path / "c"), tmp_path / "other", Options(), kernels=old, quiet=True)


def test_compiled_kernels_are_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_bundle(tmp_path / "old", SHAPES["tied"])
    (path / "kernels/o_1.bin").write_bytes(b"\x01\0\0\0" * 16)
    write_checkpoint(tmp_path / "hf", SHAPES["tied"])
    arguments = [str(tmp_path / "hf"), "--out", str(tmp_path / "new"), "--kernels", str(path)]
    assert export_main(arguments) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "is not documented" in error
    with pytest.raises(BundleError):
        export_checkpoint(
            Checkpoint(tmp_path / "hf"), tmp_path / "new", Options(), kernels=Bundle.open(path), quiet=True
        )
    assert not (tmp_path / "new").exists()


def test_not_with_random(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export_main(["--random", "tiny", "--kernels", "x", "--out", str(tmp_path / "b")]) == 2
    assert "--kernels and --refs take a checkpoint" in capsys.readouterr().err
