"""The gated GQA attention mixer of one layer, on the host, over a KV cache.

Input: the `att` projection's rows, bf16: per head (q | gate), then all k, then all v. A cache row holds every
key head's key, normed and rotated, in float16 (its rounding is an eighth of bf16's) and the values as the
bf16 they came in (exact). Softmax runs in float32 with a running maximum, so no score matrix wider than a
tile exists (Dao et al. 2022, "FlashAttention").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qwen35._host import ffi, lib
from qwen35.host import check, pointer, row_stride

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig

__all__ = ["Attention"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]


class Attention:
    """One layer's mixer; q_norm and k_norm float32 [hd], offsets from one. Immutable."""

    def __init__(self, config: ModelConfig, q_norm: F32, k_norm: F32) -> None:
        self.columns, self.width, self.half = (
            config.n_att,
            config.num_attention_heads * config.head_dim,
            config.rotary_dim // 2,
        )
        self._keep = [np.ascontiguousarray(a, np.float32) for a in (q_norm, k_norm)]
        self._struct = ffi.new(
            "host_attn *",
            {
                "heads": config.num_attention_heads,
                "kv_heads": config.num_key_value_heads,
                "hd": config.head_dim,
                "rope_dim": config.rotary_dim,
                "eps": config.rms_norm_eps,
                "q_norm": pointer(self._keep[0]),
                "k_norm": pointer(self._keep[1]),
            },
        )

    def prefill(self, y: U16, past: int, cosines: F32, sines: F32, keys: U16, values: U16, out: U16) -> None:
        """n tokens after `past` cached ones: their rows past.. of keys and values are written, then read.

        y bf16 [n, >= n_att]; cosines, sines float32 [n, rope_dim/2]; keys (float16 bits) and values (bf16)
        [>= past + n, kv_heads * hd] contiguous; out bf16 [n, >= heads * hd].
        """
        rows = len(cosines)
        if min(len(y), len(out)) < rows or min(len(keys), len(values)) < past + rows:
            raise ValueError(f"{rows} rows after {past}: an operand is shorter")
        for table in (cosines, sines):
            if table.shape != (rows, self.half) or not table.flags.c_contiguous:
                raise ValueError(f"rotation tables must be [{rows}, {self.half}], not {table.shape}")
        check(
            lib.host_attn_prefill(
                self._struct,
                pointer(y),
                row_stride(y, self.columns),
                rows,
                past,
                pointer(cosines),
                pointer(sines),
                pointer(keys),
                pointer(values),
                pointer(out),
                row_stride(out, self.width),
            )
        )

    def step(self, y: Any, past: int, cosines: Any, sines: Any, keys: Any, values: Any, out: Any) -> None:
        """One token, C pointers for speed; the operands of `prefill` with n = 1."""
        check(lib.host_attn_step(self._struct, y, past, cosines, sines, keys, values, out))
