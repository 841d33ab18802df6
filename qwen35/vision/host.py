"""The tower's host stages in numpy terms: LayerNorm, activations over summed K slices, full attention.

bf16 matrices are their bits as uint16. Results do not depend on the number of threads. Every function may be
called from any thread and releases the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qwen35._host import ffi, lib
from qwen35.host import check, pointer, row_stride

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]

NONE, GELU_TANH, GELU_ERF = 0, 1, 2
EPS = 1e-6
"""LayerNorm's epsilon (transformers' Qwen3.5 vision blocks and merger)."""


def _matrices(adds: Sequence[U16], columns: int) -> tuple[object, object]:
    pointers = ffi.new("uint16_t *[]", [pointer(a) for a in adds])
    return pointers, ffi.new("int64_t[]", [row_stride(a, columns) for a in adds])


class LayerNorm:
    """x += factors * (sum of adds); out = bf16(LayerNorm(x) weight + bias). Immutable.

    weight, bias, factors float32 [dim]; `adds` tells how many matrices are summed.
    """

    def __init__(self, weight: F32, bias: F32, adds: int = 0, factors: F32 | None = None) -> None:
        self._keep = [np.ascontiguousarray(a, np.float32) for a in (weight, bias)]
        self._factors = None if factors is None else np.ascontiguousarray(factors, np.float32)
        self.dim, self.adds = len(weight), adds
        self._struct = ffi.new(
            "host_layer_norm *",
            {
                "dim": self.dim,
                "adds": adds,
                "eps": EPS,
                "weight": pointer(self._keep[0]),
                "bias": pointer(self._keep[1]),
                "factors": pointer(self._factors),
            },
        )

    def rows(self, x: F32, adds: Sequence[U16], out: U16) -> None:
        """x float32 [n, dim] in place; adds and out bf16 [>= n, >= dim]."""
        if x.shape[1:] != (self.dim,) or not x.flags.c_contiguous or len(adds) != self.adds:
            raise ValueError(f"x {x.shape} with {len(adds)} additions does not fit this norm")
        if min([len(out), *map(len, adds)]) < len(x):
            raise ValueError("too few rows for this norm")
        check(
            lib.host_layer_norm_rows(
                self._struct,
                pointer(x),
                len(x),
                *_matrices(adds, self.dim),
                pointer(out),
                row_stride(out, self.dim),
            )
        )


def activate(
    kind: int, rows: int, columns: int, adds: Sequence[U16], out: U16, factors: F32 | None = None
) -> None:
    """out = bf16(act(factors * sum of adds)) over [rows, columns]; out may be one of adds."""
    if min([len(out), *map(len, adds)]) < rows or not adds:
        raise ValueError("too few rows to activate")
    check(
        lib.host_activate_rows(
            kind,
            columns,
            rows,
            *_matrices(adds, columns),
            len(adds),
            pointer(factors),
            pointer(out),
            row_stride(out, columns),
        )
    )


class FullAttention:
    """softmax(q k^T / sqrt(hd)) v of every head; q and k are rotated, half-split, over the whole head.

    factors float32 [3 heads hd] multiply the q | k | v columns first. On processors that multiply pairs of
    bf16, q, k, v and the softmax's weights are rounded to bf16; sums are float32. Immutable.

    A picture's rows may come in ranges that begin at multiples of ALIGN and end so or with the picture, and
    each query may see its keys in several parts, in order: no bit depends on that.
    """

    ALIGN = 64

    def __init__(self, heads: int, hd: int, factors: F32 | None = None) -> None:
        self.heads, self.hd = heads, hd
        self._factors = None if factors is None else np.ascontiguousarray(factors, np.float32)
        self._struct = ffi.new(
            "host_full_attn *", {"heads": heads, "hd": hd, "factors": pointer(self._factors)}
        )

    def scratch(self, rows: int) -> F32:
        """Room for `rows` patches: reuse it for every block."""
        return np.empty(int(lib.host_full_attn_floats(self._struct, rows)), np.float32)

    def load(self, qkv: U16, cosines: F32, sines: F32, scratch: F32, first: int, end: int) -> None:
        """Takes rows [first, end) over: qkv bf16 [end - first, 3 heads hd], q | k | v. cosines, sines float32
        [n, hd / 2] are the whole picture's."""
        n = len(cosines)
        if cosines.shape != (n, self.hd // 2) or sines.shape != cosines.shape or len(qkv) < end - first:
            raise ValueError("rows of the rotation and of q, k, v differ")
        if not (cosines.flags.c_contiguous and sines.flags.c_contiguous):
            raise ValueError("the rotation has gaps")
        self._check(scratch, n)
        check(
            lib.host_full_attn_load(
                self._struct,
                n,
                first,
                end,
                pointer(qkv),
                row_stride(qkv, 3 * self.heads * self.hd),
                pointer(cosines),
                pointer(sines),
                pointer(scratch),
            )
        )

    def part(
        self,
        scratch: F32,
        n: int,
        queries: tuple[int, int],
        keys: tuple[int, int],
        heads: tuple[int, int],
        out: U16,
    ) -> None:
        """Lets `queries` see `keys`, after those before, each a range that is loaded; the part that ends with
        key n writes their rows of the result, bf16 [queries, heads hd]."""
        if len(out) < queries[1] - queries[0]:
            raise ValueError("too few rows for the result")
        self._check(scratch, n)
        check(
            lib.host_full_attn_part(
                self._struct,
                n,
                *queries,
                *keys,
                *heads,
                pointer(scratch),
                pointer(out),
                row_stride(out, self.heads * self.hd),
            )
        )

    def rows(self, qkv: U16, cosines: F32, sines: F32, scratch: F32, out: U16) -> None:
        """All at once: see `load` and `part`."""
        n = len(cosines)
        self.load(qkv, cosines, sines, scratch, 0, n)
        self.part(scratch, n, (0, n), (0, n), (0, self.heads), out)

    def _check(self, scratch: F32, n: int) -> None:
        if scratch.size < lib.host_full_attn_floats(self._struct, n):
            raise ValueError("the scratch is too small for these rows")
