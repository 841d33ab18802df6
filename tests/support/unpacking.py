"""Packed weights, read back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.support.synthetic import Shape

Array = NDArray[np.float32]


def unpack(packed: NDArray[np.uint8], rows: int, k: int) -> Array:
    """[rows, k] of a bfp16 stream: row r, block b at r//8 * (k/8 * 72) + b * 72 + r%8 * 9."""
    assert packed.size == rows * k // 8 * 9
    r, b = np.arange(rows)[:, None], np.arange(k // 8)[None, :]
    at = r // 8 * (k // 8 * 72) + b * 72 + r % 8 * 9
    mantissas = np.stack([packed[at + 1 + j].view(np.int8) for j in range(8)], axis=-1).astype(np.float64)
    unit = np.exp2(packed[at].astype(np.float64) - 133)
    return (mantissas * unit[..., None]).astype(np.float32).reshape(rows, k)


def projections(shape: Shape, t: dict[str, Array], i: int, kind: str) -> dict[str, Array]:
    """Layer i's streams as matrices [outputs, inputs]."""
    at = f"layers.{i}."
    if kind == "lin":
        inputs = [t[f"{at}linear_attn.in_proj_qkv.weight"], t[f"{at}linear_attn.in_proj_z.weight"]]
        out = t[f"{at}linear_attn.out_proj.weight"]
    else:
        inputs = [t[f"{at}self_attn.{x}_proj.weight"] for x in "qkv"]
        out = t[f"{at}self_attn.o_proj.weight"]
    gate, up = t[at + "mlp.gate_proj.weight"], t[at + "mlp.up_proj.weight"]
    inner = -(-shape.mlp // 32) * 32
    gu = np.zeros((2 * inner, shape.hidden), np.float32)
    for r in range(shape.mlp):
        gu[r // 32 * 64 + r % 32] = gate[r]
        gu[r // 32 * 64 + 32 + r % 32] = up[r]
    slices = -(-inner // shape.hidden)
    down = np.zeros((shape.hidden, slices * shape.hidden), np.float32)
    down[:, : shape.mlp] = t[at + "mlp.down_proj.weight"]
    found = {"in": np.concatenate(inputs), "o": out, "gu": gu}
    for j in range(slices):
        found[f"down{j}"] = down[:, j * shape.hidden : (j + 1) * shape.hidden]
    return found
