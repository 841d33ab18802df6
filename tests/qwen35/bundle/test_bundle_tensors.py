"""tensors.txt and tensors.bin: views, bounds, and one clear error for each malformation."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
import pytest

from qwen35.bundle import BundleError
from qwen35.bundle.tensors import Store

BLOB = struct.pack("<4f", 1.5, -2.0, 0.25, 3e8) + struct.pack("<4H", 0x3F80, 0xC000, 1, 0x7F7F)
BLOB += bytes(range(8)) + struct.pack("<2i", -7, 1 << 30)
INDEX = "a.b f32 2,2 0 16\nh bf16 4 16 8\nraw u8 8 24 8\nids i32 1,2 32 8\nnone u8 0 40 0\n"


def store(tmp_path: Path, index: str | bytes = INDEX, blob: bytes = BLOB) -> Store:
    (tmp_path / "tensors.txt").write_bytes(index.encode() if isinstance(index, str) else index)
    (tmp_path / "tensors.bin").write_bytes(blob)
    return Store(tmp_path)


def test_views(tmp_path: Path) -> None:
    s = store(tmp_path)
    assert list(s) == ["a.b", "h", "raw", "ids", "none"]
    assert len(s) == 5 and "h" in s and "x" not in s
    np.testing.assert_array_equal(s.get("a.b"), np.array([[1.5, -2.0], [0.25, 3e8]], np.float32))
    np.testing.assert_array_equal(s.get("h"), np.array([0x3F80, 0xC000, 1, 0x7F7F], np.uint16))
    np.testing.assert_array_equal(s.get("raw"), np.arange(8))
    np.testing.assert_array_equal(s.get("ids"), [[-7, 1 << 30]])
    assert s.get("none").size == 0
    assert s.bytes("h").tobytes() == BLOB[16:24]
    info = s.info("ids")
    assert (info.dtype, info.shape, info.offset, info.nbytes) == ("i32", (1, 2), 32, 8)
    assert (info.line, info.elements) == (4, 2)


def test_views_are_read_only_and_not_copies(tmp_path: Path) -> None:
    s = store(tmp_path)
    view = s.get("a.b")
    assert not view.flags.writeable
    with pytest.raises(ValueError):
        view[0, 0] = 1
    base = s.bytes("a.b").__array_interface__["data"][0]
    assert view.__array_interface__["data"][0] == base
    assert s.bytes("raw").__array_interface__["data"][0] == base + 24


def test_a_view_outlives_its_store(tmp_path: Path) -> None:
    view = store(tmp_path).get("raw")
    np.testing.assert_array_equal(view, np.arange(8))


def test_expect(tmp_path: Path) -> None:
    s = store(tmp_path)
    assert s.expect("a.b", "f32", 4).shape == (4,)
    assert s.expect("a.b", "f32", 1, 4, 1).shape == (1, 4, 1)
    for wrong in [("f32", 5), ("f32", 2, 3), ("bf16", 8), ("i32", 2, 2)]:
        with pytest.raises(BundleError, match=r"tensor a\.b is 4 elements of f32") as caught:
            s.expect("a.b", *wrong)
        assert caught.value.line == 1
    with pytest.raises(BundleError, match="tensor zz is missing"):
        s.expect("zz", "f32", 1)


def test_a_shape_that_does_not_hold_the_bytes_gives_a_flat_view(tmp_path: Path) -> None:
    assert store(tmp_path, "a f32 3,5 0 16\n").get("a").shape == (4,)


@pytest.mark.parametrize(
    ("index", "line", "message"),
    [
        ("a f32 4 0\n", 1, "4 fields instead of five"),
        ("a f32 4 0 16 x\n", 1, "6 fields instead of five"),
        ("a f32 4 0 16\n\nb f16 4 0 8\n", 3, "unknown dtype 'f16'"),
        ("a f32 4 4 16\n", 1, "offset 4 is no multiple of 8"),
        ("a f32 1 0 6\n", 1, "6 bytes is no whole number of f32"),
        ("a bf16 1 0 3\n", 1, "3 bytes is no whole number of bf16"),
        ("a f32 4 0 16\nb u8 1 0 1\na f32 4 0 16\n", 3, "repeated (first on line 1)"),
        ("a f32 4 32 16\n", 1, "ends at byte 48, past the 40 bytes"),
        ("a u8 1 800 0\n", 1, "past the 40 bytes"),
        ("a f32 4 0 " + "9" * 18 + "\n", 1, "is no whole number of f32"),
        ("a u8 4 0 " + "9" * 18 + "\n", 1, "past the 40 bytes"),
        ("a f32 4 0 " + "9" * 19 + "\n", 1, "must be whole numbers"),
        ("a f32 4 -8 16\n", 1, "must be whole numbers"),
        ("a f32 4, 0 16\n", 1, "must be whole numbers"),
        ("a f32 2.0 0 16\n", 1, "must be whole numbers"),
        ("a f32 " + ",".join(["1"] * 17) + " 0 4\n", 1, "more than 16 dimensions"),
        (b"a f32 4 0 16\n\xfe\n", 2, "is not UTF-8"),
    ],
)
def test_malformed(tmp_path: Path, index: str | bytes, line: int, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        store(tmp_path, index)
    assert caught.value.path == str(tmp_path / "tensors.txt")
    assert caught.value.line == line
    assert message in caught.value.message


def test_an_index_is_no_longer_than_any_needs_to_be(tmp_path: Path) -> None:
    store(tmp_path)
    with open(tmp_path / "tensors.txt", "r+b") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(BundleError, match="longer than 16,777,216 bytes"):
        Store(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no such file.*tensors\.txt"):
        Store(tmp_path)
    (tmp_path / "tensors.txt").write_text(INDEX)
    with pytest.raises(BundleError, match=r"no such file.*tensors\.bin"):
        Store(tmp_path)
    (tmp_path / "tensors.bin").mkdir()
    with pytest.raises(BundleError, match="cannot be read"):
        Store(tmp_path)


def test_a_blob_that_is_emptied_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its size has been asked, as Python's mmap then says it."""
    store(tmp_path)

    def empty(*arguments: object, **options: object) -> None:
        raise ValueError("cannot mmap an empty file")

    monkeypatch.setattr(mmap, "mmap", empty)
    with pytest.raises(BundleError, match="cannot be mapped: cannot mmap an empty file") as caught:
        Store(tmp_path)
    assert (caught.value.path, caught.value.line) == (str(tmp_path / "tensors.bin"), 0)


def test_an_empty_blob_holds_empty_tensors_only(tmp_path: Path) -> None:
    assert store(tmp_path, "a f32 0 0 0\n", b"").get("a").size == 0
    with pytest.raises(BundleError, match="past the 0 bytes"):
        store(tmp_path, "a u8 1 0 1\n", b"")


def test_mapping_a_large_sparse_blob_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "tensors.txt").write_text(f"big f32 {1 << 35} 0 {1 << 37}\nend u8 8 {(1 << 37) - 8} 8\n")
    with open(tmp_path / "tensors.bin", "wb") as file:
        file.truncate(1 << 37)
    s = Store(tmp_path)
    assert s.get("big").shape == (1 << 35,)
    assert not s.get("end").any()
