"""What a loaded model keeps in memory: its weights once, and of an untied embedding table the rows read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from qwen35 import GREEDY, Qwen35
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from tests.support.synthetic import SHAPES, Shape, smaller, write_checkpoint


def resident(path: Path) -> int:
    """Bytes of a file's mappings that are in this process's memory."""
    blocks = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    found = [block for block in blocks if block.partition("\n")[0].endswith(str(path))]
    return sum(int(size) << 10 for block in found for size in re.findall(r"^Rss:\s+(\d+) kB", block, re.M))


def anonymous() -> int:
    """Bytes of this process that no file stands behind."""
    (size,) = re.findall(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(size) << 10


def export(folder: Path, shape: Shape) -> Path:
    write_checkpoint(folder / "hf", shape)
    return export_checkpoint(Checkpoint(folder / "hf"), folder / "b", Options(vision="none"), quiet=True)


def test_an_untied_table_is_mapped_and_read_row_by_row(tmp_path: Path) -> None:
    shape = smaller(SHAPES["untied"], layers=4, vocab=100_000)
    bundle = export(tmp_path, shape)
    table = shape.vocab * shape.hidden * 2
    before = anonymous()
    with Qwen35.load(bundle, 256, "emu:threads=1,quiet") as model:
        assert model.model.bundle.tensors.info("embed").nbytes == table > 25_000_000
        reply = model.chat("What is a penguin?", max_new=8, sampling=GREEDY).result()
        rows = reply.stats.prompt_tokens + 8
        # the OS maps some pages around each one that is touched
        assert 0 < resident(bundle / "tensors.bin") < rows * (64 << 10) + (1 << 20)
        assert anonymous() - before < table // 2
        ids = np.random.default_rng(0).integers(0, shape.vocab, 5)
        got = model.model.embedding.rows(ids)
        want = model.model.bundle.tensors.get("embed")[ids].astype(np.uint32) << 16
        np.testing.assert_array_equal(got, want.view(np.float32))


def test_packed_weights_are_resident_once(tmp_path: Path) -> None:
    shape = smaller(SHAPES["tied"], vocab=200_000, hidden=128)
    bundle = export(tmp_path, shape)
    before = anonymous()
    with Qwen35.load(bundle, 256, "emu:threads=1,quiet") as model:
        weights = model.model.weights.nbytes
        assert weights > 25_000_000
        model.chat("What is a penguin?", max_new=4, sampling=GREEDY).result()
        assert resident(bundle / "tensors.bin") < weights // 4
        assert anonymous() - before < weights // 2
