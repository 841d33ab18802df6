"""How a manifest spells the model's constants: its params, read into a config and written from one.

The letters are the published format's; nothing else in this package knows them. Params that our export adds
to the published vocabulary, each with a default that makes a published bundle read the same:

==================  ==========================================================================
`lin_kheads`        key heads of the linear attention (default `lin_heads`, which counts its value
                    heads); q and k of key head h serve value heads h*r .. h*r+r-1, r = the ratio
`tied`              0: tensor `embed` (bf16 [vocab, D]) holds the embedding rows; 1 (default): they
                    are decoded from the head's stream
==================  ==========================================================================
"""

from __future__ import annotations

from qwen35.bundle.config import ModelConfig, VisionConfig
from qwen35.bundle.manifest import Manifest
from qwen35.bundle.text import shown

__all__ = ["THETA", "config_params", "read_config"]

_DIM = 1 << 20
_TOKENS = 1 << 24
_LAYERS = 4096
THETA = (1.0, 1e12)
"""Least and most of a rotary base; the published ones are 1e4 to 1e7."""
GEMV_FORMATS = ("bfp16", "bfp6s")
VISION_WEIGHTS = ("w8", "bfp16x2")

TEXT_PARAMS = {
    "hidden_size": "D",
    "intermediate_size": "I",
    "layer_types": "layer_types",
    "vocab_size": "vocab",
    "rms_norm_eps": "eps",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "hd",
    "rotary_dim": "rope_dim",
    "rope_theta": "rope_theta",
    "linear_num_value_heads": "lin_heads",
    "linear_key_head_dim": "lin_hk",
    "linear_value_head_dim": "lin_hv",
    "linear_conv_kernel_dim": "conv_k",
    "chunk": "chunk",
    "max_prompt": "max_prompt",
    "n_down": "n_down",
    "head_rows": "head_rows",
    "n_head": "n_head",
    "eos_token_id": "stop",
    "mrope_section": "mrope_section",
    "linear_num_key_heads": "lin_kheads",
    "gemv_format": "gemv_format",
    "tie_word_embeddings": "tied",
}
"""Field of ModelConfig -> param, in the order of the file; the last four have defaults."""
VISION_PARAMS = {
    "hidden_size": "D",
    "intermediate_size": "I",
    "depth": "depth",
    "num_heads": "heads",
    "patch_size": "patch",
    "spatial_merge_size": "merge",
    "out_hidden_size": "out",
    "pos_side": "pos_side",
    "rope_theta": "rope_theta",
    "image_token_id": "image_token",
    "vision_start_token_id": "vision_start",
    "vision_end_token_id": "vision_end",
    "min_pixels": "min_pixels",
    "max_pixels": "max_pixels",
    "max_patches": "max_patches",
    "weights": "weights",
}
"""Field of VisionConfig -> param, behind `v.`."""


PARAMS = frozenset(
    {*TEXT_PARAMS.values(), *(f"v.{name}" for name in VISION_PARAMS.values()), "name", "sampling"}
)
"""Every param that is read: the config's, and the two of :class:`qwen35.bundle.Bundle` itself."""


def read_config(manifest: Manifest, vision_weights: str = "") -> ModelConfig:
    """The constants of a manifest. Raises BundleError naming the param's line.

    `vision_weights` is what the tower's weights are where the manifest has no `v.weights` ("": it must).
    """

    def count(name: str, most: int = _DIM) -> int:
        return manifest.param(name).count(1, most)

    lin_heads, params = count("lin_heads"), manifest.params
    config = ModelConfig(
        hidden_size=count("D"),
        intermediate_size=count("I"),
        layer_types=_layer_types(manifest),
        vocab_size=count("vocab", _TOKENS),
        rms_norm_eps=manifest.param("eps").real(most=1),
        num_attention_heads=count("heads"),
        num_key_value_heads=count("kv_heads"),
        head_dim=count("hd"),
        rotary_dim=count("rope_dim"),
        rope_theta=manifest.param("rope_theta").real(*THETA),
        mrope_section=_mrope_section(manifest),
        linear_num_value_heads=lin_heads,
        linear_num_key_heads=count("lin_kheads") if "lin_kheads" in params else lin_heads,
        linear_key_head_dim=count("lin_hk"),
        linear_value_head_dim=count("lin_hv"),
        linear_conv_kernel_dim=count("conv_k", 64),
        chunk=count("chunk"),
        max_prompt=count("max_prompt"),
        n_down=count("n_down", 4096),
        head_rows=count("head_rows", _TOKENS),
        n_head=count("n_head", _TOKENS),
        eos_token_id=manifest.param("stop").counts(_TOKENS),
        gemv_format=_gemv_format(manifest),
        tie_word_embeddings=_tied(manifest),
        vision=_read_vision(manifest, vision_weights),
    )
    _check(manifest, config)
    return config


def _read_vision(manifest: Manifest, weights: str) -> VisionConfig | None:
    """The tower's constants, or None where the manifest has no `v.D`."""
    if "v.D" not in manifest.params:
        return None

    def count(name: str, most: int = _DIM) -> int:
        return manifest.param("v." + name).count(1, most)

    if not weights or "v.weights" in manifest.params:
        param = manifest.param("v.weights")
        weights = param.text
        if weights not in VISION_WEIGHTS:
            param.fail(f"{shown(weights)} is not one of {', '.join(VISION_WEIGHTS)}")
    config = VisionConfig(
        hidden_size=count("D"),
        intermediate_size=count("I"),
        depth=count("depth", _LAYERS),
        num_heads=count("heads"),
        patch_size=count("patch", 1024),
        spatial_merge_size=count("merge", 64),
        out_hidden_size=count("out"),
        pos_side=count("pos_side", 4096),
        rope_theta=manifest.param("v.rope_theta").real(*THETA),
        image_token_id=manifest.param("v.image_token").count(0, _TOKENS),
        vision_start_token_id=manifest.param("v.vision_start").count(0, _TOKENS),
        vision_end_token_id=manifest.param("v.vision_end").count(0, _TOKENS),
        min_pixels=count("min_pixels", 1 << 30),
        max_pixels=count("max_pixels", 1 << 30),
        max_patches=count("max_patches"),
        weights=weights,
    )
    _check_vision(manifest, config)
    return config


def config_params(config: ModelConfig) -> dict[str, str]:
    """The manifest params (name -> value text) that read back as this config; defaults are left out."""
    out = {param: _text(getattr(config, field)) for field, param in TEXT_PARAMS.items()}
    if config.mrope_section is None:
        del out["mrope_section"]
    if config.linear_num_key_heads == config.linear_num_value_heads:
        del out["lin_kheads"]
    if config.gemv_format == "bfp16":
        del out["gemv_format"]
    if config.tie_word_embeddings:
        del out["tied"]
    else:
        out["tied"] = "0"
    if config.vision is not None:
        out |= {"v." + param: _text(getattr(config.vision, field)) for field, param in VISION_PARAMS.items()}
    return out


def _check_vision(manifest: Manifest, c: VisionConfig) -> None:
    def need(name: str, holds: bool, message: str) -> None:
        _require(manifest, "v." + name, holds, message)

    need("heads", c.hidden_size % c.num_heads == 0, f"does not divide v.D = {c.hidden_size}")
    need("heads", c.head_dim % 4 == 0, f"leaves heads of {c.head_dim} dims: no multiple of 4")
    need("D", c.patch_dim <= c.hidden_size, f"is less than a patch's {c.patch_dim} values")
    need("min_pixels", c.min_pixels <= c.max_pixels, "is more than v.max_pixels")


def _check(manifest: Manifest, c: ModelConfig) -> None:
    def need(name: str, holds: bool, message: str) -> None:
        _require(manifest, name, holds, message)

    need("D", c.hidden_size % 8 == 0, "is no multiple of 8")
    need(
        "kv_heads",
        c.num_attention_heads % c.num_key_value_heads == 0,
        f"does not divide heads = {c.num_attention_heads}",
    )
    if c.linear_num_value_heads % c.linear_num_key_heads:
        need("lin_kheads", False, f"does not divide lin_heads = {c.linear_num_value_heads}")
    need("rope_dim", c.rotary_dim % 2 == 0, "is odd")
    need("rope_dim", c.rotary_dim <= c.head_dim, f"is more than hd = {c.head_dim}")
    need(
        "n_down",
        c.n_down * c.hidden_size >= c.intermediate_size,
        f"slices of D = {c.hidden_size} do not cover I = {c.intermediate_size}",
    )
    need(
        "n_head",
        c.n_head * c.head_rows >= c.vocab_size,
        f"times head_rows = {c.head_rows} is less than vocab = {c.vocab_size}",
    )
    need("n_head", c.n_head <= c.vocab_size, f"is more than vocab = {c.vocab_size}")
    for token in c.eos_token_id:  # added tokens have rows of the head too
        need("stop", token < c.vocab_size, f"names token {token}, outside vocab = {c.vocab_size}")
    need("max_prompt", c.max_prompt >= c.chunk, f"is less than chunk = {c.chunk}")
    both = {"lin", "att"} <= set(c.layer_types)
    need(
        "heads",
        not both or c.lin_value == c.num_attention_heads * c.head_dim,
        f"* hd = {c.num_attention_heads * c.head_dim} differs from lin_heads * lin_hv = {c.lin_value}",
    )
    if c.vision is not None:
        for name, token in (
            ("image_token", c.vision.image_token_id),
            ("vision_start", c.vision.vision_start_token_id),
            ("vision_end", c.vision.vision_end_token_id),
        ):
            need(f"v.{name}", token < c.vocab_size, f"is outside vocab = {c.vocab_size}")
        need("v.out", c.vision.out_hidden_size == c.hidden_size, f"differs from D = {c.hidden_size}")


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return repr(value) if isinstance(value, float) else str(value)


def _require(manifest: Manifest, name: str, holds: bool, message: str) -> None:
    if not holds:
        param = manifest.param(name)
        param.fail(f"{param.text} {message}")


def _layer_types(manifest: Manifest) -> tuple[str, ...]:
    param = manifest.param("layer_types")
    kinds = param.words()
    if not 1 <= len(kinds) <= _LAYERS or any(kind not in ("lin", "att") for kind in kinds):
        param.fail(f"must be 1..{_LAYERS} of lin and att, separated by commas")
    return kinds


def _mrope_section(manifest: Manifest) -> tuple[int, int, int] | None:
    if "mrope_section" not in manifest.params:
        return None
    param = manifest.param("mrope_section")
    numbers = param.counts(_DIM)
    if len(numbers) != 3:
        param.fail(f"has {len(numbers)} numbers instead of three")
    return numbers[0], numbers[1], numbers[2]


def _gemv_format(manifest: Manifest) -> str:
    if "gemv_format" not in manifest.params:
        return "bfp16"
    param = manifest.param("gemv_format")
    if param.text not in GEMV_FORMATS:
        param.fail(f"{shown(param.text)} is not one of {', '.join(GEMV_FORMATS)}")
    return param.text


def _tied(manifest: Manifest) -> bool:
    return "tied" not in manifest.params or bool(manifest.param("tied").count(0, 1))
