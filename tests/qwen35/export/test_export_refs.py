"""Reference runs: what is recorded, and that a bundle keeps everything else when they are put in."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tokenizers import Tokenizer  # noqa: E402

from qwen35.bundle import Bundle  # noqa: E402
from qwen35.export.checkpoint import Checkpoint  # noqa: E402
from qwen35.export.exporter import export_checkpoint  # noqa: E402
from qwen35.export.plan import Options  # noqa: E402
from qwen35.export.refs import TOP, Reference, Request, attach, record  # noqa: E402
from qwen35.export.vision import MAX_PIXELS, MIN_PIXELS  # noqa: E402
from qwen35.images.patches import Preprocessor  # noqa: E402
from qwen35.train import vocabulary  # noqa: E402
from qwen35.train.checkpoint import save_pretrained  # noqa: E402
from qwen35.train.corpus import Corpus  # noqa: E402
from qwen35.train.network import Network, config, initialise  # noqa: E402
from qwen35.train.wordnet import WordNet  # noqa: E402
from tests.support import tiny_wordnet  # noqa: E402

pytestmark = pytest.mark.peer

PICTURE = np.random.default_rng(0).integers(0, 256, (80, 96, 3), dtype=np.uint8)
REQUESTS = (
    Request("hello", "Hello!", max_new=5),
    Request("think", "Héllo <|im_end|>", thinking=True, max_new=4),
    Request("look", "What is this?", picture=PICTURE, max_new=3),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3_5ForConditionalGeneration

    torch.set_num_threads(1)
    corpus = Corpus(WordNet(tiny_wordnet.make(tmp_path_factory.mktemp("dict"))))
    tokenizer = vocabulary.build(corpus, 2048, merges=50, samples=50)
    model = Qwen3_5ForConditionalGeneration(config(tokenizer.get_vocab_size(), tokenizer.token_to_id))
    initialise(model, 3)
    folder = tmp_path_factory.mktemp("checkpoint")
    save_pretrained(Network(model, *vocabulary.families(tokenizer), 3), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def references(checkpoint: Path) -> list[Reference]:
    return record(checkpoint, REQUESTS)


def test_steps_are_greedy_and_end_in_what_was_asked(references: list[Reference]) -> None:
    for reference, request in zip(references, REQUESTS, strict=True):
        arrays = reference.arrays
        steps = len(arrays["tokens"])
        assert 1 <= steps <= request.max_new
        assert arrays["top_ids"].shape == arrays["top_logits"].shape == (steps, TOP)
        assert (arrays["top_ids"][:, 0] == arrays["tokens"]).all()
        assert (np.diff(arrays["top_logits"], axis=1) <= 0).all()


def test_logits_are_those_of_a_whole_forward(checkpoint: Path, references: list[Reference]) -> None:
    from transformers import Qwen3_5ForConditionalGeneration

    model: Any = Qwen3_5ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32)
    arrays = references[0].arrays
    ids = torch.tensor([[*arrays["ids"].tolist(), *arrays["tokens"].tolist()]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(arrays["ids"]) - 1 : -1]
    top = logits.topk(TOP)
    np.testing.assert_allclose(top.values.numpy(), arrays["top_logits"], atol=1e-3)


def test_prompts_are_the_chat_template_s(checkpoint: Path, references: list[Reference]) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = [tokenizer.decode(r.arrays["ids"].tolist(), skip_special_tokens=False) for r in references]
    assert texts[0] == "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert texts[1].endswith("assistant\n<think>\n")
    image = f"<|vision_start|>{'<|image_pad|>' * 30}<|vision_end|>"
    assert texts[2].startswith(f"<|im_start|>user\n{image}What is this?<|im_end|>")


def test_a_picture_s_arrays(references: list[Reference]) -> None:
    arrays = references[2].arrays
    assert arrays["grid"].tolist() == [10, 12]
    assert arrays["patches"].shape == (120, 3 * 8 * 8)
    assert arrays["vision"].shape == (30, 256)
    corner = arrays["patches"][0].reshape(3, 8, 8)
    wanted = (PICTURE[:8, :8].astype(np.float32).transpose(2, 0, 1) - 127.5) / 127.5
    np.testing.assert_allclose(corner, wanted, atol=1e-6)
    np.testing.assert_array_equal(arrays["rgb"], PICTURE)


def test_attach_keeps_the_bundle(checkpoint: Path, references: list[Reference], tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    options = Options(chunk=16, max_prompt=64, vision_chunk=16)
    export_checkpoint(Checkpoint(checkpoint), out, options, quiet=True)
    before = Bundle.open(out)
    held = {name: before.tensors.bytes(name).tobytes() for name in before.tensors}
    records = [(record.tag, record.fields) for record in before.manifest.records if record.tag != "sum"]
    attach(out, references, {"name": "a test model", "sampling": "greedy"})
    after = Bundle.open(out)
    assert {name: after.tensors.bytes(name).tobytes() for name in held} == held
    found = [(record.tag, record.fields) for record in after.manifest.records if record.tag != "sum"]
    assert [r for r in found if r[0] != "ref"] == records
    assert [r[1][0] for r in found if r[0] == "ref"] == ["hello", "think", "look"]
    assert after.manifest.params["name"].text == "a test model"
    assert after.config == before.config
    np.testing.assert_array_equal(after.tensors.get("ref.look.rgb"), PICTURE)
    size = sum(file.stat().st_size for file in out.rglob("*"))
    attach(out, references[:1], {"name": "another name"})
    again = Bundle.open(out)
    assert again.manifest.params["name"].text == "another name"
    assert again.manifest.params["sampling"].text == "greedy"
    assert sum(file.stat().st_size for file in out.rglob("*")) == pytest.approx(size, abs=256)
    assert again.verify() > 0


def test_a_checkpoint_without_a_preprocessor_needs_no_network(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture is read as an export then reads it."""
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    (copy / "preprocessor_config.json").unlink()
    asked: list[object] = []

    def refuse(*where: object, **_: object) -> None:
        asked.append(where)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    large = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    (made,) = record(copy, [Request("look", "What is this?", picture=large, max_new=2)])
    assert not asked
    prepared = Preprocessor(8, 2, MIN_PIXELS, MAX_PIXELS)(large)
    np.testing.assert_allclose(made.arrays["patches"], prepared.patches, atol=1e-6)
