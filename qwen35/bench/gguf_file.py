"""A random model of a bundle's shape as a GGUF file, for llama.cpp (needs the optional package `gguf`).

Weights are Q8_0 blocks (a float16 scale and 32 int8), what llama.cpp keeps in float32 (norms, convolution,
gates of the state) is float32; the vocabulary is made of names. It says nothing sensible, at the same cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig

__all__ = ["write_gguf"]

_ARCH = "qwen35"
_BLOCK = np.dtype([("scale", "<f2"), ("q", "i1", 32)])
_NORMAL, _BPE_SPECIAL = 1, 3
_SPECIAL = 248044
"""First id that llama.cpp takes for a control token; the last of them ends a text."""


def write_gguf(config: ModelConfig, path: Path, seed: int = 0) -> int:
    """Writes the file and returns its bytes. Needs as much memory as the largest tensor."""
    import gguf

    writer: Any = gguf.GGUFWriter(str(path), _ARCH)
    _header(writer, config, gguf)
    kinds = gguf.GGMLQuantizationType
    tensors = list(_tensors(config))
    for name, shape, packed in tensors:
        if packed:
            rows = (*shape[:-1], shape[-1] // 32 * _BLOCK.itemsize)
            writer.add_tensor_info(name, rows, np.dtype(np.uint8), math.prod(rows), kinds.Q8_0)
        else:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * math.prod(shape), kinds.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.Generator(np.random.SFC64(seed))
    for name, shape, packed in tensors:
        writer.write_tensor_data(_blocks(rng, shape) if packed else _vector(rng, name, shape))
    writer.close()
    return path.stat().st_size


def _header(writer: Any, c: ModelConfig, gguf: Any) -> None:
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_rope_dimension_count(c.rotary_dim)
    writer.add_rope_dimension_sections([*(c.mrope_section or (c.rotary_dim // 2, 0, 0)), 0])
    writer.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    writer.add_ssm_state_size(c.linear_key_head_dim)
    writer.add_ssm_group_count(c.linear_num_key_heads)
    writer.add_ssm_time_step_rank(c.linear_num_value_heads)
    writer.add_ssm_inner_size(c.lin_value)
    period = c.layer_types.index("att") + 1
    writer.add_uint32(f"{_ARCH}.full_attention_interval", period)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(c.vocab_size)])
    special = min(_SPECIAL, c.vocab_size - 1)
    writer.add_token_types([_NORMAL if i < special else _BPE_SPECIAL for i in range(c.vocab_size)])
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(special)


def _tensors(c: ModelConfig) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """(name, shape with the fastest dimension last, whether it is packed)."""
    yield "token_embd.weight", (c.vocab_size, c.hidden_size), True
    yield "output_norm.weight", (c.hidden_size,), False
    if not c.tie_word_embeddings:
        yield "output.weight", (c.vocab_size, c.hidden_size), True
    for layer, kind in enumerate(c.layer_types):

        def name(part: str, layer: int = layer) -> str:
            return f"blk.{layer}.{part}"

        yield name("attn_norm.weight"), (c.hidden_size,), False
        yield name("post_attention_norm.weight"), (c.hidden_size,), False
        if kind == "att":
            yield name("attn_q.weight"), (2 * c.num_attention_heads * c.head_dim, c.hidden_size), True
            yield name("attn_k.weight"), (c.num_key_value_heads * c.head_dim, c.hidden_size), True
            yield name("attn_v.weight"), (c.num_key_value_heads * c.head_dim, c.hidden_size), True
            yield name("attn_q_norm.weight"), (c.head_dim,), False
            yield name("attn_k_norm.weight"), (c.head_dim,), False
            yield name("attn_output.weight"), (c.hidden_size, c.num_attention_heads * c.head_dim), True
        else:
            yield name("attn_qkv.weight"), (c.conv_dim, c.hidden_size), True
            yield name("attn_gate.weight"), (c.lin_value, c.hidden_size), True
            yield name("ssm_conv1d.weight"), (c.conv_dim, c.linear_conv_kernel_dim), False
            yield name("ssm_dt.bias"), (c.linear_num_value_heads,), False
            yield name("ssm_a"), (c.linear_num_value_heads,), False
            yield name("ssm_beta.weight"), (c.linear_num_value_heads, c.hidden_size), True
            yield name("ssm_alpha.weight"), (c.linear_num_value_heads, c.hidden_size), True
            yield name("ssm_norm.weight"), (c.linear_value_head_dim,), False
            yield name("ssm_out.weight"), (c.hidden_size, c.lin_value), True
        yield name("ffn_gate.weight"), (c.intermediate_size, c.hidden_size), True
        yield name("ffn_up.weight"), (c.intermediate_size, c.hidden_size), True
        yield name("ffn_down.weight"), (c.hidden_size, c.intermediate_size), True


def _blocks(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Random Q8_0 rows of deviation 1 / sqrt(fan in)."""
    count = math.prod(shape) // 32
    raw = np.frombuffer(rng.bytes(count * _BLOCK.itemsize), _BLOCK).copy()
    raw["scale"] = 1 / math.sqrt(shape[-1]) / 74  # the deviation of a uniform int8
    packed: NDArray[np.uint8] = raw.view(np.uint8).reshape(*shape[:-1], -1)
    return packed


def _vector(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values: NDArray[np.float32] = rng.standard_normal(shape, np.float32)
    if name.endswith("norm.weight"):
        values *= 0.1
        values += 1
    elif name.endswith("ssm_a"):
        np.abs(values, out=values)
        values += 1
        np.negative(values, out=values)
    else:
        values *= 0.3
    return values
