"""The model sizes that are known: shapes, names, and where they are published.

Shapes are those of the config.json of each checkpoint (Qwen/Qwen3.5-* on the Hugging Face Hub).
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen35.bundle.config import ModelConfig

__all__ = [
    "PUBLISHED",
    "REAL_BUNDLE",
    "REAL_CHECKPOINT",
    "SIZES",
    "Compiled",
    "Size",
    "model_name",
    "size_of",
]

REAL_BUNDLE = "brishen/iron-qwen3.5-2b-npu2"
"""The published bundle for an NPU that the program names."""


@dataclass(frozen=True)
class Compiled:
    """A published bundle whose kernels are compiled for NPU2, and its bytes as its repository lists them."""

    repository: str
    nbytes: int


@dataclass(frozen=True)
class Size:
    """One size. `text` is without what export chooses (chunk, max_prompt, n_down, head_rows, n_head).

    The tower's shape: `vision_hidden_size`, `vision_depth`, `vision_num_heads`, `vision_intermediate_size`,
    `vision_patch_size`. `name` and `checkpoint` (its id on the Hub) are empty for one that is not published.
    """

    text: ModelConfig
    vision_hidden_size: int
    vision_depth: int
    vision_num_heads: int
    vision_intermediate_size: int
    vision_patch_size: int
    name: str = ""
    checkpoint: str = ""
    compiled: Compiled | None = None


def _text(
    hidden: int,
    inner: int,
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
    base = vocab - 276  # special tokens come last in the table: <|endoftext|>, <|im_start|>, <|im_end|> ...
    return ModelConfig(
        hidden_size=hidden,
        intermediate_size=inner,
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


SIZES: dict[str, Size] = {
    "tiny": Size(_text(256, 768, 4, 4, 2, 4, vocab=2048, hd=64, lin=(4, 64)), 256, 2, 4, 768, 8),
    "0.8b": Size(_text(1024, 3584, 24, 8, 2, 16), 768, 12, 12, 3072, 16, "Qwen3.5-0.8B", "Qwen/Qwen3.5-0.8B"),
    "2b": Size(
        _text(2048, 6144, 24, 8, 2, 16),
        1024,
        24,
        16,
        4096,
        16,
        "Qwen3.5-2B",
        "Qwen/Qwen3.5-2B",
        Compiled(REAL_BUNDLE, 2_500_000_000),
    ),
    "4b": Size(_text(2560, 9216, 32, 16, 4, 32), 1024, 24, 16, 4096, 16, "Qwen3.5-4B", "Qwen/Qwen3.5-4B"),
    "9b": Size(
        _text(4096, 12288, 32, 16, 4, 32, tied=False),
        1152,
        27,
        16,
        4304,
        16,
        "Qwen3.5-9B",
        "Qwen/Qwen3.5-9B",
    ),
}
"""The sizes by the name that `export --random` and `info` take."""
PUBLISHED = {size: known for size, known in SIZES.items() if known.checkpoint}
"""Those with a published checkpoint."""
REAL_CHECKPOINT = SIZES["2b"].checkpoint


def size_of(hidden_size: object, intermediate_size: object, layers: object, vocab_size: object) -> str | None:
    """The known size of that shape; None for any other."""
    for size, known in SIZES.items():
        c = known.text
        if (hidden_size, intermediate_size, layers, vocab_size) == (
            c.hidden_size,
            c.intermediate_size,
            c.num_hidden_layers,
            c.vocab_size,
        ):
            return size
    return None


def model_name(config: ModelConfig) -> str:
    """The published name of a model of that shape, or just Qwen3.5."""
    c = config
    size = size_of(c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.vocab_size)
    return (size is not None and SIZES[size].name) or "Qwen3.5"
