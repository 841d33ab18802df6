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
from qwen35.bundle.schema import packed_kernels, stream_bytes, text_schema, vision_schema
from qwen35.bundle.specs import GemmSpec, GemvSpec
from qwen35.bundle.tensors import Store

__all__ = ["check_model"]


IN_PLACE = ("down", "v_fc2")
"""GEMMs whose A another GEMM writes: no host row has their stride."""


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
        for name, (gemm, gemv) in packed_kernels(c).items():
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
        for spec in text_schema(c):
            if not spec.rows:
                self.bundle.tensors.of(spec)

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
        checked = set()
        for tensor in vision_schema(v):
            if tensor.rows:
                wanted = self.bundle.gemms[tensor.gemm].b_bytes
                self.stream(tensor.name, wanted, f"b_bytes of gemm {tensor.gemm}", self.bundle.emulated)
                checked.add((tensor.weight, fc1.n if tensor.part == "fc1" else tensor.rows))
            elif not tensor.is_factors:
                self.f32(tensor.name, *tensor.shape)
        for weight, outputs in sorted(checked):  # a compiled bundle may do without
            factors = weight + ".f"
            if factors in self.bundle.tensors or (self.bundle.emulated and v.weights == "w8"):
                self.f32(factors, outputs)
