"""Seeded Hugging Face checkpoints of tiny Qwen3.5 models, written without torch.

`write_checkpoint(directory, SHAPES["tied"])` makes a directory that transformers (Qwen3_5ForCausalLM,
with a tower Qwen3_5ForConditionalGeneration) and `python -m qwen35 export` both read. Weights are scaled
so that logits differ from token to token: fan-in scaled linears, decays over a few to a few hundred
tokens. With `rounded=True` the matrices are stored as a bfp16 bundle holds them, in F32, so that a
float32 reference run differs from the NPU run by activation rounding alone.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    *("<|video_pad|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>"),
    "</think>",
]
SPECIAL = ADDED[:7]
CORPUS = (
    "The penguin is a bird that cannot fly. What is a penguin? It swims in the cold sea and eats fish. "
    "A small model of the same architecture runs on the device: the attention, the mixer and the head. "
    "There are three colours in the picture, red, green and blue. Hello there, how are you today? "
) * 4
BASE_TOKENS = 320


@dataclass(frozen=True)
class VisionShape:
    """A tower: hidden, MLP, blocks, heads, patch edge, merge edge, position table edge; out = text hidden."""

    hidden: int = 64
    mlp: int = 160
    depth: int = 2
    heads: int = 2
    patch: int = 4
    merge: int = 2
    pos_side: int = 6


@dataclass(frozen=True)
class Shape:
    """A text model. `lin_heads` counts value heads, `lin_kheads` key heads; heads*hd == lin_heads*lin_hv."""

    hidden: int = 64
    mlp: int = 160
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    hd: int = 32
    lin_heads: int = 4
    lin_kheads: int = 4
    lin_hk: int = 32
    lin_hv: int = 32
    conv_k: int = 4
    vocab: int = 340
    tied: bool = True
    rope_theta: float = 1e7
    rotary: float = 0.25
    mrope_section: tuple[int, int, int] = (2, 1, 1)
    eps: float = 1e-6
    interval: int = 4
    vision: VisionShape | None = None

    @property
    def layer_types(self) -> list[str]:
        """`lin` or `att` a layer."""
        return ["lin" if (i + 1) % self.interval else "att" for i in range(self.layers)]

    @property
    def rope_dim(self) -> int:
        """Rotated dims of a head."""
        return int(self.hd * self.rotary)

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution: q | k | v."""
        return 2 * self.lin_kheads * self.lin_hk + self.lin_heads * self.lin_hv

    @property
    def stop(self) -> list[int]:
        """<|endoftext|> and <|im_end|> of the synthetic tokenizer."""
        return [BASE_TOKENS, BASE_TOKENS + 2]

    @property
    def image_token(self) -> int:
        """<|image_pad|> of the synthetic tokenizer."""
        return BASE_TOKENS + ADDED.index("<|image_pad|>")


SHAPES: dict[str, Shape] = {
    # MLP no multiple of the hidden size: down_proj in three K slices, the last one padded
    "tied": Shape(),
    # two value heads a key head, key and value dims that differ
    "grouped": Shape(hidden=96, mlp=192, lin_heads=4, lin_kheads=2, lin_hk=16, lin_hv=32, vocab=352),
    # untied head; every K a multiple of 128, as bfp6s needs
    "untied": Shape(hidden=128, mlp=256, layers=8, lin_kheads=2, lin_hk=64, tied=False, vocab=384),
    "vision": Shape(vision=VisionShape()),
}


def bf16_round(values: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bf16 (half to even), as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def bfp16_round(values: np.ndarray) -> np.ndarray:
    """[..., K] float32 rounded to bfp16, blocks of 8 along the last axis; from the format's definition.

    e is the largest biased exponent of a block, a value m * 2^(e-133) with m in [-128, 127], half to even.
    """
    blocks = np.asarray(values, np.float32).reshape(*values.shape[:-1], -1, 8).astype(np.float64)
    _, exponent = np.frexp(np.abs(blocks).max(axis=-1, keepdims=True))
    unit = np.exp2(np.maximum(exponent + 126, 1) - 133.0)
    return (np.clip(np.rint(blocks / unit), -128, 127) * unit).astype(np.float32).reshape(values.shape)


def weights(shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of the checkpoint by its Hugging Face name, float32 holding bf16-exact values.

    A_log and linear_attn.norm are full float32, as in the real 2B checkpoint.
    """
    rng = np.random.default_rng(seed)
    prefix = "model." if shape.vision is None else "model.language_model."

    def normal(*dims: int, std: float) -> np.ndarray:
        return bf16_round(rng.standard_normal(dims, dtype=np.float32) * np.float32(std))

    def linear(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return normal(rows, columns, std=gain / columns**0.5)

    s, out = shape, {}
    out[prefix + "embed_tokens.weight"] = normal(s.vocab, s.hidden, std=2.0 / s.hidden**0.5)
    for i, kind in enumerate(s.layer_types):
        at = f"{prefix}layers.{i}."
        out[at + "input_layernorm.weight"] = normal(s.hidden, std=0.1)
        out[at + "post_attention_layernorm.weight"] = normal(s.hidden, std=0.1)
        if kind == "lin":
            la, keys, vals = at + "linear_attn.", s.lin_kheads * s.lin_hk, s.lin_heads * s.lin_hv
            qkv = linear(2 * keys + vals, s.hidden)
            # a trained layer's k resembles its q: q.k near zero would amplify rounding
            qkv[keys : 2 * keys] = bf16_round(0.8 * qkv[:keys] + 0.6 * qkv[keys : 2 * keys])
            out[la + "in_proj_qkv.weight"] = qkv
            out[la + "in_proj_z.weight"] = linear(vals, s.hidden)
            out[la + "in_proj_b.weight"] = linear(s.lin_heads, s.hidden)
            out[la + "in_proj_a.weight"] = linear(s.lin_heads, s.hidden)
            taps = rng.uniform(-0.25, 0.25, (s.conv_dim, 1, s.conv_k))
            taps[..., -1] += 0.6
            out[la + "conv1d.weight"] = bf16_round(taps)
            out[la + "A_log"] = np.log(rng.uniform(0.5, 8.0, s.lin_heads)).astype(np.float32)
            dt = np.exp(rng.uniform(np.log(1e-3), np.log(0.1), s.lin_heads))
            out[la + "dt_bias"] = bf16_round(np.log(np.expm1(dt)))
            out[la + "norm.weight"] = (1 + 0.1 * rng.standard_normal(s.lin_hv)).astype(np.float32)
            out[la + "out_proj.weight"] = linear(s.hidden, vals)
        else:
            sa = at + "self_attn."
            out[sa + "q_proj.weight"] = linear(s.heads * 2 * s.hd, s.hidden)
            out[sa + "k_proj.weight"] = linear(s.kv_heads * s.hd, s.hidden)
            out[sa + "v_proj.weight"] = linear(s.kv_heads * s.hd, s.hidden)
            out[sa + "o_proj.weight"] = linear(s.hidden, s.heads * s.hd, gain=2.0)
            out[sa + "q_norm.weight"] = normal(s.hd, std=0.1)
            out[sa + "k_norm.weight"] = normal(s.hd, std=0.1)
        out[at + "mlp.gate_proj.weight"] = linear(s.mlp, s.hidden)
        out[at + "mlp.up_proj.weight"] = linear(s.mlp, s.hidden)
        out[at + "mlp.down_proj.weight"] = linear(s.hidden, s.mlp)
    out[prefix + "norm.weight"] = normal(s.hidden, std=0.1)
    if not s.tied:
        out["lm_head.weight"] = normal(s.vocab, s.hidden, std=2.0 / s.hidden**0.5)
    if s.vision is not None:
        out.update(_vision_weights(s.vision, s.hidden, rng))
    return out


def _vision_weights(v: VisionShape, out_hidden: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(*dims: int, std: float, mean: float = 0.0) -> np.ndarray:
        return bf16_round(mean + rng.standard_normal(dims, dtype=np.float32) * np.float32(std))

    out: dict[str, np.ndarray] = {}

    def linear(name: str, rows: int, *columns: int) -> None:
        out[name + ".weight"] = normal(rows, *columns, std=float(np.prod(columns)) ** -0.5)
        out[name + ".bias"] = normal(rows, std=0.1)

    def norm(name: str) -> None:
        out[name + ".weight"] = normal(v.hidden, std=0.1, mean=1.0)
        out[name + ".bias"] = normal(v.hidden, std=0.1)

    at, merged = "model.visual.", v.hidden * v.merge**2
    linear(at + "patch_embed.proj", v.hidden, 3, 2, v.patch, v.patch)
    out[at + "pos_embed.weight"] = normal(v.pos_side**2, v.hidden, std=0.5)
    for i in range(v.depth):
        block = f"{at}blocks.{i}."
        norm(block + "norm1")
        norm(block + "norm2")
        linear(block + "attn.qkv", 3 * v.hidden, v.hidden)
        linear(block + "attn.proj", v.hidden, v.hidden)
        linear(block + "mlp.linear_fc1", v.mlp, v.hidden)
        linear(block + "mlp.linear_fc2", v.hidden, v.mlp)
    norm(at + "merger.norm")
    linear(at + "merger.linear_fc1", merged, merged)
    linear(at + "merger.linear_fc2", out_hidden, merged)
    return out


def round_matrices(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors, every matrix a bundle packs (projections, MLP, embedding, head) rounded to bfp16."""
    packed = (
        "_proj.weight",
        "in_proj_qkv.weight",
        "in_proj_z.weight",
        "embed_tokens.weight",
        "lm_head.weight",
    )
    out = {}
    for name, value in tensors.items():
        pack = name.endswith(packed) and "visual" not in name
        if pack and name.endswith("embed_tokens.weight") and "lm_head.weight" in tensors:
            pack = False  # an untied embedding table stays bf16
        out[name] = bfp16_round(value) if pack else value
    return out


def config(shape: Shape) -> dict[str, Any]:
    """config.json: the composite Qwen3_5Config, or the text config alone where there is no tower."""
    s = shape
    kinds = {"lin": "linear_attention", "att": "full_attention"}
    text: dict[str, Any] = {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "max_position_embeddings": 4096,
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "intermediate_size": s.mlp,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.hd,
        "hidden_act": "silu",
        "rms_norm_eps": s.eps,
        "tie_word_embeddings": s.tied,
        "linear_conv_kernel_dim": s.conv_k,
        "linear_key_head_dim": s.lin_hk,
        "linear_value_head_dim": s.lin_hv,
        "linear_num_key_heads": s.lin_kheads,
        "linear_num_value_heads": s.lin_heads,
        "eos_token_id": s.stop[0],
        "layer_types": [kinds[kind] for kind in s.layer_types],
        "full_attention_interval": s.interval,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": s.rope_theta,
            "partial_rotary_factor": s.rotary,
            "mrope_section": list(s.mrope_section),
            "mrope_interleaved": True,
        },
    }
    if s.vision is None:
        return {"architectures": ["Qwen3_5ForCausalLM"], **text}
    v = s.vision
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": s.image_token,
        "video_token_id": s.image_token + 1,
        "vision_start_token_id": BASE_TOKENS + 3,
        "vision_end_token_id": BASE_TOKENS + 4,
        "tie_word_embeddings": s.tied,
        "text_config": text,
        "vision_config": {
            "model_type": "qwen3_5_vision",
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "depth": v.depth,
            "hidden_size": v.hidden,
            "intermediate_size": v.mlp,
            "num_heads": v.heads,
            "patch_size": v.patch,
            "spatial_merge_size": v.merge,
            "temporal_patch_size": 2,
            "out_hidden_size": s.hidden,
            "num_position_embeddings": v.pos_side**2,
        },
    }


def tokenizer_json() -> str:
    """A byte-level BPE tokenizer of BASE_TOKENS tokens, then the added tokens from id BASE_TOKENS on."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from tokenizers.trainers import BpeTrainer

    built = Tokenizer(models.BPE())
    built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=BASE_TOKENS, show_progress=False, initial_alphabet=alphabet)
    built.train_from_iterator([CORPUS], trainer)
    for token in ADDED:
        built.add_tokens([AddedToken(token, special=token in SPECIAL, normalized=False)])
    return built.to_str()


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtypes: dict[str, str]) -> None:
    """One safetensors file; `dtypes` maps a name to BF16, F16 or F32 (default BF16)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, value in tensors.items():
        dtype = dtypes.get(name, "BF16")
        if dtype == "BF16":
            blob = (bf16_round(value).view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            blob = value.astype("<f4" if dtype == "F32" else "<f2").tobytes()
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_checkpoint(
    directory: Path,
    shape: Shape,
    seed: int = 0,
    *,
    rounded: bool = False,
    shards: int = 2,
    dtype: str | None = None,
) -> dict[str, np.ndarray]:
    """A checkpoint directory; returns its tensors (float32) by name.

    `rounded`: matrices as a bfp16 bundle holds them, all stored in F32. `dtype` stores every tensor so.
    `shards` > 1 writes an index file; 1 writes a single model.safetensors.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = weights(shape, seed)
    if rounded:
        tensors, dtype = round_matrices(tensors), "F32"
    full = ("A_log", "linear_attn.norm.weight")
    dtypes = {name: dtype or ("F32" if name.endswith(full) else "BF16") for name in tensors}
    names = list(tensors)
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors, dtypes)
    else:
        where: dict[str, str] = {}
        for k in range(shards):
            file = f"model.safetensors-{k + 1:05d}-of-{shards:05d}.safetensors"
            write_safetensors(directory / file, {n: tensors[n] for n in names[k::shards]}, dtypes)
            where.update(dict.fromkeys(names[k::shards], file))
        index = {"metadata": {}, "weight_map": where}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    settings = config(shape)
    if rounded:
        settings["dtype"] = "float32"
    (directory / "config.json").write_text(json.dumps(settings, indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": shape.stop[::-1]}))
    (directory / "tokenizer.json").write_text(tokenizer_json())
    if shape.vision is not None:
        v = shape.vision
        factor = (v.patch * v.merge) ** 2
        (directory / "preprocessor_config.json").write_text(
            json.dumps(
                {
                    "image_processor_type": "Qwen2VLImageProcessorFast",
                    "size": {"shortest_edge": factor * 4, "longest_edge": factor * 64},
                    "patch_size": v.patch,
                    "merge_size": v.merge,
                    "temporal_patch_size": 2,
                    "image_mean": [0.5] * 3,
                    "image_std": [0.5] * 3,
                }
            )
        )
    return tensors


def smaller(shape: Shape, **changes: Any) -> Shape:
    """`shape` with some fields changed."""
    return replace(shape, **changes)
