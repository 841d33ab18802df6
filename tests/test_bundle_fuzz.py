"""Seeded mutations of manifest.txt and tensors.txt: a BundleError or a bundle, never anything else."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from pathlib import Path

import pytest

from qwen35.bundle import Bundle, BundleError
from tests.synthetic import SHAPES
from tests.synthetic_bundle import Habits, write_bundle

WORDS = [
    "0", "-1", "1", "8", "4294967295", "4294967296", "9" * 18, "9" * 40, "1e308", "nan", "1_000", "0x10",
    "\u0663", "", "=", "==", "a=b=c", "#", "..", "/", "../../etc/passwd", "\0", "\u2028", "\u00a0", "f32",
    "bf16", "u8", ",", ",,", "1,2,3", "1," * 40 + "1", "version", "param", "gemm", "gemm_chunks", "gemv",
    "xclbin", "tokcase", "ref", "sum", "x" * 5000, "M=1", "K=8", "insts=.", "insts=kernels", "ctx=gemm",
    "\ud7ff", "\U0010ffff",
]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few random edits: bytes flipped, words replaced or dropped, lines doubled, dropped, swapped, cut."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        kind = rng.randrange(9)
        if kind == 0 and data:
            position = rng.randrange(len(data))
            data = data[:position] + bytes([rng.randrange(256)]) + data[position + rng.randrange(2):]
            continue
        if kind == 1:
            data = data[:rng.randrange(len(data) + 1)]
            continue
        words = lines[at].split(b" ")
        which = rng.randrange(len(words))
        word = rng.choice(WORDS).encode()
        if kind in (2, 3):
            words[which] = word
        elif kind == 4:
            head, _, _ = words[which].partition(b"=")
            words[which] = head + b"=" + word
        elif kind == 5:
            del words[which]
        lines[at] = b" ".join(words)
        if kind == 6:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif kind == 7:
            del lines[at]
        elif kind == 8:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        data = b"\n".join(lines)
    return data


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    habits = Habits(contexts=True, unknown=True, chunks=3)
    return write_bundle(tmp_path_factory.mktemp("fuzz") / "b", SHAPES["untied"], None, habits)


@pytest.mark.parametrize("file", ["manifest.txt", "tensors.txt"])
@pytest.mark.parametrize("seed", range(4))
def test_mutations(bundle: Path, tmp_path: Path, file: str, seed: int) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "b", copy_function=shutil.copyfile))
    original = (copy / file).read_bytes()
    rng = random.Random(f"{file} {seed}")
    tracemalloc.start()
    refused = 0
    for _ in range(150):
        (copy / file).write_bytes(mutate(rng, original))
        try:
            opened = Bundle.open(copy)
        except BundleError as error:
            refused += 1
            text = str(error)
            assert text.isprintable() and len(text) < 2000
            assert error.path.startswith(str(copy)) and error.line >= 0
        else:
            for name in opened.tensors:
                opened.tensors.get(name)
            assert opened.config.D == 128
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20
    assert 40 < refused < 150


def test_random_bytes(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "b"))
    rng = random.Random(5)
    for _ in range(100):
        (copy / "manifest.txt").write_bytes(rng.randbytes(rng.randrange(2000)))
        with pytest.raises(BundleError):
            Bundle.open(copy)
