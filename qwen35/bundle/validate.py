"""Do a bundle's params, kernel records and tensors agree?

Where the kernels are the emulated NPU's, every packed stream must be exactly as long as its records say.
Compiled kernels read streams whose layout only they know. Of their bundles two grades of things are found:
what this runtime relies on is refused, and what is only unusual becomes one of `Bundle.warnings`, since the
public reference runtime, which checks none of it, runs such a bundle. Relied on are the strides of rows that
the host writes and reads, the sizes of host tensors, and the head's rows, which embeddings are decoded from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from qwen35.bundle.config import ModelConfig, VisionConfig
from qwen35.bundle.errors import BundleError
from qwen35.bundle.manifest import Manifest
from qwen35.bundle.specs import GemmSpec, GemvSpec
from qwen35.bundle.tensors import Store

__all__ = ["check_model", "stream_bytes", "text_tensors"]


IN_PLACE = ("down", "v_fc2")
"""GEMMs whose A another GEMM writes: no host row has their stride."""


def stream_bytes(rows: int, k: int, gemv_format: str) -> int:
    """Bytes of a head-layout stream of `rows` outputs over `k` inputs (whole groups of 8 rows)."""
    groups = -(-rows // 8)
    return groups * (k // 128) * 832 if gemv_format == "bfp6s" else groups * (k // 8) * 72


def text_tensors(config: ModelConfig) -> dict[str, tuple[str, str]]:
    """The text model's packed streams: tensor name -> (GEMM key or "", GEMV key)."""
    out = {}
    for i, kind in enumerate(config.layer_types):
        out[f"l{i}.g.in"] = (kind, kind)
        out[f"l{i}.g.o"] = ("o", "o")
        out[f"l{i}.g.gu"] = ("gu", "gu")
        for j in range(config.n_down):
            out[f"l{i}.g.down{j}"] = ("down", "down")
    for j in range(config.n_head):
        out[f"head{j}"] = ("", "head")
    return out


class Opened(Protocol):
    """What is checked: a bundle's records and tensors (:class:`qwen35.bundle.bundle.Bundle`)."""

    warnings: list[BundleError]
    manifest: Manifest
    tensors: Store
    gemms: dict[str, GemmSpec]
    gemvs: dict[str, GemvSpec]

    @property
    def config(self) -> ModelConfig: ...

    @property
    def emulated(self) -> bool: ...

    def unusual(self, error: BundleError) -> None:
        """Notes a warning, or raises it where nothing unusual is expected."""


def check_model(bundle: Opened) -> None:
    """Raises BundleError for the first thing missing or of the wrong size, naming file and line."""
    config = bundle.config
    if bundle.emulated and bundle.warnings:
        raise bundle.warnings[0]
    _Checker(bundle, config).text()
    if config.vision is not None:
        _Checker(bundle, config).vision(config.vision)


@dataclass
class _Checker:
    bundle: Opened
    config: ModelConfig

    def fail(self, line: int, message: str) -> None:
        raise BundleError(self.bundle.manifest.path, line, message)

    def unusual(self, line: int, message: str) -> None:
        self.bundle.unusual(BundleError(self.bundle.manifest.path, line, message))

    def gemm(self, key: str, k: int, n: int, columns: int, row: int | None = None) -> GemmSpec:
        """The GEMM `key`, which must multiply K = k into at least n columns, C holding `columns` a row."""
        spec = self.bundle.gemms.get(key)
        if spec is None:
            raise BundleError(self.bundle.manifest.path, 0, f"gemm {key} is missing")
        rows = self.config.chunk if row is None else row
        if spec.m != rows:
            self.fail(spec.line, f"gemm {key}: M={spec.m}, but a chunk has {rows} rows")
        if spec.k != k:
            self.fail(spec.line, f"gemm {key}: K={spec.k}, the model has {k}")
        if spec.n < n:
            # the tower takes its columns by N, the text model by its own widths
            self._grade(key.startswith("v_"), spec.line, f"gemm {key}: N={spec.n}, the model has {n}")
        if spec.lda < k and key not in IN_PLACE:
            self.fail(spec.line, f"gemm {key}: lda={spec.lda} is less than a row's {k}")
        if spec.c_stride < columns:
            self.fail(spec.line, f"gemm {key}: c_stride={spec.c_stride} is less than a row's {columns}")
        if self.bundle.emulated:
            self._spans(spec)
        return spec

    def _grade(self, relied_on: bool, line: int, message: str) -> None:
        (self.fail if relied_on else self.unusual)(line, message)

    def _spans(self, spec: GemmSpec) -> None:
        """The views must hold every row; what a compiler counts in them is its own, and buffers hold them."""
        for stream in spec.streams:
            rows = spec.m * stream.chunks - 1
            if stream.a_elems < rows * spec.lda + spec.k or stream.c_elems <= rows * spec.c_stride:
                self.fail(
                    stream.line,
                    f"gemm {spec.key}: a_elems={stream.a_elems} and c_elems={stream.c_elems} do not span "
                    f"{rows + 1} rows of strides lda={spec.lda} and c_stride={spec.c_stride}",
                )

    def gemv(self, key: str, m: int, k: int) -> GemvSpec:
        """The GEMV `key`, which must give at least m outputs of K = k inputs."""
        spec = self.bundle.gemvs.get(key)
        if spec is None:
            raise BundleError(self.bundle.manifest.path, 0, f"gemv {key} is missing")
        if spec.k != k:
            self.fail(spec.line, f"gemv {key}: K={spec.k}, the model has {k}")
        if spec.m < m:
            self.fail(spec.line, f"gemv {key}: M={spec.m}, the model has {m}")
        return spec

    def f32(self, name: str, *shape: int) -> None:
        self.bundle.tensors.expect(name, "f32", *shape)

    def stream(self, name: str, wanted: int, why: str, exact: bool, relied_on: bool = False) -> None:
        """The packed tensor `name` should have `wanted` bytes (at least, unless `exact`)."""
        info = self.bundle.tensors.info(name)
        if info.nbytes < wanted or (exact and info.nbytes != wanted):
            error = BundleError(
                self.bundle.tensors.index_path,
                info.line,
                f"tensor {name} is {info.nbytes:,} bytes, {why} takes {wanted:,}",
            )
            if exact or relied_on:
                raise error
            self.bundle.unusual(error)

    def text(self) -> None:
        c, inner = self.config, 2 * self.config.intermediate_size
        if "lin" in c.layer_types:
            self.gemm("lin", c.hidden_size, c.n_lin, c.n_lin)
            self.gemv("lin", c.n_lin, c.hidden_size)
        if "att" in c.layer_types:
            self.gemm("att", c.hidden_size, c.n_att, c.n_att)
            self.gemv("att", c.n_att, c.hidden_size)
        self.gemm("o", c.o_in, c.hidden_size, c.hidden_size)
        self.gemv("o", c.hidden_size, c.o_in)
        gu = self.gemm(
            "gu", c.hidden_size, c.intermediate_size, c.intermediate_size
        )  # N may count the pairs' products instead of gate and up
        pairs = self.gemv("gu", inner, c.hidden_size)
        if pairs.m % 64:
            self.fail(pairs.line, f"gemv gu: M={pairs.m} is no whole number of 32 | 32 pairs")
        down = self.gemm("down", c.hidden_size, c.hidden_size, c.hidden_size)
        self.gemv("down", c.hidden_size, c.hidden_size)
        self._in_place(down, gu, -(-c.max_prompt // c.chunk))
        head = self.gemv("head", c.head_rows, c.hidden_size)
        if head.m != c.head_rows:
            self.fail(head.line, f"gemv head: M={head.m}, param head_rows is {c.head_rows}")
        exact = self.bundle.emulated
        for name, (gemm, gemv) in text_tensors(c).items():
            if gemm:
                self.stream(name, self.bundle.gemms[gemm].b_bytes, f"b_bytes of gemm {gemm}", exact)
            if exact:
                self.stream(name, self.bundle.gemvs[gemv].w_bytes, f"w_words of gemv {gemv}", exact)
            if gemv == "head":
                # the host decodes embedding rows from it, so its layout is known everywhere
                self.stream(
                    name, stream_bytes(c.head_rows, c.hidden_size, c.gemv_format), c.gemv_format, exact
                )
                used = min(c.head_rows, max(c.vocab_size - int(name[4:]) * c.head_rows, 0))
                self.stream(
                    name,
                    stream_bytes(used, c.hidden_size, c.gemv_format),
                    c.gemv_format,
                    False,
                    c.tie_word_embeddings,
                )
        for i, kind in enumerate(c.layer_types):
            self._host(f"l{i}.h.", kind)
        self.f32("ln_f", c.hidden_size)
        if not c.tie_word_embeddings:
            self.bundle.tensors.expect("embed", "bf16", c.vocab_size, c.hidden_size)

    def _in_place(self, reader: GemmSpec, writer: GemmSpec, chunks: int) -> None:
        """`reader` takes its A where `writer` put its C, by strides that their streams hold.

        The records' numbers matter where a pass is split over several streams, whose parts the host places.
        """
        if reader.lda == writer.c_stride:
            return
        self._grade(
            chunks > min(reader.max_chunks, writer.max_chunks),
            reader.line,
            f"gemm {reader.key}: lda={reader.lda} differs from {writer.key.removeprefix('v_')}'s "
            f"c_stride={writer.c_stride}",
        )
        self.bundle.gemms[reader.key] = replace(reader, lda=writer.c_stride)

    def _host(self, at: str, kind: str) -> None:
        c = self.config
        self.f32(at + "ln1", c.hidden_size)
        self.f32(at + "ln2", c.hidden_size)
        if kind == "lin":
            self.f32(at + "ba", 2 * c.linear_num_value_heads, c.hidden_size)
            self.f32(at + "conv", c.conv_dim, c.linear_conv_kernel_dim)
            self.f32(at + "A", c.linear_num_value_heads)
            self.f32(at + "dt_bias", c.linear_num_value_heads)
            self.f32(at + "norm", c.linear_value_head_dim)
        else:
            self.f32(at + "q_norm", c.head_dim)
            self.f32(at + "k_norm", c.head_dim)

    def vision(self, v: VisionConfig) -> None:
        wide = v.n_merge * v.hidden_size
        for key in ("v_patch", "v_qkv", "v_proj", "v_fc1", "v_fc2", "v_m1", "v_m2"):
            if key not in self.bundle.gemms:
                raise BundleError(self.bundle.manifest.path, 0, f"gemm {key} is missing")
        rows = self.bundle.gemms["v_patch"].m
        self.gemm("v_patch", v.hidden_size, v.hidden_size, v.hidden_size, rows)
        self.gemm("v_qkv", v.hidden_size, 3 * v.hidden_size, 3 * v.hidden_size, rows)
        self.gemm("v_proj", v.hidden_size, v.hidden_size, v.hidden_size, rows)
        fc1 = self.gemm("v_fc1", v.hidden_size, v.intermediate_size, v.intermediate_size, rows)
        fc2 = self.gemm("v_fc2", v.hidden_size, v.hidden_size, v.hidden_size, rows)
        self._in_place(fc2, fc1, -(-v.max_patches // rows))
        merger = self.bundle.gemms["v_m1"].m
        for key, columns in (("v_m1", wide), ("v_m2", v.out_hidden_size)):
            spec = self.gemm(key, v.hidden_size, columns, columns, merger)
            if spec.lda < wide:
                self.fail(spec.line, f"gemm {key}: lda={spec.lda} is less than the merger's rows of {wide}")
        self.f32("vis.pos", v.pos_side * v.pos_side, v.hidden_size)
        self.f32("vis.m_ln_w", v.hidden_size)
        self.f32("vis.m_ln_b", v.hidden_size)
        self._weight("patch", "v_patch", v.hidden_size)
        for i in range(v.depth):
            for name in ("ln1_w", "ln1_b", "ln2_w", "ln2_b"):
                self.f32(f"vis.b{i}.{name}", v.hidden_size)
            self._weight(f"b{i}.qkv", "v_qkv", 3 * v.hidden_size)
            self._weight(f"b{i}.proj", "v_proj", v.hidden_size)
            self._weight(f"b{i}.fc1", "v_fc1", fc1.n)
            self._weight(f"b{i}.fc2", "v_fc2", v.hidden_size, v.n_fc2)
        self._weight("m1", "v_m1", wide, v.n_merge)
        self._weight("m2", "v_m2", v.out_hidden_size, v.n_merge)

    def _weight(self, name: str, gemm: str, outputs: int, slices: int = 0) -> None:
        """Weight `vis.NAME` (`slices` K slices of it) and its factors: a compiled bundle may do without."""
        exact, wanted = self.bundle.emulated, self.bundle.gemms[gemm].b_bytes
        for part in [f"vis.{name}.{j}" for j in range(slices)] or [f"vis.{name}"]:
            self.stream(part, wanted, f"b_bytes of gemm {gemm}", exact)
        vision, factors = self.config.vision, f"vis.{name}.f"
        if factors in self.bundle.tensors or (exact and vision is not None and vision.weights == "w8"):
            self.f32(factors, outputs)
