"""manifest.txt: one record a line, a tag and then whitespace-separated fields; `k=v` fields are keyed.

`Manifest` interprets `version`, `param` and `xclbin`, which mean the same in every bundle; the model's
records (`gemm`, `gemv`, `tokcase`, `ref`, `sum`) are typed in `qwen35.bundle.specs`. Unknown tags, keys
and params are ignored. Objects here are immutable once read and safe to share between threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from qwen35.bundle.errors import BundleError
from qwen35.bundle.text import any_path, parse_count, parse_real, read_lines, relative_path, shown

__all__ = ["MANIFEST", "VERSION", "Manifest", "Param", "Record", "XclbinSpec"]

MANIFEST = "manifest.txt"
VERSION = 1
"""The format version this reader reads."""

_LIMIT = 8 << 20
_DEVICE_WORDS = (1 << 32) - 1


@dataclass(frozen=True)
class Record:
    """One line: its tag, the fields after the tag, and the `k=v` ones of them by key."""

    path: Path
    line: int
    tag: str
    fields: tuple[str, ...]
    keyed: dict[str, str] = field(repr=False)
    notes: list[BundleError] | None = field(default=None, repr=False, compare=False)

    def unusual(self, message: str) -> None:
        """Notes what other readers accept and this program can live with; refused where nobody notes."""
        error = BundleError(self.path, self.line, f"{self.tag}: {message}")
        if self.notes is None:
            raise error
        self.notes.append(error)

    def fail(self, message: str, remedy: str = "") -> NoReturn:
        """Raises BundleError pointing at this line."""
        raise BundleError(self.path, self.line, f"{self.tag}: {message}", remedy)

    def text(self, index: int, name: str) -> str:
        """The field at `index` after the tag; `name` is what it is called in the error."""
        if index >= len(self.fields):
            self.fail(f"{name} is missing (field {index + 1})")
        return self.fields[index]

    def value(self, key: str) -> str:
        """The value of field `key=`; raises BundleError when there is none."""
        if key not in self.keyed:
            self.fail(f"{key}= is missing")
        return self.keyed[key]

    def count(self, key: str, least: int = 1, most: int = _DEVICE_WORDS) -> int:
        """The integer value of field `key=`, from `least` to `most`."""
        return self.number(f"{key}=", self.value(key), least, most)

    def number(self, name: str, text: str, least: int = 1, most: int = _DEVICE_WORDS) -> int:
        """`text` as an integer from `least` to `most`; `name` is what the error calls it."""
        number = parse_count(text)
        if number is None:
            self.fail(f"{name} {shown(text)} is not a whole number")
        if not least <= number <= most:
            self.fail(f"{name} {number} is outside {least}..{most}")
        if text.startswith("+"):
            self.unusual(f"{name} {shown(text)} has a sign")
        return number

    def file(self, name: str, text: str) -> str:
        """`text` as a bundle-relative file name."""
        path = relative_path(text)
        if path is None:
            if self.notes is None or not any_path(text):
                self.fail(f"{name} {shown(text)} is not a path inside the bundle")
            self.unusual(f"{name} {shown(text)} is not a path inside the bundle")
            return text
        return path

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A `key=0` or `key=1` field; `default` when absent (None: required)."""
        if default is not None and key not in self.keyed:
            return default
        text = self.value(key)
        if text not in ("0", "1"):
            self.fail(f"{key}= {shown(text)} is not 0 or 1")
        return text == "1"


@dataclass(frozen=True)
class Param:
    """A model constant: `text` is the rest of the line after the name, outer white space removed."""

    path: Path
    line: int
    name: str
    text: str
    notes: list[BundleError] | None = field(default=None, repr=False, compare=False)

    def fail(self, message: str) -> NoReturn:
        """Raises BundleError pointing at this param."""
        raise BundleError(self.path, self.line, f"param {self.name}: {message}")

    def count(self, least: int = 1, most: int = _DEVICE_WORDS) -> int:
        """The value as an integer from `least` to `most`."""
        number = parse_count(self.text)
        if number is None:
            self.fail(f"{shown(self.text)} is not a whole number")
        if not least <= number <= most:
            self.fail(f"{number} is outside {least}..{most}")
        if self.text.startswith("+"):
            error = BundleError(self.path, self.line, f"param {self.name}: {shown(self.text)} has a sign")
            if self.notes is None:
                raise error
            self.notes.append(error)
        return number

    def real(self, least: float = 1e-30, most: float = 1e30) -> float:
        """The value as a number from `least` to `most`; float32 holds every number from 1e-30 to 1e30."""
        number = parse_real(self.text)
        if number is None or number <= 0:
            self.fail(f"{shown(self.text)} is not a positive number")
        if not least <= number <= most:
            self.fail(f"{shown(self.text)} is outside {least:g}..{most:g}")
        return number

    def words(self) -> tuple[str, ...]:
        """The value as a list separated by commas or white space; empty items are skipped."""
        return tuple(self.text.replace(",", " ").split())

    def counts(self, most: int = _DEVICE_WORDS, length: int = 4096) -> tuple[int, ...]:
        """The value as a list of at most `length` integers from 0 to `most`."""
        words = self.words()
        if len(words) > length:
            self.fail(f"{len(words)} items, at most {length} make sense")
        numbers = []
        for word in words:
            number = parse_count(word)
            if number is None or number > most:
                self.fail(f"{shown(word)} is not a whole number from 0 to {most}")
            numbers.append(number)
        return tuple(numbers)


@dataclass(frozen=True)
class XclbinSpec:
    """A hardware context: `file` (bundle-relative xclbin) and the `kernel` name inside it."""

    key: str
    file: str
    kernel: str
    line: int


@dataclass(frozen=True)
class Manifest:
    """manifest.txt, read: `params` and `xclbins` by name, every other record in file order."""

    path: Path
    version: int
    params: dict[str, Param]
    xclbins: dict[str, XclbinSpec]
    records: tuple[Record, ...]

    @classmethod
    def read(cls, directory: Path, notes: list[BundleError] | None = None) -> Manifest:
        """Reads `directory`/manifest.txt. Raises BundleError naming file and line.

        What is only unusual goes to `notes`, also when the records are interpreted later; without it is
        refused.
        """
        path = directory / MANIFEST
        version: int | None = None
        params: dict[str, Param] = {}
        xclbins: dict[str, XclbinSpec] = {}
        records: list[Record] = []
        for record, line in _records(path, notes):
            if record.tag == "version":
                if version is not None:
                    record.fail("repeated")
                version = record.number("number", record.text(0, "number"), 0)
                if version != VERSION:
                    record.fail(
                        f"{version} is not a version this program reads ({VERSION})",
                        "export the bundle again, or update this program",
                    )
            elif record.tag == "param":
                param = _param(record, line)
                if param.name in params:
                    record.fail(f"{shown(param.name)} is repeated (first on line {params[param.name].line})")
                params[param.name] = param
            elif record.tag == "xclbin":
                key, kernel = record.text(0, "the key"), record.text(2, "the kernel name")
                file = record.file("file", record.text(1, "the file"))
                if key in xclbins:
                    record.fail(f"{shown(key)} is repeated (first on line {xclbins[key].line})")
                xclbins[key] = XclbinSpec(key, file, kernel, record.line)
            else:
                records.append(record)
        if version is None:
            raise BundleError(path, 0, "no version record", "is this a bundle's manifest?")
        return cls(path, version, params, xclbins, tuple(records))

    def tagged(self, tag: str) -> Iterator[Record]:
        """The records of one tag, in file order."""
        return (record for record in self.records if record.tag == tag)

    def param(self, name: str) -> Param:
        """The param `name`; raises BundleError when the manifest has none."""
        if name not in self.params:
            raise BundleError(self.path, 0, f"param {name} is missing")
        return self.params[name]


def _records(path: Path, notes: list[BundleError] | None) -> Iterator[tuple[Record, str]]:
    for number, line in enumerate(read_lines(path, _LIMIT), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        fields = tuple(words[1:])
        keyed = dict(word.split("=", 1) for word in fields if "=" in word)
        yield Record(path, number, words[0], fields, keyed, notes), line


def _param(record: Record, line: str) -> Param:
    name = record.text(0, "the name")
    if len(record.fields) < 2:
        record.fail(f"{shown(name)} has no value")
    return Param(record.path, record.line, name, line.split(None, 2)[2].strip(), record.notes)
