"""Reads a picture into RGB bytes: what a viewer would show, on white.

Accepted: JPEG (with CMYK), PNG (with palette, grey, 16-bit), WebP, GIF (first frame) and BMP files. The EXIF
orientation is applied and transparency is laid over white.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from amdxdna.files import open_regular
from amdxdna.signals import imports
from qwen35.errors import ImageError
from qwen35.imageformats import FORMATS, MAX_BYTES, MAX_PIXELS, SHOWN, Format

MAX_RATIO = 200
"""Thinnest picture taken: the longer side over the shorter (transformers' Qwen2-VL smart_resize)."""

T = TypeVar("T")
Rgb: TypeAlias = NDArray[np.uint8]
ImageLike: TypeAlias = Any
"""A path (str or os.PathLike), a file's bytes, a PIL.Image.Image, or an array: uint8 [h, w], [h, w, 3] or
[h, w, 4]."""


def load(source: ImageLike) -> Rgb:
    """The picture's pixels, uint8 [height, width, 3].

    Raises ImageError for a file that is missing, is no picture of a known format, is cut short, is larger
    than its format may be (:mod:`qwen35.imageformats`) or thinner than :data:`MAX_RATIO`, and for an array of
    another shape or dtype. Thread-safe.
    """
    if isinstance(source, np.ndarray):
        rgb = _from_array(source)
        _check_size(rgb.shape[1], rgb.shape[0], "array")
        return rgb
    try:
        imports("PIL.Image")
        from PIL import Image
    except ImportError as error:
        raise ImageError("pictures need the pillow package", remedy="install pillow") from error
    if isinstance(source, (str, os.PathLike)):
        return _from_file(os.fspath(source), _decode)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _from_bytes(source, "picture", _decode)
    if isinstance(source, Image.Image):
        _check_size(source.width, source.height, "picture", source.format)
        with _reading("picture"):  # an image that was opened is decoded only now
            return _decode(source, "picture")
    raise ImageError(
        f"a {type(source).__name__} is no picture",
        remedy="give a path, a file's bytes, a Pillow image or a uint8 array",
    )


def check_file(source: str | os.PathLike[str] | bytes) -> None:
    """Raises ImageError for a file that is missing or, by its header, no picture; bytes are stdin's.

    Decodes nothing.
    """
    if isinstance(source, bytes):
        _from_bytes(source, "stdin", lambda image, where: None)
    else:
        _from_file(os.fspath(source), lambda image, where: None)


def _from_array(array: NDArray[Any]) -> Rgb:
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise ImageError(
            f"an array of {array.dtype} with shape {list(array.shape)} is no picture",
            remedy="give uint8 with shape [height, width], [height, width, 3] or [.., 4]",
        )
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.shape[2] == 4:
        array = _over_white(array)
    return np.ascontiguousarray(array)


def _from_file(path: str, read: Callable[[Any, str], T]) -> T:
    with _reading(path), open_regular(path) as raw, io.BufferedReader(raw) as file:
        return _from_stream(file, os.fstat(raw.fileno()).st_size, path, read)


def _from_bytes(data: bytes | bytearray | memoryview, where: str, read: Callable[[Any, str], T]) -> T:
    with _reading(where):
        return _from_stream(io.BytesIO(data), memoryview(data).nbytes, where, read)


def _from_stream(file: BinaryIO, size: int, where: str, read: Callable[[Any, str], T]) -> T:
    from PIL import Image

    _check_bytes(size, MAX_BYTES, where)
    with Image.open(file, formats=tuple(FORMATS)) as image:
        _check_bytes(size, _limits(image.format).nbytes, where)
        _check_size(image.width, image.height, where, image.format)
        return read(image, where)


@contextlib.contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turns whatever Pillow makes of a bad picture into ImageError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # Our own limit is checked before anything is decoded.
            warnings.simplefilter("ignore")
            yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError("not a picture of a known format", where, f"give a {SHOWN} file") from None
    except Image.DecompressionBombError:
        raise _too_large(where) from None
    except OSError as error:
        if error.errno is not None:
            raise ImageError(f"the picture cannot be read: {error.strerror}", where) from None
        raise ImageError(f"the picture is damaged: {error}", where, "save or download it again") from None
    except MemoryError:
        raise ImageError("not enough memory to decode the picture", where, "make it smaller") from None
    except Exception as error:  # on hostile bytes Pillow's readers raise struct.error, ValueError and more
        raise ImageError(
            f"the picture is damaged: {error or type(error).__name__}", where, "save or download it again"
        ) from None


def _limits(kind: str | None) -> Format:
    """Those of what Pillow calls so; of a JPEG with several pictures (MPO) a JPEG's."""
    return FORMATS.get(kind or "JPEG", FORMATS["JPEG"])


def _too_large(where: str, pixels: int | None = None, most: int = MAX_PIXELS) -> ImageError:
    size = f"{pixels:,} pixels" if pixels else "too many pixels"
    return ImageError(f"the picture has {size}; at most {most:,} are read", where, "make it smaller")


def _check_bytes(size: int, most: int, where: str) -> None:
    if size > most:
        raise ImageError(f"the file has {size:,} bytes; at most {most:,} are read", where, "make it smaller")


def _check_size(width: int, height: int, where: str, kind: str | None = None) -> None:
    most = _limits(kind).pixels
    if width < 1 or height < 1:
        raise ImageError(f"the picture is empty ({width}x{height})", where)
    if width * height > most:
        raise _too_large(where, width * height, most)
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ImageError(
            f"the picture is too thin ({width}x{height}); at most {MAX_RATIO}:1 is read", where, "crop it"
        )


def _decode(image: Any, where: str) -> Rgb:
    image.load()
    turned = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    rgb = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(_STRIP // image.width, 1)
    # In strips: a conversion of the whole would hold the picture several times.
    for top in range(0, image.height, rows):
        part = image.crop((0, top, image.width, min(top + rows, image.height)))
        rgb[top : top + rows] = _rgb(part, image.info, where)
    return rgb if turned is None else np.ascontiguousarray(turned(rgb))


_STRIP = 1 << 18
"""Pixels that are converted at a time."""
_ORIENTATION = 0x0112
_TURNS: dict[int, Callable[[Rgb], Rgb]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a),
}
"""What makes a picture of each EXIF orientation upright (Exif 2.3, table 6)."""


def _rgb(part: Any, info: dict[Any, Any], where: str) -> Rgb:
    """A strip of a picture as RGB bytes."""
    mode = part.mode
    if mode in ("I", "F") or mode.startswith("I;16"):
        return _from_array(_to_8_bits(np.asarray(part), where))
    if "transparency" in info or mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        return _over_white(np.asarray(part.convert("RGBA")))
    return np.asarray(part.convert("RGB"))


def _to_8_bits(values: NDArray[Any], where: str) -> Rgb:
    """16-bit grey as 8-bit, v * 255 / 65535 rounded; Pillow's own conversion clips at 255 instead."""
    if values.dtype.kind == "f" or values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise ImageError("the picture's samples are neither 8-bit nor 16-bit", where, "save it as 8-bit")
    return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


def _over_white(rgba: NDArray[np.uint8]) -> Rgb:
    """`rgba` [h, w, 4], straight alpha, over white: round((c * a + 255 * (255 - a)) / 255)."""
    alpha = rgba[:, :, 3:].astype(np.uint32)
    mixed = rgba[:, :, :3] * alpha + 255 * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)
