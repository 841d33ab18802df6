"""From a checkpoint, or from a seed, to a bundle: one streaming pass."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from amdxdna.files import read_regular
from qwen35.bundle.bundle import Bundle
from qwen35.bundle.config import ModelConfig
from qwen35.bundle.errors import BundleError
from qwen35.bundle.params import config_params
from qwen35.bundle.schema import TensorSpec, text_schema, vision_schema
from qwen35.bundle.writer import BundleWriter
from qwen35.errors import ModelError, TokenizerError
from qwen35.export.adopt import adopted_options, adopted_vision, check_items, copy_kernels
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.kernels import write_kernels
from qwen35.export.noise import Noise
from qwen35.export.plan import Options, plan_random, plan_text
from qwen35.export.progress import Progress
from qwen35.export.random import RandomText, RandomVision
from qwen35.export.rows import all_finite
from qwen35.export.text import CheckpointText
from qwen35.export.vision import (
    CheckpointVision,
    plan_random_vision,
    plan_vision,
    vision_gemms,
)
from qwen35.export.vocabulary import tokenizer_json
from qwen35.formats import FormatError
from qwen35.tokenizer import TOKENIZER_LIMIT, called, from_json

__all__ = ["export_checkpoint", "export_random"]

_CASES = (
    "",
    " ",
    "a b",
    "Hello, world!",
    "What is a penguin?",
    "  two  spaces\n\n\tand a tab",
    "12345.678",
    "don't you'll I'M",
    "na\u00efve caf\u00e9 re\u0301sume\u0301",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\U0001f427\U0001f9ca",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<think>\n</think>",
    "def f(x):\n    return x**2  # squared\n",
)


class Source(Protocol):
    """Where tensors come from."""

    def pieces(self, item: TensorSpec) -> Iterator[NDArray[Any]]:
        """The item's bytes in order, as contiguous arrays."""


def export_checkpoint(
    checkpoint: Checkpoint,
    out: str | os.PathLike[str],
    options: Options,
    *,
    kernels: Bundle | None = None,
    force: bool = False,
    quiet: bool = False,
    noise: Noise | None = None,
) -> Path:
    """Writes the bundle of a checkpoint to `out`; returns its path.

    `kernels`: a bundle whose kernels are taken over; it then decides what `options` would. `noise` counts
    what encoding the text model's weights costs. Raises CheckpointError, BundleError, UsageError, ModelError
    (NaN or infinity in a weight); on any exception, KeyboardInterrupt included, nothing is left behind.
    """
    if kernels is not None:
        options = adopted_options(kernels)
    options.check()
    vision = plan_vision(checkpoint, options)
    config = replace(
        plan_text(checkpoint, options), vision=vision if kernels is None else adopted_vision(kernels, vision)
    )
    parts = _parts(config, CheckpointText(checkpoint, config, noise))
    if config.vision is not None:
        parts.append((CheckpointVision(checkpoint, config.vision), list(vision_schema(config.vision))))
    if kernels is not None:
        check_items(kernels, (item for _, items in parts for item in items), config.gemv_format)
    origin = f"checkpoint {checkpoint.path.resolve().name}"
    job = _Job(origin, config, options.vision_chunk, parts, kernels)
    return _write(job, Path(out), _tokenizer(checkpoint.tokenizer_path), force=force, quiet=quiet)


def _tokenizer(path: Path) -> bytes:
    try:
        return read_regular(path, TOKENIZER_LIMIT)
    except OSError as error:
        raise TokenizerError(f"cannot be read: {error.strerror}", str(path)) from None


def export_random(
    size: str,
    out: str | os.PathLike[str],
    options: Options,
    *,
    seed: int = 0,
    tokenizer: Path | None = None,
    force: bool = False,
    quiet: bool = False,
) -> Path:
    """Writes a bundle of seeded random weights in one of the known sizes to `out`; returns its path.

    `tokenizer`: a tokenizer.json to use instead of the stand-in. Raises as export_checkpoint does.
    """
    options.check()
    config = plan_random(size, options)
    config = replace(config, vision=plan_random_vision(size, options, config))
    text = tokenizer_json(config.vocab_size).encode() if tokenizer is None else _tokenizer(tokenizer)
    parts = _parts(config, RandomText(config, seed))
    if config.vision is not None:
        parts.append((RandomVision(config.vision, seed), list(vision_schema(config.vision))))
    job = _Job(f"random weights, {size}, seed {seed}", config, options.vision_chunk, parts)
    return _write(job, Path(out), text, force=force, quiet=quiet)


@dataclass(frozen=True)
class _Job:
    """What is written: `parts` are sources and the items each of them gives, in file order."""

    origin: str
    config: ModelConfig
    vision_chunk: int
    parts: list[tuple[Source, list[TensorSpec]]]
    kernels: Bundle | None = None

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes(self.config.gemv_format) for _, items in self.parts for item in items)


def _parts(config: ModelConfig, source: Source) -> list[tuple[Source, list[TensorSpec]]]:
    return [(source, list(text_schema(config)))]


def _write(job: _Job, out: Path, tokenizer: bytes, *, force: bool, quiet: bool) -> Path:
    cases, config = _token_cases(tokenizer), job.config
    with BundleWriter(out, force=force) as writer:
        _require_space(writer.path, job.nbytes)
        writer.comment(f"Qwen3.5 for the emulated NPU: {job.origin}")
        for name, text in config_params(config).items():
            writer.param(name, text)
        writer.file("tokenizer.json", tokenizer)
        if job.kernels is not None:
            copy_kernels(writer, job.kernels)
        else:
            tower = vision_gemms(config.vision, job.vision_chunk) if config.vision else []
            write_kernels(writer, config, tower)
        with Progress("export", job.nbytes, quiet=quiet) as progress:
            for source, items in job.parts:
                for item in items:
                    _write_item(writer, item, source, config.gemv_format, progress)
        for text, ids in cases:
            # A reader may want two fields: no ids are a lone comma.
            writer.record("tokcase", text.encode().hex() or "-", ",".join(map(str, ids)) or ",")
        return writer.finish()


def _write_item(
    writer: BundleWriter, item: TensorSpec, source: Source, gemv_format: str, progress: Progress
) -> None:
    size = item.nbytes(gemv_format)
    shape, dtype = ((size,), "u8") if item.rows else (item.shape, item.dtype)
    try:
        with writer.tensor(item.name, dtype, *shape) as stream:
            for piece in source.pieces(item):
                if dtype == "f32" and not all_finite(piece):
                    raise FormatError("float32 cannot hold its values")
                stream.write(piece)
                progress.add(piece.nbytes)
    except FormatError as error:
        raise ModelError(f"tensor {item.name} cannot be encoded: {error}") from None


def _token_cases(tokenizer: bytes) -> list[tuple[str, list[int]]]:
    """Tokenizer tests: what this tokenizer.json makes of a few texts."""
    try:
        loaded = from_json(tokenizer.decode("utf-8"))
    except ValueError as error:
        raise TokenizerError(f"cannot be loaded: {error}", "tokenizer.json") from None
    try:
        return [(text, called(loaded.encode, text, add_special_tokens=False).ids) for text in _CASES]
    except ValueError as error:
        raise TokenizerError(f"cannot encode: {error}", "tokenizer.json") from None


def _require_space(directory: Path, total: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < total + (64 << 20):
        raise BundleError(
            directory.parent,
            0,
            f"the bundle takes {total / 1e9:.2f} GB, {free / 1e9:.2f} GB are free",
            "choose another --out",
        )
