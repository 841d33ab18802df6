"""The Qwen3.5 text forward written out in numpy float64, one token after the other where it is recurrent.

`Forward(shape, tensors).logits(ids)` is the exact model. With `npu=True` every value is rounded where the
split between host and NPU rounds it (bf16 projections in and out, K slices of down_proj one by one, float16
keys), so that the program's logits must be reproduced almost to the bit.
"""

from __future__ import annotations

import numpy as np

from tests.support.synthetic import Shape, bf16_round


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _silu(x):
    return x * _sigmoid(x)


class Forward:
    """The model of a shape and its tensors."""

    def __init__(self, shape: Shape, tensors: dict[str, np.ndarray], *, npu: bool = False) -> None:
        self.shape, self.npu = shape, npu
        at = "model.language_model." if "model.language_model.norm.weight" in tensors else "model."
        self.t = {name.removeprefix(at): value.astype(np.float64) for name, value in tensors.items()}

    def logits(self, ids, *, positions=None, embeddings=None, decode_from=None):
        """Logits float64 [n, vocab] at every position; positions int [3, n]; embeddings {index: row}.

        `decode_from`: rows from there on are decoded one by one, which rounds gate and up before their
        product; so it is for a prompt's last row in the last layer.
        """
        s, n = self.shape, len(ids)
        decode_from = n if decode_from is None else decode_from
        where = np.broadcast_to(np.arange(n), (3, n)) if positions is None else np.asarray(positions)
        x = self.t["embed_tokens.weight"][np.asarray(ids)]
        for index, row in (embeddings or {}).items():
            x[index] = row
        for i, kind in enumerate(s.layer_types):
            at = f"layers.{i}."
            h = self._norm(x, at + "input_layernorm.weight")
            x = x + (self._linear(at, h) if kind == "lin" else self._attention(at, h, where))
            h = self._bf16(self._norm(x, at + "post_attention_layernorm.weight"))
            gate, up = (h @ self.t[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            inner = _silu(gate) * up
            if self.npu:
                decoded = np.arange(n) >= decode_from - (i == s.layers - 1)
                inner = np.where(decoded[:, None], _silu(self._bf16(gate)) * self._bf16(up), inner)
            x = self._down(x, self._bf16(inner), self.t[at + "mlp.down_proj.weight"])
        h = self._bf16(self._norm(x, "norm.weight"))
        return self._bf16(h @ self.t["embed_tokens.weight" if s.tied else "lm_head.weight"].T)

    def _bf16(self, x):
        return bf16_round(x.astype(np.float32)).astype(np.float64) if self.npu else x

    def _norm(self, x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.shape.eps) * (1 + self.t[name])

    def _project(self, x, name):
        return self._bf16(self._bf16(x) @ self.t[name].T)

    def _down(self, x, inner, weight):
        d = self.shape.hidden
        for start in range(0, inner.shape[1], d):
            x = x + self._bf16(inner[:, start : start + d] @ weight[:, start : start + d].T)
        return x

    def _linear(self, at, h):
        s, la = self.shape, at + "linear_attn."
        mixed = self._project(h, la + "in_proj_qkv.weight")
        z = self._project(h, la + "in_proj_z.weight").reshape(len(h), s.lin_heads, s.lin_hv)
        beta = _sigmoid(h @ self.t[la + "in_proj_b.weight"].T)
        a = h @ self.t[la + "in_proj_a.weight"].T + self.t[la + "dt_bias"]
        g = np.exp(-np.exp(self.t[la + "A_log"]) * np.logaddexp(0, a))
        padded = np.concatenate([np.zeros((s.conv_k - 1, mixed.shape[1])), mixed])
        taps = self.t[la + "conv1d.weight"][:, 0]
        mixed = _silu(sum(padded[k : k + len(h)] * taps[:, k] for k in range(s.conv_k)))
        keys, ratio = s.lin_kheads * s.lin_hk, s.lin_heads // s.lin_kheads
        q, k = (mixed[:, i * keys : (i + 1) * keys].reshape(len(h), s.lin_kheads, s.lin_hk) for i in (0, 1))
        q, k = (np.repeat(v / np.sqrt((v**2).sum(-1, keepdims=True) + 1e-6), ratio, 1) for v in (q, k))
        v = mixed[:, 2 * keys :].reshape(len(h), s.lin_heads, s.lin_hv)
        state, out = np.zeros((s.lin_heads, s.lin_hk, s.lin_hv)), np.empty_like(v)
        for t in range(len(h)):
            state *= g[t][:, None, None]
            delta = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
            state += k[t][:, :, None] * delta[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t]) * s.lin_hk**-0.5
        out = out / np.sqrt((out**2).mean(-1, keepdims=True) + s.eps) * self.t[la + "norm.weight"] * _silu(z)
        return self._project(out.reshape(len(h), -1), la + "out_proj.weight")

    def _attention(self, at, h, where):
        s, sa, n = self.shape, at + "self_attn.", len(h)
        qg = self._project(h, sa + "q_proj.weight").reshape(n, s.heads, 2, s.hd)
        k, v = (self._project(h, f"{sa}{x}_proj.weight").reshape(n, s.kv_heads, s.hd) for x in "kv")
        q = self._rotate(self._norm(qg[:, :, 0], sa + "q_norm.weight"), where)
        k = self._rotate(self._norm(k, sa + "k_norm.weight"), where)
        if self.npu:
            k = k.astype(np.float32).astype(np.float16).astype(np.float64)
        k, v = (np.repeat(x, s.heads // s.kv_heads, 1) for x in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) * s.hd**-0.5
        scores[:, ~np.tril(np.ones((n, n), bool))] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v) * _sigmoid(qg[:, :, 1])
        return self._project(out.reshape(n, -1), sa + "o_proj.weight")

    def _rotate(self, x, where):
        s, half = self.shape, self.shape.rope_dim // 2
        frequencies = np.float32(1) / np.float32(s.rope_theta) ** (np.arange(half, dtype=np.float32) / half)
        axes = [
            1
            if j % 3 == 1 and j < 3 * s.mrope_section[1]
            else 2
            if j % 3 == 2 and j < 3 * s.mrope_section[2]
            else 0
            for j in range(half)
        ]
        angles = (where[axes].T.astype(np.float32) * frequencies).astype(np.float64)[:, None]
        a, b, rest = np.split(x, [half, 2 * half], -1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
