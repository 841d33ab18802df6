"""execute(): operands are checked before anything runs, streams and families, DELAY / HANG / FAIL; PDIs."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amdxdna.emu import _kernels, kernels, xclbins
from amdxdna.emu.kernels import Family, isa, measure, model, stream
from amdxdna.emu.kernels.stream import BFP6S, BFP16, Copy, Delay, Fail, Gemm, Gemv, Hang
from tests.support import shortage, workers
from tests.support.kernel_cases import ISAS, bf16, gemm_model, integer_stream
from tests.support.program import python
from tests.support.threads import in_threads

PAGE = mmap.PAGESIZE


class Refused(Exception):
    """A resolver's own exception."""


def grant(array: Any, asked: list[int] | None = None) -> Callable[[int], int]:
    """A resolver of `array` that grants its bytes and no more."""

    def resolve(nbytes: int) -> int:
        if asked is not None:
            asked.append(nbytes)
        if nbytes > array.nbytes:
            raise Refused(f"{nbytes} of {array.nbytes}")
        return int(array.ctypes.data)

    return resolve


def operands(op: Gemm) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    a = bf16(rng.integers(-9, 10, op.a_bytes // 2))
    return a, integer_stream(rng, op.n, op.k, op.format), np.zeros(op.c_bytes // 2, np.uint16)


GEMM = Gemm(3, 2, 128, 16, 130, 20, 0, BFP16, stream.weight_bytes(16, 128))


def test_a_gemm_asks_for_exactly_its_spans_and_runs() -> None:
    a, b, c = operands(GEMM)
    asked: list[int] = []
    args = [grant(x, asked) for x in (a, b, c)]
    result = kernels.execute(stream.program([GEMM]), Family.GEMM, args, threads=1)
    assert result == (kernels.OK, 0, "")
    assert asked == [2 * (5 * 130 + 128), 16 * 16 * 9, 2 * (5 * 20 + 16)]
    expected = gemm_model(GEMM, a, b)
    mask = expected != 0x7E57
    np.testing.assert_array_equal(c[mask], expected[mask])
    assert not c[~mask].any()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_operand_one_byte_short_runs_nothing(which: int) -> None:
    """Even when the short operand is the second op's, the first op has not run."""
    small, large = GEMM, Gemm(3, 3, 128, 16, 130, 20, 0, BFP16, GEMM.b_bytes)
    wide = Gemm(3, 2, 128, 24, 130, 24, 0, BFP16, stream.weight_bytes(24, 128))
    second = [large, wide, large][which]
    arrays = list(operands(second))
    arrays[which] = arrays[which].view(np.uint8)[:-1]
    with pytest.raises(Refused):
        kernels.execute(stream.program([small, second]), Family.GEMM, [grant(x) for x in arrays])
    assert not arrays[2].view(np.uint8).any()


def test_too_few_arguments_and_odd_addresses() -> None:
    a, b, c = operands(GEMM)
    result = kernels.execute(stream.program([GEMM]), Family.GEMM, [grant(a), grant(b)])
    assert (result.status, result.op) == (kernels.INVALID, 0)
    assert "takes 3 arguments, not 2" in result.message
    odd = [lambda n: a.ctypes.data + 1, grant(b), grant(c)]
    result = kernels.execute(stream.program([Delay(0), GEMM]), 1, odd, wait=lambda s: False)
    assert (result.status, result.op) == (kernels.INVALID, 1)
    assert "aligned" in result.message
    assert not c.any()


@pytest.mark.parametrize(
    ("family", "data", "why"),
    [
        (Family.GEMV, stream.program([GEMM]), "GEMM does not run in a gemv PDI"),
        (Family.GEMM, stream.gemv(8, 8), "GEMV does not run in a gemm PDI"),
        (Family.COPY, stream.gemv(8, 8), "does not run in a copy PDI"),
        (9, stream.hang(), "family 9"),
        (Family.GEMM, b"\0" * 64, "compiled AIE code"),
        (Family.GEMM, stream.program([GEMM])[:-4], "remain"),
    ],
)
def test_streams_that_do_not_run(family: int, data: bytes, why: str) -> None:
    def never(nbytes: int) -> int:
        raise AssertionError("resolved an operand of a stream that cannot run")

    result = kernels.execute(data, family, [never] * 3)
    assert result.status == kernels.INVALID
    assert why in result.message


def test_copy_adds_modulo_two_to_the_32() -> None:
    src = np.array([0, 1, 0xFFFFFFFF, 0x80000000], np.uint32)
    dst = np.zeros(5, np.uint32)
    data = stream.program([Copy(16, 5)])
    assert kernels.execute(data, Family.COPY, [grant(src), grant(dst)]).status == kernels.OK
    assert dst.tolist() == [5, 6, 4, 0x80000005, 0]


def test_gemv_both_formats() -> None:
    rng = np.random.default_rng(2)
    for format in (BFP16, BFP6S):
        op = Gemv(16, 128, 0, format, stream.weight_bytes(16, 128, format))
        x, w = bf16(rng.integers(-9, 10, 128)), integer_stream(rng, 16, 128, format)
        y = np.zeros(16, np.uint16)
        expected = np.zeros(16, np.uint16)
        model.gemv(op, x, w, expected)
        assert kernels.execute(stream.program([op]), 2, [grant(x), grant(w), grant(y)]).status == 0
        np.testing.assert_array_equal(y, expected)


def test_ops_share_arguments_and_run_in_order() -> None:
    src, dst = np.array([1, 2], np.uint32), np.zeros(2, np.uint32)
    data = stream.program([Copy(8, 10), Fail(0x77), Copy(8, 20)])
    result = kernels.execute(data, Family.COPY, [grant(src), grant(dst)])
    assert (result.status, result.op) == (0x77, 1)
    assert dst.tolist() == [11, 12]


def test_instant_checks_operands_but_computes_nothing() -> None:
    a, b, c = operands(GEMM)
    data = stream.program([Delay(10**9), GEMM])
    args = [grant(a), grant(b), grant(c)]
    c[:] = 7
    assert kernels.execute(data, 1, args, instant=True).status == kernels.OK
    # But for what shows that it ran: the first element and the last row.
    assert not c[0] and not c[-16:].any() and set(c[1:-16]) == {7}
    with pytest.raises(Refused):
        kernels.execute(data, 1, [grant(a[:-1]), *args[1:]], instant=True)
    assert kernels.execute(stream.fail(3), 1, [], instant=True).status == 3


def test_delay_and_hang_wait_through_the_caller() -> None:
    waits: list[float | None] = []

    def wait(seconds: float | None) -> bool:
        waits.append(seconds)
        return seconds is None and len(waits) > 3

    data = stream.program([Delay(2500), Hang(), Fail(1)])
    result = kernels.execute(data, Family.GEMV, [], wait=wait)
    assert (result.status, result.op) == (kernels.ABORTED, 1)
    assert waits == [0.0025, None, None, None]
    result = kernels.execute(stream.delay(1), Family.GEMV, [], wait=lambda s: True)
    assert (result.status, result.op) == (kernels.ABORTED, 0)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("format", [BFP16, BFP6S])
@pytest.mark.parametrize("rows", [0, 1, 13])
def test_nothing_is_touched_beside_the_operands(name: str, format: int, rows: int) -> None:
    """Every operand ends at an unmapped page, then begins after one. A stray access kills the child.

    The child has no kernel threads of its parent's: the pool starts anew in it.
    """
    kernel_isa = isa.variants().index(name) + 1
    lib, k, n, never = _kernels.lib, 256, 72, _kernels.ffi.NULL
    sizes = (2 * k * max(rows, 1), stream.weight_bytes(n, k, format), 2 * n * max(rows, 1))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for at_end in (True, False):
                at = [fenced(size, at_end) for size in sizes]
                ctypes.memset(at[0], 0x3F, sizes[0])
                if rows:
                    status = lib.emu_gemm(*at, rows, k, n, k, n, 0, format, 2, kernel_isa, never)
                else:
                    status = lib.emu_gemv(*at, n, k, 0, format, 2, kernel_isa, never)
                if status:
                    raise AssertionError
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def fenced(nbytes: int, at_end: bool) -> int:
    """An address of `nbytes` bytes that end (or begin) at a page nobody may touch."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = -(-nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    view = ctypes.c_char.from_buffer(memory)
    base = ctypes.addressof(view)
    keep.append((memory, view))
    for page in (0, pages + 1):
        assert libc.mprotect(ctypes.c_void_p(base + page * PAGE), PAGE, 0) == 0
    return base + PAGE + (pages * PAGE - nbytes if at_end else 0)


keep: list[Any] = []


def test_many_threads_at_once() -> None:
    """Callers take turns; each gets its own right answer."""
    rng = np.random.default_rng(3)
    op = Gemv(512, 256, 0, BFP16, stream.weight_bytes(512, 256))
    data, w = stream.program([op]), integer_stream(rng, 512, 256, BFP16)

    def work(seed: int) -> None:
        x = bf16(np.random.default_rng(seed).integers(-9, 10, 256))
        expected = np.zeros(512, np.uint16)
        model.gemv(op, x, w, expected)
        for _ in range(40):
            y = np.zeros(512, np.uint16)
            kernels.execute(data, 2, [grant(x), grant(w), grant(y)], threads=3)
            np.testing.assert_array_equal(y, expected)

    in_threads(6, work)


def test_kernel_threads_take_a_share_and_no_signals() -> None:
    """As many as asked for, at most 64, by default one a processor that may be used; after a fork anew."""
    op = Gemm(256, 1, 1024, 2048, 1024, 2048, 0, BFP16, stream.weight_bytes(2048, 1024))
    arrays = [np.zeros(size // 2, np.uint16) for size in op.spans()]
    arrays[0][:] = 0x3F80
    data, args = stream.program([op]), [grant(array) for array in arrays]

    def compute(threads: int) -> None:
        assert kernels.execute(data, Family.GEMM, args, threads=threads) == (kernels.OK, 0, "")

    compute(3)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            processors = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {min(processors)})
            compute(0)
            workers.counted(1)
            os.sched_setaffinity(0, processors)
            for threads, count in ((0, len(processors)), (3, max(3, len(processors))), (65, 64), (2, 64)):
                compute(threads)
                workers.counted(count)
            assert workers.masks() == [0] + [workers.ALL] * 63
            workers.shared(lambda: compute(2))
            assert all(
                os.sched_getaffinity(int(task)) == processors for task in os.listdir("/proc/self/task")
            )
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    workers.shared(lambda: compute(2))


SHORT = """
import numpy as np
from amdxdna.emu import kernels
from amdxdna.emu.kernels import Family, stream
from amdxdna.emu.kernels.stream import BFP16, Gemm, Gemv
weights = stream.weight_bytes(64, 64)
for family, op, allowances in ((Family.GEMV, Gemv(64, 64, 0, BFP16, weights), (0, 1)),
                               (Family.GEMM, Gemm(3, 1, 64, 64, 64, 64, 0, BFP16, weights), (0, 1, 1, 1))):
    ones, w, result = (np.zeros(size, np.uint8) for size in op.spans())
    ones.view(np.uint16)[:] = 0x3F80
    w.reshape(-1, 9)[:] = [133] + [1] * 8
    for allowed.value in allowances:
        at = [lambda _, array=array: array.ctypes.data for array in (ones, w, result)]
        ended = kernels.execute(stream.program([op]), family, at, threads=1)
        right = (result.view(np.uint16) == 0x4280).all()
        print(ended.status == kernels.OK, "out of memory" in ended.message, right)
"""


def test_kernels_without_memory_say_so_and_work_when_there_is_some(tmp_path: Path) -> None:
    """At each place where they ask for some; 64 products of ones are 64."""
    refused, done = "False True False", "True False True"
    assert shortage.run(SHORT, tmp_path) == [refused, done, refused, refused, refused, done]


def test_memory_that_was_too_small_is_given_back() -> None:
    """x's entries take 64 bytes a value: 800 MB, were they kept for every length."""

    def lengthen() -> None:
        for k in range(64_000, 64_000 + 200 * 64, 64):
            x, w, y = (np.zeros(size, np.uint8) for size in (2 * k, 9 * k, 16))
            op = Gemv(8, k, 0, BFP16, 9 * k)
            at = [grant(array) for array in (x, w, y)]
            assert kernels.execute(stream.program([op]), Family.GEMV, at, threads=1).status == kernels.OK

    assert shortage.within(200 << 20, lengthen)


@pytest.mark.parametrize("name", [*ISAS, ""])
def test_environment_chooses_the_variant(name: str) -> None:
    code = "from amdxdna.emu.kernels import isa; print(isa.variants()[isa.chosen() - 1])"
    done = python("-c", code, env={isa.VARIABLE: name}, check=True)
    assert done.stdout.strip() == (name or ISAS[-1])


def test_an_unknown_variant_is_an_error_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(isa.VARIABLE, "avx9000")
    isa.chosen.cache_clear()
    a, b, c = operands(GEMM)
    result = kernels.execute(stream.program([GEMM]), 1, [grant(a), grant(b), grant(c)])
    monkeypatch.undo()
    isa.chosen.cache_clear()
    assert result.status == kernels.INVALID
    assert "AMDXDNA_EMU_ISA=avx9000" in result.message
    assert "portable" in result.message
    assert not c.any()


@pytest.mark.parametrize("family", list(Family))
def test_pdi_and_xclbin_name_their_family(family: Family) -> None:
    blob = kernels.pdi(family)
    assert blob[:16] == b"AMDXDNA-EMU-PDI\0"
    assert blob[16:24] == bytes([1, 0, 0, 0, family, 0, 0, 0])
    assert blob[24:56].rstrip(b"\0").decode() == family.label
    assert len(blob) == 64
    assert kernels.family_of(memoryview(blob + b"more")) is family

    from amdxdna.xclbin import Xclbin

    made = xclbins.xclbin_bytes(family.label)
    assert made == xclbins.xclbin_bytes(family)
    read = Xclbin.read(made)
    assert read.kernels == ("MLIR_AIE",)
    assert [kernels.family_of(pdi.data) for pdi in read.pdis] == [family]
    assert read.partition.column_width == 8


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (b"", "compiled AIE code is not interpreted"),
        (b"\xdd\0\0\0" * 32, "compiled AIE code is not interpreted"),
        (kernels.pdi(Family.GEMM)[:40], "40 of 64 bytes"),
        (kernels.pdi(Family.GEMM)[:16] + b"\2" + kernels.pdi(Family.GEMM)[17:], "version 2"),
        (kernels.pdi(Family.GEMM)[:20] + b"\x63" + kernels.pdi(Family.GEMM)[21:], "family 99"),
    ],
)
def test_pdis_that_are_not_ours(blob: bytes, why: str) -> None:
    with pytest.raises(kernels.UnknownPdi, match=why):
        kernels.family_of(blob)


def test_unknown_family_name() -> None:
    with pytest.raises(ValueError, match="known: gemm, gemv, copy"):
        xclbins.xclbin_bytes("fft")


def test_a_key_makes_an_xclbin_of_its_own() -> None:
    from amdxdna.xclbin import Xclbin

    plain, own = (Xclbin.read(xclbins.xclbin_bytes("gemm", key)) for key in ("", "vision"))
    assert plain.uuid != own.uuid and plain.digest != own.digest  # the pool shares by digest
    assert plain.kernels == own.kernels
    assert [p.data for p in plain.pdis] == [p.data for p in own.pdis]
    assert xclbins.xclbin_bytes("gemm", "vision") == xclbins.xclbin_bytes("gemm", "vision")


@pytest.mark.parametrize("threads", [1, 3])
def test_read_probe_reads_everything(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exclusive-or of all words, whatever the threads; the bandwidth is the best pass's."""
    words = np.random.default_rng(5).integers(0, 1 << 63, 8 * 6001, np.uint64)
    lib = _kernels.lib
    expected = int(np.bitwise_xor.reduce(words))
    assert lib.emu_read(words.ctypes.data, words.nbytes, threads) == expected
    times = iter((0.0, 10.0, 10.5, 20.0, 20.25, 30.0, 31.0))
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert measure.read_bandwidth(nbytes=1 << 21, threads=threads, seconds=25) == (1 << 21) / 0.25
