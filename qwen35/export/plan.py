"""What a bundle of a model will hold: its config, which the tensor schema follows from.

From a checkpoint's config.json (`text_config`) or from one of the known sizes (qwen35.bundle.sizes).

Rules: the MLP is padded with zeros to whole 32|32 pairs (`intermediate_size` is the padded width);
down_proj's K is padded with zeros to `n_down` slices of hidden_size; the head is cut into `n_head` dispatches
of `head_rows` rows, the last one filled up with zero rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qwen35.bundle.config import ModelConfig
from qwen35.bundle.params import THETA
from qwen35.bundle.sizes import SIZES
from qwen35.errors import UsageError
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.errors import CheckpointError

__all__ = ["Options", "plan_random", "plan_text", "problem"]

_HEAD_ROWS = 50_000
"""Most rows of one head dispatch, unless asked for otherwise."""
_MOST_SLICES = 1 << 16
"""Most slices of all layers' down_proj: the published models have 3 or 4 a layer."""


@dataclass(frozen=True)
class Options:
    """What the user chooses.

    `chunk` rows of a prompt GEMM, `max_prompt` rows of a prefill pass, `head_rows` rows of a head dispatch
    (0: chosen), `vision` weights (w8, bfp16x2 or none), `max_pixels` of an image (less where the checkpoint
    says less), `vision_chunk` rows of a tower GEMM.
    """

    chunk: int = 256
    max_prompt: int = 2048
    head_rows: int = 0
    gemv_format: str = "bfp16"
    vision: str = "w8"
    max_pixels: int = 1 << 20
    vision_chunk: int = 256

    def check(self) -> None:
        """Raises UsageError for options that do not fit each other."""
        if not 1 <= self.chunk <= self.max_prompt <= 1 << 20:
            raise UsageError(f"--chunk {self.chunk}, --max-prompt {self.max_prompt}: 1 <= chunk <= prompt")
        if self.max_prompt % self.chunk:
            raise UsageError(f"--max-prompt {self.max_prompt} is no multiple of --chunk {self.chunk}")
        if self.head_rows % 8 or self.head_rows < 0:
            raise UsageError(f"--head-rows {self.head_rows} is no multiple of 8")


def _derive(config: ModelConfig, options: Options) -> ModelConfig:
    """`config` with the fields that follow from the others and from the options."""
    inner = -(-config.intermediate_size // 32) * 32
    rows = options.head_rows
    if not rows:
        dispatches = -(-config.vocab_size // _HEAD_ROWS)
        rows = -(-config.vocab_size // dispatches // 8) * 8
    return replace(
        config,
        intermediate_size=inner,
        n_down=-(-inner // config.hidden_size),
        head_rows=rows,
        n_head=-(-config.vocab_size // rows),
        chunk=options.chunk,
        max_prompt=options.max_prompt,
        gemv_format=options.gemv_format,
    )


def plan_text(checkpoint: Checkpoint, options: Options) -> ModelConfig:
    """The text params of a checkpoint. Raises CheckpointError for a shape the kernels cannot hold."""
    text, rope = checkpoint.text, checkpoint.text.section("rope_parameters")
    layers = text.count("num_hidden_layers", most=4096)
    hd = text.count("head_dim", text.count("hidden_size") // text.count("num_attention_heads"))
    rotary = rope.real("partial_rotary_factor", text.real("partial_rotary_factor", 0.25, most=1), most=1)
    theta = rope.real("rope_theta", text.real("rope_theta", 1e7, *THETA), *THETA)
    config = _derive(
        ModelConfig(
            hidden_size=text.count("hidden_size", most=1 << 20),
            intermediate_size=text.count("intermediate_size", most=1 << 20),
            layer_types=_layer_types(checkpoint, layers),
            vocab_size=text.count("vocab_size", most=1 << 24),
            rms_norm_eps=text.real("rms_norm_eps", 1e-6, most=1),
            num_attention_heads=text.count("num_attention_heads"),
            num_key_value_heads=text.count("num_key_value_heads"),
            head_dim=hd,
            rotary_dim=int(hd * rotary),
            rope_theta=theta,
            mrope_section=_mrope_section(checkpoint),
            linear_num_value_heads=text.count("linear_num_value_heads"),
            linear_num_key_heads=text.count("linear_num_key_heads"),
            linear_key_head_dim=text.count("linear_key_head_dim"),
            linear_value_head_dim=text.count("linear_value_head_dim"),
            linear_conv_kernel_dim=text.count("linear_conv_kernel_dim", 4, 64),
            chunk=0,
            max_prompt=0,
            n_down=0,
            head_rows=0,
            n_head=0,
            eos_token_id=checkpoint.stop,
            tie_word_embeddings=checkpoint.tied,
        ),
        options,
    )
    if rope.table.get("rope_type", "default") != "default":
        raise rope.fail("rope_type", f"is {rope.table['rope_type']!r:.40}; only default is known")
    if "mrope_section" in rope and not rope.flag("mrope_interleaved", True):
        raise rope.fail("mrope_interleaved", "is false; only the interleaved form is known")
    if text.table.get("hidden_act", "silu") != "silu":
        raise text.fail("hidden_act", f"is {text.table['hidden_act']!r:.40}, not silu")
    if text.flag("attention_bias", False):
        raise text.fail("attention_bias", "is true; projections with a bias are not known")
    found = problem(config)
    if found:
        raise CheckpointError(checkpoint.config.path, found)
    return config


def plan_random(size: str, options: Options) -> ModelConfig:
    """The text params of one of SIZES. Raises UsageError for an unknown size or an option it cannot take."""
    if size.lower() not in SIZES:
        raise UsageError(f"--random {size}: known sizes are {', '.join(SIZES)}")
    config = _derive(SIZES[size.lower()].text, options)
    found = problem(config)
    if found:
        raise UsageError(f"--random {size}: {found}")
    return config


def problem(config: ModelConfig) -> str | None:
    """Why the kernels or the bundle's vocabulary cannot hold a model of this shape; None when they can."""
    c = config
    step = 128 if c.gemv_format == "bfp6s" else 8
    for name, value in (("hidden size", c.hidden_size), ("width of the token mixers", c.o_in)):
        if value % step:
            return f"the {name} {value} is no multiple of {step}, which {c.gemv_format} needs"
    for name, value in (("lin", c.n_lin), ("att", c.n_att)):
        if name in c.layer_types and value % 8:
            return f"projection {name} has {value} outputs, no multiple of 8"
    if {"lin", "att"} <= set(c.layer_types) and c.lin_value != c.num_attention_heads * c.head_dim:
        attention = c.num_attention_heads * c.head_dim
        return f"linear layers are {c.lin_value} wide, attention layers {attention}; one o serves both"
    if c.num_hidden_layers * c.n_down > _MOST_SLICES:
        wide = f"{c.intermediate_size:,} wide, {c.n_down} times the hidden size"
        return f"{c.num_hidden_layers} layers of an MLP {wide}"
    if c.linear_num_value_heads % c.linear_num_key_heads or c.num_attention_heads % c.num_key_value_heads:
        return "value heads are no multiple of key heads, or heads of kv heads"
    if c.rotary_dim % 2 or not 0 < c.rotary_dim <= c.head_dim:
        return f"{c.rotary_dim} rotated dims of {c.head_dim}"
    if not c.eos_token_id:
        return "no end-of-sequence token id is known"
    return None


def _layer_types(checkpoint: Checkpoint, layers: int) -> tuple[str, ...]:
    text = checkpoint.text
    names = text.table.get("layer_types")
    if names is None:
        every = text.count("full_attention_interval", 4)
        names = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    kinds = {"linear_attention": "lin", "full_attention": "att"}
    if not isinstance(names, list) or len(names) != layers or not set(map(str, names)) <= set(kinds):
        raise text.fail("layer_types", f"must name linear_attention or full_attention for {layers} layers")
    return tuple(kinds[name] for name in names)


def _mrope_section(checkpoint: Checkpoint) -> tuple[int, int, int] | None:
    rope = checkpoint.text.section("rope_parameters")
    numbers = rope.ids("mrope_section")
    if not numbers:
        return None
    if len(numbers) != 3:
        raise rope.fail("mrope_section", f"has {len(numbers)} numbers instead of three")
    return numbers[0], numbers[1], numbers[2]
