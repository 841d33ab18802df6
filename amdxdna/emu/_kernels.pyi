"""Types of the C extension behind the emulated NPU's kernels (csrc/kernels.cdef.h)."""

from typing import Any

class _Lib:
    def emu_gemm(
        self,
        a: int,
        b: int,
        c: int,
        rows: int,
        k: int,
        n: int,
        lda: int,
        c_stride: int,
        flags: int,
        format: int,
        threads: int,
        isa: int,
        stop: Any,
        /,
    ) -> int: ...
    def emu_gemv(
        self,
        x: int,
        w: int,
        y: int,
        m: int,
        k: int,
        flags: int,
        format: int,
        threads: int,
        isa: int,
        stop: Any,
        /,
    ) -> int: ...
    def emu_copy(self, src: int, dst: int, nbytes: int, addend: int, stop: Any, /) -> int: ...
    def emu_read(self, src: int, nbytes: int, threads: int, /) -> int: ...
    def emu_timer_slack(self, nanoseconds: int, /) -> int: ...
    def emu_isa_name(self, index: int, /) -> Any: ...
    def emu_isa_supported(self, index: int, /) -> int: ...
    def emu_isa_default(self) -> int: ...

ffi: Any
lib: _Lib
