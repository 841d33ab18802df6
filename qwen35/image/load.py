"""Reads a picture into RGB bytes: what a viewer would show, on white.

Accepted: JPEG (with CMYK), PNG (with palette, grey, 16-bit), WebP, GIF (first frame) and BMP files. The EXIF
orientation is applied and transparency is laid over white.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from amdxdna.files import open_regular
from qwen35.errors import ImageError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 100_000_000
"""Largest picture that is decoded, in pixels (a 300 MB RGB array); larger ones are refused unread."""
MAX_RATIO = 200
"""Thinnest picture taken: the longer side over the shorter (transformers' Qwen2-VL smart_resize)."""

Rgb: TypeAlias = NDArray[np.uint8]
ImageLike: TypeAlias = Any
"""A path (str or os.PathLike), a PIL.Image.Image, or an array: uint8 [h, w], [h, w, 3] or [h, w, 4]."""


def load(source: ImageLike) -> Rgb:
    """The picture's pixels, uint8 [height, width, 3].

    Raises ImageError for a file that is missing, is no picture of a known format, is cut short, is larger
    than :data:`MAX_PIXELS` or thinner than :data:`MAX_RATIO`, and for an array of another shape or dtype.
    Thread-safe.
    """
    if isinstance(source, np.ndarray):
        rgb = _from_array(source)
        _check_size(rgb.shape[1], rgb.shape[0], "array")
        return rgb
    if isinstance(source, (str, os.PathLike)):
        return _from_file(os.fspath(source))
    try:
        from PIL import Image
    except ImportError as error:
        raise ImageError("pictures need the pillow package", remedy="install pillow") from error
    if isinstance(source, Image.Image):
        _check_size(source.width, source.height, "picture")
        with _reading("picture"):  # an image that was opened is decoded only now
            return _decode(source, "picture")
    raise ImageError(f"a {type(source).__name__} is no picture",
                     remedy="give a path, a Pillow image or a uint8 array")


def _from_array(array: NDArray[Any]) -> Rgb:
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise ImageError(f"an array of {array.dtype} with shape {list(array.shape)} is no picture",
                         remedy="give uint8 with shape [height, width], [height, width, 3] or [.., 4]")
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.shape[2] == 4:
        array = _over_white(array)
    return np.ascontiguousarray(array)


def _from_file(path: str) -> Rgb:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImageError("pictures need the pillow package", remedy="install pillow") from error
    with _reading(path), open_regular(path) as raw, io.BufferedReader(raw) as file, \
            Image.open(file, formats=FORMATS) as image:
        _check_size(image.width, image.height, path)
        return _decode(image, path)


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
        raise ImageError("not a picture of a known format", where,
                         "give a JPEG, PNG, WebP, GIF or BMP file") from None
    except Image.DecompressionBombError:
        raise _too_large(where) from None
    except OSError as error:
        if error.errno is not None:
            raise ImageError(f"the picture cannot be read: {error.strerror}", where) from None
        raise ImageError(f"the picture is damaged: {error}", where, "save or download it again") from None
    except MemoryError:
        raise ImageError("not enough memory to decode the picture", where, "make it smaller") from None
    except Exception as error:  # on hostile bytes Pillow's readers raise struct.error, ValueError and more
        raise ImageError(f"the picture is damaged: {error or type(error).__name__}", where,
                         "save or download it again") from None


def _too_large(where: str, pixels: int | None = None) -> ImageError:
    size = f"{pixels:,} pixels" if pixels else "too many pixels"
    return ImageError(f"the picture has {size}; at most {MAX_PIXELS:,} are read", where, "make it smaller")


def _check_size(width: int, height: int, where: str) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"the picture is empty ({width}x{height})", where)
    if width * height > MAX_PIXELS:
        raise _too_large(where, width * height)
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ImageError(f"the picture is too thin ({width}x{height}); at most {MAX_RATIO}:1 is read", where,
                         "crop it")


def _decode(image: Any, where: str) -> Rgb:
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image)
    mode = image.mode
    if mode in ("I", "F") or mode.startswith("I;16"):
        return _from_array(_to_8_bits(np.asarray(image), where))
    if "transparency" in image.info or mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        return _over_white(np.asarray(image.convert("RGBA")))
    return np.ascontiguousarray(image.convert("RGB"))


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
