"""Reading pictures: every mode against what Pillow shows, and one clear error for everything else."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qwen35.errors import ImageError
from qwen35.imageformats import MAX_PIXELS
from qwen35.images.load import load

RNG = np.random.default_rng(11)
RGB = RNG.integers(0, 256, (13, 21, 3), dtype=np.uint8)


def save(folder: Path, image: Image.Image, name: str, **options: object) -> str:
    path = folder / name
    image.save(path, **options)
    return str(path)


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.webp"])
def test_lossless_rgb_formats(tmp_path: Path, name: str) -> None:
    options = {"lossless": True} if name.endswith("webp") else {}
    np.testing.assert_array_equal(load(save(tmp_path, Image.fromarray(RGB), name, **options)), RGB)


def test_jpeg_is_what_pillow_decodes(tmp_path: Path) -> None:
    path = save(tmp_path, Image.fromarray(RGB), "a.jpg", quality=80)
    np.testing.assert_array_equal(load(path), np.asarray(Image.open(path)))


def test_jpeg_cmyk(tmp_path: Path) -> None:
    path = save(tmp_path, Image.fromarray(RGB).convert("CMYK"), "a.jpg", quality=95)
    assert Image.open(path).mode == "CMYK"
    np.testing.assert_array_equal(load(path), np.asarray(Image.open(path).convert("RGB")))


def test_gif_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (9, 5), c) for c in ((255, 0, 0), (0, 255, 0))]
    path = save(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    assert load(path).reshape(-1, 3).tolist() == [[255, 0, 0]] * 45


def test_a_jpeg_with_several_pictures(tmp_path: Path) -> None:
    """Which Pillow calls a format of its own, MPO: phones write them."""
    first = Image.new("RGB", (9, 5), (255, 255, 255))
    path = save(tmp_path, first, "a.mpo", save_all=True, append_images=[Image.new("RGB", (9, 5))])
    assert load(path).reshape(-1, 3).tolist() == [[255, 255, 255]] * 45


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_grey_and_palette(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(RGB).convert(mode)
    np.testing.assert_array_equal(load(save(tmp_path, image, "a.png")), np.asarray(image.convert("RGB")))


def test_alpha_over_white(tmp_path: Path) -> None:
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0] = [[10, 20, 30, 255], [10, 20, 30, 0], [10, 20, 30, 128]]
    want = [[[10, 20, 30], [255, 255, 255], [132, 137, 142]]]
    assert load(save(tmp_path, Image.fromarray(rgba), "a.png")).tolist() == want
    assert load(rgba).tolist() == want


def test_grey_alpha_and_transparent_palette(tmp_path: Path) -> None:
    la = Image.merge("LA", (Image.new("L", (2, 1), 100), Image.new("L", (2, 1), 0)))
    assert load(save(tmp_path, la, "la.png")).tolist() == [[[255] * 3] * 2]
    palette = Image.new("P", (2, 1), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    assert load(save(tmp_path, palette, "p.png", transparency=1)).tolist() == [[[255] * 3] * 2]


def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    path = save(tmp_path, Image.fromarray(values), "a.png")
    assert load(path)[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path, Image.fromarray(RGB), "a.png", exif=exif)
    turned = {
        1: RGB,
        2: RGB[:, ::-1],
        3: RGB[::-1, ::-1],
        4: RGB[::-1],
        5: RGB.transpose(1, 0, 2),
        6: np.rot90(RGB, -1),
        7: RGB[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(RGB),
    }
    np.testing.assert_array_equal(load(path), turned[orientation])


def test_pillow_images_and_arrays() -> None:
    np.testing.assert_array_equal(load(Image.fromarray(RGB)), RGB)
    np.testing.assert_array_equal(load(RGB), RGB)
    np.testing.assert_array_equal(load(RGB[:, :, 0]), np.repeat(RGB[:, :, :1], 3, axis=2))


def fails(source: object, *words: str) -> None:
    with pytest.raises(ImageError) as caught:
        load(source)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_missing_file_and_folder(tmp_path: Path) -> None:
    fails(str(tmp_path / "none.png"), "none.png", "No such file")
    fails(str(tmp_path), "cannot be read", "directory")


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"%PDF-1.7", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM" + b"\0" * 60]
)
def test_not_a_picture(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(data)
    fails(str(path), "x.png")


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.bmp", "a.gif"])
def test_truncated(tmp_path: Path, name: str) -> None:
    big = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = Path(save(tmp_path, Image.fromarray(big), name))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    fails(str(path), name, "damaged")
    if name != "a.webp":  # Pillow has read no more than the header; WebP it reads whole
        with Image.open(path) as opened:
            fails(opened, "picture", "damaged")


def test_too_thin() -> None:
    fails(np.zeros((1, 201, 3), np.uint8), "201x1", "200:1")
    assert load(np.zeros((1, 200, 3), np.uint8)).shape == (1, 200, 3)


def test_huge_header_is_refused_unread(tmp_path: Path) -> None:
    """A 70-byte PNG that claims 30,000 x 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path = tmp_path / "bomb.png"
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )
    fails(str(path), "bomb.png", f"{MAX_PIXELS:,}")


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4, 2), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros(4, np.uint8)]
)
def test_wrong_arrays(array: np.ndarray) -> None:
    fails(array, "array")


def test_empty_and_unknown_sources() -> None:
    fails(np.zeros((0, 4, 3), np.uint8), "empty")
    fails(7, "int")


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.bmp", "a.webp"])
def test_fuzzed_files_never_raise_anything_else(tmp_path: Path, name: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(RGB).save(buffer, format={"jpg": "JPEG"}.get(name[2:], name[2:].upper()))
    good = buffer.getvalue()
    rng = np.random.default_rng(len(good))
    path = tmp_path / name
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        path.write_bytes(data[: int(rng.integers(1, len(data) + 1))] if rng.random() < 0.3 else data)
        try:
            assert load(str(path)).dtype == np.uint8
        except ImageError:
            refused += 1
    assert refused
