"""How much memory a picture may take, whatever its file: measured from outside, in a process of its own."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qwen35.errors import ImageError
from qwen35.imageformats import FORMATS, MAX_BYTES, MAX_PIXELS
from qwen35.images.load import load
from tests.support.pixels import tiny_gif
from tests.support.program import python

SIDE, WEBP_SIDE = 4096, 3072
MOST = 300 << 20


def noise(bands: int, height: int = SIDE) -> Image.Image:
    block = np.random.default_rng(1).integers(0, 256, (256, 256, bands), dtype=np.uint8)
    return Image.fromarray(np.tile(block, (height // 256, SIDE // 256, 1)).squeeze())


def turned(folder: Path) -> str:
    path = str(folder / "turned.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(4).convert("CMYK").save(path, progressive=True, quality=95, subsampling=0, exif=exif)
    return path


def gif(folder: Path) -> str:
    path = folder / "tiny.gif"
    path.write_bytes(tiny_gif(SIDE, SIDE))
    return str(path)


def saved(name: str, make: Callable[[], Image.Image], **options: object) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        path = str(folder / name)
        make().save(path, **options)  # type: ignore[arg-type]
        return path

    return write


def padded(name: str, make: Callable[[], Image.Image], size: int, **options: object) -> Callable[[Path], str]:
    """A file of `size` bytes, the last of which nobody reads."""
    write = saved(name, make, **options)

    def filled(folder: Path) -> str:
        path = write(folder)
        with open(path, "r+b") as file:
            # What WebP's reader takes of a file is what its header says.
            if name.endswith(".webp"):
                file.seek(0, os.SEEK_END)
                held = file.tell()
                file.write(b"JUNK" + struct.pack("<I", size - held - 8) + bytes(size - held - 8))
                file.seek(4)
                file.write(struct.pack("<I", size - 8))
            else:
                file.truncate(size)
        return path

    return filled


FILES: dict[str, Callable[[Path], str]] = {
    "rgba": saved("a.png", lambda: Image.new("RGBA", (SIDE, SIDE), (9, 8, 7, 6))),
    "grey 16": saved("b.png", lambda: Image.new("I;16", (SIDE, SIDE), 513)),
    "palette": saved("c.png", lambda: Image.new("P", (SIDE, SIDE)), transparency=0),
    "bmp": saved("d.bmp", lambda: noise(3)),
    "png of the largest file": padded("f.png", lambda: noise(4), MAX_BYTES, compress_level=1),
    "webp": padded("e.webp", lambda: noise(4, WEBP_SIDE), FORMATS["WEBP"].nbytes, quality=50, method=0),
    "turned jpeg": turned,
    "gif": gif,
}


@pytest.mark.parametrize("what", FILES)
def test_the_largest_picture_stays_small(tmp_path: Path, what: str) -> None:
    path = FILES[what](tmp_path)
    done = python(
        "-c",
        "import re, sys\n"
        "from qwen35.images.load import load\n"
        "shape = load(sys.argv[1]).shape\n"
        # Not ru_maxrss, which begins with what the parent had at the fork.
        "print(*shape, re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n",
        path,
        check=True,
    )
    *shape, kilobytes = map(int, done.stdout.split())
    print(f"{what}: {kilobytes >> 10} MiB")
    assert shape == [WEBP_SIDE if what == "webp" else SIDE, SIDE, 3]
    assert kilobytes * 1024 < MOST


def test_larger_ones_are_refused_by_their_header(tmp_path: Path) -> None:
    assert SIDE * SIDE == MAX_PIXELS
    path = tmp_path / "large.gif"
    data = bytearray(Path(gif(tmp_path)).read_bytes())
    data[6:8] = struct.pack("<H", SIDE + 1)
    path.write_bytes(data)
    with pytest.raises(ImageError, match=f"at most {MAX_PIXELS:,}"):
        load(path)
    pixels, most = FORMATS["WEBP"].pixels, FORMATS["WEBP"].nbytes
    assert pixels == SIDE * WEBP_SIDE
    Image.new("RGB", (SIDE, WEBP_SIDE + 1)).save(tmp_path / "large.webp")
    with pytest.raises(ImageError, match=f"at most {pixels:,}"):
        load(tmp_path / "large.webp")
    Image.new("RGB", (8, 8)).save(tmp_path / "long.webp")
    with open(tmp_path / "long.webp", "r+b") as file:
        file.truncate(most + 1)
    with pytest.raises(ImageError, match=f"at most {most:,}"):
        load(tmp_path / "long.webp")
    with open(tmp_path / "long.bmp", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ImageError, match=f"at most {MAX_BYTES:,}"):
        load(tmp_path / "long.bmp")


def test_every_orientation_is_pillows(tmp_path: Path) -> None:
    from PIL import ImageOps

    picture = noise(3).crop((0, 0, 700, 500))
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.png"
        picture.save(path, exif=exif)
        with Image.open(path) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        assert np.array_equal(load(path), expected)


def test_the_limits_are_told() -> None:
    root = Path(__file__).resolve().parents[3]
    assert f"{MAX_PIXELS:,} pixels and {MAX_BYTES // 10**6} MB" in (root / "README.md").read_text()
    pixels, most = FORMATS["WEBP"].pixels, FORMATS["WEBP"].nbytes
    assert f"WebP {pixels:,} and {most // 10**6} MB" in (root / "README.md").read_text()
    told = subprocess.check_output([sys.executable, "-m", "qwen35", "--help"], text=True, timeout=120)
    assert f"{MAX_PIXELS:,} pixels" in " ".join(told.split())
