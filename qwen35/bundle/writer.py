"""Writing a bundle: streaming, and whole or not at all.

Everything goes into a hidden sibling directory `.NAME.partial-*` of the target; `finish` syncs it, writes
the manifest last and renames it into place. A run that dies leaves only such a sibling, which holds no
manifest and is removed by the next writer of the same target.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from amdxdna.files import open_regular
from qwen35.bundle.errors import BundleError
from qwen35.bundle.manifest import MANIFEST, VERSION
from qwen35.bundle.tensors import BLOB, DTYPES, INDEX
from qwen35.bundle.text import relative_path

__all__ = ["ALIGN", "BundleWriter", "Buffer"]

ALIGN = 64
"""Alignment, in bytes, of every tensor's offset."""

Buffer = bytes | bytearray | memoryview | NDArray[Any]

_NAME = re.compile(r"[^\s#]\S*\Z")
_RESERVED = (MANIFEST, INDEX, BLOB)


class BundleWriter:
    """Writes one bundle to `directory`; a context manager that discards everything unless `finish` ran.

    Not thread-safe. `force` replaces a directory that is a bundle or empty; anything else is refused.
    Raises BundleError for a target that exists, a bad or repeated name, a tensor of the wrong size;
    OSError (disk full) passes through.
    """

    def __init__(self, directory: str | os.PathLike[str], *, force: bool = False) -> None:
        self.target = Path(directory).absolute()
        self._force = force
        self._check_target()
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            prefix = f".{self.target.name}.partial-"
            _remove_stale(self.target.parent, prefix)
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self.target.parent))
        except OSError as error:
            raise BundleError(self.target, 0, f"cannot be created: {error.strerror}") from None
        self._lock = _lock(self.path)
        os.chmod(self.path, 0o755 & ~_umask())
        self._blob: IO[bytes] = open(self.path / BLOB, "wb", buffering=0)  # noqa: SIM115
        self._digest = hashlib.sha256()
        self._at = 0
        self._index: dict[str, str] = {}
        self._records = [f"version {VERSION}"]
        self._params: set[str] = set()
        self._sums: dict[str, tuple[str, int]] = {}
        self._open: str | None = None
        self._closed = False

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    @property
    def nbytes(self) -> int:
        """Bytes of tensors.bin so far."""
        return self._at

    def record(self, tag: str, *fields: object, **keyed: object) -> None:
        """Appends a manifest record: `tag`, the fields, then `k=v` ones."""
        words = [tag, *map(str, fields), *(f"{key}={value}" for key, value in keyed.items())]
        for word in words:
            if not word or word.split() != [word] or words[0].startswith("#"):
                raise BundleError(self.path / MANIFEST, 0, f"record field {word!r} is not one word")
        self._records.append(" ".join(words))

    def comment(self, text: str) -> None:
        """Appends a comment line, which readers skip."""
        self._records.append("# " + " ".join(text.split()))

    def param(self, name: str, value: object) -> None:
        """Appends `param name value`."""
        text = " ".join(str(value).split())
        if name in self._params or not _NAME.match(name) or not text:
            raise BundleError(self.path / MANIFEST, 0, f"param {name!r}: repeated, malformed or empty")
        self._params.add(name)
        self._records.append(f"param {name} {text}")

    def file(self, relative: str, data: Buffer | Path) -> None:
        """Writes a file of the bundle from bytes, or copies it from a path; its checksum is recorded."""
        name = relative_path(relative)
        if name is None or name in _RESERVED or name in self._sums:
            raise BundleError(self.target, 0, f"file {relative!r}: repeated, or not a name inside the bundle")
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, Path):
            try:
                with open_regular(data) as source, open(path, "wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
            except FileNotFoundError:
                raise BundleError(data, 0, "no such file") from None
            contents = path.read_bytes()
        else:
            contents = bytes(data)
            path.write_bytes(contents)
        self._sums[name] = (hashlib.sha256(contents).hexdigest(), len(contents))

    @contextlib.contextmanager
    def tensor(self, name: str, dtype: str, *shape: int) -> Iterator[TensorStream]:
        """Streams a tensor: `with writer.tensor(...) as t: t.write(part)...`; the parts must fill `shape`."""
        if dtype not in DTYPES:
            raise BundleError(self.path / INDEX, 0, f"tensor {name!r}: unknown dtype {dtype!r}")
        if name in self._index or not _NAME.match(name):
            raise BundleError(self.path / INDEX, 0, f"tensor {name!r}: repeated or malformed name")
        if self._open is not None:
            raise BundleError(self.path / INDEX, 0, f"tensor {name!r}: {self._open!r} is still open")
        self._write(bytes(-self._at % ALIGN))
        start, wanted = self._at, DTYPES[dtype].itemsize
        for dim in shape:
            wanted *= dim
        self._open = name
        try:
            yield TensorStream(self)
        finally:
            self._open = None
        if self._at - start != wanted:
            written = self._at - start
            raise BundleError(
                self.path / INDEX, 0, f"tensor {name!r}: {written:,} bytes, its shape takes {wanted:,}"
            )
        self._index[name] = f"{name} {dtype} {','.join(map(str, shape))} {start} {wanted}"

    def array(self, name: str, value: NDArray[Any]) -> None:
        """Writes a whole tensor; dtype by numpy's: float32, uint16 (bf16 bits), uint8, int32."""
        dtype = next((key for key, kind in DTYPES.items() if kind == value.dtype), None)
        if dtype is None:
            raise BundleError(self.path / INDEX, 0, f"tensor {name!r}: {value.dtype} has no bundle dtype")
        with self.tensor(name, dtype, *(value.shape or (1,))) as stream:
            stream.write(np.ascontiguousarray(value))

    def finish(self) -> Path:
        """Writes index and manifest, syncs everything and moves the bundle into place; returns its path."""
        self._blob.flush()
        os.fsync(self._blob.fileno())
        self._blob.close()
        self._sums[BLOB] = (self._digest.hexdigest(), self._at)
        self._text_file(INDEX, "".join(line + "\n" for line in self._index.values()).encode())
        for name in self._sums:
            _sync(self.path / name)
        for name, (digest, size) in sorted(self._sums.items()):
            self.record("sum", name, digest, bytes=size)
        manifest = "".join(line + "\n" for line in self._records).encode()
        (self.path / MANIFEST).write_bytes(manifest)
        _sync(self.path / MANIFEST)
        for directory in {(self.path / name).parent for name in self._sums}:
            _sync(directory)
        _sync(self.path)
        self._move_into_place()
        self._closed = True
        os.close(self._lock)
        return self.target

    def abort(self) -> None:
        """Removes everything written (nothing after `finish`); idempotent."""
        if self._closed:
            return
        self._closed = True
        self._blob.close()
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def _write(self, data: Buffer) -> None:
        if not len(data):
            return
        view = (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")
        self._digest.update(view)
        while view:
            written = self._blob.write(view)
            self._at += written
            view = view[written:]

    def _text_file(self, name: str, contents: bytes) -> None:
        (self.path / name).write_bytes(contents)
        self._sums[name] = (hashlib.sha256(contents).hexdigest(), len(contents))

    def _check_target(self) -> None:
        if not self.target.exists() and not self.target.is_symlink():
            return
        if not self.target.is_dir():
            raise BundleError(self.target, 0, "exists and is no directory", "choose another --out")
        empty = next(self.target.iterdir(), None) is None
        if empty:
            return
        if not (self.target / MANIFEST).is_file():
            raise BundleError(self.target, 0, "exists and is not a bundle", "choose another --out")
        if not self._force:
            raise BundleError(self.target, 0, "a bundle is there already", "give --force to replace it")

    def _move_into_place(self) -> None:
        self._check_target()
        if self.target.is_dir() and any(self.target.iterdir()):
            _exchange(self.path, self.target)
            _sync(self.target.parent)
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            os.replace(self.path, self.target)
            _sync(self.target.parent)


class TensorStream:
    """The open tensor of a BundleWriter."""

    def __init__(self, writer: BundleWriter) -> None:
        self._writer = writer

    def write(self, data: Buffer) -> None:
        """Appends contiguous bytes or an array's bytes."""
        self._writer._write(data)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _exchange(new: Path, old: Path) -> None:
    """Swaps two directories in one step (renameat2), so that one of them is in place at any moment."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, exchange = -100, 2
    if hasattr(libc, "renameat2"):
        if libc.renameat2(at_cwd, os.fsencode(new), at_cwd, os.fsencode(old), exchange) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), os.fspath(old))
    # A file system without the exchange: two steps.
    aside = new.with_name(new.name + ".old")
    os.rename(old, aside)
    os.rename(new, old)
    os.rename(aside, new)


def _lock(directory: Path) -> int:
    """An exclusive lock on `directory`, held by the returned descriptor."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def _remove_stale(parent: Path, prefix: str) -> None:
    """Removes the partial directories of writers that are gone."""
    for path in parent.glob(prefix.replace("[", "[[]") + "*"):
        try:
            fd = _lock(path)
        except OSError:
            continue
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
