"""Do a bundle's params, kernel records and tensors agree?

Where the kernels are the emulated NPU's, every packed stream must be exactly as long as its records say.
Compiled kernels read streams whose layout only they know: there a stream must hold the b_bytes of its GEMM,
and of the head, which no GEMM reads, the rows that embeddings are decoded from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qwen35.bundle.errors import BundleError
from qwen35.bundle.specs import GemmSpec, GemvSpec

if TYPE_CHECKING:
    from qwen35.bundle.bundle import Bundle
    from qwen35.model.config import ModelConfig, VisionConfig

__all__ = ["check_model", "stream_bytes", "text_tensors"]


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


def check_model(bundle: Bundle) -> None:
    """Raises BundleError for the first thing missing or of the wrong size, naming file and line."""
    config = bundle.config
    _Checker(bundle, config).text()
    if config.vision is not None:
        _Checker(bundle, config).vision(config.vision)


@dataclass
class _Checker:
    bundle: Bundle
    config: ModelConfig

    def fail(self, line: int, message: str) -> None:
        raise BundleError(self.bundle.manifest.path, line, message)

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
            self.fail(spec.line, f"gemm {key}: N={spec.n}, the model has {n}")
        if spec.c_stride < columns:
            self.fail(spec.line, f"gemm {key}: c_stride={spec.c_stride} is less than a row's {columns}")
        if self.bundle.emulated:
            self._spans(spec)
        return spec

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

    def stream(self, name: str, wanted: int, why: str, exact: bool) -> None:
        """The packed tensor `name` must have `wanted` bytes (at least, unless `exact`)."""
        info = self.bundle.tensors.info(name)
        if info.nbytes < wanted or (exact and info.nbytes != wanted):
            raise BundleError(
                self.bundle.tensors.index_path, info.line,
                f"tensor {name} is {info.nbytes:,} bytes, {why} takes {wanted:,}",
            )

    def text(self) -> None:
        c, inner = self.config, 2 * self.config.I
        if "lin" in c.layer_types:
            self.gemm("lin", c.D, c.n_lin, c.n_lin)
            self.gemv("lin", c.n_lin, c.D)
        if "att" in c.layer_types:
            self.gemm("att", c.D, c.n_att, c.n_att)
            self.gemv("att", c.n_att, c.D)
        self.gemm("o", c.o_in, c.D, c.D)
        self.gemv("o", c.D, c.o_in)
        gu = self.gemm("gu", c.D, c.I, c.I)  # N may count the pairs' products instead of gate and up
        pairs = self.gemv("gu", inner, c.D)
        if pairs.m % 64:
            self.fail(pairs.line, f"gemv gu: M={pairs.m} is no whole number of 32 | 32 pairs")
        down = self.gemm("down", c.D, c.D, c.D)
        self.gemv("down", c.D, c.D)
        if down.lda != gu.c_stride:
            self.fail(down.line, f"gemm down: lda={down.lda} differs from gu's c_stride={gu.c_stride}")
        head = self.gemv("head", c.head_rows, c.D)
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
                self.stream(name, stream_bytes(c.head_rows, c.D, c.gemv_format), c.gemv_format, exact)
        for i, kind in enumerate(c.layer_types):
            self._host(f"l{i}.h.", kind)
        self.f32("ln_f", c.D)
        if not c.tied:
            self.bundle.tensors.expect("embed", "bf16", c.vocab, c.D)

    def _host(self, at: str, kind: str) -> None:
        c = self.config
        self.f32(at + "ln1", c.D)
        self.f32(at + "ln2", c.D)
        if kind == "lin":
            self.f32(at + "ba", 2 * c.lin_heads, c.D)
            self.f32(at + "conv", c.conv_dim, c.conv_k)
            self.f32(at + "A", c.lin_heads)
            self.f32(at + "dt_bias", c.lin_heads)
            self.f32(at + "norm", c.lin_hv)
        else:
            self.f32(at + "q_norm", c.hd)
            self.f32(at + "k_norm", c.hd)

    def vision(self, v: VisionConfig) -> None:
        wide = v.n_merge * v.D
        for key in ("v_patch", "v_qkv", "v_proj", "v_fc1", "v_fc2", "v_m1", "v_m2"):
            if key not in self.bundle.gemms:
                raise BundleError(self.bundle.manifest.path, 0, f"gemm {key} is missing")
        rows = self.bundle.gemms["v_patch"].m
        self.gemm("v_patch", v.D, v.D, v.D, rows)
        self.gemm("v_qkv", v.D, 3 * v.D, 3 * v.D, rows)
        self.gemm("v_proj", v.D, v.D, v.D, rows)
        fc1 = self.gemm("v_fc1", v.D, v.I, v.I, rows)
        fc2 = self.gemm("v_fc2", v.D, v.D, v.D, rows)
        if fc2.lda != fc1.c_stride:
            self.fail(fc2.line, f"gemm v_fc2: lda={fc2.lda} differs from v_fc1's c_stride={fc1.c_stride}")
        merger = self.bundle.gemms["v_m1"].m
        for key, columns in (("v_m1", wide), ("v_m2", v.out)):
            spec = self.gemm(key, v.D, columns, columns, merger)
            if spec.lda < wide:
                self.fail(spec.line, f"gemm {key}: lda={spec.lda} is less than the merger's rows of {wide}")
        self.f32("vis.pos", v.pos_side * v.pos_side, v.D)
        self.f32("vis.m_ln_w", v.D)
        self.f32("vis.m_ln_b", v.D)
        self._weight("patch", "v_patch", v.D)
        for i in range(v.depth):
            for name in ("ln1_w", "ln1_b", "ln2_w", "ln2_b"):
                self.f32(f"vis.b{i}.{name}", v.D)
            self._weight(f"b{i}.qkv", "v_qkv", 3 * v.D)
            self._weight(f"b{i}.proj", "v_proj", v.D)
            self._weight(f"b{i}.fc1", "v_fc1", fc1.n)
            self._weight(f"b{i}.fc2", "v_fc2", v.D, v.n_fc2)
        self._weight("m1", "v_m1", wide, v.n_merge)
        self._weight("m2", "v_m2", v.out, v.n_merge)

    def _weight(self, name: str, gemm: str, outputs: int, slices: int = 0) -> None:
        """Weight `vis.NAME` (`slices` K slices of it) and its factors: a compiled bundle may do without."""
        exact, wanted = self.bundle.emulated, self.bundle.gemms[gemm].b_bytes
        for part in [f"vis.{name}.{j}" for j in range(slices)] or [f"vis.{name}"]:
            self.stream(part, wanted, f"b_bytes of gemm {gemm}", exact)
        vision, factors = self.config.vision, f"vis.{name}.f"
        if factors in self.bundle.tensors or (exact and vision is not None and vision.weights == "w8"):
            self.f32(factors, outputs)
