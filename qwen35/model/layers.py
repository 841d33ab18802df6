"""The decoder layers of a model: host parameters and device weights, put together once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amdxdna.buffer import Buffer
from qwen35.bundle.schema import TensorSpec, text_schema
from qwen35.errors import ModelError
from qwen35.host import Norm
from qwen35.model.attention import Attention
from qwen35.model.deltanet import DeltaNet

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig
    from qwen35.bundle.tensors import Store

__all__ = ["Layer", "build_layers", "check_dims"]


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
    specs: dict[int, list[TensorSpec]] = {}
    for spec in text_schema(config):
        specs.setdefault(spec.layer, []).append(spec)
    return [
        _layer(config, tensors, weights, index, kind, specs[index])
        for index, kind in enumerate(config.layer_types)
    ]


def _layer(
    config: ModelConfig,
    tensors: Store,
    weights: Callable[[str], Buffer],
    index: int,
    kind: str,
    specs: list[TensorSpec],
) -> Layer:
    eps = config.rms_norm_eps
    host = {spec.part: tensors.of(spec) for spec in specs if not spec.rows}
    packed: dict[str, list[Buffer]] = {}
    for spec in specs:
        if spec.rows:
            packed.setdefault(spec.part, []).append(weights(spec.name))
    mixer: DeltaNet | Attention
    norm_in = Norm(host["ln1"], eps, config.n_down if index else 0, host.get("ba"))
    if kind == "lin":
        mixer = DeltaNet(config, host["conv"], host["A"], host["dt_bias"], host["norm"], norm_in.proj_cols)
    else:
        mixer = Attention(config, host["q_norm"], host["k_norm"])
    return Layer(
        index,
        kind,
        norm_in,
        Norm(host["ln2"], eps, 1),
        mixer,
        packed[kind][0],
        packed["o"][0],
        packed["gu"][0],
        tuple(packed["down"]),
    )
