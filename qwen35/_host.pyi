"""Types of the C extension of the host's share of the model (csrc/*.cdef.h)."""

from typing import Any

class _Lib:
    HOST_DELTA_CHUNK: int
    def fmt_bfp16_encode(self, src: Any, bf16: int, stride: int, rows: int, k: int, dst: Any, /) -> int: ...
    def fmt_bfp16_decode(self, src: Any, k: int, index: Any, count: int, dst: Any, /) -> None: ...
    def fmt_bfp6s_encode(self, src: Any, bf16: int, stride: int, rows: int, k: int, dst: Any, /) -> int: ...
    def fmt_bfp6s_decode(self, src: Any, k: int, index: Any, count: int, dst: Any, /) -> None: ...
    def host_set_threads(self, count: int, /) -> int: ...
    def host_threads(self) -> int: ...
    def host_fma(self, rounds: int, /) -> int: ...
    def host_isa(self) -> Any: ...
    def host_set_isa(self, name: Any, /) -> int: ...
    def host_norm_rows(
        self,
        d: Any,
        x: Any,
        rows: int,
        adds: Any,
        add_strides: Any,
        out: Any,
        out_stride: int,
        proj_out: Any,
        /,
    ) -> int: ...
    def host_swiglu_pairs(self, pairs: Any, count: int, out: Any, /) -> None: ...
    def host_bf16_to_f32(self, src: Any, dst: Any, count: int, /) -> None: ...
    def host_f32_to_bf16(self, src: Any, dst: Any, count: int, /) -> None: ...
    def host_will_need(self, starts: Any, count: int, bytes: int, /) -> None: ...
    def host_fetch(self, start: Any, bytes: int, /) -> None: ...
    def host_populate(self, start: Any, bytes: int, /) -> int: ...
    def host_matmul(
        self, a: Any, lda: int, b: Any, ldb: int, c: Any, ldc: int, m: int, n: int, k: int, /
    ) -> None: ...
    def host_delta_prefill(
        self,
        d: Any,
        y: Any,
        y_stride: int,
        gates: Any,
        rows: int,
        conv_in: Any,
        conv_out: Any,
        state_in: Any,
        state_out: Any,
        out: Any,
        out_stride: int,
        /,
    ) -> int: ...
    def host_delta_rest(self, d: Any, /) -> int: ...
    def host_delta_step(
        self, d: Any, y: Any, gates: Any, conv_in: Any, state_in: Any, out: Any, rest: Any, /
    ) -> int: ...
    def host_delta_write(
        self, d: Any, y: Any, conv_in: Any, conv_out: Any, state_in: Any, state_out: Any, rest: Any, /
    ) -> int: ...
    def host_attn_prefill(
        self,
        d: Any,
        y: Any,
        y_stride: int,
        rows: int,
        past: int,
        cosines: Any,
        sines: Any,
        keys: Any,
        values: Any,
        out: Any,
        out_stride: int,
        /,
    ) -> int: ...
    def host_attn_step(
        self, d: Any, y: Any, past: int, cosines: Any, sines: Any, keys: Any, values: Any, out: Any, /
    ) -> int: ...
    def resize_rows_u8(
        self,
        src: Any,
        lines: int,
        size_in: int,
        size_out: int,
        first: Any,
        count: Any,
        weights: Any,
        taps: int,
        precision: int,
        dst: Any,
        /,
    ) -> None: ...
    def resize_lines_u8(
        self,
        src: Any,
        width: int,
        size_out: int,
        first: Any,
        count: Any,
        weights: Any,
        taps: int,
        precision: int,
        dst: Any,
        /,
    ) -> None: ...
    def host_layer_norm_rows(
        self, d: Any, x: Any, rows: int, adds: Any, add_strides: Any, out: Any, out_stride: int, /
    ) -> int: ...
    def host_activate_rows(
        self,
        kind: int,
        dim: int,
        rows: int,
        adds: Any,
        add_strides: Any,
        count: int,
        factors: Any,
        out: Any,
        out_stride: int,
        /,
    ) -> int: ...
    def host_full_attn_floats(self, d: Any, rows: int, /) -> int: ...
    def host_full_attn_load(
        self,
        d: Any,
        rows: int,
        first: int,
        end: int,
        qkv: Any,
        qkv_stride: int,
        cosines: Any,
        sines: Any,
        scratch: Any,
        /,
    ) -> int: ...
    def host_full_attn_part(
        self,
        d: Any,
        rows: int,
        first: int,
        end: int,
        key: int,
        key_end: int,
        head: int,
        head_end: int,
        scratch: Any,
        out: Any,
        out_stride: int,
        /,
    ) -> int: ...

ffi: Any
lib: _Lib
