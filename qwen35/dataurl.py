"""Pictures that a message carries in itself: base64 data: URLs (RFC 2397)."""

from __future__ import annotations

import base64
import binascii

from qwen35.errors import ImageError

__all__ = ["decode", "is_data_url"]


def is_data_url(text: str) -> bool:
    """Whether a text is a data: URL, well formed or not."""
    return text[:5].lower() == "data:"


def decode(url: str) -> bytes:
    """The bytes of a base64 data: URL. Raises ImageError."""
    head, comma, data = url.partition(",")
    if not is_data_url(url) or not comma or not head.lower().endswith(";base64"):
        raise ImageError("must be data:image/...;base64,...", "a data: URL")
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("is not base64", "a data: URL") from None
