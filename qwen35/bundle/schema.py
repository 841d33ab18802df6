"""The tensors of a bundle: names, shapes, dtypes and kernels, in file order.

The one schema: the reader checks a bundle against it, the model loads by it, the exporter and `--random`
write by it, and `info` counts by it. Names are the published format's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from qwen35.bundle.config import ModelConfig, VisionConfig
from qwen35.formats import by_name

__all__ = ["TensorSpec", "packed_kernels", "stream_bytes", "text_schema", "vision_schema"]


def stream_bytes(rows: int, k: int, weights: str) -> int:
    """Bytes of a packed stream of `rows` outputs over `k` inputs, in whole groups of 8 rows."""
    form = by_name(weights)
    return -(-rows // 8) * (k // form.k_step) * form.group_bytes


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the bundle: `part` is its name without layer and slice (`in`, `down`, `ln1`, ...).

    A packed stream has `rows` x `k` weights; anything else has `shape` and dtype `f32` or `bf16`. The
    tower's streams name their `weights` (w8 or bfp16x2) and end with a float32 bias a row.
    """

    name: str
    part: str
    layer: int = -1
    slice: int = 0
    rows: int = 0
    k: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = "f32"
    weights: str = ""

    def nbytes(self, gemv_format: str) -> int:
        """Bytes in tensors.bin; `gemv_format` is the text model's."""
        if self.weights:
            copies = 2 if self.weights == "bfp16x2" else 1
            return copies * stream_bytes(self.rows, self.k, "bfp16") + 4 * self.rows
        if self.rows:
            return stream_bytes(self.rows, self.k, gemv_format)
        return self.count * (2 if self.dtype == "bf16" else 4)

    @property
    def count(self) -> int:
        """Elements."""
        return self.rows * self.k if self.rows else math.prod(self.shape)

    @property
    def weight(self) -> str:
        """The name without K slice: what the tower's factors are named after."""
        return self.name.removesuffix(f".{self.slice}")

    @property
    def is_factors(self) -> bool:
        """Whether it holds a w8 weight's factors."""
        return self.part.endswith(".f")

    @property
    def gemm(self) -> str:
        """The key of the GEMM that reads the stream; empty for the head's, and for what is no stream."""
        if not self.rows or self.part == "head":
            return ""
        return ("v_" if self.weights else "") + self.part

    @property
    def gemv(self) -> str:
        """The key of the GEMV that reads the stream; the tower has none."""
        return self.part if self.rows and not self.weights else ""


def text_schema(config: ModelConfig) -> Iterator[TensorSpec]:
    """The text tensors in file order: each layer's streams and host parameters, final norm, head, embed."""
    c = config
    for i, kind in enumerate(c.layer_types):
        g, h = f"l{i}.g.", f"l{i}.h."
        yield TensorSpec(g + "in", kind, i, rows=c.n_lin if kind == "lin" else c.n_att, k=c.hidden_size)
        yield TensorSpec(g + "o", "o", i, rows=c.hidden_size, k=c.o_in)
        yield TensorSpec(g + "gu", "gu", i, rows=2 * c.intermediate_size, k=c.hidden_size)
        for j in range(c.n_down):
            yield TensorSpec(f"{g}down{j}", "down", i, j, rows=c.hidden_size, k=c.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {"ln1": (c.hidden_size,), "ln2": (c.hidden_size,)}
        if kind == "lin":
            shapes.update(
                ba=(2 * c.linear_num_value_heads, c.hidden_size),
                conv=(c.conv_dim, c.linear_conv_kernel_dim),
                A=(c.linear_num_value_heads,),
                dt_bias=(c.linear_num_value_heads,),
                norm=(c.linear_value_head_dim,),
            )
        else:
            shapes.update(q_norm=(c.head_dim,), k_norm=(c.head_dim,))
        for part, shape in shapes.items():
            yield TensorSpec(h + part, part, i, shape=shape)
    yield TensorSpec("ln_f", "ln_f", shape=(c.hidden_size,))
    for j in range(c.n_head):
        yield TensorSpec(f"head{j}", "head", slice=j, rows=c.head_rows, k=c.hidden_size)
    if not c.tie_word_embeddings:
        yield TensorSpec("embed", "embed", shape=(c.vocab_size, c.hidden_size), dtype="bf16")


def vision_schema(v: VisionConfig) -> Iterator[TensorSpec]:
    """The tower's tensors in file order."""

    def weight(part: str, rows: int, layer: int = -1, slices: int = 0) -> Iterator[TensorSpec]:
        name = f"vis.b{layer}.{part}" if layer >= 0 else f"vis.{part}"
        for j in range(max(slices, 1)):
            stream = f"{name}.{j}" if slices else name
            yield TensorSpec(stream, part, layer, j, rows=rows, k=v.hidden_size, weights=v.weights)
        if v.weights == "w8":
            yield TensorSpec(name + ".f", part + ".f", layer, shape=(rows,))

    yield from weight("patch", v.hidden_size)
    yield TensorSpec("vis.pos", "pos", shape=(v.pos_side * v.pos_side, v.hidden_size))
    for i in range(v.depth):
        for part in ("ln1_w", "ln1_b", "ln2_w", "ln2_b"):
            yield TensorSpec(f"vis.b{i}.{part}", part, i, shape=(v.hidden_size,))
        yield from weight("qkv", 3 * v.hidden_size, i)
        yield from weight("proj", v.hidden_size, i)
        yield from weight("fc1", v.n_fc2 * v.hidden_size, i)
        yield from weight("fc2", v.hidden_size, i, v.n_fc2)
    yield TensorSpec("vis.m_ln_w", "m_ln_w", shape=(v.hidden_size,))
    yield TensorSpec("vis.m_ln_b", "m_ln_b", shape=(v.hidden_size,))
    yield from weight("m1", v.n_merge * v.hidden_size, slices=v.n_merge)
    yield from weight("m2", v.out_hidden_size, slices=v.n_merge)


def packed_kernels(config: ModelConfig) -> dict[str, tuple[str, str]]:
    """The text model's packed streams in file order: tensor name -> (GEMM key or "", GEMV key)."""
    return {spec.name: (spec.gemm, spec.gemv) for spec in text_schema(config) if spec.rows}
