"""A bundle of the published model's shape, with all that its compiler may do otherwise than our export."""

from __future__ import annotations

import math
from pathlib import Path

D, MLP, VOCAB, CHUNK, PASS, HEAD_ROWS = 2048, 6144, 248320, 256, 2048, 49664
V_D, V_I, PATCHES = 1024, 4096, 4096
PARAMS = f"""
D {D}
I {MLP}
layer_types {",".join(["lin", "lin", "lin", "att"] * 6)}
vocab {VOCAB}
eps 1e-06
heads 8
kv_heads 2
hd 256
rope_dim 64
rope_theta   10000000.0
mrope_section 11,11,10
lin_heads 16
lin_hk 128
lin_hv 128
conv_k 4
chunk {CHUNK}
max_prompt {PASS}
n_down 3
head_rows {HEAD_ROWS}
n_head 5
stop 248044,248046
origin a line of free text  with = signs
v.D {V_D}
v.I {V_I}
v.depth 24
v.heads 16
v.patch 16
v.merge 2
v.out {D}
v.pos_side 48
v.rope_theta 10000
v.image_token 248056
v.vision_start 248053
v.vision_end 248054
v.min_pixels 65536
v.max_pixels 1048576
v.max_patches {PATCHES}
v.weights w8
"""
GEMMS = {  # K, N, lda, c_stride, the most chunks, context
    "lin": (D, 8192, D, 8192, 8, ""),
    "att": (D, 5120, D, 5120, 8, ""),
    "o": (D, D, D, D, 8, ""),
    "gu": (D, 2 * MLP, D, MLP, 8, " ctx=mlp"),
    "down": (D, D, MLP, D, 8, " ctx=mlp"),
    "v_patch": (V_D, V_D, V_D, V_D, 16, " ctx=vision"),
    "v_qkv": (V_D, 3 * V_D, V_D, 3 * V_D, 16, " ctx=vision"),
    "v_proj": (V_D, V_D, V_D, V_D, 16, " ctx=vision"),
    "v_fc1": (V_D, V_I, V_D, V_I, 16, " ctx=vision"),
    "v_fc2": (V_D, V_D, V_I, V_D, 16, " ctx=vision"),
    "v_m1": (V_D, V_I, V_I, V_I, 4, " ctx=vision"),
    "v_m2": (V_D, D, V_I, D, 4, " ctx=vision"),
}
GEMVS = {
    "lin": (8192, D),
    "att": (5120, D),
    "o": (D, D),
    "gu": (2 * MLP, D),
    "down": (D, D),
    "head": (HEAD_ROWS, D),
}


def packed(n: int, k: int) -> int:
    return n * k // 8 * 9


def tensors() -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype, shape of every tensor."""
    out: list[tuple[str, str, tuple[int, ...]]] = []

    def f32(at: str, **shapes: tuple[int, ...]) -> None:
        out.extend((at + name, "f32", shape) for name, shape in shapes.items())

    def stream(name: str, gemm: str) -> None:
        out.append((name, "u8", (packed(GEMMS[gemm][1], GEMMS[gemm][0]),)))

    for i in range(24):
        kind, at = "att" if i % 4 == 3 else "lin", f"l{i}."
        for name, gemm in (("in", kind), ("o", "o"), ("gu", "gu"), *((f"down{j}", "down") for j in range(3))):
            stream(f"{at}g.{name}", gemm)
        f32(at + "h.", ln1=(D,), ln2=(D,))
        if kind == "lin":
            f32(at + "h.", ba=(32, D), conv=(6144, 1, 4), A=(16,), dt_bias=(16, 1), norm=(128,))
        else:
            f32(at + "h.", q_norm=(256,), k_norm=(1, 256))
    f32("", ln_f=(D,))
    out += [(f"head{j}", "u8", (packed(HEAD_ROWS, D),)) for j in range(5)]
    f32("vis.", pos=(48, 48, V_D), m_ln_w=(V_D,), m_ln_b=(V_D,))
    stream("vis.patch", "v_patch")
    for i in range(24):
        f32(f"vis.b{i}.", **{f"ln{n}_{part}": (V_D,) for n in (1, 2) for part in "wb"})
        for name in ("qkv", "proj", "fc1", *(f"fc2.{j}" for j in range(4))):
            stream(f"vis.b{i}.{name}", "v_" + name.split(".")[0])
        for name in ("qkv", "proj", "fc1", "fc2"):
            f32(f"vis.b{i}.{name}", **{".f": (GEMMS["v_" + name][1],)})
    for name in ("m1", "m2"):
        for j in range(4):
            stream(f"vis.{name}.{j}", "v_" + name)
        f32(f"vis.{name}", **{".f": (GEMMS["v_" + name][1],)})
    return out


def write(tmp_path: Path) -> Path:
    """Writes the bundle into a folder."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "tokenizer.json").write_text("{}")
    for name in ("a.xclbin", "b.xclbin", "stream.bin"):
        (tmp_path / "kernels" / name).write_bytes(b"\x00\x01\x03\x06" * 4)
    records = ["# written by a compiler", "", "version 1", "   # indented"]
    records += [f"param {line}" for line in PARAMS.strip().splitlines()]
    records += [
        "xclbin gemm kernels/a.xclbin MLIR_AIE",
        "xclbin mlp kernels/a.xclbin MLIR_AIE",
        "xclbin gemv kernels/b.xclbin MLIR_AIE",
        "xclbin vision kernels/b.xclbin other",
    ]
    for key, (k, n, lda, stride, chunks, context) in GEMMS.items():
        for count in range(1, chunks + 1):
            rows = count * CHUNK
            spans = f"a_elems={rows * lda} c_elems={rows * stride} insts=kernels/stream.bin"
            records.append(
                f"gemm_chunks {key} {count} {spans}"
                if count > 1
                else f"gemm {key} M={CHUNK} K={k} N={n} lda={lda} c_stride={stride} "
                f"b_bytes={packed(n, k)} {spans}{context}"
            )
    for key, (m, k) in GEMVS.items():
        records.append(f"gemv {key} M={m} K={k} w_words={packed(m, k) // 4} insts=kernels/stream.bin")
    records += ["tokcase - ", "tokcase 6869 1,2", "ref one prompt=6869 thinking=0", "anything else=1"]
    (tmp_path / "manifest.txt").write_text("\n".join(records) + "\n")
    index, at = [], 0
    for name, dtype, shape in tensors():
        size = math.prod(shape) * (4 if dtype == "f32" else 1)
        index.append(f"{name} {dtype} {','.join(map(str, shape))} {at} {size}\n")
        at += -(-size // 64) * 64
    (tmp_path / "tensors.txt").write_text("".join(index))
    with open(tmp_path / "tensors.bin", "wb") as blob:
        blob.truncate(at)
    return tmp_path
