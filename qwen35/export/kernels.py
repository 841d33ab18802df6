"""The emulated NPU's kernels of a bundle: xclbins, instruction streams and their manifest records.

Contexts `gemm` (prompt), `gemv` (decode) and, with a tower, `vision`; one xclbin serves every shape of a
family, shapes travel in the streams (amdxdna.emu.kernels.stream).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amdxdna.emu.kernels import stream

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig
    from qwen35.bundle.writer import BundleWriter

__all__ = ["Gemm", "Gemv", "text_gemms", "text_gemvs", "write_kernels"]


@dataclass(frozen=True)
class Gemm:
    """A GEMM over 1..chunks chunks of m rows; the flags are those of amdxdna.emu.kernels.stream."""

    key: str
    m: int
    k: int
    n: int
    lda: int
    c_stride: int
    chunks: int
    swiglu: bool = False
    bias: bool = False
    gelu: bool = False
    pair: bool = False
    ctx: str = "gemm"


@dataclass(frozen=True)
class Gemv:
    """A decode GEMV of m outputs."""

    key: str
    m: int
    k: int


def text_gemms(config: ModelConfig) -> list[Gemm]:
    """The prompt GEMMs. C of `gu` has rows of n_down*D elements, so that `down` reads its slices in place."""
    c, chunks = config, config.max_prompt // config.chunk
    wide = c.n_down * c.hidden_size
    out = []
    if "lin" in c.layer_types:
        out.append(Gemm("lin", c.chunk, c.hidden_size, c.n_lin, c.hidden_size, c.n_lin, chunks))
    if "att" in c.layer_types:
        out.append(Gemm("att", c.chunk, c.hidden_size, c.n_att, c.hidden_size, c.n_att, chunks))
    return [
        *out,
        Gemm("o", c.chunk, c.o_in, c.hidden_size, c.o_in, c.hidden_size, chunks),
        Gemm("gu", c.chunk, c.hidden_size, 2 * c.intermediate_size, c.hidden_size, wide, chunks, swiglu=True),
        Gemm("down", c.chunk, c.hidden_size, c.hidden_size, wide, c.hidden_size, chunks),
    ]


def text_gemvs(config: ModelConfig) -> list[Gemv]:
    """The decode GEMVs, the head's included."""
    c = config
    out = [Gemv("lin", c.n_lin, c.hidden_size)] if "lin" in c.layer_types else []
    out += [Gemv("att", c.n_att, c.hidden_size)] if "att" in c.layer_types else []
    return [
        *out,
        Gemv("o", c.hidden_size, c.o_in),
        Gemv("gu", 2 * c.intermediate_size, c.hidden_size),
        Gemv("down", c.hidden_size, c.hidden_size),
        Gemv("head", c.head_rows, c.hidden_size),
    ]


def write_kernels(writer: BundleWriter, config: ModelConfig, vision: list[Gemm]) -> None:
    """Writes xclbins, streams and the records of the text model and of the tower's GEMMs."""
    from amdxdna.emu.xclbins import KERNEL_NAME, xclbin_bytes

    for ctx, family in (("gemm", "gemm"), ("gemv", "gemv"), *([("vision", "gemm")] if vision else [])):
        file = f"kernels/{ctx}.xclbin"
        writer.file(file, xclbin_bytes(family, "vision" if ctx == "vision" else ""))
        writer.record("xclbin", ctx, file, KERNEL_NAME)
    for gemm in text_gemms(config):
        _write_gemm(writer, gemm, config.gemv_format)
    for gemv in text_gemvs(config):
        _write_gemv(writer, gemv, config.gemv_format)
    for gemm in vision:
        _write_gemm(writer, gemm, "bfp16")


def _write_gemm(writer: BundleWriter, g: Gemm, weights: str) -> None:
    kind = stream.FORMATS[weights]
    flags = (stream.BIAS if g.bias else 0) | (stream.PAIR if g.pair else 0)
    for chunks in range(1, g.chunks + 1):
        file = f"kernels/{g.ctx}_{g.key}_x{chunks}.bin"
        writer.file(
            file,
            stream.gemm(
                g.m,
                g.k,
                g.n,
                chunks=chunks,
                lda=g.lda,
                c_stride=g.c_stride,
                swiglu=g.swiglu,
                bias=g.bias,
                gelu=g.gelu,
                pair=g.pair,
                format=kind,
            ),
        )
        rows = chunks * g.m
        spans = {"a_elems": rows * g.lda, "c_elems": rows * g.c_stride, "insts": file}
        if chunks > 1:
            writer.record("gemm_chunks", g.key, chunks, **spans)
            continue
        context = {} if g.ctx == "gemm" else {"ctx": g.ctx}
        writer.record(
            "gemm",
            g.key,
            M=g.m,
            K=g.k,
            N=g.n,
            lda=g.lda,
            c_stride=g.c_stride,
            b_bytes=stream.weight_bytes(g.n, g.k, kind, flags),
            **spans,
            **context,
        )


def _write_gemv(writer: BundleWriter, g: Gemv, weights: str) -> None:
    kind, file = stream.FORMATS[weights], f"kernels/gemv_{g.key}.bin"
    writer.file(file, stream.gemv(g.m, g.k, format=kind))
    words = stream.weight_bytes(g.m, g.k, kind) // 4
    writer.record("gemv", g.key, M=g.m, K=g.k, w_words=words, insts=file)
