"""manifest.txt: what is read, what is skipped, and one clear error for each malformation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qwen35.bundle import BundleError
from qwen35.bundle.manifest import Manifest

GOOD = """\
# a comment

   # another
version 1
param D 64
param layer_types lin,att
param mrope_section 11, 11,  10
param note  two  words=here
xclbin gemm kernels/a.xclbin MLIR_AIE
weather sunny later=rain flags=a=b
gemm lin M=16 K=64
"""


def manifest(tmp_path: Path, text: str | bytes) -> Manifest:
    (tmp_path / "manifest.txt").write_bytes(text.encode() if isinstance(text, str) else text)
    return Manifest.read(tmp_path)


def test_reads_records_params_and_xclbins(tmp_path: Path) -> None:
    read = manifest(tmp_path, GOOD)
    assert read.version == 1
    assert read.param("D").count() == 64
    assert read.param("layer_types").words() == ("lin", "att")
    assert read.param("mrope_section").counts() == (11, 11, 10)
    assert read.param("note").text == "two  words=here"
    assert read.xclbins["gemm"].file == "kernels/a.xclbin"
    assert read.xclbins["gemm"].kernel == "MLIR_AIE"
    assert [record.tag for record in read.records] == ["weather", "gemm"]
    assert read.records[0].fields == ("sunny", "later=rain", "flags=a=b")
    assert read.records[0].value("flags") == "a=b"
    assert read.records[1].line == 11
    assert read.records[1].count("K") == 64


def test_windows_line_ends_and_no_final_newline(tmp_path: Path) -> None:
    read = manifest(tmp_path, GOOD.replace("\n", "\r\n").rstrip())
    assert read.param("D").count() == 64
    assert read.records[1].count("K") == 64


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("param D 64\n", 0, "no version record"),
        ("", 0, "no version record"),
        ("version 1\n\nversion 1\n", 3, "version: repeated"),
        ("version 2\n", 1, "version: 2 is not a version this program reads"),
        ("version\n", 1, "number is missing"),
        ("version one\n", 1, "'one' is not a whole number"),
        ("version -1\n", 1, "'-1' is not a whole number"),
        ("version 1_0\n", 1, "'1_0' is not a whole number"),
        ("version \u0661\n", 1, "is not a whole number"),
        ("version " + "9" * 30 + "\n", 1, "is not a whole number"),
        ("version 1\nparam D 1\nparam E 1\nparam D 1\n", 4, "'D' is repeated (first on line 2)"),
        ("version 1\nparam\n", 2, "the name is missing"),
        ("version 1\nparam D\n", 2, "'D' has no value"),
        ("version 1\nxclbin a f k\nxclbin a f k\n", 3, "'a' is repeated (first on line 2)"),
        ("version 1\nxclbin a f\n", 2, "the kernel name is missing"),
        ("version 1\nxclbin a /etc/passwd k\n", 2, "is not a path inside the bundle"),
        ("version 1\nxclbin a ../x k\n", 2, "is not a path inside the bundle"),
        ("version 1\nxclbin a k/../../x k\n", 2, "is not a path inside the bundle"),
        ("version 1\nxclbin a . k\n", 2, "is not a path inside the bundle"),
        ("version 1\nxclbin a b\\c k\n", 2, "is not a path inside the bundle"),
        ("version 1\nxclbin a " + "f" * 300 + " k\n", 2, "is not a path inside the bundle"),
        (b"version 1\nparam D \xff\n", 2, "byte 0xff is not UTF-8"),
        (b"\x80version 1\n", 1, "byte 0x80 is not UTF-8"),
    ],
)
def test_malformed(tmp_path: Path, text: str | bytes, line: int, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        manifest(tmp_path, text)
    assert caught.value.line == line
    assert caught.value.path == str(tmp_path / "manifest.txt")
    assert message in caught.value.message
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such file"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.txt").mkdir()
    with pytest.raises(BundleError, match="cannot be read: Is a directory"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.txt").rmdir()
    os.mkfifo(tmp_path / "manifest.txt")
    with pytest.raises(BundleError, match="cannot be read: not a regular file"):
        Manifest.read(tmp_path)


def test_a_manifest_past_every_sense_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "manifest.txt", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match="longer than 8,388,608 bytes"):
        Manifest.read(tmp_path)


def test_lines_are_bounded_in_number_and_length(tmp_path: Path) -> None:
    assert manifest(tmp_path, "version 1" + "\n" * (1 << 17)).version == 1
    with pytest.raises(BundleError, match="131,073 lines, and no bundle needs more than 131,072"):
        manifest(tmp_path, "version 1" + "\n" * ((1 << 17) + 1))
    assert manifest(tmp_path, "version 1\n" + "#" * (1 << 20)).version == 1
    with pytest.raises(BundleError, match="a line of 1,048,577 characters") as caught:
        manifest(tmp_path, "version 1\n" + "#" * ((1 << 20) + 1) + "\n")
    assert caught.value.line == 2


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("1e-6", 1e-6),
        ("10000000.0", 1e7),
        (".5", 0.5),
        ("3", 3.0),
        ("1e400", None),
        ("nan", None),
        ("inf", None),
        ("1_0", None),
        ("-1", None),
        ("0", None),
        ("0x10", None),
        ("1e-99999", None),
    ],
)
def test_reals(tmp_path: Path, value: str, good: float | None) -> None:
    param = manifest(tmp_path, f"version 1\nparam eps {value}\n").param("eps")
    if good is not None:
        assert param.real() == good
        return
    with pytest.raises(BundleError, match="is not a positive number") as caught:
        param.real()
    assert caught.value.line == 2


@pytest.mark.parametrize("value", ["0", "65", "x", "1 2"])
def test_counts_outside_their_range(tmp_path: Path, value: str) -> None:
    with pytest.raises(BundleError) as caught:
        manifest(tmp_path, f"version 1\nparam n {value}\n").param("n").count(1, 64)
    assert caught.value.line == 2


def test_missing_param_and_key(tmp_path: Path) -> None:
    read = manifest(tmp_path, GOOD)
    with pytest.raises(BundleError, match="param vocab is missing"):
        read.param("vocab")
    with pytest.raises(BundleError, match="gemm: N= is missing") as caught:
        read.records[1].count("N")
    assert caught.value.line == 11


@pytest.mark.parametrize(("fields", "value"), [("a=1", True), ("a=0", False), ("", False)])
def test_flags(tmp_path: Path, fields: str, value: bool) -> None:
    record = manifest(tmp_path, f"version 1\nref r {fields}\n").records[0]
    assert record.flag("a", default=False) is value
    with pytest.raises(BundleError, match="is not 0 or 1"):
        manifest(tmp_path, "version 1\nref r a=yes\n").records[0].flag("a")
    with pytest.raises(BundleError, match="a= is missing"):
        manifest(tmp_path, "version 1\nref r\n").records[0].flag("a")


def test_an_error_survives_pickling(tmp_path: Path) -> None:
    import pickle

    error = BundleError(tmp_path / "manifest.txt", 3, "wrong", "mend it")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == f"wrong ({tmp_path}/manifest.txt:3): mend it"
    assert (copy.path, copy.line, copy.message) == (error.path, 3, "wrong")
