"""What a loaded model keeps in memory: its weights once, and of an untied embedding table the rows read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from amdxdna.device import Device
from qwen35 import GREEDY, Qwen35
from qwen35.bundle import Bundle
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from qwen35.model.text import TextModel
from qwen35.vision.tower import VisionTower
from tests.support.pixels import pixels
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


def test_a_closed_model_holds_nothing_of_the_device(tmp_path: Path) -> None:
    """Weights, buffers and parts of them, tower and kernels, while somebody keeps the object."""
    write_checkpoint(tmp_path / "hf", SHAPES["vision"])
    options = Options(chunk=16, max_prompt=64, vision_chunk=16)
    bundle = export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "b", options, quiet=True)
    with Device.open("emu:threads=1,quiet") as device:
        text = TextModel(Bundle.open(bundle), device, 128)
        assert text.config.vision is not None
        tower = VisionTower(text.bundle, text.npu, text.config.vision)
        tower.encode(pixels(np.random.default_rng(0), (4, 6), 4), (4, 6))
        text.prefill(range(40))
        text.decode(1)
        tower.close()
        text.close()
        device.pool.unload()
        used = device.bo_usage()
        assert (used.total, used.internal, used.heap) == (64 << 20, 64 << 20, 0), "the empty heap alone"
