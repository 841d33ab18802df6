"""The model's manifest records, typed: gemm, gemm_chunks, gemv, tokcase, ref and sum.

`gemm`, `gemm_chunks`, `gemv`, `tokcase` and `ref` are the published vocabulary. Our exporter adds one
record that other readers skip: `sum FILE HEX bytes=N`, the SHA-256 and size of one file of the bundle.
All specs are immutable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from qwen35.bundle.errors import BundleError
from qwen35.bundle.manifest import Manifest, Record
from qwen35.bundle.text import parse_count, shown

__all__ = [
    "FileSum",
    "GemmSpec",
    "GemmStream",
    "GemvSpec",
    "Reference",
    "TokenCase",
    "read_gemms",
    "read_gemvs",
    "read_references",
    "read_sums",
    "read_tokcases",
]

Of = TypeVar("Of")
MAX_CHUNKS = 65536
_DIM = 1 << 24
_ELEMENTS = 1 << 40


RECORDS = frozenset({"gemm", "gemm_chunks", "gemv", "tokcase", "ref", "sum"})
"""The tags of records, but those of the manifest itself."""
_KERNEL = frozenset({"insts", "ctx"})
_VIEWS = _KERNEL | {"a_elems", "c_elems"}
FIELDS = {
    "gemm": _VIEWS | {"M", "K", "N", "lda", "c_stride", "b_bytes"},
    "gemm_chunks": _VIEWS,
    "gemv": _KERNEL | {"M", "K", "w_words"},
    "ref": frozenset({"prompt", "thinking", "image"}),
}
"""Tag -> the keys of its `k=v` fields that are read; other records' fields have no keys, or any."""


@dataclass(frozen=True)
class GemmStream:
    """A GEMM's instruction stream over `chunks` chunks: its context key and the views it spans.

    `a_elems` and `c_elems` count bf16 elements from the first one of A and C.
    """

    chunks: int
    ctx: str
    insts: str
    a_elems: int
    c_elems: int
    line: int


@dataclass(frozen=True)
class GemmSpec:
    """C[M,N] = A[M,K] B[K,N] over chunks of M rows.

    `lda` and `c_stride` are row strides in elements, `b_bytes` the packed bytes of B (a bias included).
    """

    key: str
    m: int
    k: int
    n: int
    lda: int
    c_stride: int
    b_bytes: int
    ctx: str
    streams: tuple[GemmStream, ...]
    line: int

    @property
    def max_chunks(self) -> int:
        """The most chunks one dispatch can take."""
        return len(self.streams)

    def stream(self, chunks: int) -> GemmStream:
        """The stream over exactly `chunks` chunks (1..max_chunks); raises ValueError outside that."""
        if not 1 <= chunks <= len(self.streams):
            raise ValueError(f"gemm {self.key}: {chunks} chunks, the bundle has 1..{len(self.streams)}")
        return self.streams[chunks - 1]


@dataclass(frozen=True)
class GemvSpec:
    """y[M] = W[M,K] x[K]; `w_words` is the packed weight's size in 32-bit words."""

    key: str
    m: int
    k: int
    w_words: int
    ctx: str
    insts: str
    line: int

    @property
    def w_bytes(self) -> int:
        """The packed weight's size in bytes."""
        return self.w_words * 4


@dataclass(frozen=True)
class TokenCase:
    """A tokenizer test: `text` encodes to `ids`."""

    text: str
    ids: tuple[int, ...]
    line: int


@dataclass(frozen=True)
class Reference:
    """A recorded reference run; its tensors are `ref.NAME.*`."""

    name: str
    prompt: str
    thinking: bool
    image: bool
    line: int


@dataclass(frozen=True)
class FileSum:
    """The SHA-256 (hex) and size of one file of the bundle (None: not recorded)."""

    file: str
    sha256: str
    nbytes: int | None
    line: int


def _context(manifest: Manifest, record: Record, default: str) -> str:
    key = record.keyed.get("ctx", default)
    if key not in manifest.xclbins:
        some = [shown(name)[1:-1] for name in list(manifest.xclbins)[:8]]
        known = ", ".join([*some, "..."] if len(manifest.xclbins) > len(some) else some) or "none"
        record.fail(f"context {shown(key)} has no xclbin record (known: {known})")
    return key


def _stream(manifest: Manifest, record: Record, chunks: int, default: str) -> GemmStream:
    return GemmStream(
        chunks,
        _context(manifest, record, default),
        record.file("insts=", record.value("insts")),
        record.count("a_elems", most=_ELEMENTS),
        record.count("c_elems", most=_ELEMENTS),
        record.line,
    )


def _repeated(record: Record, key: str, first: int) -> None:
    record.unusual(f"{shown(key)} is repeated (first on line {first}); of a compiled bundle the last counts")


def read_gemms(manifest: Manifest) -> dict[str, GemmSpec]:
    """The GEMMs by key, each with its streams over 1, 2, ... chunks. Raises BundleError."""
    heads: dict[str, Record] = {}
    streams: dict[str, list[GemmStream]] = {}
    for record in manifest.records:
        if record.tag == "gemm":
            key = record.text(0, "the key")
            if key in heads:
                _repeated(record, key, heads[key].line)
            heads[key] = record
            streams[key] = [_stream(manifest, record, 1, "gemm")]
        elif record.tag == "gemm_chunks":
            key = record.text(0, "the key")
            if key not in heads:
                record.fail(f"{shown(key)} comes before its gemm record, or has none")
            chunks = record.number("chunks", record.text(1, "the number of chunks"), 1, MAX_CHUNKS)
            if chunks != len(streams[key]) + 1:
                record.fail(f"{shown(key)} {chunks} is out of order: {len(streams[key]) + 1} was next")
            streams[key].append(_stream(manifest, record, chunks, streams[key][0].ctx))
    return {key: _gemm(key, record, streams[key]) for key, record in heads.items()}


def _gemm(key: str, record: Record, streams: list[GemmStream]) -> GemmSpec:
    m, k, n = (record.count(name, most=_DIM) for name in ("M", "K", "N"))
    lda, c_stride = record.count("lda", most=_DIM), record.count("c_stride", most=_DIM)
    b_bytes = record.count("b_bytes", most=_ELEMENTS)
    if lda < k:
        record.unusual(f"lda={lda} is less than K={k}")
    return GemmSpec(key, m, k, n, lda, c_stride, b_bytes, streams[0].ctx, tuple(streams), record.line)


def read_gemvs(manifest: Manifest) -> dict[str, GemvSpec]:
    """The GEMVs by key. Raises BundleError."""
    specs: dict[str, GemvSpec] = {}
    for record in manifest.tagged("gemv"):
        key = record.text(0, "the key")
        if key in specs:
            _repeated(record, key, specs[key].line)
        specs[key] = GemvSpec(
            key,
            record.count("M", most=_DIM),
            record.count("K", most=_DIM),
            record.count("w_words", most=_ELEMENTS),
            _context(manifest, record, "gemv"),
            record.file("insts=", record.value("insts")),
            record.line,
        )
    return specs


def _hex_text(record: Record, name: str, text: str) -> str:
    if text == "-":
        return ""
    try:
        return bytes.fromhex(text).decode("utf-8")
    except ValueError:
        record.fail(f"{name} {shown(text)} is not UTF-8 text in hexadecimal")


def read_tokcases(manifest: Manifest) -> tuple[TokenCase, ...]:
    """The tokenizer tests in file order. Raises BundleError, or leaves out and notes what cannot be read."""
    return tuple(_readable(_tokcase, manifest.tagged("tokcase")))


def _readable(read: Callable[[Record], Of], records: Iterable[Record]) -> Iterator[Of]:
    """Records that only `check` needs: no reason to refuse a bundle that runs."""
    for record in records:
        try:
            yield read(record)
        except BundleError as error:
            if record.notes is None:
                raise
            record.notes.append(error)


def _tokcase(record: Record) -> TokenCase:
    text = _hex_text(record, "the text", record.text(0, "the text"))
    words = record.fields[1].split(",") if len(record.fields) > 1 else []
    ids = [parse_count(word) for word in words if word]
    if any(number is None for number in ids):
        record.fail(f"{shown(record.fields[1])} is not a list of token ids")
    return TokenCase(text, tuple(number for number in ids if number is not None), record.line)


def read_references(manifest: Manifest) -> tuple[Reference, ...]:
    """The recorded reference runs in file order. Raises BundleError, or notes as for test cases."""
    references: dict[str, Reference] = {}

    def read(record: Record) -> Reference:
        name = record.text(0, "the name")
        if name in references:
            record.fail(f"{shown(name)} is repeated (first on line {references[name].line})")
        prompt = _hex_text(record, "prompt=", record.value("prompt"))
        return Reference(
            name, prompt, record.flag("thinking"), record.flag("image", default=False), record.line
        )

    for reference in _readable(read, manifest.tagged("ref")):
        references[reference.name] = reference
    return tuple(references.values())


def read_sums(manifest: Manifest) -> dict[str, FileSum]:
    """The checksums of our exporter's `sum` records by file; other shapes of `sum` record are skipped."""
    sums: dict[str, FileSum] = {}
    for record in manifest.tagged("sum"):
        if len(record.fields) < 2 or not re.fullmatch("[0-9a-f]{64}", record.fields[1]):
            continue
        file = record.file("the file", record.fields[0])
        nbytes = record.count("bytes", 0, _ELEMENTS << 10) if "bytes" in record.keyed else None
        sums[file] = FileSum(file, record.fields[1], nbytes, record.line)
    return sums
