"""The safetensors reader: exact views, and one clear error for every malformed header."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35.export.errors import CheckpointError
from qwen35.export.safetensors import SafeTensors
from tests.support.synthetic import bf16_round, write_safetensors


def raw(path: Path, header: Any, data: bytes = bytes(64)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    return {"t": {"dtype": dtype, "shape": plain(shape), "data_offsets": plain(offsets)}}


def test_views(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = {name: bf16_round(rng.standard_normal((3, 4)).astype(np.float32)) for name in ("a", "b", "c")}
    write_safetensors(tmp_path / "f", values, {"a": "BF16", "b": "F32", "c": "F16"})
    file = SafeTensors(tmp_path / "f")
    assert list(file) == ["a", "b", "c"] and "a" in file and "__metadata__" not in file
    np.testing.assert_array_equal(file.array("a"), (values["a"].view(np.uint32) >> 16).astype(np.uint16))
    np.testing.assert_array_equal(file.array("b"), values["b"])
    np.testing.assert_array_equal(file.array("c"), values["c"].astype(np.float16))
    assert not file.array("b").flags.writeable
    assert file.array("b").base is not None
    with pytest.raises(KeyError):
        file.array("d")


def test_against_the_reference_implementation(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    values = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "y": np.ones((2, 0), np.float32)}
    reference.save_file(values, tmp_path / "f", metadata={"format": "np"})
    file = SafeTensors(tmp_path / "f")
    for name, value in values.items():
        np.testing.assert_array_equal(file.array(name), value)
    write_safetensors(tmp_path / "g", values, dict.fromkeys(values, "F32"))
    for name, value in reference.load_file(tmp_path / "g").items():
        np.testing.assert_array_equal(value, values[name])


def test_data_at_an_odd_offset(tmp_path: Path) -> None:
    header = json.dumps(entry()).encode()
    header += b" " * ((3 - len(header)) % 8)
    file = SafeTensors(raw(tmp_path / "f", header, np.arange(6, dtype="<f4").tobytes()))
    np.testing.assert_array_equal(file.array("t"), [[0, 1, 2], [3, 4, 5]])


SIZES = {"F64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
SIZES |= {f"{kind}{bits}": bits // 8 for kind in "IU" for bits in (8, 16, 32, 64)}


@pytest.mark.parametrize("dtype", SIZES)
def test_dtypes_that_cannot_be_exported(tmp_path: Path, dtype: str) -> None:
    size = SIZES[dtype]
    file = SafeTensors(raw(tmp_path / "f", entry(dtype, (6,), (0, 6 * size))))
    with pytest.raises(CheckpointError, match=f"t is {dtype}; BF16, F16 and F32 can be exported"):
        file.array("t")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "no valid JSON"),
        (b"[]", "no JSON object"),
        (b"{", "no valid JSON"),
        (b"\xff{}", "no valid JSON"),
        (b"[" * 20000, "no valid JSON"),
        (b'{"a":{},"a":{}}', "a name is repeated"),
        ({"t": 3}, "its entry is no JSON object"),
        ({"t": {}}, "dtype None is unknown"),
        (entry("F31"), "dtype 'F31' is unknown"),
        (entry(["F32"]), "is unknown"),
        (entry(shape=(2, -3)), "shape is no list of sizes"),
        (entry(shape=(2, True)), "shape is no list of sizes"),
        (entry(shape=(2, 3.0)), "shape is no list of sizes"),
        (entry(shape="23"), "shape is no list of sizes"),
        (entry(shape=(1,) * 17), "shape is no list of sizes"),
        (entry(shape=(1 << 60,)), "shape is no list of sizes"),
        (entry(offsets=(0, 24, 3)), "data_offsets is no pair"),
        (entry(offsets=None), "data_offsets is no pair"),
        (entry(offsets=(24, 0)), "lie outside"),
        (entry(offsets=(48, 72)), "lie outside the file's 64 bytes"),
        (entry(offsets=(0, 20)), "20 bytes do not hold F32"),
        (entry(shape=(3, 3)), "24 bytes do not hold F32"),
    ],
)
def test_malformed(tmp_path: Path, header: Any, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        SafeTensors(raw(tmp_path / "f", header))
    assert message in caught.value.message
    assert caught.value.path == str(tmp_path / "f")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("length", [65, 1 << 32, (1 << 64) - 1])
def test_a_header_longer_than_the_file(tmp_path: Path, length: int) -> None:
    (tmp_path / "f").write_bytes(struct.pack("<Q", length) + bytes(64))
    with pytest.raises(CheckpointError, match="does not fit"):
        SafeTensors(tmp_path / "f")


@pytest.mark.parametrize("data", [b"", b"1234567"])
def test_too_short(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(CheckpointError, match="too short"):
        SafeTensors(tmp_path / "f")


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        SafeTensors(tmp_path / "f")
    with pytest.raises(CheckpointError, match="cannot be read"):
        SafeTensors(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_headers_give_an_error_or_views_inside_the_file(tmp_path: Path, seed: int) -> None:
    values = {name: np.ones((4, 3), np.float32) for name in "abcd"}
    write_safetensors(tmp_path / "f", values, {"b": "F32", "c": "F16"})
    original = (tmp_path / "f").read_bytes()
    (length,) = struct.unpack("<Q", original[:8])
    rng, refused = random.Random(seed), 0
    for _ in range(300):
        data = bytearray(original)
        for _ in range(rng.choice((1, 2, 4))):
            at = rng.randrange(8 + length if rng.random() < 0.9 else 8)
            data[at] = rng.choice(b'0123456789,:[]{}"-ae\xff\0')
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        (tmp_path / "g").write_bytes(data)
        try:
            file = SafeTensors(tmp_path / "g")
            for name in file:
                file.array(name).sum()
        except CheckpointError:
            refused += 1
    assert 100 < refused < 300


def test_a_header_is_no_longer_than_any_needs_to_be(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for length, message in ((25 << 20, "no valid JSON"), ((25 << 20) + 1, "a header of 26,214,401 bytes")):
        path.write_bytes(length.to_bytes(8, "little"))
        with open(path, "r+b") as file:
            file.truncate(60 << 20)
        with pytest.raises(CheckpointError, match=message):
            SafeTensors(path)
