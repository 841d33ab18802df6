"""What a bundle of a model will hold: its params and, in order, its text tensors.

From a checkpoint's config.json (`text_config`) or from one of the model sizes (`SIZES`).

Rules: the MLP is padded with zeros to whole 32|32 pairs (param `I` is the padded width); down_proj's K is
padded with zeros to `n_down` slices of D; the head is cut into `n_head` dispatches of `head_rows` rows,
the last one filled up with zero rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qwen35.bundle.config import ModelConfig
from qwen35.bundle.params import THETA
from qwen35.bundle.validate import stream_bytes
from qwen35.errors import UsageError
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.errors import CheckpointError

__all__ = ["SIZES", "Item", "Options", "layout", "plan_random", "plan_text", "problem"]

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
        """Raises UsageError."""
        if not 1 <= self.chunk <= self.max_prompt <= 1 << 20:
            raise UsageError(f"--chunk {self.chunk}, --max-prompt {self.max_prompt}: 1 <= chunk <= prompt")
        if self.max_prompt % self.chunk:
            raise UsageError(f"--max-prompt {self.max_prompt} is no multiple of --chunk {self.chunk}")
        if self.head_rows % 8 or self.head_rows < 0:
            raise UsageError(f"--head-rows {self.head_rows} is no multiple of 8")


@dataclass(frozen=True)
class Item:
    """One tensor of the bundle: `part` is its name without layer and slice (`in`, `down`, `ln1`, ...).

    A packed stream has `rows` x `k` weights; anything else has `shape` and dtype `f32` or `bf16`. The
    tower's streams name their `weights` (w8 or bfp16x2) and end with a float32 bias a row.
    """

    name: str
    part: str
    layer: int = -1
    slice: int = 0
    rows: int = 0
    k: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = "f32"
    weights: str = ""

    def nbytes(self, gemv_format: str) -> int:
        """Bytes in tensors.bin; `gemv_format` is the text model's."""
        if self.weights:
            copies = 2 if self.weights == "bfp16x2" else 1
            return copies * stream_bytes(self.rows, self.k, "bfp16") + 4 * self.rows
        if self.rows:
            return stream_bytes(self.rows, self.k, gemv_format)
        size = 2 if self.dtype == "bf16" else 4
        for dim in self.shape:
            size *= dim
        return size


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
    config = _derive(SIZES[size.lower()], options)
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


def layout(config: ModelConfig) -> Iterator[Item]:
    """The text tensors in file order: each layer's streams and host parameters, final norm, head, embed."""
    c = config
    for i, kind in enumerate(c.layer_types):
        g, h = f"l{i}.g.", f"l{i}.h."
        yield Item(g + "in", kind, i, rows=c.n_lin if kind == "lin" else c.n_att, k=c.hidden_size)
        yield Item(g + "o", "o", i, rows=c.hidden_size, k=c.o_in)
        yield Item(g + "gu", "gu", i, rows=2 * c.intermediate_size, k=c.hidden_size)
        for j in range(c.n_down):
            yield Item(f"{g}down{j}", "down", i, j, rows=c.hidden_size, k=c.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {"ln1": (c.hidden_size,), "ln2": (c.hidden_size,)}
        if kind == "lin":
            shapes.update(
                ba=(2 * c.linear_num_value_heads, c.hidden_size),
                conv=(c.conv_dim, c.linear_conv_kernel_dim),
                A=(c.linear_num_value_heads,),
                dt_bias=(c.linear_num_value_heads,),
                norm=(c.linear_value_head_dim,),
            )
        else:
            shapes.update(q_norm=(c.head_dim,), k_norm=(c.head_dim,))
        for part, shape in shapes.items():
            yield Item(h + part, part, i, shape=shape)
    yield Item("ln_f", "ln_f", shape=(c.hidden_size,))
    for j in range(c.n_head):
        yield Item(f"head{j}", "head", slice=j, rows=c.head_rows, k=c.hidden_size)
    if not c.tie_word_embeddings:
        yield Item("embed", "embed", shape=(c.vocab_size, c.hidden_size), dtype="bf16")


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


def _size(
    D: int,
    I: int,  # noqa: E741 the published manifest's name
    layers: int,
    heads: int,
    kv_heads: int,
    value_heads: int,
    *,
    vocab: int = 248320,
    hd: int = 256,
    lin: tuple[int, int] = (16, 128),
    tied: bool = True,
) -> ModelConfig:
    key_heads, lin_dim = lin
    base = vocab - 276
    return ModelConfig(
        hidden_size=D,
        intermediate_size=I,
        layer_types=tuple("att" if i % 4 == 3 else "lin" for i in range(layers)),
        vocab_size=vocab,
        rms_norm_eps=1e-6,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hd,
        rotary_dim=hd // 4,
        rope_theta=1e7,
        mrope_section=(11, 11, 10) if hd == 256 else None,
        linear_num_value_heads=value_heads,
        linear_num_key_heads=key_heads,
        linear_key_head_dim=lin_dim,
        linear_value_head_dim=lin_dim,
        linear_conv_kernel_dim=4,
        chunk=0,
        max_prompt=0,
        n_down=0,
        head_rows=0,
        n_head=0,
        eos_token_id=(base, base + 2),
        tie_word_embeddings=tied,
    )


SIZES: dict[str, ModelConfig] = {
    "tiny": _size(256, 768, 4, 4, 2, 4, vocab=2048, hd=64, lin=(4, 64)),
    "0.8b": _size(1024, 3584, 24, 8, 2, 16),
    "2b": _size(2048, 6144, 24, 8, 2, 16),
    "4b": _size(2560, 9216, 32, 16, 4, 32),
    "9b": _size(4096, 12288, 32, 16, 4, 32, tied=False),
}
"""The published text shapes (and a tiny one), before `Options` are applied."""
