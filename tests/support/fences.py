"""Arrays behind which nothing may be read or written: whoever does ends by SIGSEGV."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def fenced(values: Any, dtype: DTypeLike = None) -> NDArray[Any]:
    """A contiguous copy that ends where a page does, with a page behind it that nobody may touch."""
    source = np.asarray(values, dtype)
    room = -(-source.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, room + mmap.PAGESIZE)
    array = np.frombuffer(pages, source.dtype, source.size, room - source.nbytes).reshape(source.shape)
    array[...] = source
    behind = array.__array_interface__["data"][0] + source.nbytes
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(behind), mmap.PAGESIZE, 0) == 0
    return array
