"""The training's own way through the model against transformers', and what a checkpoint holds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tokenizers import Tokenizer  # noqa: E402

from qwen35.bundle import Bundle  # noqa: E402
from qwen35.find import DEFAULT_BUNDLE  # noqa: E402
from qwen35.train import vocabulary  # noqa: E402
from qwen35.train.batches import Seen  # noqa: E402
from qwen35.train.checkpoint import save_pretrained, stop_ids  # noqa: E402
from qwen35.train.corpus import Corpus  # noqa: E402
from qwen35.train.network import (  # noqa: E402
    Network,
    config,
    delta_rule,
    initialise,
    patches_of,
    pixels_of,
    positions,
)
from qwen35.train.scenes import CELL, CELL_CLASSES, WHOLE_BITS, WHOLE_CLASSES  # noqa: E402
from qwen35.train.trainer import (  # noqa: E402
    MIX,
    MORE_MIX,
    ROW_HARD,
    ROW_RATE,
    Trainer,
    batch_kinds,
    exponent,
    learning_rate,
    share_done,
    tower_loss,
)
from qwen35.train.wordnet import WordNet  # noqa: E402
from tests.support import tiny_wordnet  # noqa: E402

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    corpus = Corpus(WordNet(tiny_wordnet.make(tmp_path_factory.mktemp("dict"))))
    return vocabulary.build(corpus, 2048, merges=50, samples=50)


@pytest.fixture(scope="module")
def net(tokenizer: Tokenizer) -> Any:
    from transformers import Qwen3_5ForConditionalGeneration

    torch.set_num_threads(1)
    model = Qwen3_5ForConditionalGeneration(config(tokenizer.get_vocab_size(), tokenizer.token_to_id))
    initialise(model, 3)
    return Network(model, *vocabulary.families(tokenizer), 3)


def test_the_shape_is_that_of_the_model_that_ships() -> None:
    ours, shipped = config(300, len), Bundle.open(DEFAULT_BUNDLE).config
    text, tower, v = ours.text_config, ours.vision_config, shipped.vision
    kinds = {"linear_attention": "lin", "full_attention": "att"}
    assert tuple(kinds[kind] for kind in text.layer_types) == shipped.layer_types
    for name, value in vars(shipped).items():
        if name not in ("layer_types", "vocab_size", "eos_token_id", "rms_norm_eps") and hasattr(text, name):
            assert getattr(text, name) == value, name
    rope = text.rope_parameters
    assert (rope["rope_theta"], tuple(rope["mrope_section"])) == (shipped.rope_theta, shipped.mrope_section)
    assert rope["partial_rotary_factor"] * text.head_dim == shipped.rotary_dim
    assert (text.vocab_size, text.eos_token_id, text.max_position_embeddings) == (
        300,
        len("<|im_end|>"),
        2048,
    )
    assert v is not None and tower.num_position_embeddings == v.pos_side**2
    assert tower.temporal_patch_size == 2
    for name in ("hidden_size", "intermediate_size", "depth", "num_heads", "patch_size", "out_hidden_size"):
        assert getattr(tower, name) == getattr(v, name), name
    assert tower.spatial_merge_size == v.spatial_merge_size
    assert ours.tie_word_embeddings and text.tie_word_embeddings and shipped.tie_word_embeddings


@torch.no_grad()
def test_the_first_weights_keep_their_inputs_scale(net: Any) -> None:
    """But for what is added to a residual: of as many layers, each adding two."""
    seen = set()
    for name, module in net.model.named_modules():
        kind = type(module).__name__
        if not isinstance(module, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv3d, torch.nn.Embedding)):
            continue
        if getattr(module, "bias", None) is not None:
            assert not module.bias.any(), name
        inputs = module.weight[0].numel()
        scale = {"Conv1d": 12**-0.5, "Embedding": 0.02}.get(kind, inputs**-0.5)
        scale = 0.02 if name == "lm_head" else scale  # the table
        if kind == "Linear" and name.endswith(("o_proj", "out_proj", "down_proj", "attn.proj", "linear_fc2")):
            scale *= 1 if "merger" in name else 8**-0.5
            seen.add(name.rpartition(".")[2])
        assert module.weight.std().item() == pytest.approx(scale, rel=0.1), name
        assert abs(module.weight.mean().item()) < 0.1 * scale, name
    assert seen == {"o_proj", "out_proj", "down_proj", "proj", "linear_fc2"}
    linear = [layer.linear_attn for layer in net.model.model.language_model.layers[:3]]
    for mixer in linear:
        steps = torch.nn.functional.softplus(mixer.dt_bias)
        assert steps.min() > 0.00099 and steps.max() < 0.101
        torch.testing.assert_close(mixer.A_log.exp(), torch.linspace(1, 8, 4))
    steps = torch.cat([torch.nn.functional.softplus(mixer.dt_bias) for mixer in linear])
    assert steps.min() < 0.01 and steps.max() > 0.02
    assert net.word_rows.std().item() == pytest.approx(0.05, rel=0.05)
    assert net.form_rows.std().item() == pytest.approx(0.02, rel=0.1)
    assert net.form_rows.shape[0] == vocabulary.FORMS and len(net.word_rows) == int(net.group.max()) + 1
    assert not net.model.model.language_model.embed_tokens.weight.requires_grad


def test_delta_rule_is_the_recurrence() -> None:
    rng = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 9, 3, 8, generator=rng) for _ in range(3))
    g = -torch.rand(2, 9, 3, generator=rng) * 2
    beta = torch.rand(2, 9, 3, generator=rng)
    state = torch.zeros(2, 3, 8, 8)
    outs = []
    for t in range(9):
        kt = k[:, t] / (k[:, t].pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
        qt = q[:, t] / (q[:, t].pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() * 8**-0.5
        state = state * g[:, t].exp()[..., None, None]
        delta = (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, kt)) * beta[:, t, :, None]
        state = state + kt[..., None] * delta[..., None, :]
        outs.append(torch.einsum("bhkv,bhk->bhv", state, qt))
    torch.testing.assert_close(delta_rule(q, k, v, g, beta), torch.stack(outs, 1), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_text_equals_transformers(net: Any) -> None:
    rng = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 1000, (2, 21), generator=rng)
    wanted = net.fold()(input_ids=ids).logits
    table = net.table()
    torch.testing.assert_close(net.hidden(table[ids], positions(21)) @ table.T, wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_picture_in_a_prompt_equals_transformers(net: Any, tokenizer: Tokenizer) -> None:
    rng = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (48, 64, 3), generator=rng, dtype=torch.uint8)
    values, grid = pixels_of([pixels.numpy()])
    assert grid.tolist() == [[1, 6, 8]]
    model = net.fold()
    wanted = model.model.visual(values, grid_thw=grid).pooler_output
    seen = net.see(patches_of(pixels[None]), 6, 8)
    torch.testing.assert_close(seen[0], wanted, atol=1e-4, rtol=1e-4)
    pad = tokenizer.token_to_id("<|image_pad|>")
    ids = torch.tensor([[5, 6, 7, *[pad] * 12, 8, 9, 10, 11]])
    logits = model(
        input_ids=ids, pixel_values=values, image_grid_thw=grid, mm_token_type_ids=(ids == pad).int()
    ).logits
    x = net.table()[ids]
    x[0, 3:15] = seen[0]
    mine = net.hidden(x, positions(19, [(3, 3, 4)])) @ net.table().T
    torch.testing.assert_close(mine, logits, atol=2e-4, rtol=1e-3)


@torch.no_grad()
def test_two_pictures_in_a_prompt_equal_transformers(net: Any, tokenizer: Tokenizer) -> None:
    rng = torch.Generator().manual_seed(4)
    sizes = ((32, 64), (64, 32))
    pixels = [torch.randint(0, 256, (*size, 3), generator=rng, dtype=torch.uint8) for size in sizes]
    values, grid = pixels_of([p.numpy() for p in pixels])
    pad = tokenizer.token_to_id("<|image_pad|>")
    ids = torch.tensor([[5, 6, *[pad] * 8, 7, 6, *[pad] * 8, 7, 9, 10]])
    kinds = (ids == pad).int()
    given = {"pixel_values": values, "image_grid_thw": grid, "mm_token_type_ids": kinds}
    logits = net.fold()(input_ids=ids, **given).logits
    x = net.table()[ids]
    places = []
    for at, picture in zip((2, 12), pixels, strict=True):
        rows, columns = picture.shape[0] // CELL, picture.shape[1] // CELL
        x[0, at : at + 8] = net.see(patches_of(picture[None]), 2 * rows, 2 * columns)[0]
        places.append((at, rows, columns))
    mine = net.hidden(x, positions(ids.shape[1], places)) @ net.table().T
    torch.testing.assert_close(mine, logits, atol=2e-4, rtol=1e-3)


def test_schedule_starts_after_the_tower_and_ends_at_zero() -> None:
    assert share_done(50, 300, 100) == 0.0
    assert share_done(200, 300, 100) == 0.5
    assert learning_rate(0.0, 1.0, 29) == 0.5
    assert learning_rate(0.2, 1.0, 500) == 1.0
    assert learning_rate(1.0, 1.0, 500) == 0.0
    assert exponent(0.0) == 1.2
    assert exponent(0.3) == pytest.approx(0.6)
    assert exponent(0.7) == 0.0


def test_a_saved_checkpoint_is_transformers_own(net: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import Qwen3_5ForConditionalGeneration

    save_pretrained(net, tokenizer, tmp_path)
    loaded = Qwen3_5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model.language_model.embed_tokens.weight, net.table())
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == stop_ids(
        tokenizer
    )
    size = json.loads((tmp_path / "preprocessor_config.json").read_text())["size"]
    assert size == {"shortest_edge": 6144, "longest_edge": 9216}


def test_the_towers_loss_is_that_of_guesses_against_labels() -> None:
    """Nothing for sure, right guesses; a wrong one costs its margin, a picture's number 0.3 of it."""
    rng = torch.Generator().manual_seed(4)
    margin, pictures, cells = 30.0, 2, 4
    labels = torch.stack([torch.randint(n, (pictures, cells), generator=rng) for n in CELL_CLASSES], -1)
    numbers = [torch.randint(n, (pictures, 1), generator=rng) for n in WHOLE_CLASSES]
    bits = torch.randint(2, (pictures, WHOLE_BITS), generator=rng)

    def sure(classes: Any, right: Any) -> Any:
        parts = [torch.nn.functional.one_hot(right[..., i], n) for i, n in enumerate(classes)]
        return margin * torch.cat(parts, -1).float()

    whole = torch.cat([*numbers, bits], 1)
    guess = {
        "cells": sure(CELL_CLASSES, labels),
        "whole": torch.cat([sure(WHOLE_CLASSES, whole), margin * (2.0 * bits - 1)], 1),
    }
    seen = Seen(torch.zeros(pictures, CELL, CELL, 3, dtype=torch.uint8), labels, whole)
    net: Any = SimpleNamespace(probe=lambda tokens: guess["cells"], whole_probe=lambda tokens: guess["whole"])

    def loss() -> float:
        return float(tower_loss(net, torch.zeros(pictures, cells, 8), seen))

    assert loss() == pytest.approx(0, abs=1e-6)
    guess["whole"][0, -1] *= -1  # one bit of all the pictures' bits
    assert loss() == pytest.approx(margin / (pictures * WHOLE_BITS), rel=1e-4)
    guess["whole"][0, -1] *= -1
    first = guess["whole"][0, : WHOLE_CLASSES[0]]
    first[:] = first.roll(1)
    assert loss() == pytest.approx(0.3 * margin / pictures, rel=1e-4)


ARGS = SimpleNamespace(lr=1.0, tower_steps=8, steps=41, more_steps=12, row_steps=5)


def _whole(step: int, **more: Any) -> Any:
    """What `Trainer.batch`, `rate` and `_words` read of a trainer."""
    return SimpleNamespace(args=ARGS, kinds=batch_kinds(ARGS), step=step, rows_from=53, **more)


def test_every_step_takes_a_batch_of_its_kind() -> None:
    """The tower's alone at first; then each kind's, by its own count, at the end without the tower's."""
    taken: list[tuple[Any, ...]] = []
    names = ("tower", "text", "picture", "several")
    batches = SimpleNamespace(**{name: lambda *given, n=name: taken.append((n, given[0])) for name in names})
    for step in range(58):
        Trainer.batch(_whole(step, batches=batches, _words=None))
    assert [place for kind, place in taken if kind == "tower"] == [
        step for step, (kind, _) in enumerate(taken) if kind == "tower"
    ]
    assert taken[:8] == [("tower", step) for step in range(8)]
    assert [kind for kind, _ in taken[8:41]] == [*MIX, *MIX, *MIX, *MIX[:3]]
    assert [kind for kind, _ in taken[41:53]] == [*MORE_MIX, *MORE_MIX]
    for kind in names[1:]:
        places = [place for one, place in taken if one == kind]
        assert places == [*range(len(places))] != []
    assert {kind for kind, _ in taken[53:]} == {"text"}


def test_hard_words_are_drawn_in_the_last_steps_alone() -> None:
    kinds: list[str] = []
    batches = SimpleNamespace(
        text=lambda nth, words: kinds.append("text"),
        picture=lambda nth: kinds.append("picture"),
        several=lambda nth: kinds.append("several"),
        tower=lambda *given: kinds.append("tower"),
    )
    shares = []
    for step in range(58):
        Trainer.batch(_whole(step, batches=batches, _words=None))
        if kinds[-1] == "text":
            words = Trainer._words(_whole(step, hard=["hard"]), kinds.count("text") - 1)
            shares.append((step, words.share, list(words.hard)))
    assert {share for step, share, _ in shares if step < 53} == {0.0}
    assert {share for step, share, _ in shares if step >= 53} == {ROW_HARD}
    assert all(bool(hard) == (step >= 53) for step, _, hard in shares)


def test_the_learning_rate_falls_to_zero_again_and_again() -> None:
    args = SimpleNamespace(lr=1.0, tower_steps=100, steps=400, more_steps=200, row_steps=100)
    whole: Any = SimpleNamespace(args=args, rows_from=600)
    rates = []
    for whole.step in range(700):
        rates.append(Trainer.rate(whole))
    assert max(rates[:400]) == 1.0 and max(rates[400:600]) < 0.4
    assert 0.1 < max(rates[600:700]) < ROW_RATE
    for end in (400, 600, 700):
        assert rates[end - 1] < 0.011
    for start in (400, 600):
        assert rates[start] < 0.01 < rates[start + 59]
