"""The default model in training: transformers' Qwen3.5 modules, a forward made for short batches.

The modules and their parameters are transformers' own, so a checkpoint is an ordinary one; only the way
through them is written here: DeltaNet as one chunk, no mask (batches are padded on the right), the head at
trained positions only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig, Qwen3_5VisionConfig

from qwen35.train import vocabulary
from qwen35.train.scenes import CELL, CELL_CLASSES, PATCH, WHOLE_BITS, WHOLE_CLASSES

MERGE = CELL // PATCH


def config(vocab: int, token: Any, layers: int = 4) -> Qwen3_5Config:
    """The shape of the default model. `token(name)` gives a special token's id."""
    text = Qwen3_5TextConfig(
        vocab_size=vocab,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_conv_kernel_dim=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=token("<|im_end|>"),
        pad_token_id=None,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
        },
    )
    vision = Qwen3_5VisionConfig(
        depth=4,
        hidden_size=192,
        intermediate_size=768,
        num_heads=3,
        patch_size=PATCH,
        spatial_merge_size=MERGE,
        temporal_patch_size=2,
        out_hidden_size=256,
        num_position_embeddings=64,
    )
    return Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def initialise(model: Qwen3_5ForConditionalGeneration, seed: int) -> None:
    """Weights that train at once: unit-gain linears, small output projections, slow and fast heads."""
    rng = torch.Generator().manual_seed(seed)
    layers = model.model.language_model.layers
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                scale = module.in_features**-0.5
                if name.endswith(("o_proj", "out_proj", "down_proj")):
                    scale /= math.sqrt(2 * len(layers))
                elif name.endswith(("attn.proj", "linear_fc2")) and "merger" not in name:
                    scale /= math.sqrt(2 * len(model.model.visual.blocks))
                module.weight.normal_(0.0, scale, generator=rng)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Conv1d):
                module.weight.uniform_(-0.5, 0.5, generator=rng)
            elif isinstance(module, nn.Conv3d):
                module.weight.normal_(0.0, (3 * 2 * PATCH * PATCH) ** -0.5, generator=rng)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, 0.02, generator=rng)
        for layer in layers:
            if layer.block_type == "linear_attention":
                mixer = layer.linear_attn
                heads = mixer.dt_bias.numel()
                dt = torch.exp(torch.rand(heads, generator=rng) * math.log(100.0) + math.log(0.001))
                mixer.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))
                mixer.A_log.copy_(torch.log(torch.linspace(1.0, 8.0, heads)))
        model.model.language_model.embed_tokens.weight.normal_(0.0, 0.02, generator=rng)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule over [B, L, H, d] as one chunk; g = log decay and beta are [B, L, H]."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * q.shape[-1] ** -0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    total = g.transpose(1, 2).cumsum(-1)
    beta = beta.transpose(1, 2).unsqueeze(-1)
    length = q.shape[2]
    lower = torch.ones(length, length, dtype=torch.bool).tril()
    decay = torch.exp((total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, -1e9))
    keys = (k @ k.transpose(-1, -2)) * decay
    system = (beta * keys).tril(-1) + torch.eye(length)
    update = torch.linalg.solve_triangular(system, beta * v, upper=False, unitriangular=True)
    made: Tensor = (((q @ k.transpose(-1, -2)) * decay) @ update).transpose(1, 2)
    return made


def _rms(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    half = torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), -1)
    return torch.cat((turned * cos + half * sin, rest), -1)


def delta_mixer(m: Any, x: Tensor) -> Tensor:
    """The DeltaNet mixer `m` over x [batch, length, hidden]."""
    batch, length, _ = x.shape
    mixed = m.in_proj_qkv(x)
    weight = m.conv1d.weight[:, 0]
    kernel = weight.shape[1]
    padded = F.pad(mixed, (0, 0, kernel - 1, 0))
    convolved = sum(padded[:, i : i + length] * weight[:, i] for i in range(kernel))
    q, k, v = F.silu(convolved).split([m.key_dim, m.key_dim, m.value_dim], -1)  # type: ignore[no-untyped-call]
    shape = (batch, length, m.num_v_heads, m.head_k_dim)
    g = -torch.exp(m.A_log) * F.softplus(m.in_proj_a(x) + m.dt_bias)
    out = delta_rule(q.view(shape), k.view(shape), v.view(shape), g, torch.sigmoid(m.in_proj_b(x)))
    z = m.in_proj_z(x).view(shape)
    out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-6) * m.norm.weight * F.silu(z)
    made: Tensor = m.out_proj(out.reshape(batch, length, -1))
    return made


def attention_mixer(m: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gated attention mixer `m` over x [batch, length, hidden], causal."""
    batch, length, _ = x.shape
    hd = m.head_dim
    q, gate = m.q_proj(x).view(batch, length, -1, 2 * hd).chunk(2, -1)
    q = _rotate(_rms(q, m.q_norm.weight).transpose(1, 2), cos, sin)
    k = _rotate(_rms(m.k_proj(x).view(batch, length, -1, hd), m.k_norm.weight).transpose(1, 2), cos, sin)
    v = m.v_proj(x).view(batch, length, -1, hd).transpose(1, 2)
    k, v = (t.repeat_interleave(m.num_key_value_groups, 1) for t in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out = out.transpose(1, 2).reshape(batch, length, -1) * torch.sigmoid(gate.reshape(batch, length, -1))
    made: Tensor = m.o_proj(out)
    return made


def delta_layer(layer: Any, x: Tensor) -> Tensor:
    """A decoder layer with a DeltaNet mixer."""
    x = x + delta_mixer(layer.linear_attn, _rms(x, layer.input_layernorm.weight))
    y = _rms(x, layer.post_attention_layernorm.weight)
    made: Tensor = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(y)) * layer.mlp.up_proj(y))
    return made


def attention_layer(layer: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A decoder layer with an attention mixer."""
    x = x + attention_mixer(layer.self_attn, _rms(x, layer.input_layernorm.weight), cos, sin)
    y = _rms(x, layer.post_attention_layernorm.weight)
    made: Tensor = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(y)) * layer.mlp.up_proj(y))
    return made


def positions(length: int, images: Sequence[tuple[int, int, int]] = ()) -> Tensor:
    """Rotary positions [3, length] (t, h, w) of a prompt.

    `images` are (first token, rows, columns) of image tokens, in order. After a picture the positions go on
    from the largest of its own.
    """
    found = torch.arange(length).repeat(3, 1)
    for at, rows, columns in images:
        count = rows * columns
        first = int(found[0, at])
        found[0, at : at + count] = first
        found[1, at : at + count] = first + torch.arange(count) // columns
        found[2, at : at + count] = first + torch.arange(count) % columns
        found[:, at + count :] = torch.arange(length - at - count) + first + max(rows, columns)
    return found


class Network(nn.Module):
    """The model with the parameters that only training has: shared word rows, a probe of the tower.

    A token's embedding is the row of the word it is a form of + the row of that form, so that what " penguin"
    learns serves "Penguin"; `fold` writes them into the one table that ships. Rows of their own for the forms
    of a word were tried: they drift apart, and words typed alone are not recognised.
    """

    def __init__(
        self, model: Qwen3_5ForConditionalGeneration, group: list[int], form: list[int], seed: int
    ) -> None:
        super().__init__()
        self.model = model
        rng = torch.Generator().manual_seed(seed + 1)
        width: int = model.model.language_model.embed_tokens.weight.shape[1]
        self.group: Tensor
        self.form: Tensor
        self.register_buffer("group", torch.tensor(group), persistent=False)
        # a product and a look-up in `table`: their backward takes half of what indexing's does
        one_hot = F.one_hot(torch.tensor(form), vocabulary.FORMS).float()
        self.register_buffer("form", one_hot, persistent=False)
        self.word_rows = nn.Parameter(torch.randn(max(group) + 1, width, generator=rng) * 0.05)
        model.model.language_model.embed_tokens.weight.requires_grad_(False)
        self.form_rows = nn.Parameter(torch.randn(vocabulary.FORMS, width, generator=rng) * 0.02)
        self.probe = nn.Linear(width, sum(CELL_CLASSES))
        self.whole_probe = nn.Linear(width, sum(WHOLE_CLASSES) + WHOLE_BITS)

    def table(self) -> Tensor:
        """The embedding table [vocab, hidden] as it is now."""
        return F.embedding(self.group, self.word_rows) + self.form @ self.form_rows

    def hidden(self, x: Tensor, place: Tensor) -> Tensor:
        """Final normalised hidden states of embeddings [B, L, D] at rotary positions [3, L]."""
        text = self.model.model.language_model
        cos, sin = rotary(text.rotary_emb.inv_freq, place, text.rotary_emb.mrope_section)
        for layer in text.layers:
            x = (
                delta_layer(layer, x)
                if layer.block_type == "linear_attention"
                else attention_layer(layer, x, cos, sin)
            )
        return _rms(x, text.norm.weight)

    def see(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """Image tokens [B, n/4, D] of patches [B, n, 768]: one frame, merge order, n = rows*columns."""
        tower = self.model.model.visual
        weight = tower.patch_embed.proj.weight.sum(2).flatten(1)
        index, share, place = _grid(rows, columns, tower.num_grid_per_side)
        x = F.linear(patches, weight, tower.patch_embed.proj.bias)
        x = x + (tower.pos_embed.weight[index] * share.unsqueeze(-1)).sum(1)
        angles = (place.float().unsqueeze(-1) * tower.rotary_pos_emb.inv_freq).flatten(1)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos(), angles.sin()
        for block in tower.blocks:
            x = vision_block(block, x, cos, sin)
        merger = tower.merger
        x = merger.norm(x).reshape(x.shape[0], -1, merger.hidden_size)
        made: Tensor = merger.linear_fc2(F.gelu(merger.linear_fc1(x)))
        return made

    def fold(self) -> Qwen3_5ForConditionalGeneration:
        """A copy of the model with the finished embedding table."""
        copy = Qwen3_5ForConditionalGeneration(self.model.config)
        copy.load_state_dict(self.model.state_dict())
        with torch.no_grad():
            copy.model.language_model.embed_tokens.weight.copy_(self.table())
        copy.tie_weights()
        copy.train(False)
        return copy


def vision_block(block: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A block of the tower over x [batch, patches, hidden]; every patch sees every other."""
    batch, count, _ = x.shape
    attention = block.attn
    qkv = attention.qkv(block.norm1(x)).view(batch, count, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k = _rotate(qkv[0], cos, sin), _rotate(qkv[1], cos, sin)
    out = F.scaled_dot_product_attention(q, k, qkv[2]).transpose(1, 2).reshape(batch, count, -1)
    x = x + attention.proj(out)
    made: Tensor = x + block.mlp.linear_fc2(F.gelu(block.mlp.linear_fc1(block.norm2(x)), approximate="tanh"))
    return made


def rotary(frequencies: Tensor, place: Tensor, section: list[int]) -> tuple[Tensor, Tensor]:
    """cos and sin [L, rope_dim] with the interleaved choice of axis per frequency."""
    angles = place[:, :, None].float() * frequencies
    mixed = angles[0].clone()
    for axis in (1, 2):
        chosen = slice(axis, section[axis] * 3, 3)
        mixed[:, chosen] = angles[axis][:, chosen]
    mixed = torch.cat((mixed, mixed), -1)
    return mixed.cos(), mixed.sin()


_GRIDS: dict[tuple[int, int, int], tuple[Tensor, Tensor, Tensor]] = {}


def merge_order(rows: int, columns: int) -> Tensor:
    """Row and column [n, 2] of each patch in 2x2 merge-block order."""
    place = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1)
    return place.view(rows // MERGE, MERGE, columns // MERGE, MERGE, 2).transpose(1, 2).reshape(-1, 2)


def _grid(rows: int, columns: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    key = (rows, columns, side)
    if key not in _GRIDS:
        place = merge_order(rows, columns)
        at = [place[:, i].float() * (side - 1) / (n - 1) for i, n in enumerate((rows, columns))]
        low = [a.floor().long() for a in at]
        high = [(b + 1).clamp(max=side - 1) for b in low]
        part = [a - b for a, b in zip(at, low, strict=True)]
        index, share = [], []
        for y, wy in ((low[0], 1 - part[0]), (high[0], part[0])):
            for x, wx in ((low[1], 1 - part[1]), (high[1], part[1])):
                index.append(y * side + x)
                share.append(wy * wx)
        _GRIDS[key] = (torch.stack(index, 1), torch.stack(share, 1), place)
    return _GRIDS[key]


def patches_of(pixels: Tensor) -> Tensor:
    """Patches [B, n, 768] in merge order, (channel, row, column) inside, of uint8 pictures [B, H, W, 3]."""
    batch, height, width, _ = pixels.shape
    rows, columns = height // PATCH, width // PATCH
    x = (pixels.float() - 127.5) / 127.5
    x = x.view(batch, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, 3)
    return x.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(batch, rows * columns, 3 * PATCH * PATCH)


def pixels_of(pictures: Sequence[NDArray[np.uint8]]) -> tuple[Tensor, Tensor]:
    """transformers' `pixel_values` and `image_grid_thw` of pictures [h, w, 3] of fitting sizes."""
    values, grids = [], []
    for picture in pictures:
        patches = patches_of(torch.tensor(picture)[None])
        doubled = patches.reshape(-1, 3, 1, PATCH, PATCH).expand(-1, 3, 2, PATCH, PATCH)
        values.append(doubled.reshape(-1, 3 * 2 * PATCH * PATCH))
        grids.append([1, picture.shape[0] // PATCH, picture.shape[1] // PATCH])
    return torch.cat(values), torch.tensor(grids)
