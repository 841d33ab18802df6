"""The model's constants, by the keys of the published config.json where it has them.

What a bundle adds has names of its own: `chunk`, `max_prompt`, `n_down`, `head_rows`, `n_head`,
`gemv_format`, and of the tower `pos_side`, `max_patches`, `weights`. How a manifest spells them:
qwen35.bundle.params.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ModelConfig", "VisionConfig"]


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower. Sizes in elements, `min_pixels` and `max_pixels` in pixels of a whole picture.

    `pos_side`: rows and columns of the table of positions (the root of num_position_embeddings);
    `max_patches`: patches of the largest picture; `weights`: w8 or bfp16x2 (qwen35.export.vision).
    """

    hidden_size: int
    intermediate_size: int
    depth: int
    num_heads: int
    patch_size: int
    spatial_merge_size: int
    out_hidden_size: int
    pos_side: int
    rope_theta: float
    image_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    min_pixels: int
    max_pixels: int
    max_patches: int
    weights: str

    @property
    def head_dim(self) -> int:
        """Dims of an attention head."""
        return self.hidden_size // self.num_heads

    @property
    def patch_dim(self) -> int:
        """Inputs of one patch: three channels of patch x patch."""
        return 3 * self.patch_size * self.patch_size

    @property
    def n_fc2(self) -> int:
        """K slices of fc2: tensors `vis.b{i}.fc2.{0..n_fc2-1}`."""
        return -(-self.intermediate_size // self.hidden_size)

    @property
    def n_merge(self) -> int:
        """K slices of each merger linear: tensors `vis.m1.{j}` and `vis.m2.{j}`."""
        return self.spatial_merge_size * self.spatial_merge_size


@dataclass(frozen=True)
class ModelConfig:
    """The text model, and `vision` where the bundle has a tower. Sizes in elements.

    `layer_types` are lin (linear_attention) and att (full_attention), which are also the keys of the layers'
    input projections. `intermediate_size` is padded as the kernels need it; `rotary_dim`: head_dim times
    partial_rotary_factor; `eos_token_id`: every token that ends an answer.

    `chunk`: rows of one GEMM chunk; `max_prompt`: rows of one prefill pass; `n_down`: K slices of down_proj;
    `n_head` dispatches of `head_rows` rows make the head.
    """

    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    vocab_size: int
    rms_norm_eps: float
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    mrope_section: tuple[int, int, int] | None
    linear_num_value_heads: int
    linear_num_key_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    chunk: int
    max_prompt: int
    n_down: int
    head_rows: int
    n_head: int
    eos_token_id: tuple[int, ...]
    gemv_format: str = "bfp16"
    tie_word_embeddings: bool = True
    vision: VisionConfig | None = None

    @property
    def num_hidden_layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_types)

    @property
    def lin_key(self) -> int:
        """Width of q, and of k, in linear attention."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def lin_value(self) -> int:
        """Width of v, and of z, in linear attention."""
        return self.linear_num_value_heads * self.linear_value_head_dim

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
        return 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim

    @property
    def o_in(self) -> int:
        """K of projection `o`: the mixers' output width (equal for both kinds of layer)."""
        return self.num_attention_heads * self.head_dim if "att" in self.layer_types else self.lin_value
