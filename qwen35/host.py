"""The host's share of the arithmetic, in C: settings of the extension and its functions over numpy arrays.

bf16 arrays are their bits as uint16 (see `qwen35.formats.bf16`). Results do not depend on the number of
threads; they may differ in the last bits between instruction sets. Every function may be called from any
thread and releases the GIL; a call that finds the pool of threads busy runs on its own thread alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen35._host import ffi, lib

__all__ = [
    "MOST",
    "Norm",
    "bf16_to_f32",
    "check",
    "f32_to_bf16",
    "isa",
    "matmul",
    "pointer",
    "set_isa",
    "set_threads",
    "swiglu_pairs",
    "threads",
]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]

_POINTERS = {np.dtype(np.float32): "float *", np.dtype(np.uint16): "uint16_t *"}

MOST = 64
"""Threads that `set_threads` takes, at most."""


def threads() -> int:
    """Threads that share the work, the caller among them (default: one a processor, at most 16)."""
    return int(lib.host_threads())


def set_threads(count: int) -> int:
    """Sets the number of threads (0: the default); returns the number before. Raises ValueError."""
    before = int(lib.host_set_threads(count))
    if before < 0:
        raise ValueError(f"{count} threads: give 0 (one a processor) to {MOST}")
    return before


def isa() -> str:
    """The instruction set in use: avx512bf16, avx512, avx2 or portable. QWEN35_ISA in the environment
    chooses one."""
    return str(ffi.string(lib.host_isa()), "ascii")


def set_isa(name: str | None) -> None:
    """Chooses an instruction set (None: the best). Raises ValueError where this processor lacks it."""
    if lib.host_set_isa(ffi.NULL if name is None else name.encode()):
        raise ValueError(f"instruction set {name!r} is unknown or not offered by this processor")


def pointer(array: NDArray[Any] | None) -> Any:
    """A C pointer to the first element (NULL for None); the caller keeps the array alive.

    Raises ValueError for a dtype other than float32 and uint16.
    """
    if array is None:
        return ffi.NULL
    kind = _POINTERS.get(array.dtype)
    if kind is None:
        raise ValueError(f"{array.dtype} array where float32 or bf16 bits (uint16) are needed")
    return ffi.cast(kind, array.__array_interface__["data"][0])


def check(code: int) -> None:
    """Raises what a function's return code stands for: MemoryError, or ValueError for dims it cannot take."""
    if code == 0:
        return
    if code == -12:
        raise MemoryError("no memory for the scratch of a host stage")
    raise ValueError("head dims must be multiples of 16, at most 512, and the convolution at most 8 taps")


def row_stride(array: NDArray[Any], columns: int) -> int:
    """The row stride in elements of a 2-D array whose rows are contiguous and hold `columns` at least."""
    if array.ndim != 2 or array.shape[1] < columns or array.strides[1] != array.itemsize:
        raise ValueError(f"rows of {columns} contiguous elements are needed, not {array.shape}")
    return array.strides[0] // array.itemsize


class Norm:
    """x += every row of `adds` in order; out = bf16(rms(x) (1 + weight)); gates = (rms(x) (1 + weight)) proj.

    weight float32 [dim]; `proj` float32 [outputs, dim] is multiplied in float32 from the unrounded rows and
    its results come padded to `proj_cols` columns (a multiple of 16). Immutable.
    """

    def __init__(self, weight: F32, eps: float, adds: int = 0, proj: F32 | None = None) -> None:
        self.dim, self.adds = int(weight.shape[0]), adds
        self.weight = np.ascontiguousarray(weight, np.float32)
        self.proj_cols = 0 if proj is None else -(-proj.shape[0] // 16) * 16
        self._proj = None
        if proj is not None:
            self._proj = np.zeros((self.dim, self.proj_cols), np.float32)
            self._proj[:, : proj.shape[0]] = proj.T
        fields = {
            "dim": self.dim,
            "adds": adds,
            "proj_cols": self.proj_cols,
            "eps": eps,
            "weight": pointer(self.weight),
            "proj": pointer(self._proj),
        }
        self.struct = ffi.new("host_norm *", fields)
        self.projection = ffi.new("host_norm *", {**fields, "adds": 0})
        """For the gates of rows that are made."""

    def rows(self, x: F32, adds: Sequence[U16], out: U16, gates: F32 | None = None) -> None:
        """Rows of x float32 [n, dim] in place; adds and out bf16 [n, >= dim]; gates [n, proj_cols]."""
        n = x.shape[0]
        if not x.flags.c_contiguous or x.shape[1] != self.dim or len(adds) != self.adds:
            raise ValueError(f"x {x.shape} with {len(adds)} additions does not fit this norm")
        short = min([len(out), *map(len, adds)]) < n
        if short or (gates is not None and gates.shape != (n, self.proj_cols)):
            raise ValueError(f"fewer than {n} rows in an operand of the norm")
        pointers = ffi.new("uint16_t *[]", [pointer(add) for add in adds])
        strides = ffi.new("int64_t[]", [row_stride(add, self.dim) for add in adds])
        check(
            lib.host_norm_rows(
                self.struct,
                pointer(x),
                n,
                pointers,
                strides,
                pointer(out),
                row_stride(out, self.dim),
                pointer(gates),
            )
        )

    def gates(self, x: F32, gates: F32) -> None:
        """The gates that `rows` gives, of x after it."""
        n = x.shape[0]
        if not x.flags.c_contiguous or x.shape[1] != self.dim or gates.shape != (n, self.proj_cols):
            raise ValueError(f"x {x.shape} or gates {gates.shape} do not fit this norm")
        check(
            lib.host_norm_rows(
                self.projection, pointer(x), n, ffi.NULL, ffi.NULL, ffi.NULL, 0, pointer(gates)
            )
        )


def swiglu_pairs(pairs: U16, out: U16) -> None:
    """out = silu(gate) * up (bf16) of `pairs`, blocks of 32 gate | 32 up; len(out) a multiple of 32."""
    if pairs.size != 2 * out.size or out.size % 32:
        raise ValueError(f"{pairs.size} values are no 32 | 32 pairs for {out.size} outputs")
    lib.host_swiglu_pairs(pointer(pairs), out.size, pointer(out))


def bf16_to_f32(bits: U16, out: F32) -> None:
    """bf16 bits to float32; both contiguous and of one size."""
    _flat(bits, out)
    lib.host_bf16_to_f32(pointer(bits), pointer(out), out.size)


def f32_to_bf16(values: F32, out: U16) -> None:
    """float32 to bf16 bits, rounded half to even; both contiguous and of one size."""
    _flat(values, out)
    lib.host_f32_to_bf16(pointer(values), pointer(out), out.size)


def matmul(a: F32, b: F32, out: F32) -> None:
    """out [m, n] = a [m, k] b [k, n] in float32, on the calling thread; n a multiple of 16."""
    (m, k), n = a.shape, b.shape[1]
    if n % 16 or b.shape[0] != k or out.shape != (m, n):
        raise ValueError(f"{a.shape} x {b.shape} -> {out.shape}: n must be a multiple of 16")
    lib.host_matmul(
        pointer(a), row_stride(a, k), pointer(b), row_stride(b, n), pointer(out), row_stride(out, n), m, n, k
    )


def _flat(a: NDArray[Any], b: NDArray[Any]) -> None:
    if a.size != b.size or not a.flags.c_contiguous or not b.flags.c_contiguous:
        raise ValueError(f"contiguous arrays of one size are needed, not {a.shape} and {b.shape}")
