"""Other programs beside ours: the files they are given, what they take, and how they are asked."""

from __future__ import annotations

import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35 import meminfo
from qwen35.bench.gguf_file import write_gguf
from qwen35.bench.peers import Peer, float32_bytes, missing, require_free, text_config
from qwen35.bundle import Bundle
from qwen35.errors import ModelError
from tests.support import model_bundle
from tests.support.descriptors import descriptors
from tests.support.synthetic import SHAPES

pytestmark = pytest.mark.peer


def config_of(name: str) -> Any:
    return Bundle.open(model_bundle.bundle_path(name)).config


@pytest.mark.parametrize("name", ["tied", "grouped", "untied"])
def test_a_gguf_file_holds_the_shape(name: str, tmp_path: Path) -> None:
    """Matrices in Q8_0 with the spread of seeded weights, everything else in float32."""
    gguf = pytest.importorskip("gguf")
    s, file = SHAPES[name], tmp_path / "model.gguf"
    assert write_gguf(config_of(name), file) == file.stat().st_size
    reader = gguf.GGUFReader(file)
    said = {key: field.contents() for key, field in reader.fields.items()}
    kv, query, value = s.kv_heads * s.hd, 2 * s.heads * s.hd, s.lin_heads * s.lin_hv
    mlp = s.mlp
    want = {
        "block_count": s.layers, "context_length": 32768, "embedding_length": s.hidden,
        "feed_forward_length": mlp, "attention.head_count": s.heads, "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.hd, "attention.value_length": s.hd,
        "attention.layer_norm_rms_epsilon": pytest.approx(s.eps), "rope.freq_base": s.rope_theta,
        "rope.dimension_count": s.rope_dim, "rope.dimension_sections": [*s.mrope_section, 0],
        "ssm.conv_kernel": s.conv_k, "ssm.state_size": s.lin_hk, "ssm.group_count": s.lin_kheads,
        "ssm.time_step_rank": s.lin_heads, "ssm.inner_size": value, "full_attention_interval": s.interval,
    }  # fmt: skip
    assert {
        key.removeprefix("qwen35."): value for key, value in said.items() if key.startswith("qwen35.")
    } == want
    assert said["general.architecture"] == "qwen35" and said["general.file_type"] == 7  # mostly Q8_0
    assert (said["tokenizer.ggml.model"], said["tokenizer.ggml.pre"]) == ("gpt2", "qwen2")
    assert said["tokenizer.ggml.tokens"] == [f"t{i}" for i in range(s.vocab)]
    assert said["tokenizer.ggml.token_type"] == [1] * (s.vocab - 1) + [3]
    assert said["tokenizer.ggml.eos_token_id"] == s.vocab - 1 and said["tokenizer.ggml.merges"] == ["t 0"]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (s.vocab, s.hidden),
        "output_norm.weight": (s.hidden,),
    }
    if not s.tied:
        shapes["output.weight"] = (s.vocab, s.hidden)
    attention = {
        "attn_q.weight": (query, s.hidden), "attn_k.weight": (kv, s.hidden), "attn_v.weight": (kv, s.hidden),
        "attn_q_norm.weight": (s.hd,), "attn_k_norm.weight": (s.hd,),
        "attn_output.weight": (s.hidden, s.heads * s.hd),
    }  # fmt: skip
    linear = {
        "attn_qkv.weight": (s.conv_dim, s.hidden), "attn_gate.weight": (value, s.hidden),
        "ssm_conv1d.weight": (s.conv_dim, s.conv_k), "ssm_dt.bias": (s.lin_heads,), "ssm_a": (s.lin_heads,),
        "ssm_beta.weight": (s.lin_heads, s.hidden), "ssm_alpha.weight": (s.lin_heads, s.hidden),
        "ssm_norm.weight": (s.lin_hv,), "ssm_out.weight": (s.hidden, value),
    }  # fmt: skip
    for layer, kind in enumerate(s.layer_types):
        both = {
            "attn_norm.weight": (s.hidden,), "post_attention_norm.weight": (s.hidden,),
            "ffn_gate.weight": (mlp, s.hidden), "ffn_up.weight": (mlp, s.hidden),
            "ffn_down.weight": (s.hidden, mlp),
        }  # fmt: skip
        parts = both | (attention if kind == "att" else linear)
        shapes |= {f"blk.{layer}.{part}": shape for part, shape in parts.items()}
    assert {one.name: tuple(reversed(one.shape.tolist())) for one in reader.tensors} == shapes
    for one in reader.tensors:
        packed = len(one.shape) == 2 and "conv1d" not in one.name
        assert one.tensor_type.name == ("Q8_0" if packed else "F32"), one.name
        values = gguf.quants.dequantize(one.data, one.tensor_type)
        spread, many = values.std(), values.size > 20_000
        if packed:
            deviation = 1 / np.sqrt(shapes[one.name][1])
            assert spread == pytest.approx(deviation, rel=0.01 if many else 0.2), one.name
        elif one.name.endswith("norm.weight"):
            assert values.mean() == pytest.approx(1, abs=0.1) and 0.05 < spread < 0.15
        elif one.name.endswith("ssm_a"):
            assert values.max() < -1 and values.min() > -6
        else:
            assert abs(values.mean()) < 0.5 and (spread == pytest.approx(0.3, rel=0.2) or values.size < 9)


def test_a_gguf_file_of_the_published_vocabulary(tmp_path: Path) -> None:
    """<|endoftext|> and those above it are control tokens; sections of one axis where there are no others."""
    gguf = pytest.importorskip("gguf")
    config = config_of("tied")
    ours = replace(config, vocab_size=248_320, layer_types=("att",), mrope_section=None, hidden_size=32)
    write_gguf(ours, tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    types = fields["tokenizer.ggml.token_type"].contents()
    assert types.index(3) == 248_044 == fields["tokenizer.ggml.eos_token_id"].contents()
    assert set(types[248_044:]) == {3} and len(types) == 248_320
    assert fields["qwen35.rope.dimension_sections"].contents() == [config.rotary_dim // 2, 0, 0, 0]
    assert fields["qwen35.full_attention_interval"].contents() == 1


@pytest.mark.parametrize("name", ["tied", "grouped", "untied"])
def test_what_a_model_takes_in_float32(name: str) -> None:
    """All but norms, gates and convolutions, beside transformers' own model of that shape."""
    torch = pytest.importorskip("torch")
    from transformers import Qwen3_5ForCausalLM

    config = config_of(name)
    with torch.device("meta"):
        theirs = Qwen3_5ForCausalLM(text_config(config))
    theirs.tie_weights()
    count = sum(one.numel() for one in theirs.parameters() if one.dim() == 2 and min(one.shape) > 4)
    assert float32_bytes(config) == pytest.approx(4 * count, rel=0.15)
    assert sum(one.numel() for key, one in theirs.named_parameters() if "conv1d" in key) > 0


def test_memory_that_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meminfo, "available", lambda: 1150)
    require_free(1000)
    with pytest.raises(MemoryError, match=r"it needs 0\.0 GB of memory"):
        require_free(1001)
    monkeypatch.setattr(meminfo, "available", lambda: None)
    with pytest.raises(MemoryError, match=r"0\.0 are free"):
        require_free(1)


def test_what_a_peer_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"gguf", "transformers"}
    monkeypatch.setattr("qwen35.bench.peers.find_spec", lambda name: name if name in there else None)
    assert (missing("llama"), missing("transformers"), missing("tower")) == (
        ["xllamacpp"],
        ["torch"],
        ["torch"],
    )
    there |= {"xllamacpp"}
    assert missing("llama") == []


def need(kind: str) -> None:
    if missing(kind):
        pytest.skip(f"{missing(kind)} not installed")


def test_llama_cpp_is_asked_and_serves(tmp_path: Path) -> None:
    """Once and a second time; and nothing is left of its process."""
    need("llama")
    bundle, before = Bundle.open(model_bundle.bundle_path("tied")), descriptors()
    write_gguf(bundle.config, tmp_path / "model.gguf")
    with Peer("llama", Path(bundle.path), 1, 128, tmp_path / "model.gguf") as peer:
        assert peer.resident > 1 << 20
        for new in (0, 2):
            found = peer.ask(prompt=5, new=new)
            assert found["prompt"] > 0 and (found["token"] > 0) is (new > 0)
        assert urllib.request.urlopen(f"{peer.url()}/health", timeout=120).status == 200
        with pytest.raises(ModelError, match=r"llama\.cpp Q8_0"):
            peer.ask(prompt=[])  # no number
    assert descriptors() == before


def test_the_tower_of_transformers_is_asked() -> None:
    need("tower")
    path = Path(model_bundle.bundle_path("vision"))
    with Peer("tower", path, 1, 64) as peer:
        assert peer.ask(patches=[4, 6])["tower"] > 0
    with pytest.raises(ModelError, match="the bundle has no vision tower"):
        Peer("tower", Path(model_bundle.bundle_path("tied")), 1, 64)
