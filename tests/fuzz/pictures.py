"""Picture files."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from qwen35.errors import ImageError
from qwen35.imageformats import MAX_PIXELS
from qwen35.images.load import load
from tests.fuzz import mutate
from tests.fuzz.run import Ready
from tests.support.pixels import tiny_gif

_KINDS = [b"tRNS", b"PLTE", b"eXIf", b"acTL", b"fcTL", b"fdAT", b"iCCP", b"zTXt"]
_PNG = b"\x89PNG\r\n\x1a\n"


def pictures(folder: Path) -> Ready:
    """PNG, JPEG, GIF, WebP and BMP files whose headers and bodies were edited."""
    originals = [data for make in (_png, _jpeg, _other) for data in make()]

    def make(rng: random.Random) -> bytes:
        data = rng.choice(originals)
        if data.startswith(_PNG) and rng.random() < 0.8:
            return _edited_png(rng, data)
        # Headers lie at the beginning and are a small part of most files.
        head = rng.choice([len(data), 64, 200])
        return mutate.binary(rng, data[:head]) + data[head:]

    def parse(data: bytes) -> None:
        rgb = load(data)
        assert rgb.dtype == np.uint8 and rgb.shape[2] == 3 and 0 < rgb.shape[0] * rgb.shape[1] <= MAX_PIXELS

    return Ready(
        parse,
        make,
        (ImageError,),
        (
            lambda: b"",
            lambda: tiny_gif(4096, 4096),
            lambda: tiny_gif(65535, 65535),
            lambda: _PNG + _chunk(b"IHDR", struct.pack(">IIBBBBB", 4096, 4096, 16, 6, 0, 0, 1)),
            lambda: _PNG + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1 << 31, 1 << 31, 8, 2, 0, 0, 0)),
            lambda: originals[0][:33] + _chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(64 << 20))) * 20,
            lambda: originals[0][:33] + _chunk(b"tEXt", b"k\0" + b"x" * 100) * 100_000,
            lambda: b"\xff\xd8" + b"\xff\xfe\0\4ab" * 400_000,
            lambda: b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0) + b"!\xfe\1x\0" * 1_000_000,
            lambda: b"BM" + struct.pack("<IIIIiiHH", 1 << 31, 0, 54, 40, 1 << 30, -1, 1, 32) + bytes(24),
            lambda: b"RIFF" + struct.pack("<I", 1 << 31) + b"WEBPVP8X" + bytes(200),
        ),
    )


def _image(mode: str) -> Any:
    from PIL import Image

    noise = np.random.default_rng(1).integers(0, 256, (9, 14, 4), dtype=np.uint8)
    if mode == "I;16":
        return Image.fromarray(noise.view(np.uint16)[:, :, 0].copy())
    return Image.fromarray(noise).convert(mode)


def _saved(kind: str, mode: str, **options: Any) -> bytes:
    file = io.BytesIO()
    _image(mode).save(file, kind, **options)
    return file.getvalue()


def _exif() -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _png() -> list[bytes]:
    return [
        *(_saved("PNG", mode) for mode in ("RGBA", "RGB", "L", "LA", "1", "I;16")),
        _saved("PNG", "P", transparency=3),
        _saved("PNG", "RGB", exif=_exif(), dpi=(72, 72)),
        _saved("PNG", "RGBA", save_all=True, append_images=[_image("RGBA").transpose(0)]),
    ]


def _jpeg() -> list[bytes]:
    return [
        _saved("JPEG", "L"),
        _saved("JPEG", "CMYK", progressive=True),
        _saved("JPEG", "RGB", exif=_exif(), subsampling=2, restart_marker_rows=1),
    ]


def _other() -> list[bytes]:
    more = [_image("RGBA").transpose(0)]
    return [
        _saved("GIF", "P", transparency=1),
        _saved("GIF", "RGB", save_all=True, append_images=more),
        _saved("WEBP", "RGBA", lossless=True, exif=_exif()),
        _saved("WEBP", "RGB", quality=30),
        _saved("WEBP", "RGBA", save_all=True, append_images=more),
        *(_saved("BMP", mode) for mode in ("RGB", "RGBA", "P", "1")),
        tiny_gif(300, 200),
    ]


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _edited_png(rng: random.Random, data: bytes) -> bytes:
    """Chunks edited, doubled, dropped or swapped, with the sums of what they became."""
    chunks, at = [], len(_PNG)
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    for _ in range(rng.choice((1, 1, 2, 4))):
        which = rng.randrange(len(chunks))
        kind, body = chunks[which]
        act = rng.randrange(6)
        if act == 0:
            chunks.insert(rng.randrange(len(chunks) + 1), (kind, body))
        elif act == 1 and len(chunks) > 1:
            del chunks[which]
        elif act == 2:
            chunks[which] = rng.choice(_KINDS), body
        elif kind == b"IDAT" and act < 5:
            with contextlib.suppress(zlib.error):
                chunks[which] = kind, zlib.compress(mutate.binary(rng, zlib.decompress(body)))
        else:
            chunks[which] = kind, mutate.binary(rng, body)
    return _PNG + b"".join(_chunk(*chunk) for chunk in chunks)
