"""Reading a Hugging Face directory: its config, its stop tokens, and what cannot be exported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35.errors import ModelError, TokenizerError, UsageError
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.errors import CheckpointError
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options, plan_text
from tests.support.synthetic import SHAPES, smaller, write_checkpoint, write_safetensors

SMALL = smaller(SHAPES["tied"], layers=4)


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "hf", SMALL)
    return tmp_path / "hf"


def edit(directory: Path, changes: dict[str, Any], file: str = "config.json") -> None:
    """Sets keys of a JSON file; `a.b` goes into a section, None removes."""
    path = directory / file
    table = json.loads(path.read_text())
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        target = table[section] if section else table
        if value is None:
            target.pop(name, None)
        else:
            target[name] = value
    path.write_text(json.dumps(table))


def test_plan(hf: Path) -> None:
    config = plan_text(Checkpoint(hf), Options(chunk=32, max_prompt=128))
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (64, 160, 340)
    assert config.layer_types == ("lin", "lin", "lin", "att")
    assert (config.n_down, config.head_rows, config.n_head) == (3, 344, 1)
    assert (config.chunk, config.max_prompt, config.rotary_dim, config.mrope_section) == (
        32,
        128,
        8,
        (2, 1, 1),
    )
    assert (config.tie_word_embeddings, config.eos_token_id, config.rms_norm_eps, config.rope_theta) == (
        True,
        (320, 322),
        1e-6,
        1e7,
    )


def test_what_a_config_does_not_say_is_as_published(hf: Path) -> None:
    left_out = ("rope_parameters", "rms_norm_eps", "linear_conv_kernel_dim", "layer_types", "head_dim")
    edit(hf, dict.fromkeys(left_out))
    edit(hf, {"hidden_size": 128})
    config = plan_text(Checkpoint(hf), Options())
    assert (config.rope_theta, config.rms_norm_eps, config.linear_conv_kernel_dim) == (1e7, 1e-6, 4)
    assert (config.head_dim, config.rotary_dim, config.mrope_section) == (32, 8, None)
    assert config.layer_types == ("lin", "lin", "lin", "att")


def test_layer_types_follow_from_the_interval(hf: Path) -> None:
    edit(hf, {"layer_types": None, "full_attention_interval": 2})
    assert plan_text(Checkpoint(hf), Options()).layer_types == ("lin", "att", "lin", "att")


@pytest.mark.parametrize(
    ("generation", "config", "stop"),
    [
        ([322, 320], 320, (320, 322)),
        (5, 320, (5, 320, 322)),
        (None, None, (320, 322)),
        ([], 7, (7, 320, 322)),
    ],
)
def test_stop_tokens_are_all_that_any_file_names(
    hf: Path, generation: Any, config: Any, stop: tuple[int, ...]
) -> None:
    edit(hf, {"eos_token_id": config})
    edit(hf, {"eos_token_id": generation}, "generation_config.json")
    assert Checkpoint(hf).stop == stop
    (hf / "generation_config.json").unlink()
    assert 320 in Checkpoint(hf).stop and 322 in Checkpoint(hf).stop


def test_published_vocabulary_splits_like_the_published_bundle(hf: Path) -> None:
    edit(hf, {"vocab_size": 248320})
    config = plan_text(Checkpoint(hf), Options())
    assert (config.head_rows, config.n_head) == (49664, 5)


def test_untied_head(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPES["untied"])
    checkpoint = Checkpoint(tmp_path)
    assert not checkpoint.tied and "lm_head.weight" in checkpoint.names
    assert checkpoint.text_tensor("lm_head.weight", 384, 128).dtype == np.uint16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; only dense Qwen3.5 is supported"),
        ({"model_type": "qwen3_5_moe"}, "only dense Qwen3.5"),
        ({"hidden_size": "64"}, "hidden_size is '64', not a positive whole number"),
        ({"hidden_size": 0}, "hidden_size is 0, not a positive"),
        ({"hidden_size": True}, "hidden_size is True, not a positive"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"vocab_size": 341}, "model.embed_tokens.weight is [340, 64], config.json makes it [341, 64]"),
        ({"num_hidden_layers": 5}, "must name linear_attention or full_attention for 5 layers"),
        ({"layer_types": ["linear_attention"] * 3 + ["mamba"]}, "must name linear_attention"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', not silu"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"rope_parameters.rope_type": "yarn"}, "rope_parameters.rope_type is 'yarn'"),
        ({"rope_parameters.mrope_section": [1, 2]}, "has 2 numbers instead of three"),
        ({"rope_parameters.mrope_interleaved": False}, "only the interleaved form"),
        ({"rope_parameters": 3}, "rope_parameters is no JSON object"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1, not a positive number"),
        ({"rms_norm_eps": 1e-300}, "rms_norm_eps is 1e-300, outside 1e-30 to 1"),
        ({"rope_parameters.rope_theta": 1e-300}, "rope_theta is 1e-300, outside 1 to 1e+12"),
        ({"rope_parameters.rope_theta": 10**400}, "rope_theta is a number of more than 40 digits, outside"),
        ({"rope_parameters.rope_theta": float("nan")}, "rope_theta is nan, not a positive number"),
        ({"rope_parameters.rope_theta": float("inf")}, "rope_theta is inf, outside"),
        ({"rope_parameters.partial_rotary_factor": 1e30}, "partial_rotary_factor is 1e+30, outside"),
        ({"rope_parameters.partial_rotary_factor": 1e-20}, "0 rotated dims"),
        ({"num_hidden_layers": 1 << 31}, "num_hidden_layers is 2147483648, more than 4,096"),
        ({"intermediate_size": 1 << 20, "num_hidden_layers": 4096, "layer_types": None}, "layers of an MLP"),
        ({"hidden_size": 10**400}, "hidden_size is a number of more than 40 digits, more than"),
        ({"hidden_size": -(10**400)}, "a number of more than 40 digits, not a positive whole number"),
        ({"linear_conv_kernel_dim": 65}, "linear_conv_kernel_dim is 65, more than 64"),
        ({"hidden_size": (1 << 20) + 1}, "hidden_size is 1048577, more than 1,048,576"),
        ({"intermediate_size": (1 << 20) + 1}, "intermediate_size is 1048577, more than 1,048,576"),
        ({"rms_norm_eps": 2}, "rms_norm_eps is 2, outside 1e-30 to 1"),
        ({"vocab_size": 1 << 30}, "vocab_size is 1073741824, more than"),
        ({"vocab_size": (1 << 24) + 1}, "vocab_size is 16777217, more than 16,777,216"),
        (
            {"linear_num_key_heads": (1 << 24) + 1},
            "linear_num_key_heads is 16777217, more than 16,777,216",
        ),
        ({"eos_token_id": 10**300}, "which is no token id"),
        ({"eos_token_id": 1 << 31}, "eos_token_id holds 2147483648, which is no token id"),
        ({"linear_num_value_heads": 2}, "linear layers are 64 wide, attention layers 128"),
        ({"linear_num_key_heads": 3}, "value heads are no multiple of key heads"),
        ({"num_key_value_heads": 3}, "heads of kv heads"),
        ({"eos_token_id": "x"}, "eos_token_id holds 'x', which is no token id"),
        ({"intermediate_size": 128}, "config.json makes it [128, 64]"),
        ({"tie_word_embeddings": False}, "tensor lm_head.weight is missing"),
    ],
)
def test_configs_that_cannot_be_exported(hf: Path, changes: dict[str, Any], message: str) -> None:
    edit(hf, changes)
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(Checkpoint(hf), hf.parent / "out", Options(), quiet=True)
    assert message in caught.value.message
    assert str(caught.value).isprintable()
    assert [path.name for path in hf.parent.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        (smaller(SMALL, hidden=60), Options(), "the hidden size 60 is no multiple of 8"),
        (smaller(SMALL, hidden=64), Options(gemv_format="bfp6s"), "is no multiple of 128, which bfp6s needs"),
    ],
)
def test_shapes_the_kernels_cannot_hold(tmp_path: Path, shape: Any, options: Options, message: str) -> None:
    write_checkpoint(tmp_path / "hf", shape)
    with pytest.raises(CheckpointError) as caught:
        plan_text(Checkpoint(tmp_path / "hf"), options)
    assert message in caught.value.message


@pytest.mark.parametrize(
    "options",
    [
        Options(chunk=0),
        Options(chunk=512, max_prompt=256),
        Options(chunk=48, max_prompt=256),
        Options(head_rows=12),
        Options(head_rows=-8),
        Options(max_prompt=1 << 30),
    ],
)
def test_options_that_cannot_be(hf: Path, options: Options) -> None:
    with pytest.raises(UsageError):
        export_checkpoint(Checkpoint(hf), hf.parent / "out", options, quiet=True)


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        Checkpoint(tmp_path / "no")
    with pytest.raises(CheckpointError, match=r"no such file.*config\.json"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5_text"}')
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        Checkpoint(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"x": np.zeros((2, 2), np.float32)}, {})
    with pytest.raises(CheckpointError, match=r"not a Qwen3\.5 checkpoint"):
        Checkpoint(tmp_path)
    for text in ("[]", "{", "\xff", "[" * 100000):
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(CheckpointError, match="JSON"):
            Checkpoint(tmp_path)


def test_shards(hf: Path) -> None:
    index = hf / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    shard = next(iter(table["weight_map"].values()))
    for files, message in (
        ({"a": "../x.safetensors"}, "names no files of this directory"),
        ({}, "names no files of this directory"),
        ({"a": 3}, "names no files of this directory"),
        ({"a": "missing.safetensors", "b": None}, "names no files of this directory"),
        ({"a": "missing.safetensors"}, "no such file"),
        ({str(n): f"{n}.safetensors" for n in range(4096)}, "no such file"),
        ({str(n): f"{n}.safetensors" for n in range(4097)}, "names no files of this directory"),
        ({"nowhere": shard}, "tensor nowhere is missing, the index puts it here"),
    ):
        index.write_text(json.dumps({"weight_map": files}))
        with pytest.raises(CheckpointError) as caught:
            Checkpoint(hf)
        assert message in caught.value.message
    index.unlink()
    assert len(Checkpoint(hf).names) == len(table["weight_map"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(hf: Path, value: float) -> None:
    for path in hf.glob("*.safetensors*"):
        path.unlink()
    tensors = write_checkpoint(hf, SMALL, shards=1)
    tensors["model.layers.1.mlp.up_proj.weight"][100, 3] = value
    write_safetensors(hf / "model.safetensors", tensors, dict.fromkeys(tensors, "F32"))
    with pytest.raises(ModelError, match=r"tensor l1\.g\.gu cannot be encoded"):
        export_checkpoint(Checkpoint(hf), hf.parent / "out", Options(), quiet=True)
    assert [path.name for path in hf.parent.iterdir()] == ["hf"]


UNPACKED = [
    "layers.0.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight",
    "layers.0.linear_attn.conv1d.weight",
    "layers.0.linear_attn.A_log",
    "layers.0.linear_attn.dt_bias",
    "layers.0.linear_attn.norm.weight",
    "layers.0.linear_attn.in_proj_a.weight",
    "layers.0.linear_attn.in_proj_b.weight",
    "layers.3.self_attn.q_norm.weight",
    "layers.3.self_attn.k_norm.weight",
    "norm.weight",
    "embed_tokens.weight",
]


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F16"])
@pytest.mark.parametrize("name", UNPACKED)
def test_unpacked_tensors_that_are_no_numbers(tmp_path: Path, name: str, dtype: str) -> None:
    tensors = write_checkpoint(tmp_path / "hf", smaller(SMALL, tied=False), shards=1)
    flat = tensors["model." + name].reshape(-1)
    flat[len(flat) // 2] = {"BF16": np.nan, "F32": np.inf, "F16": -np.inf}[dtype]
    write_safetensors(tmp_path / "hf/model.safetensors", tensors, dict.fromkeys(tensors, dtype))
    with pytest.raises(ModelError, match=f"{re.escape(name)} holds NaN or infinity"):
        export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", Options(), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("name", "value"), [("embed_tokens.weight", 3.4e38), ("layers.0.linear_attn.A_log", 99)]
)
def test_values_that_become_infinite_on_the_way(tmp_path: Path, name: str, value: float) -> None:
    tensors = write_checkpoint(tmp_path / "hf", smaller(SMALL, tied=False), shards=1)
    tensors["model." + name].reshape(-1)[3] = value
    write_safetensors(tmp_path / "hf/model.safetensors", tensors, dict.fromkeys(tensors, "F32"))
    with pytest.raises(ModelError, match=r"tensor (embed|l0\.h\.A) cannot be encoded"):
        export_checkpoint(Checkpoint(tmp_path / "hf"), tmp_path / "out", Options(), quiet=True)


def test_a_broken_tokenizer(hf: Path) -> None:
    (hf / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        export_checkpoint(Checkpoint(hf), hf.parent / "out", Options(), quiet=True)
    (hf / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no such file.*tokenizer\.json"):
        export_checkpoint(Checkpoint(hf), hf.parent / "out", Options(), quiet=True)
