"""Pictures for the vision tower: reading, resizing and cutting into patches, exactly as the checkpoint does.

:func:`load` turns a path, a Pillow image or an array into RGB bytes; :class:`Preprocessor` turns those into
the patches and the grid that the tower takes. `embed.Images` keeps the pictures of a session and has the
tower make their embeddings.
"""

from __future__ import annotations

from qwen35.imageformats import MAX_BYTES, MAX_PIXELS
from qwen35.images.load import check_file, load
from qwen35.images.patches import Prepared, Preprocessor, smart_resize
from qwen35.images.resize import resize

__all__ = [
    "MAX_BYTES",
    "MAX_PIXELS",
    "Prepared",
    "Preprocessor",
    "check_file",
    "load",
    "resize",
    "smart_resize",
]
