"""The model's manifest records: gemm, gemm_chunks, gemv, tokcase, ref, sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen35.bundle import BundleError
from qwen35.bundle.manifest import Manifest
from qwen35.bundle.specs import read_gemms, read_gemvs, read_references, read_sums, read_tokcases

HEAD = "version 1\nxclbin gemm k/g MLIR_AIE\nxclbin gemv k/v MLIR_AIE\nxclbin vision k/g MLIR_AIE\n"
GEMM = "gemm lin M=16 K=64 N=128 lda=80 c_stride=136 b_bytes=9216 a_elems=1280 c_elems=2176 insts=k/i1"


def read(tmp_path: Path, text: str) -> Manifest:
    (tmp_path / "manifest.txt").write_text(HEAD + text)
    return Manifest.read(tmp_path)


def test_gemm_with_its_chunks(tmp_path: Path) -> None:
    text = f"""{GEMM}
gemm o M=16 K=64 N=64 lda=64 c_stride=64 b_bytes=1 a_elems=1024 c_elems=1024 insts=k/o ctx=vision
gemm_chunks lin 2 a_elems=2560 c_elems=4352 insts=k/i2
gemm_chunks o 2 a_elems=2048 c_elems=2048 insts=k/o2
gemm_chunks lin 3 a_elems=3840 c_elems=6528 insts=./k//i3 ctx=gemv
"""
    gemms = read_gemms(read(tmp_path, text))
    lin = gemms["lin"]
    assert (lin.m, lin.k, lin.n, lin.lda, lin.c_stride, lin.b_bytes) == (16, 64, 128, 80, 136, 9216)
    assert lin.max_chunks == 3
    assert [lin.stream(n).insts for n in (1, 2, 3)] == ["k/i1", "k/i2", "k/i3"]
    assert [lin.stream(n).a_elems for n in (1, 2, 3)] == [1280, 2560, 3840]
    assert [lin.stream(n).c_elems for n in (1, 2, 3)] == [2176, 4352, 6528]
    assert [lin.stream(n).ctx for n in (1, 2, 3)] == ["gemm", "gemm", "gemv"]
    assert [stream.ctx for stream in gemms["o"].streams] == ["vision", "vision"]
    for wrong in (0, 4, -1):
        with pytest.raises(ValueError, match=r"1\.\.3"):
            lin.stream(wrong)


def test_the_last_row_need_not_be_whole(tmp_path: Path) -> None:
    text = GEMM.replace("a_elems=1280", "a_elems=1264").replace("c_elems=2176", "c_elems=2168")
    assert read_gemms(read(tmp_path, text))["lin"].stream(1).a_elems == 1264


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("gemm", 5, "the key is missing"),
        (GEMM.replace("M=16 ", ""), 5, "M= is missing"),
        (GEMM.replace(" insts=k/i1", ""), 5, "insts= is missing"),
        (GEMM.replace("K=64", "K=0"), 5, "K= 0 is outside 1"),
        (GEMM.replace("K=64", "K=" + "9" * 17), 5, "is outside"),
        (GEMM.replace("N=128", "N=x"), 5, "N= 'x' is not a whole number"),
        (GEMM.replace("lda=80", "lda=63"), 5, "lda=63 is less than K=64"),
        (GEMM.replace("k/i1", "../i1"), 5, "is not a path inside the bundle"),
        (GEMM + " ctx=nowhere", 5, "context 'nowhere' has no xclbin record"),
        (GEMM + "\n" + GEMM, 6, "'lin' is repeated (first on line 5)"),
        ("gemm_chunks lin 2 a_elems=1 c_elems=1 insts=k/i\n" + GEMM, 5, "comes before its gemm"),
        (GEMM + "\ngemm_chunks lin 3 a_elems=9999 c_elems=9999 insts=k/i", 6, "2 was next"),
        (GEMM + "\ngemm_chunks lin 1 a_elems=9999 c_elems=9999 insts=k/i", 6, "2 was next"),
        (GEMM + "\ngemm_chunks lin", 6, "the number of chunks is missing"),
        (GEMM + "\ngemm_chunks lin 2 a_elems=9999 insts=k/i", 6, "c_elems= is missing"),
    ],
)
def test_malformed_gemms(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        read_gemms(read(tmp_path, text))
    assert caught.value.line == line
    assert message in caught.value.message


def test_a_context_without_xclbin_is_named_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "manifest.txt").write_text("version 1\nxclbin other k/g K\n" + GEMM)
    with pytest.raises(BundleError, match=r"context 'gemm' has no xclbin record \(known: other\)"):
        read_gemms(Manifest.read(tmp_path))


def test_gemv(tmp_path: Path) -> None:
    text = "gemv head M=200 K=64 w_words=3600 insts=k/h\n"
    text += "gemv o M=64 K=64 w_words=9 insts=k/o ctx=gemm extra=1\n"
    gemvs = read_gemvs(read(tmp_path, text))
    assert list(gemvs) == ["head", "o"]
    head = gemvs["head"]
    assert (head.m, head.k, head.w_words, head.w_bytes) == (200, 64, 3600, 14400)
    assert (head.ctx, head.insts) == ("gemv", "k/h")
    assert gemvs["o"].ctx == "gemm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gemv head M=8 K=8 insts=k/h", "w_words= is missing"),
        ("gemv head M=8 K=8 w_words=1 insts=/k/h", "is not a path inside the bundle"),
        ("gemv head M=8 K=8 w_words=1 insts=k/h ctx=x", "has no xclbin record"),
        ("gemv h M=8 K=8 w_words=1 insts=k\ngemv h M=8 K=8 w_words=1 insts=k", "is repeated"),
    ],
)
def test_malformed_gemvs(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        read_gemvs(read(tmp_path, text))
    assert message in caught.value.message


def test_tokcases(tmp_path: Path) -> None:
    text = "tokcase - \ntokcase - 5\ntokcase 68c3a9 1,22,333\ntokcase 61 7\n"
    cases = read_tokcases(read(tmp_path, text))
    assert [(case.text, case.ids) for case in cases] == [
        ("", ()),
        ("", (5,)),
        ("h\u00e9", (1, 22, 333)),
        ("a", (7,)),
    ]
    assert cases[2].line == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokcase", "the text is missing"),
        ("tokcase zz 1", "is not UTF-8 text in hexadecimal"),
        ("tokcase 616 1", "is not UTF-8 text in hexadecimal"),
        ("tokcase ff 1", "is not UTF-8 text in hexadecimal"),
        ("tokcase 61 1,x", "is not a list of token ids"),
        ("tokcase 61 -1", "is not a list of token ids"),
    ],
)
def test_malformed_tokcases(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        read_tokcases(read(tmp_path, text))
    assert message in caught.value.message
    assert caught.value.line == 5


def test_references(tmp_path: Path) -> None:
    text = "ref a prompt=6869 thinking=1\nref b prompt=- thinking=0 image=1\n"
    a, b = read_references(read(tmp_path, text))
    assert (a.name, a.prompt, a.thinking, a.image) == ("a", "hi", True, False)
    assert (b.name, b.prompt, b.thinking, b.image) == ("b", "", False, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ref", "the name is missing"),
        ("ref a thinking=1", "prompt= is missing"),
        ("ref a prompt=6869", "thinking= is missing"),
        ("ref a prompt=6869 thinking=2", "is not 0 or 1"),
        ("ref a prompt=6 thinking=1", "is not UTF-8 text"),
        ("ref a prompt=- thinking=1\nref a prompt=- thinking=1", "is repeated"),
    ],
)
def test_malformed_references(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        read_references(read(tmp_path, text))
    assert message in caught.value.message


def test_a_sum_of_more_bytes_than_any_file_has(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"bytes= 1125899906842625 is outside 0\.\.1125899906842624"):
        read_sums(read(tmp_path, f"sum a {'0' * 64} bytes={(1 << 50) + 1}\n"))


def test_sums(tmp_path: Path) -> None:
    digest = "0123456789abcdef" * 4
    text = f"sum tensors.bin {digest} bytes=77\nsum k/a {digest}\nsum of parts\nsum x {digest.upper()}\nsum\n"
    sums = read_sums(read(tmp_path, text))
    assert {name: (entry.sha256, entry.nbytes) for name, entry in sums.items()} == {
        "tensors.bin": (digest, 77),
        "k/a": (digest, None),
    }
