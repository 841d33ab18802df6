"""The model's constants, as a bundle's params give them.

Attribute names are the params' own. Params that our export adds to the published vocabulary, each with a
default that makes a published bundle read the same:

==================  ==========================================================================
`lin_kheads`        key heads of the linear attention (default `lin_heads`, which counts its value
                    heads); q and k of key head h serve value heads h*r .. h*r+r-1, r = the ratio
`tied`              0: tensor `embed` (bf16 [vocab, D]) holds the embedding rows; 1 (default): they
                    are decoded from the head's stream
==================  ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen35.bundle.manifest import Manifest
from qwen35.bundle.text import shown

__all__ = ["ModelConfig", "VisionConfig"]

_DIM = 1 << 20
_TOKENS = 1 << 24
_LAYERS = 4096
THETA = (1.0, 1e12)
"""Least and most of a rotary base; the published ones are 1e4 to 1e7."""
GEMV_FORMATS = ("bfp16", "bfp6s")
VISION_WEIGHTS = ("w8", "bfp16x2")


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower: params `v.*` of the manifest. Sizes in elements, `min_pixels`.. in pixels."""

    D: int
    I: int  # noqa: E741
    depth: int
    heads: int
    patch: int
    merge: int
    out: int
    pos_side: int
    rope_theta: float
    image_token: int
    vision_start: int
    vision_end: int
    min_pixels: int
    max_pixels: int
    max_patches: int
    weights: str

    @property
    def hd(self) -> int:
        """Dims of an attention head."""
        return self.D // self.heads

    @property
    def patch_dim(self) -> int:
        """Inputs of one patch: three channels of patch x patch."""
        return 3 * self.patch * self.patch

    @property
    def n_fc2(self) -> int:
        """K slices of fc2: tensors `vis.b{i}.fc2.{0..n_fc2-1}`."""
        return -(-self.I // self.D)

    @property
    def n_merge(self) -> int:
        """K slices of each merger linear: tensors `vis.m1.{j}` and `vis.m2.{j}`."""
        return self.merge * self.merge

    @classmethod
    def from_manifest(cls, manifest: Manifest, weights: str = "") -> VisionConfig | None:
        """The tower's constants, or None where the manifest has no `v.D`. Raises BundleError.

        `weights` is what they are where the manifest has no `v.weights` ("": it must).
        """
        if "v.D" not in manifest.params:
            return None

        def count(name: str, most: int = _DIM) -> int:
            return manifest.param("v." + name).count(1, most)

        if not weights or "v.weights" in manifest.params:
            param = manifest.param("v.weights")
            weights = param.text
            if weights not in VISION_WEIGHTS:
                param.fail(f"{shown(weights)} is not one of {', '.join(VISION_WEIGHTS)}")
        config = cls(
            D=count("D"),
            I=count("I"),
            depth=count("depth", _LAYERS),
            heads=count("heads"),
            patch=count("patch", 1024),
            merge=count("merge", 64),
            out=count("out"),
            pos_side=count("pos_side", 4096),
            rope_theta=manifest.param("v.rope_theta").real(*THETA),
            image_token=manifest.param("v.image_token").count(0, _TOKENS),
            vision_start=manifest.param("v.vision_start").count(0, _TOKENS),
            vision_end=manifest.param("v.vision_end").count(0, _TOKENS),
            min_pixels=count("min_pixels", 1 << 30),
            max_pixels=count("max_pixels", 1 << 30),
            max_patches=count("max_patches"),
            weights=weights,
        )
        config._check(manifest)
        return config

    def params(self) -> dict[str, str]:
        """The manifest params (name without `v.` -> value text) that read back as this config."""
        names = list(VisionConfig.__dataclass_fields__)
        return {name: _text(getattr(self, name)) for name in names}

    def _check(self, manifest: Manifest) -> None:
        def need(name: str, holds: bool, message: str) -> None:
            _require(manifest, "v." + name, holds, message)

        need("heads", self.D % self.heads == 0, f"does not divide v.D = {self.D}")
        need("heads", self.hd % 4 == 0, f"leaves heads of {self.hd} dims: no multiple of 4")
        need("D", self.patch_dim <= self.D, f"is less than a patch's {self.patch_dim} values")
        need("min_pixels", self.min_pixels <= self.max_pixels, "is more than v.max_pixels")


@dataclass(frozen=True)
class ModelConfig:
    """The text model, and `vision` where the bundle has a tower. Sizes in elements, `stop` token ids.

    `chunk`: rows of one GEMM chunk; `max_prompt`: rows of one prefill pass; `n_down`: K slices of down_proj;
    `n_head` dispatches of `head_rows` rows make the head.
    """

    D: int
    I: int  # noqa: E741
    layer_types: tuple[str, ...]
    vocab: int
    eps: float
    heads: int
    kv_heads: int
    hd: int
    rope_dim: int
    rope_theta: float
    mrope_section: tuple[int, int, int] | None
    lin_heads: int
    lin_kheads: int
    lin_hk: int
    lin_hv: int
    conv_k: int
    chunk: int
    max_prompt: int
    n_down: int
    head_rows: int
    n_head: int
    stop: tuple[int, ...]
    gemv_format: str = "bfp16"
    tied: bool = True
    vision: VisionConfig | None = None

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_types)

    @property
    def lin_key(self) -> int:
        """Width of q, and of k, in linear attention."""
        return self.lin_kheads * self.lin_hk

    @property
    def lin_value(self) -> int:
        """Width of v, and of z, in linear attention."""
        return self.lin_heads * self.lin_hv

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution: q | k | v."""
        return 2 * self.lin_key + self.lin_value

    @property
    def n_lin(self) -> int:
        """Columns of projection `lin`: q | k | v | z."""
        return self.conv_dim + self.lin_value

    @property
    def n_att(self) -> int:
        """Columns of projection `att`: (q | gate) a head, then all k, then all v."""
        return 2 * (self.heads + self.kv_heads) * self.hd

    @property
    def o_in(self) -> int:
        """K of projection `o`: the mixers' output width (equal for both kinds of layer)."""
        return self.heads * self.hd if "att" in self.layer_types else self.lin_value

    @classmethod
    def from_manifest(cls, manifest: Manifest, vision_weights: str = "") -> ModelConfig:
        """The constants of a manifest. Raises BundleError naming the param's line.

        `vision_weights` as in VisionConfig.from_manifest.
        """

        def count(name: str, most: int = _DIM) -> int:
            return manifest.param(name).count(1, most)

        lin_heads, params = count("lin_heads"), manifest.params
        config = cls(
            D=count("D"),
            I=count("I"),
            layer_types=_layer_types(manifest),
            vocab=count("vocab", _TOKENS),
            eps=manifest.param("eps").real(most=1),
            heads=count("heads"),
            kv_heads=count("kv_heads"),
            hd=count("hd"),
            rope_dim=count("rope_dim"),
            rope_theta=manifest.param("rope_theta").real(*THETA),
            mrope_section=_mrope_section(manifest),
            lin_heads=lin_heads,
            lin_kheads=count("lin_kheads") if "lin_kheads" in params else lin_heads,
            lin_hk=count("lin_hk"),
            lin_hv=count("lin_hv"),
            conv_k=count("conv_k", 64),
            chunk=count("chunk"),
            max_prompt=count("max_prompt"),
            n_down=count("n_down", 4096),
            head_rows=count("head_rows", _TOKENS),
            n_head=count("n_head", _TOKENS),
            stop=manifest.param("stop").counts(_TOKENS),
            gemv_format=_gemv_format(manifest),
            tied=_tied(manifest),
            vision=VisionConfig.from_manifest(manifest, vision_weights),
        )
        config._check(manifest)
        return config

    def params(self) -> dict[str, str]:
        """The manifest params (name -> value text) that read back as this config; defaults are left out."""
        out = {}
        for name in ModelConfig.__dataclass_fields__:
            if name not in ("tied", "gemv_format", "lin_kheads", "mrope_section", "vision"):
                out[name] = _text(getattr(self, name))
        if self.mrope_section is not None:
            out["mrope_section"] = _text(self.mrope_section)
        if self.lin_kheads != self.lin_heads:
            out["lin_kheads"] = _text(self.lin_kheads)
        if self.gemv_format != "bfp16":
            out["gemv_format"] = self.gemv_format
        if not self.tied:
            out["tied"] = "0"
        if self.vision is not None:
            out.update({"v." + name: text for name, text in self.vision.params().items()})
        return out

    def _check(self, manifest: Manifest) -> None:
        def need(name: str, holds: bool, message: str) -> None:
            _require(manifest, name, holds, message)

        need("D", self.D % 8 == 0, "is no multiple of 8")
        need("kv_heads", self.heads % self.kv_heads == 0, f"does not divide heads = {self.heads}")
        if self.lin_heads % self.lin_kheads:
            need("lin_kheads", False, f"does not divide lin_heads = {self.lin_heads}")
        need("rope_dim", self.rope_dim % 2 == 0, "is odd")
        need("rope_dim", self.rope_dim <= self.hd, f"is more than hd = {self.hd}")
        need("n_down", self.n_down * self.D >= self.I, f"slices of D = {self.D} do not cover I = {self.I}")
        need(
            "n_head",
            self.n_head * self.head_rows >= self.vocab,
            f"times head_rows = {self.head_rows} is less than vocab = {self.vocab}",
        )
        need("n_head", self.n_head <= self.vocab, f"is more than vocab = {self.vocab}")
        need("max_prompt", self.max_prompt >= self.chunk, f"is less than chunk = {self.chunk}")
        both = {"lin", "att"} <= set(self.layer_types)
        need(
            "heads",
            not both or self.lin_value == self.heads * self.hd,
            f"* hd = {self.heads * self.hd} differs from lin_heads * lin_hv = {self.lin_value}",
        )
        if self.vision is not None:
            need("v.out", self.vision.out == self.D, f"differs from D = {self.D}")


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
