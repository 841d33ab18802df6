"""The decoder layers of a model: host parameters and device weights, put together once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amdxdna.buffer import Buffer
from qwen35.errors import ModelError
from qwen35.host import Norm
from qwen35.model.attention import Attention
from qwen35.model.deltanet import DeltaNet

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig
    from qwen35.bundle.tensors import Store

__all__ = ["Layer", "build_layers", "check_dims", "layer_tensors"]


@dataclass(frozen=True)
class Layer:
    """One decoder layer. `kind` (lin or att) is also the key of its input projection.

    `norm_in` first adds the previous layer's down_proj slices to x (none for layer 0), `norm_mlp` this
    layer's output projection. `w_down` holds the K slices in order.
    """

    index: int
    kind: str
    norm_in: Norm
    norm_mlp: Norm
    mixer: DeltaNet | Attention
    w_in: Buffer
    w_o: Buffer
    w_gu: Buffer
    w_down: tuple[Buffer, ...]


def layer_tensors(config: ModelConfig) -> list[str]:
    """The packed tensors of all layers, in the order of their use."""
    return [
        f"l{i}.g.{part}"
        for i in range(config.num_hidden_layers)
        for part in ("in", "o", "gu", *(f"down{j}" for j in range(config.n_down)))
    ]


def check_dims(config: ModelConfig) -> None:
    """Raises ModelError for dims that the host's kernels do not take; every released Qwen3.5 passes."""
    wanted = {
        "head_dim": config.head_dim,
        "linear_key_head_dim": config.linear_key_head_dim,
        "linear_value_head_dim": config.linear_value_head_dim,
    }
    if "att" not in config.layer_types:
        del wanted["head_dim"]
    if "lin" not in config.layer_types:
        del wanted["linear_key_head_dim"], wanted["linear_value_head_dim"]
    for name, value in wanted.items():
        if value % 16 or value > 512:
            raise ModelError(f"{name} is {value}: head dims must be multiples of 16, at most 512")
    if config.linear_conv_kernel_dim > 8:
        taps = config.linear_conv_kernel_dim
        raise ModelError(f"linear_conv_kernel_dim is {taps}: the convolution has at most 8 taps")


def build_layers(config: ModelConfig, tensors: Store, weights: Callable[[str], Buffer]) -> list[Layer]:
    """Every layer. `weights(name)` gives the device buffer of a packed tensor.

    Raises BundleError for a host parameter that is missing or has another size.
    """
    return [_layer(config, tensors, weights, i, kind) for i, kind in enumerate(config.layer_types)]


def _layer(
    config: ModelConfig, tensors: Store, weights: Callable[[str], Buffer], index: int, kind: str
) -> Layer:
    c, at = config, f"l{index}.h."
    mixer: DeltaNet | Attention
    proj = None
    if kind == "lin":
        proj = tensors.expect(at + "ba", "f32", 2 * c.linear_num_value_heads, c.hidden_size)
    adds = c.n_down if index else 0
    norm_in = Norm(tensors.expect(at + "ln1", "f32", c.hidden_size), c.rms_norm_eps, adds, proj)
    if kind == "lin":
        mixer = DeltaNet(
            c,
            tensors.expect(at + "conv", "f32", c.conv_dim, c.linear_conv_kernel_dim),
            tensors.expect(at + "A", "f32", c.linear_num_value_heads),
            tensors.expect(at + "dt_bias", "f32", c.linear_num_value_heads),
            tensors.expect(at + "norm", "f32", c.linear_value_head_dim),
            norm_in.proj_cols,
        )
    else:
        mixer = Attention(
            c,
            tensors.expect(at + "q_norm", "f32", c.head_dim),
            tensors.expect(at + "k_norm", "f32", c.head_dim),
        )
    return Layer(
        index,
        kind,
        norm_in,
        Norm(tensors.expect(at + "ln2", "f32", c.hidden_size), c.rms_norm_eps, 1),
        mixer,
        weights(f"l{index}.g.in"),
        weights(f"l{index}.g.o"),
        weights(f"l{index}.g.gu"),
        tuple(weights(f"l{index}.g.down{j}") for j in range(c.n_down)),
    )
