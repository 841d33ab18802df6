"""A bundle directory, opened: manifest, kernels' records, tensors and tokenizer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from amdxdna.files import open_regular
from qwen35.bundle.config import ModelConfig
from qwen35.bundle.errors import BundleError
from qwen35.bundle.manifest import Manifest, XclbinSpec
from qwen35.bundle.params import PARAMS, read_config
from qwen35.bundle.specs import (
    FIELDS,
    RECORDS,
    FileSum,
    GemmSpec,
    GemvSpec,
    Reference,
    TokenCase,
    read_gemms,
    read_gemvs,
    read_references,
    read_sums,
    read_tokcases,
)
from qwen35.bundle.tensors import BLOB, INDEX, Store
from qwen35.bundle.text import read_bytes, shown
from qwen35.bundle.validate import check_model
from qwen35.errors import UsageError

if TYPE_CHECKING:
    from qwen35.sampling import Sampling

__all__ = ["EMULATED_STREAM", "Bundle"]

TOKENIZER = "tokenizer.json"
EMULATED_STREAM = b"EMU1"
"""How an instruction stream of the emulated NPU begins (amdxdna.emu.kernels.stream)."""

_INSTS_LIMIT = 64 << 20
_XCLBIN_LIMIT = 256 << 20


class Bundle:
    """A bundle, read and checked by `Bundle.open`. Immutable; any thread may read.

    `manifest`, `tensors` (Store), `xclbins`, `gemms`, `gemvs` (by key), `tokcases`, `references`, `sums`
    (by file), `config` (ModelConfig, vision included). Every fault raises BundleError(path, line, message);
    `warnings` are what is only unusual in a compiled bundle: other readers accept it, and it runs.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Reads manifest, index and file sizes. `Bundle.open` also checks the model's shapes."""
        self.path = Path(directory)
        if not self.path.is_dir():
            raise BundleError(self.path, 0, "no such bundle directory", "give the directory of manifest.txt")
        self.warnings: list[BundleError] = []
        self.manifest = Manifest.read(self.path, self.warnings)
        self.xclbins: dict[str, XclbinSpec] = self.manifest.xclbins
        self.gemms: dict[str, GemmSpec] = read_gemms(self.manifest)
        self.gemvs: dict[str, GemvSpec] = read_gemvs(self.manifest)
        self.tokcases: tuple[TokenCase, ...] = read_tokcases(self.manifest)
        self.references: tuple[Reference, ...] = read_references(self.manifest)
        self.sums: dict[str, FileSum] = read_sums(self.manifest)
        self._require_files()
        self.tensors = Store(self.path, self.warnings)

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, check: bool = True) -> Bundle:
        """Opens the bundle in `directory`; with `check`, params, records and tensors must agree.

        Raises BundleError with file, line and what to do. Nothing is read of tensors.bin.
        """
        bundle = cls(directory)
        if check:
            check_model(bundle)
            _ = bundle.sampling
        return bundle

    def unusual(self, error: BundleError) -> None:
        """Notes a warning. What our own export writes is never unusual: there it is raised."""
        if self.emulated:
            raise error
        self.warnings.append(error)

    @cached_property
    def config(self) -> ModelConfig:
        """The model's constants. Raises BundleError for a missing or malformed param, naming its line.

        Where no param tells the tower's weights, they are w8 if factors are there (as the reference does).
        """
        factors = any(name.startswith("vis.") and name.endswith(".f") for name in self.tensors)
        return read_config(self.manifest, "w8" if factors else "bfp16x2")

    @property
    def name(self) -> str:
        """The param `name`, else the published size of this shape, else just Qwen3.5."""
        named = self.manifest.params.get("name")
        if named is not None:
            return named.text
        from qwen35.bundle.sizes import model_name  # not needed to run a bundle that has a name

        return model_name(self.config)

    @property
    def sampling(self) -> Sampling | None:
        """What the param `sampling` says, None without it. Raises BundleError naming its line."""
        param = self.manifest.params.get("sampling")
        if param is None:
            return None
        from qwen35.sampling import Sampling  # most bundles say nothing

        try:
            return Sampling.parse(param.text)
        except UsageError as error:
            message = f"param sampling: {error.what}"
            raise BundleError(self.manifest.path, param.line, message, error.remedy) from None

    @property
    def tokenizer_path(self) -> Path:
        """tokenizer.json."""
        return self.path / TOKENIZER

    def file(self, relative: str) -> Path:
        """The path of a bundle-relative file."""
        return self.path / relative

    def insts(self, relative: str) -> bytes:
        """An instruction stream's bytes (whole 32-bit words)."""
        return self._read(relative, _INSTS_LIMIT)

    def xclbin(self, key: str) -> bytes:
        """The bytes of the xclbin that context `key` loads."""
        if key not in self.xclbins:
            raise BundleError(self.manifest.path, 0, f"xclbin {key} is missing")
        return self._read(self.xclbins[key].file, _XCLBIN_LIMIT)

    @cached_property
    def emulated(self) -> bool:
        """True where the kernels are the emulated NPU's: their weight streams' layout is known."""
        files = [gemm.streams[0].insts for gemm in self.gemms.values()]
        files += [gemv.insts for gemv in self.gemvs.values()]
        return bool(files) and all(self._starts(file, EMULATED_STREAM) for file in files)

    @property
    def unusual_lines(self) -> list[str]:
        """What is unusual, a line each: the warnings, and records that are not read."""
        return [*map(str, self.warnings), *filter(None, [self.unread, self.unread_names])]

    @property
    def unread(self) -> str:
        """One line about records that this program does not know and passes over, or ""."""
        lines: dict[str, list[int]] = {}
        for record in self.manifest.records:
            if record.tag not in RECORDS:
                lines.setdefault(record.tag, []).append(record.line)
        return self._unread("records of an unknown kind", "kinds", lines)

    @property
    def unread_names(self) -> str:
        """One line about params and `k=v` fields that this program does not know and passes over, or ""."""
        lines: dict[str, list[int]] = {
            name: [param.line] for name, param in self.manifest.params.items() if name not in PARAMS
        }
        for record in self.manifest.records:
            for key in record.keyed.keys() - FIELDS.get(record.tag, record.keyed.keys()):
                lines.setdefault(f"{key}=", []).append(record.line)
        return self._unread("params and fields of an unknown name", "names", lines)

    def _unread(self, what: str, things: str, lines: dict[str, list[int]]) -> str:
        told = [
            f"{shown(name)} (line {first}{f' and {len(others)} more' if others else ''})"
            for name, (first, *others) in sorted(lines.items(), key=lambda each: each[1])
        ]
        more = f" and {len(told) - 5} more {things}" if len(told) > 5 else ""
        return f"{self.manifest.path}: {what} are not read: {', '.join(told[:5])}{more}" if told else ""

    @property
    def unsummed(self) -> tuple[str, ...]:
        """The files that the bundle consists of and that have no `sum` record, but the manifest itself."""
        files = {TOKENIZER, INDEX, BLOB, *(each.file for each in self.xclbins.values())}
        files |= {stream.insts for gemm in self.gemms.values() for stream in gemm.streams}
        files |= {gemv.insts for gemv in self.gemvs.values()}
        return tuple(sorted(files - set(self.sums)))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Reads every file that has a `sum` record and compares; returns how many there were.

        `progress(done, total)` in bytes. Raises BundleError naming the first file that differs.
        """
        total = sum(self._size(entry.file, entry.line) for entry in self.sums.values())
        done = 0
        for entry in self.sums.values():
            size = self._size(entry.file, entry.line)
            if entry.nbytes is not None and size != entry.nbytes:
                raise BundleError(
                    self.file(entry.file),
                    0,
                    f"{size:,} bytes, exported as {entry.nbytes:,}",
                    "copy or export the bundle again",
                )
            digest = hashlib.sha256()
            with open_regular(self.file(entry.file)) as file:
                while block := file.read(8 << 20):
                    digest.update(block)
                    done += len(block)
                    if progress is not None:
                        progress(done, total)
            if digest.hexdigest() != entry.sha256:
                raise BundleError(
                    self.file(entry.file),
                    0,
                    "contents differ from what was exported",
                    "copy or export the bundle again",
                )
        return len(self.sums)

    def _require_files(self) -> None:
        for xclbin in self.xclbins.values():
            self._sized(xclbin.file, xclbin.line, 1, _XCLBIN_LIMIT)
        lines = [(stream.insts, stream.line) for gemm in self.gemms.values() for stream in gemm.streams]
        lines += [(gemv.insts, gemv.line) for gemv in self.gemvs.values()]
        for file, line in lines:
            if self._sized(file, line, 4, _INSTS_LIMIT) % 4:
                raise BundleError(
                    self.manifest.path, line, f"{shown(file, 200)} is no whole number of 32-bit words"
                )
        if not self.tokenizer_path.is_file():
            what = "not a regular file" if self.tokenizer_path.exists() else "no such file"
            raise BundleError(self.tokenizer_path, 0, what, "copy the checkpoint's tokenizer.json here")

    def _size(self, file: str, line: int) -> int:
        path = self.file(file)
        if not path.is_file():
            raise BundleError(
                self.manifest.path,
                line,
                f"{shown(file, 200)} is not in the bundle",
                "is the download complete?",
            )
        return path.stat().st_size

    def _sized(self, file: str, line: int, least: int, most: int) -> int:
        size = self._size(file, line)
        if not least <= size <= most:
            where = self.manifest.path
            raise BundleError(where, line, f"{shown(file, 200)} is {size:,} bytes, outside {least}..{most:,}")
        return size

    def _read(self, relative: str, limit: int) -> bytes:
        return read_bytes(self.file(relative), limit)

    def _starts(self, relative: str, magic: bytes) -> bool:
        with open_regular(self.file(relative)) as file:
            return file.read(len(magic)) == magic
