"""A Hugging Face Qwen3.5 directory: config, tensors over all shards, tokenizer, stop tokens."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from amdxdna.files import read_regular
from qwen35.bundle.text import relative_path
from qwen35.errors import ModelError
from qwen35.export.errors import CheckpointError
from qwen35.export.rows import Matrix, all_finite
from qwen35.export.safetensors import SafeTensors
from qwen35.find import where_from
from qwen35.tokenizer import TOKENIZER_LIMIT

__all__ = ["Checkpoint", "Section"]

_TEXT_PREFIXES = ("model.language_model.", "model.", "language_model.model.")
_VISION_PREFIXES = ("model.visual.", "visual.")
_STOP_WORDS = ("<|endoftext|>", "<|im_end|>")
_VISION_PROBE = "patch_embed.proj.weight"
_JSON_LIMIT = 8 << 20  # an index of 100,000 tensors; a tokenizer.json is larger
_NO_TOWER = "is the download complete? to leave the tower out, export with --vision none"


class Section:
    """A JSON object of config.json whose values are fetched with their type checked."""

    def __init__(self, path: Path, table: dict[str, Any], name: str = "") -> None:
        self.path, self.table, self.name = path, table, name

    def __contains__(self, key: str) -> bool:
        return self.table.get(key) is not None

    def section(self, key: str) -> Section:
        """The object under `key`; empty where there is none."""
        value = self.table.get(key) or {}
        if not isinstance(value, dict):
            raise self.fail(key, "is no JSON object")
        return Section(self.path, value, f"{self.name}{key}.")

    def count(self, key: str, default: int | None = None, most: int = 1 << 24) -> int:
        """An integer from 1 to `most` under `key`."""
        value = self.table.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(key, f"is {_shown(value)}, not a positive whole number")
        if value > most:
            raise self.fail(key, f"is {_shown(value)}, more than {most:,}")
        return value

    def real(self, key: str, default: float | None = None, least: float = 1e-30, most: float = 1e30) -> float:
        """A number from `least` to `most` under `key`; float32 holds every number from 1e-30 to 1e30."""
        value = self.table.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self.fail(key, f"is {_shown(value)}, not a positive number")
        if not least <= value <= most:
            raise self.fail(key, f"is {_shown(value)}, outside {least:g} to {most:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean under `key`."""
        value = self.table.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, f"is {value!r:.40}, not true or false")
        return value

    def ids(self, key: str) -> list[int]:
        """A token id or a list of them under `key`; empty where there is none."""
        value = self.table.get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        for number in values:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 31:
                raise self.fail(key, f"holds {_shown(number)}, which is no token id")
        return values

    def fail(self, key: str, message: str) -> CheckpointError:
        """The error for `key` of this section."""
        return CheckpointError(self.path, f"{self.name}{key} {message}")


def _shown(value: object) -> str:
    """A value for an error message; the digits of a very large number cannot even be written."""
    if isinstance(value, int) and not -(10**40) < value < 10**40:
        return "a number of more than 40 digits"
    return f"{value!r:.40}"


def read_json(path: Path, limit: int = _JSON_LIMIT) -> Section:
    """A JSON object from a file of at most `limit` bytes. Raises CheckpointError."""
    try:
        table = json.loads(read_regular(path, limit).decode("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(path, "no such file", "give the checkpoint's directory") from None
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(path, f"no valid JSON: {error}") from None
    if not isinstance(table, dict):
        raise CheckpointError(path, "no JSON object")
    return Section(path, table)


def _finite(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.size and not all_finite(values):
        raise ModelError(f"tensor {name} holds NaN or infinity", remedy="is the download damaged?")
    return values


class Checkpoint:
    """A checkpoint directory. Tensors are views of mapped files; any thread may read.

    `config`: config.json; `text`: its text part; `vision`: its tower's part, None where there is none.
    """

    def __init__(self, directory: str | Path) -> None:
        """Raises CheckpointError where the directory holds no Qwen3.5 checkpoint."""
        self.path = Path(directory)
        if not self.path.is_dir():
            remedy = where_from(self.path.name) or "give a checkpoint's directory"
            raise CheckpointError(self.path, "no such directory", remedy)
        self.config = read_json(self.path / "config.json")
        kind = self.config.table.get("model_type")
        if kind not in ("qwen3_5", "qwen3_5_text"):
            raise self.config.fail("model_type", f"is {kind!r:.60}; only dense Qwen3.5 is supported")
        self.text = self.config.section("text_config") if "text_config" in self.config else self.config
        self.vision = self.config.section("vision_config") if "vision_config" in self.config else None
        self._shards = self._open_shards()
        self.names = {name: shard for shard in self._shards for name in shard}
        self._text_prefix = self._prefix(_TEXT_PREFIXES, "embed_tokens.weight")

    @property
    def has_vision(self) -> bool:
        """True where config.json has a tower; `vision_prefix` then says where its tensors are."""
        return self.vision is not None

    @cached_property
    def vision_prefix(self) -> str:
        """What the names of the tower's tensors begin with.

        One of the published prefixes, or another that ends in `visual.` if it is the only one. Raises
        CheckpointError where there is none, or where more than one could be meant.
        """
        names = (name for name in self.names if name.endswith("visual." + _VISION_PROBE))
        found = sorted(name.removesuffix(_VISION_PROBE) for name in names)
        if not found:
            missing = f"tensor {_VISION_PREFIXES[0]}{_VISION_PROBE} is missing"
            raise CheckpointError(self.path, f"config.json has a vision tower, but {missing}", _NO_TOWER)
        if len(found) > 1:
            tensors = ", ".join(prefix + _VISION_PROBE for prefix in found[:4])
            raise CheckpointError(self.path, f"there is more than one vision tower: {tensors}", _NO_TOWER)
        return found[0]

    @property
    def note(self) -> str:
        """What a user should know of how the checkpoint was read; empty where nothing was unusual."""
        if not self.has_vision or self.vision_prefix in _VISION_PREFIXES:
            return ""
        return f"the vision tower's tensors begin with {self.vision_prefix}, not {_VISION_PREFIXES[0]}"

    @property
    def tied(self) -> bool:
        """True where the head is the embedding table."""
        return self.text.flag("tie_word_embeddings", self.config.flag("tie_word_embeddings", False))

    @property
    def tokenizer_path(self) -> Path:
        """tokenizer.json."""
        return self.path / "tokenizer.json"

    @cached_property
    def stop(self) -> tuple[int, ...]:
        """Token ids that end a generation.

        The eos ids of generation_config.json and config.json, and <|endoftext|> and <|im_end|> where the
        tokenizer has them.
        """
        ids = set(self.text.ids("eos_token_id")) | set(self.config.ids("eos_token_id"))
        generation = self.path / "generation_config.json"
        if generation.is_file():
            ids |= set(read_json(generation).ids("eos_token_id"))
        added = read_json(self.tokenizer_path, TOKENIZER_LIMIT).table.get("added_tokens")
        for token in added if isinstance(added, list) else []:
            if isinstance(token, dict) and token.get("content") in _STOP_WORDS:
                ids.update(Section(self.tokenizer_path, token, "added_tokens.").ids("id"))
        return tuple(sorted(ids))

    def text_tensor(self, name: str, *shape: int) -> NDArray[Any]:
        """A text tensor in its own dtype (BF16 as uint16 bits); `name` without the checkpoint's prefix.

        `lm_head.weight` has no prefix. Raises CheckpointError where it is missing or of another shape.
        """
        full = name if name == "lm_head.weight" else self._text_prefix + name
        return self._tensor(full, shape)

    def vision_tensor(self, name: str, *shape: int) -> NDArray[Any]:
        """A tensor of the tower; see text_tensor. Raises ModelError for NaN or infinity in it."""
        return _finite(self._tensor(self.vision_prefix + name, shape), self.vision_prefix + name)

    def finite_tensor(self, name: str, *shape: int) -> NDArray[Any]:
        """text_tensor. Raises ModelError for NaN or infinity in it, too."""
        return _finite(self.text_tensor(name, *shape), self._text_prefix + name)

    def matrix(self, name: str, rows: int, k: int) -> Matrix:
        """A text matrix as a row source."""
        return Matrix(self.text_tensor(name, rows, k))

    def _tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        if name not in self.names:
            raise CheckpointError(self.path, f"tensor {name} is missing", "is the download complete?")
        array = self.names[name].array(name)
        if array.shape != shape:
            found, wanted = list(array.shape), list(shape)
            raise CheckpointError(
                self.names[name].path, f"tensor {name} is {found}, config.json makes it {wanted}"
            )
        return array

    def _prefix(self, known: tuple[str, ...], probe: str) -> str:
        for prefix in known:
            if prefix + probe in self.names:
                return prefix
        raise CheckpointError(self.path, f"no tensor {known[0]}{probe}: not a Qwen3.5 checkpoint")

    def _open_shards(self) -> list[SafeTensors]:
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            table = read_json(index)
            files = table.section("weight_map").table
            strings = all(isinstance(file, str) for file in files.values())
            names = set(files.values()) if strings else set()
            if not names or len(names) > 4096 or any(relative_path(name) is None for name in names):
                raise table.fail("weight_map", "names no files of this directory")
            shards = {name: SafeTensors(self.path / name) for name in sorted(names)}
            for name, file in files.items():
                if name not in shards[file]:
                    raise CheckpointError(
                        shards[file].path,
                        f"tensor {name:.200} is missing, the index puts it here",
                        "is the download complete?",
                    )
            return list(shards.values())
        found = sorted(self.path.glob("*.safetensors"))
        if not found:
            raise CheckpointError(self.path, "no *.safetensors file", "PyTorch .bin checkpoints are not read")
        return [SafeTensors(path) for path in found]
