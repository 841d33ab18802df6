"""The DeltaNet mixer (gated delta rule, linear attention) of one layer, on the host.

Input: the `lin` projection's rows, bf16 [n, >= n_lin], q | k | v | z, and the gates b | a in float32. State:
the last conv_k - 1 convolution inputs (bf16, exact) and one float32 matrix [dk, dv] a value head. A prompt
runs in the chunked form, chunks of 64 tokens (Yang et al. 2024, "Gated Delta Networks"); a token runs the
recurrence, in two halves: its output, and the new state, which nothing needs before the next token. State in
and state out are separate, so a step that is interrupted leaves the old state whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qwen35._host import ffi, lib
from qwen35.host import check, pointer, row_stride

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig

__all__ = ["DeltaNet", "LinearState"]

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]


class LinearState:
    """One layer's state: `conv` bf16 [conv_k - 1, conv_dim] and `matrices` float32 [lin_heads, dk, dv].

    `matrices` must start at a multiple of 64 bytes. The C pointers are kept beside the arrays.
    """

    def __init__(self, conv: U16, matrices: F32) -> None:
        self.conv, self.matrices = conv, matrices
        self.conv_pointer, self.matrices_pointer = pointer(conv), pointer(matrices)

    def fetch(self) -> None:
        """Brings it into the caches: a step that reads it comes soon."""
        lib.host_fetch(self.matrices_pointer, self.matrices.nbytes)
        lib.host_fetch(self.conv_pointer, self.conv.nbytes)


class DeltaNet:
    """One layer's mixer. Immutable; calls on different states may run at once.

    taps float32 [conv_dim, conv_k], decay (A = -exp(A_log)) and dt_bias [lin_heads], norm [lin_hv] (plain).
    `gate_cols` is the row length of the gates, b in columns 0.., a in columns lin_heads.. .
    """

    def __init__(
        self, config: ModelConfig, taps: F32, decay: F32, dt_bias: F32, norm: F32, gate_cols: int
    ) -> None:
        self.columns, self.width, self.gate_cols = config.n_lin, config.lin_value, gate_cols
        self._keep = [np.ascontiguousarray(a, np.float32) for a in (taps.T, decay, dt_bias, norm)]
        names = ("taps", "decay", "dt_bias", "norm")
        self._struct = ffi.new(
            "host_delta *",
            {
                "key_heads": config.linear_num_key_heads,
                "value_heads": config.linear_num_value_heads,
                "dk": config.linear_key_head_dim,
                "dv": config.linear_value_head_dim,
                "conv_k": config.linear_conv_kernel_dim,
                "gate_cols": gate_cols,
                "eps": config.rms_norm_eps,
                **{name: pointer(array) for name, array in zip(names, self._keep, strict=True)},
            },
        )

    def prefill(self, y: U16, gates: F32, before: LinearState | None, after: LinearState, out: U16) -> None:
        """n tokens: y bf16 [n, >= n_lin], gates float32 [n, gate_cols] -> out bf16 [n, >= lin_value].

        `before` None is an empty state; `after` may be `before`.
        """
        rows = len(gates)
        if min(len(y), len(out)) < rows or gates.shape[1] != self.gate_cols:
            raise ValueError(f"{rows} rows of gates, {len(y)} of input, {len(out)} of output")
        if before is None:
            after.conv[:] = 0
        check(
            lib.host_delta_prefill(
                self._struct,
                pointer(y),
                row_stride(y, self.columns),
                pointer(gates),
                rows,
                after.conv_pointer if before is None else before.conv_pointer,
                after.conv_pointer,
                ffi.NULL if before is None else before.matrices_pointer,
                after.matrices_pointer,
                pointer(out),
                row_stride(out, self.width),
            )
        )

    def fetch(self) -> None:
        """Brings the convolution's taps into the caches: a step comes soon."""
        lib.host_fetch(self._struct.taps, self._keep[0].nbytes)

    @property
    def rest(self) -> int:
        """Floats that `step` leaves to `write`."""
        return int(lib.host_delta_rest(self._struct))

    def step(self, y: Any, gates: Any, before: LinearState, out: Any, rest: Any) -> None:
        """One token's output, as C pointers: y bf16 [n_lin], gates float32 [gate_cols], out bf16 [lin_value].

        Fills `rest` for `write`; the state stays as it is.
        """
        check(
            lib.host_delta_step(
                self._struct, y, gates, before.conv_pointer, before.matrices_pointer, out, rest
            )
        )

    def write(self, y: Any, before: LinearState, after: LinearState, rest: Any) -> None:
        """The state after a token, given `y`, `before` and `rest` as `step` had and left them."""
        check(
            lib.host_delta_write(
                self._struct,
                y,
                before.conv_pointer,
                after.conv_pointer,
                before.matrices_pointer,
                after.matrices_pointer,
                rest,
            )
        )
