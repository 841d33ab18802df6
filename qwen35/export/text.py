"""A checkpoint's text tensors in a bundle's form: which rows of which matrices make each stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle.config import ModelConfig
from qwen35.bundle.schema import TensorSpec
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.noise import Noise
from qwen35.export.rows import Columns, Interleave, Joined, Matrix, Padded, Rows, all_finite, to_float32
from qwen35.formats import FormatError, by_name, to_bf16

__all__ = ["CheckpointText", "encode_rows"]

BLOCK_BYTES = 16 << 20
"""Weights encoded at a time, in bytes of bf16: bounds the memory an export needs."""


Seen = Callable[[NDArray[Any], NDArray[np.uint8]], None]


def encode_rows(source: Rows, gemv_format: str, seen: Seen | None = None) -> Iterator[NDArray[np.uint8]]:
    """The stream of a matrix in pieces of whole 8-row groups. Raises FormatError for NaN or infinity.

    `seen(weights, piece)` is told of each.
    """
    encode = by_name(gemv_format).encode
    step = max(64, BLOCK_BYTES // (2 * source.k) // 64 * 64)
    for first in range(0, source.rows, step):
        weights = source.read(first, min(first + step, source.rows))
        piece = encode(weights)
        if seen is not None:
            seen(weights, piece)
        yield piece


class CheckpointText:
    """The text tensors of a checkpoint, item by item of `schema.text_schema`."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, noise: Noise | None = None) -> None:
        """`noise` counts what encoding costs."""
        self._checkpoint, self._config, self._noise = checkpoint, config, noise
        self._inner = checkpoint.text.count("intermediate_size")

    def pieces(self, item: TensorSpec) -> Iterator[NDArray[Any]]:
        """The item's bytes in order, as contiguous arrays."""
        if item.rows:
            seen, name = None, self._config.gemv_format
            if self._noise is not None:
                seen = partial(self._noise.add, item, gemv_format=name)
            yield from encode_rows(self.rows(item), name, seen)
        elif item.part == "embed":
            table = self._embedding()
            for first in range(0, table.rows, 4096):
                part = table.read(first, min(first + 4096, table.rows))
                bits = np.ascontiguousarray(part if part.dtype == np.uint16 else to_bf16(part))
                if not all_finite(bits):
                    raise FormatError(f"embed_tokens.weight holds NaN or infinity from row {first} on")
                yield bits
        else:
            yield np.ascontiguousarray(self.array(item), np.float32)

    def rows(self, item: TensorSpec) -> Rows:
        """The matrix behind a packed stream, [item.rows, item.k]."""
        c, at = self._config, f"layers.{item.layer}."
        get = self._checkpoint.matrix
        if item.part == "lin":
            return Joined(
                [
                    get(at + "linear_attn.in_proj_qkv.weight", c.conv_dim, c.hidden_size),
                    get(at + "linear_attn.in_proj_z.weight", c.lin_value, c.hidden_size),
                ]
            )
        if item.part == "att":
            return Joined(
                [
                    get(
                        at + "self_attn.q_proj.weight", 2 * c.num_attention_heads * c.head_dim, c.hidden_size
                    ),
                    get(at + "self_attn.k_proj.weight", c.num_key_value_heads * c.head_dim, c.hidden_size),
                    get(at + "self_attn.v_proj.weight", c.num_key_value_heads * c.head_dim, c.hidden_size),
                ]
            )
        if item.part == "o":
            linear = c.layer_types[item.layer] == "lin"
            name = "linear_attn.out_proj.weight" if linear else "self_attn.o_proj.weight"
            return get(at + name, c.hidden_size, c.o_in)
        if item.part == "gu":
            gate = get(at + "mlp.gate_proj.weight", self._inner, c.hidden_size)
            up = get(at + "mlp.up_proj.weight", self._inner, c.hidden_size)
            return Interleave(Padded(gate, c.intermediate_size), Padded(up, c.intermediate_size), 32)
        if item.part == "down":
            whole = get(at + "mlp.down_proj.weight", c.hidden_size, self._inner)
            return Columns(whole, item.slice * c.hidden_size, (item.slice + 1) * c.hidden_size)
        table = (
            self._embedding() if c.tie_word_embeddings else get("lm_head.weight", c.vocab_size, c.hidden_size)
        )
        return Padded(table, c.head_rows, item.slice * c.head_rows)

    def array(self, item: TensorSpec) -> NDArray[np.float32]:
        """A host parameter, float32 of item.shape."""
        c, get = self._config, self._checkpoint.finite_tensor
        if item.part == "ln_f":
            return to_float32(get("norm.weight", c.hidden_size))
        at = f"layers.{item.layer}."
        norms = {
            "ln1": "input_layernorm.weight",
            "ln2": "post_attention_layernorm.weight",
            "q_norm": "self_attn.q_norm.weight",
            "k_norm": "self_attn.k_norm.weight",
            "norm": "linear_attn.norm.weight",
            "dt_bias": "linear_attn.dt_bias",
        }
        if item.part in norms:
            return to_float32(get(at + norms[item.part], *item.shape))
        la = at + "linear_attn."
        if item.part == "ba":
            halves = [
                get(f"{la}in_proj_{half}.weight", c.linear_num_value_heads, c.hidden_size) for half in "ba"
            ]
            return np.concatenate([to_float32(half) for half in halves])
        if item.part == "conv":
            return to_float32(get(la + "conv1d.weight", c.conv_dim, 1, c.linear_conv_kernel_dim))[:, 0]
        logs = to_float32(get(la + "A_log", c.linear_num_value_heads)).astype(np.float64)
        with np.errstate(over="ignore"):  # who writes them refuses infinity
            return (-np.exp(logs)).astype(np.float32)

    def _embedding(self) -> Matrix:
        return self._checkpoint.matrix(
            "embed_tokens.weight", self._config.vocab_size, self._config.hidden_size
        )
