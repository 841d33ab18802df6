"""Prompts: pieces of text, token ids and pictures become what a session runs.

Everything that prompts a model comes through `assemble`: the token ids, where pictures lie among them, and
the keys by which kept states are found.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from qwen35.engine import Input
from qwen35.errors import PromptTooLong
from qwen35.options import StepProgress
from qwen35.stats import Stats
from qwen35.template import ImageSlot, Piece, encode
from qwen35.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qwen35.images.embed import Images, PromptImage

__all__ = ["assemble"]


def assemble(
    pieces: Iterable[Piece],
    tokenizer: Tokenizer,
    pictures: Images | None = None,
    *,
    allow_special: bool = False,
    limit: int | None = None,
    stats: Stats | None = None,
    progress: StepProgress | None = None,
) -> Input:
    """The session's input of `pieces` (qwen35.template), whose pictures `pictures` reads.

    With `allow_special` markers inside data become tokens. `limit` is the context's length in tokens: what is
    far beyond it is not encoded to its end. `stats` learns what the pictures take, `progress` is told of the
    tower's blocks. Raises PromptTooLong, ImageError, and UsageError for a picture without `pictures`.
    """
    pieces, stats = list(pieces), stats if stats is not None else Stats()
    images = [piece.image for piece in pieces if isinstance(piece, ImageSlot)]
    seen: list[PromptImage] = []
    if images and pictures is not None:
        began = time.perf_counter()
        for image in images:
            seen.append(pictures.read(image))
            stats.image_tokens += seen[-1].tokens
            if limit is not None and stats.image_tokens > limit:
                raise PromptTooLong(stats.image_tokens, limit, least=True)
        stats.vision_s += time.perf_counter() - began
    counts = [picture.tokens for picture in seen]
    prompt = encode(pieces, tokenizer, image_tokens=counts, allow_special=allow_special, limit=limit)
    if limit is not None and len(prompt.ids) > limit:
        raise PromptTooLong(len(prompt.ids), limit)
    if not seen or pictures is None:
        return Input(prompt.ids, prompt.borders, shared=prompt.shared)
    keys = list(prompt.ids)
    for span in prompt.images:
        keys[span.start : span.start + span.count] = seen[span.index].keys()
    part = pictures.part(prompt.ids, prompt.images, seen, stats, progress)
    return Input(prompt.ids, prompt.borders, keys, part, prompt.shared)
