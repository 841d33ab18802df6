"""Pictures in prompts: read once, seen by the tower once, and kept by content."""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from amdxdna.forklock import reentrant
from qwen35.errors import ImageError
from qwen35.options import StepProgress
from qwen35.stats import Stats
from qwen35.template import ImageSpan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qwen35.images import Prepared
    from qwen35.model.text import TextModel

__all__ = ["Images", "PromptImage", "Tower"]


_TOGETHER = 4
"""Pictures that the tower is given at a time: what they are is kept when the next are stopped."""


class Tower(Protocol):
    """What is needed of a vision tower (qwen35.vision.tower.VisionTower)."""

    def encode_all(
        self,
        pictures: Sequence[tuple[NDArray[np.float32], tuple[int, int]]],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Patches and grids of pictures to embedding rows, float32 [tokens, D] each."""

    def close(self) -> None:
        """Gives its weights back."""


class PromptImage:
    """One picture: its patch grid, how many prompt tokens it takes, and a digest of its patches."""

    def __init__(self, prepared: Prepared, merge: int) -> None:
        self.grid = prepared.grid
        self.tokens = prepared.grid[0] * prepared.grid[1] // (merge * merge)
        self.original, self.resized = prepared.original, prepared.resized
        self.patches: NDArray[np.float32] = prepared.patches
        self.digest = hashlib.sha256(repr(self.grid).encode() + prepared.patches.tobytes()).digest()

    @property
    def nbytes(self) -> int:
        """Bytes of its patches."""
        return self.patches.nbytes

    def keys(self) -> list[int]:
        """A name for each of its tokens: negative, so that no token id is one."""
        base = int.from_bytes(self.digest[:16], "little") << 20
        return [-1 - base - index for index in range(self.tokens)]


class Images:
    """The pictures of a session, and the tower that turns them into embeddings.

    `read` is thread-safe; what uses the tower is the session's, inside its steps.

    The tower is made for the first picture. Embeddings are kept by content, the least recently used dropped
    beyond `budget` bytes, and so are the patches of pictures from files: until then one is read again only
    when its file has changed.
    """

    def __init__(
        self,
        model: TextModel,
        tower: Callable[[], Tower] | None = None,
        *,
        budget: int = 128 << 20,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """`note` is told, in one line, of a picture that is made smaller."""
        from qwen35.images import Preprocessor

        vision = model.config.vision
        assert vision is not None
        self.config = vision
        self.budget = budget
        self.note = note
        self._make_tower = tower or (lambda: _tower(model))
        self._tower: Tower | None = None
        self._prepare = Preprocessor(
            vision.patch_size, vision.spatial_merge_size, vision.min_pixels, vision.max_pixels
        )
        self._by_source: OrderedDict[tuple[Any, ...], PromptImage] = OrderedDict()
        self._lock = reentrant()
        self._by_content: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()

    def close(self) -> None:
        """Gives the tower back."""
        tower, self._tower = self._tower, None
        if tower is not None:
            tower.close()

    def use(self, model: TextModel) -> None:
        """Goes on with another model of the same bundle; embeddings stay, the tower is made anew."""
        self._tower = None
        self._make_tower = lambda: _tower(model)

    def read(self, image: Any) -> PromptImage:
        """Reads a picture (a path, a file's bytes, a Pillow image, a uint8 array). Raises ImageError."""
        key = _source(image)
        with self._lock:
            seen = self._by_source.get(key) if key is not None else None
            if seen is None and key is not None and key[1] is None:
                # The file is gone; a conversation goes on with what was seen of it.
                seen = next((s for k, s in reversed(self._by_source.items()) if k[0] == key[0]), None)
            if seen is not None:
                if key is not None and key in self._by_source:
                    self._by_source.move_to_end(key)
                return seen
        seen = PromptImage(self._prepare(image), self.config.spatial_merge_size)
        if seen.grid[0] * seen.grid[1] > self.config.max_patches:
            raise ImageError(
                f"the picture has {seen.grid[0] * seen.grid[1]:,} patches and the tower takes "
                f"{self.config.max_patches:,}",
                _name(image),
                "make it smaller",
            )
        if self.note is not None and seen.resized[0] * seen.resized[1] < seen.original[0] * seen.original[1]:
            wide, tall = seen.original
            self.note(f"{_name(image)} is {wide}x{tall}, shrunk to {seen.resized[0]}x{seen.resized[1]}")
        if key is not None:
            with self._lock:
                self._by_source[key] = seen
                kept = self._by_source.values()
                while len(kept) > 1 and sum(one.nbytes for one in kept) > self.budget:
                    self._by_source.popitem(last=False)
        return seen

    def embeddings(self, seen: PromptImage, progress: StepProgress | None = None) -> NDArray[np.float32]:
        """The picture's rows, float32 [tokens, D]. Raises the binding's errors."""
        return self.all_embeddings([seen], progress)[0]

    def all_embeddings(
        self, pictures: Sequence[PromptImage], progress: StepProgress | None = None
    ) -> list[NDArray[np.float32]]:
        """The rows of each picture; those that the tower has not seen go through it a few at a time."""
        found = {one.digest: self._by_content.get(one.digest) for one in pictures}
        missing = list({one.digest: one for one in pictures if found[one.digest] is None}.values())
        blocks = None if progress is None else lambda done, total: progress("picture", done, total)
        if missing and self._tower is None:
            self._tower = self._make_tower()
        for at in range(0, len(missing), _TOGETHER):
            some = missing[at : at + _TOGETHER]
            assert self._tower is not None
            made = self._tower.encode_all([(one.patches, one.grid) for one in some], blocks)
            for one, rows in zip(some, made, strict=True):
                found[one.digest] = self._by_content[one.digest] = rows
            kept = self._by_content.values()
            while len(kept) > 1 and sum(one.nbytes for one in kept) > self.budget:
                self._by_content.popitem(last=False)
        result = []
        for one in pictures:
            if one.digest in self._by_content:
                self._by_content.move_to_end(one.digest)
            own = found[one.digest]
            assert own is not None
            result.append(own)
        return result

    def forget(self) -> None:
        """Lets every picture go through the tower again."""
        self._by_content.clear()

    def part(
        self,
        ids: Sequence[int],
        spans: Sequence[ImageSpan],
        images: Sequence[PromptImage],
        stats: Stats,
        progress: StepProgress | None = None,
    ) -> Callable[[int, int], dict[str, Any]]:
        """The `part` of an engine Input: rotary positions, and the embeddings of the images in a range.

        Only images of which a range needs rows go through the tower; `stats.vision_s` counts that time.
        """
        import numpy as np

        from qwen35.model.rope import prompt_positions

        grids = [image.grid for image in images]
        positions = prompt_positions(ids, self.config.image_token_id, grids, self.config.spatial_merge_size)

        def arguments(start: int, stop: int) -> dict[str, Any]:
            needed = []
            for span in spans:
                first, last = max(span.start, start), min(span.start + span.count, stop)
                if first < last:
                    needed.append((span, first, last))
            began = time.perf_counter()
            whole = self.all_embeddings([images[span.index] for span, _, _ in needed], progress)
            if needed:
                stats.vision_s += time.perf_counter() - began
            rows = [
                own[first - span.start : last - span.start]
                for own, (span, first, last) in zip(whole, needed, strict=True)
            ]
            return {
                "positions": positions[:, start:stop],
                "embeddings": np.concatenate(rows) if rows else None,
            }

        return arguments


def _source(image: Any) -> tuple[Any, ...] | None:
    """What tells a picture from another's without decoding it; None for pixels in memory."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        return "bytes", hashlib.sha256(image).digest()
    if not isinstance(image, (str, os.PathLike)):
        return None
    path = os.path.abspath(os.fspath(image))
    try:
        found = os.stat(path)
    except OSError:
        return path, None
    return path, found.st_mtime_ns, found.st_size, found.st_ino


def _name(image: Any) -> str:
    return str(os.fspath(image)) if isinstance(image, (str, os.PathLike)) else "a picture"


def _tower(model: TextModel) -> Tower:
    from qwen35.vision.tower import VisionTower

    assert model.config.vision is not None
    # what was decided for the text model's weights holds for the tower's, which lie in the same file
    return VisionTower(model.bundle, model.npu, model.config.vision, model.timing, way=model.weights.way)
