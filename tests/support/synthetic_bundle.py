"""Bundles written straight from the format page, sharing no code with the exporter.

`write_bundle(directory, shape, tensors, Habits(...))` packs a synthetic checkpoint's tensors. The
encoder, the stream words and the index are written out here, so that a reader tested on them does not
depend on the exporter's habits; `Habits` varies everything the format leaves open.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tests.support.synthetic import SHAPES, Shape, tokenizer_json, weights


@dataclass(frozen=True)
class Habits:
    """What an exporter may choose.

    `chunk` rows a GEMM dispatch, `max_prompt` rows, `head_rows` rows a head dispatch (0: three dispatches
    with rows left over), `spare` elements added to every row stride, `tight_gu`: the MLP's C rows are I
    apart, so that the last K slice reads on into the next row, `chunks` the longest gemm_chunks record
    (None: max_prompt/chunk, 1: none), `contexts`: explicit ctx fields and one xclbin under two keys,
    `unknown`: records, keys and params that no reader knows, `backwards`: the tensors in reverse order,
    `least`: a_elems and c_elems end with the last element that is used, not with its row. `vision`: the
    tower's weights, where the shape has one, `weights` all others (bfp6s takes multiples of 128 inputs).
    """

    chunk: int = 16
    max_prompt: int = 64
    head_rows: int = 0
    spare: int = 0
    tight_gu: bool = False
    chunks: int | None = None
    contexts: bool = False
    unknown: bool = False
    backwards: bool = False
    least: bool = False
    vision: str = "w8"
    weights: str = "bfp16"
    align: int = 64


HABITS: dict[str, Habits] = {
    "plain": Habits(),
    "strides": Habits(spare=24, head_rows=64),
    "tight": Habits(tight_gu=True, chunks=1, least=True, vision="bfp16x2"),
    "odd": Habits(contexts=True, unknown=True, backwards=True, align=8, chunks=9, vision="bfp16x2"),
}


def bfp16_stream(matrix: np.ndarray) -> bytes:
    """[N, K] float32 as a bfp16 stream: groups of 8 rows, in each K/8 blocks, in each 8 rows of 9 bytes."""
    n, k = matrix.shape
    blocks = matrix.astype(np.float64).reshape(n, k // 8, 8)
    largest = np.abs(blocks).max(axis=-1)
    biased = np.where(largest > 0, np.frexp(largest)[1] + 126, 0)
    mantissas = np.clip(np.rint(blocks / np.exp2(biased - 133.0)[..., None]), -128, 127)
    exponents = biased[..., None].astype(np.uint8)
    packed = np.concatenate([exponents, mantissas.astype(np.int8).view(np.uint8)], -1)
    return packed.reshape(n // 8, 8, k // 8, 9).transpose(0, 2, 1, 3).tobytes()


SCALES = np.array([(5 + (s & 3)) / 2 * 2.0 ** ((s >> 2) + 80 - 133) for s in range(256)])
"""bfp6s: what a weight of q = 1 is worth, by scale byte and before rounding; ascending."""


def bfp6s_codes(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """q [n, k / 16, 16] in -32..31 and scale bytes [n, k / 16]: the least scale that clips nothing."""
    tiles = matrix.astype(np.float64).reshape(len(matrix), -1, 16)
    scales = np.minimum(np.searchsorted(SCALES, np.abs(tiles).max(axis=-1) / 31), 255)
    return np.clip(np.rint(tiles / SCALES[scales][..., None]), -32, 31).astype(np.int64), scales


def bfp6s_round(matrix: np.ndarray) -> np.ndarray:
    """[n, k] as `bfp6s_stream` holds it: round_half_even(q c / 2) 2^(exponent - 133)."""
    q, scales = bfp6s_codes(matrix)
    whole = np.rint(q * (5 + (scales & 3))[..., None] / 2)
    return (whole * np.exp2((scales >> 2) + 80.0 - 133)[..., None]).reshape(matrix.shape).astype(np.float32)


def bfp6s_stream(matrix: np.ndarray) -> bytes:
    """[n, k] float32 as bfp6s: groups of 8 rows, segments of 128 k, 832 bytes each."""
    q, scales = bfp6s_codes(matrix)
    n, k = matrix.shape
    u = (q + 32).astype(np.uint8).reshape(n // 8, 8, k // 128, 8, 2, 8).transpose(0, 2, 3, 4, 1, 5)
    lanes = u.reshape(n // 8, k // 128, 8, 2, 64)
    nibbles = lanes[..., 0, :] & 15 | (lanes[..., 1, :] & 15) << 4
    high = lanes >> 4
    twos = high[..., 0, :32] | high[..., 1, :32] << 4 | high[..., 0, 32:] << 2 | high[..., 1, 32:] << 6
    tiles = np.concatenate([nibbles, twos], -1).reshape(n // 8, k // 128, 768)
    bytes_ = scales.astype(np.uint8).reshape(n // 8, 8, k // 128, 8).transpose(0, 2, 3, 1)
    return np.concatenate([tiles, bytes_.reshape(n // 8, k // 128, 64)], -1).tobytes()


STREAMS = {"bfp16": bfp16_stream, "bfp6s": bfp6s_stream}


def matrix_bytes(n: int, k: int, weights: str = "bfp16") -> int:
    """Bytes of a stream without a bias."""
    return n * k // 8 * 9 if weights == "bfp16" else n // 8 * (k // 128) * 832


def gemm_bytes(k: int, n: int, flags: int = 0, weights: str = "bfp16") -> int:
    """Packed bytes of a GEMM's B."""
    return matrix_bytes(n, k, weights) * (2 if flags & 8 else 1) + (4 * n if flags & 2 else 0)


def gemm_words(
    m: int, chunks: int, k: int, n: int, lda: int, c_stride: int, flags: int = 0, weights: str = "bfp16"
) -> bytes:
    """One emulator GEMM op; flags 1 = SwiGLU, 2 = bias, 4 = GELU, 8 = two parts."""
    b_bytes = gemm_bytes(k, n, flags, weights)
    fields = (m, chunks, k, n, lda, c_stride, flags, list(STREAMS).index(weights), b_bytes)
    return struct.pack("<13I", 0x31554D45, 1, 1, 1 | 10 << 16, *fields)


def gemv_words(m: int, k: int, weights: str = "bfp16") -> bytes:
    """One emulator GEMV op."""
    fields = (m, k, 0, list(STREAMS).index(weights), matrix_bytes(m, k, weights))
    return struct.pack("<9I", 0x31554D45, 1, 1, 2 | 6 << 16, *fields)


def xclbin(family: str) -> bytes:
    """The emulator's xclbin of a kernel family (a placeholder where the emulator is not built yet)."""
    try:
        from amdxdna.emu.xclbins import xclbin_bytes
    except ImportError:
        return b"xclbin2\0" + family.encode()
    return xclbin_bytes(family)


def interleave(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Rows in blocks of 64: 32 of gate, 32 of up."""
    pairs = [part for i in range(0, len(gate), 32) for part in (gate[i : i + 32], up[i : i + 32])]
    return np.concatenate(pairs)


class Blob:
    """Tensors in the order they are added."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, tuple[int, ...], bytes]] = []

    def f32(self, name: str, value: np.ndarray) -> None:
        self.entries.append((name, "f32", value.shape, value.astype("<f4").tobytes()))

    def bytes(self, name: str, data: bytes) -> None:
        self.entries.append((name, "u8", (len(data),), data))

    def write(self, directory: Path, habits: Habits) -> None:
        lines, blob = [], bytearray()
        for name, dtype, dims, data in reversed(self.entries) if habits.backwards else self.entries:
            blob += bytes(-len(blob) % habits.align)
            lines.append(f"{name} {dtype} {','.join(map(str, dims))} {len(blob)} {len(data)}\n")
            blob += data
        (directory / "tensors.txt").write_text("".join(lines))
        (directory / "tensors.bin").write_bytes(blob)


def write_bundle(
    directory: Path,
    shape: Shape,
    tensors: dict[str, np.ndarray] | None = None,
    habits: Habits = HABITS["plain"],
) -> Path:
    """A text bundle of `tensors` (weights(shape) when None); returns the directory."""
    directory = Path(directory)
    (directory / "kernels").mkdir(parents=True, exist_ok=True)
    tensors = weights(shape) if tensors is None else tensors
    s, h = shape, habits
    slices = -(-s.mlp // s.hidden)
    head_rows = h.head_rows or (s.vocab // 3 + 15) // 8 * 8
    n_head = -(-s.vocab // head_rows)
    from tests.support.synthetic_tower import Tower

    blob = _tensors(s, tensors, slices, head_rows, n_head, STREAMS[h.weights])
    tower = Tower(s, h) if s.vision is not None else None
    if tower is not None:
        tower.tensors(tensors, blob)
    blob.write(directory, h)
    (directory / "tokenizer.json").write_text(tokenizer_json())
    lines = ["# a synthetic bundle", "", "version 1"]
    lines += _params(s, h, slices, head_rows, n_head)
    lines += _records(directory, s, h, slices, head_rows)
    if tower is not None:
        lines += tower.lines(directory)
    (directory / "manifest.txt").write_text("\n".join(lines) + "\n")
    return directory


def _params(s: Shape, h: Habits, slices: int, head_rows: int, n_head: int) -> list[str]:
    params: dict[str, object] = {
        "D": s.hidden,
        "I": s.mlp,
        "layer_types": ",".join(s.layer_types),
        "vocab": s.vocab,
        "eps": s.eps,
        "heads": s.heads,
        "kv_heads": s.kv_heads,
        "hd": s.hd,
        "rope_dim": s.rope_dim,
        "rope_theta": s.rope_theta,
        "mrope_section": ",".join(map(str, s.mrope_section)),
        "lin_heads": s.lin_heads,
        "lin_hk": s.lin_hk,
        "lin_hv": s.lin_hv,
        "conv_k": s.conv_k,
        "chunk": h.chunk,
        "max_prompt": h.max_prompt,
        "n_down": slices,
        "head_rows": head_rows,
        "n_head": n_head,
        "stop": ",".join(map(str, s.stop)),
    }
    if s.lin_kheads != s.lin_heads:
        params["lin_kheads"] = s.lin_kheads
    if not s.tied:
        params["tied"] = 0
    if h.weights != "bfp16":
        params["gemv_format"] = h.weights
    if h.unknown:
        params["x.unheard_of"] = "any words at all"
    return [f"param {name} {value}" for name, value in params.items()]


def _tensors(
    s: Shape,
    t: dict[str, np.ndarray],
    slices: int,
    head_rows: int,
    n_head: int,
    pack: Callable[[np.ndarray], bytes],
) -> Blob:
    at = "model.language_model." if "model.language_model.norm.weight" in t else "model."
    blob = Blob()
    for i, kind in enumerate(s.layer_types):
        get: Callable[[str], np.ndarray] = lambda name, i=i: t[f"{at}layers.{i}.{name}"]  # noqa: E731
        g, hp = f"l{i}.g.", f"l{i}.h."
        blob.f32(hp + "ln1", get("input_layernorm.weight"))
        blob.f32(hp + "ln2", get("post_attention_layernorm.weight"))
        if kind == "lin":
            la = "linear_attn."
            joined = [get(la + "in_proj_qkv.weight"), get(la + "in_proj_z.weight")]
            blob.f32(hp + "ba", np.concatenate([get(la + "in_proj_b.weight"), get(la + "in_proj_a.weight")]))
            blob.f32(hp + "conv", get(la + "conv1d.weight")[:, 0])
            blob.f32(hp + "A", -np.exp(get(la + "A_log").astype(np.float64)))
            blob.f32(hp + "dt_bias", get(la + "dt_bias"))
            blob.f32(hp + "norm", get(la + "norm.weight"))
            out = get(la + "out_proj.weight")
        else:
            sa = "self_attn."
            joined = [get(sa + f"{name}_proj.weight") for name in "qkv"]
            blob.f32(hp + "q_norm", get(sa + "q_norm.weight"))
            blob.f32(hp + "k_norm", get(sa + "k_norm.weight"))
            out = get(sa + "o_proj.weight")
        blob.bytes(g + "in", pack(np.concatenate(joined)))
        blob.bytes(g + "o", pack(out))
        gate, up = get("mlp.gate_proj.weight"), get("mlp.up_proj.weight")
        blob.bytes(g + "gu", pack(interleave(gate, up)))
        down = np.zeros((s.hidden, slices * s.hidden), np.float32)
        down[:, : s.mlp] = get("mlp.down_proj.weight")
        for j in range(slices):
            blob.bytes(f"{g}down{j}", pack(down[:, j * s.hidden : (j + 1) * s.hidden]))
    blob.f32("ln_f", t[at + "norm.weight"])
    embed = t[at + "embed_tokens.weight"]
    head = np.zeros((head_rows * n_head, s.hidden), np.float32)
    head[: s.vocab] = embed if s.tied else t["lm_head.weight"]
    for j in range(n_head):
        blob.bytes(f"head{j}", pack(head[j * head_rows : (j + 1) * head_rows]))
    if not s.tied:
        upper = (embed.view(np.uint32) >> 16).astype("<u2")
        blob.entries.append(("embed", "bf16", upper.shape, upper.tobytes()))
    return blob


def gemm_records(
    directory: Path, h: Habits, key: str, shape: tuple[int, int, int, int], most: int, flags: int, ctx: str
) -> list[str]:
    """The records of one GEMM (K, N, lda, c_stride) over 1 to `most` chunks, and their streams."""
    k, n, lda, stride = shape
    weights = "bfp16" if key.startswith("v_") else h.weights
    lines, columns = [], n // 2 if flags & 1 else n
    for count in range(1, most + 1):
        file, rows = f"kernels/{key}_{count}.bin", count * h.chunk
        (directory / file).write_bytes(gemm_words(h.chunk, count, k, n, lda, stride, flags, weights))
        a, c = (rows - 1) * lda + k, (rows - 1) * stride + columns
        a, c = (a, c) if h.least else (rows * lda, rows * stride)
        spans = f"a_elems={a} c_elems={c} insts={file}"
        extra = " colour=blue" if h.unknown else ""
        if count > 1:
            lines.append(f"gemm_chunks {key} {count} {spans}{extra}")
            continue
        named = f" ctx={ctx}" if ctx else ""
        lines.append(
            f"gemm {key} M={h.chunk} K={k} N={n} lda={lda} c_stride={stride}"
            f" b_bytes={gemm_bytes(k, n, flags, weights)} {spans}{named}{extra}"
        )
    return lines


def _records(directory: Path, s: Shape, h: Habits, slices: int, head_rows: int) -> list[str]:
    extra = " colour=blue" if h.unknown else ""
    for family in ("gemm", "gemv"):
        (directory / f"kernels/{family}.xclbin").write_bytes(xclbin(family))
    lines = [f"xclbin {f} kernels/{f}.xclbin MLIR_AIE" for f in ("gemm", "gemv")]
    if h.contexts:
        lines.append("xclbin mlp kernels/gemm.xclbin MLIR_AIE")
    if h.unknown:
        lines.append("weather sunny later=rain")
    keys, values, o_in = s.lin_kheads * s.lin_hk, s.lin_heads * s.lin_hv, s.heads * s.hd
    lin, att = 2 * keys + 2 * values, 2 * o_in + 2 * s.kv_heads * s.hd
    gu_stride = (s.mlp if h.tight_gu else slices * s.hidden) + h.spare
    spare, d = h.spare, s.hidden
    shapes = {  # K, N, lda, c_stride
        "lin": (d, lin, d + spare, lin + spare),
        "att": (d, att, d + spare, att + spare),
        "o": (o_in, d, o_in + spare, d + spare),
        "gu": (d, 2 * s.mlp, d + spare, gu_stride),
        "down": (d, d, gu_stride, d + spare),
    }
    most = h.chunks if h.chunks is not None else h.max_prompt // h.chunk
    for key, (k, n, lda, stride) in shapes.items():
        ctx = ("mlp" if key in ("gu", "down") else "gemm") if h.contexts else ""
        lines += gemm_records(directory, h, key, (k, n, lda, stride), most, 1 if key == "gu" else 0, ctx)
    rows = {"lin": (lin, d), "att": (att, d), "o": (d, o_in), "gu": (2 * s.mlp, d), "down": (d, d)}
    for key, (m, k) in {**rows, "head": (head_rows, d)}.items():
        (directory / f"kernels/v_{key}.bin").write_bytes(gemv_words(m, k, h.weights))
        ctx = " ctx=gemv" if h.contexts else ""
        lines.append(
            f"gemv {key} M={m} K={k} w_words={matrix_bytes(m, k, h.weights) // 4} "
            f"insts=kernels/v_{key}.bin{ctx}{extra}"
        )
    tokenizer = Tokenizer.from_str(tokenizer_json())
    for text in ("", "a b", "What is a penguin?"):
        ids = ",".join(map(str, tokenizer.encode(text).ids))
        lines.append(f"tokcase {text.encode().hex() or '-'} {ids}")
    return lines


if __name__ == "__main__":
    import sys

    write_bundle(Path(sys.argv[1]), SHAPES[sys.argv[2]])
