"""The vision tower: a picture's patches -> the embeddings of its image tokens.

Every projection is a GEMM on the tower's own hardware context; LayerNorms, the rotation, attention, the GELU
of `w8` weights, the merger's GELU and the sums over K slices are the host's. Biases are inside the packed
streams (the GEMM adds them). Of a weight with factors (`w8`) every GEMM output column is multiplied by its
own on the host, fc1's before the GELU; without them (`bfp16x2`) fc1's GEMM ends with the GELU (as published
bundles have it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle.schema import vision_schema
from qwen35.errors import ImageError
from qwen35.formats import bf16
from qwen35.model.timing import Timing
from qwen35.model.weights import Weights
from qwen35.vision.host import GELU_ERF, GELU_TANH, FullAttention, LayerNorm, activate
from qwen35.vision.lanes import Lane, Slot, Steps, advance
from qwen35.vision.positions import resample, rotation

if TYPE_CHECKING:
    from qwen35.bundle.bundle import Bundle
    from qwen35.bundle.config import VisionConfig
    from qwen35.model.projections import Projections

__all__ = ["VisionTower"]

_KEYS = ("v_patch", "v_qkv", "v_proj", "v_fc1", "v_fc2", "v_m1", "v_m2")
LANES = 4
"""In flight, before another picture begins: more pictures side by side leave the NPU no less to wait for."""
PIECE = 1 << 20
"""Pairs of query and key of a piece of attention: about a millisecond on two cores, in which the NPU may
get done with another lane's projection."""
F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Block:
    norm_in: LayerNorm
    """Adds the block before's MLP to x, then norms."""
    attention: FullAttention
    norm_mlp: LayerNorm
    """Adds this block's attention to x, then norms."""
    fc1_factors: F32 | None


class _Picture:
    """A picture on its way, and how far its lanes are."""

    def __init__(self, config: VisionConfig, patches: F32, grid: tuple[int, int]) -> None:
        self.patches, self.n = patches, len(patches)
        self._config, self._grid = config, grid
        self.parts: list[tuple[int, int]] = []
        """By lane, its rows; what follows is by lane, too."""
        self.loaded: list[int] = []
        """Of how many blocks its queries, keys and values are in the scratch, or were."""
        self.attended: list[int] = []
        """Of how many blocks its queries have seen all keys."""
        self.through: list[int] = []
        """How many blocks it is through."""
        self.ended: list[bool] = []
        self.x: F32
        """[n, D], summed over the blocks."""
        self.cosines: F32
        self.sines: F32
        self.scratch: F32
        """The attention's."""
        self.normed: U16
        """[n, D], what the merger takes."""
        self.out: F32
        self._prepared = False

    def share(self, cuts: list[int]) -> None:
        """Makes lanes of the rows, cut where `cuts` say."""
        bounds = [0, *cuts, self.n]
        self.parts = list(pairwise(bounds))
        self.loaded, self.attended, self.through = ([0] * len(self.parts) for _ in range(3))
        self.ended = [False] * len(self.parts)

    def prepare(self, table: F32, attention: FullAttention) -> None:
        """What the first block needs; by whoever needs it first."""
        if self._prepared:
            return
        c, self._prepared = self._config, True
        self.cosines, self.sines = rotation(self._grid, c.spatial_merge_size, c.head_dim, c.rope_theta)
        self.x = resample(table, c.pos_side, self._grid, c.spatial_merge_size)
        self.scratch = attention.scratch(self.n)
        self.normed = np.empty((self.n, c.hidden_size), np.uint16)


class VisionTower:
    """The tower of one bundle on one device. Not thread-safe.

    A picture's rows go through it in two lanes, and several pictures side by side: the host does the one's
    attention, norms and activations while the NPU does the other's projections. Every row is computed as if
    it were alone, so results do not depend on that.

    Device buffers are sized by the largest picture so far and kept until `release`. The caller keeps bundle,
    device and `npu` open for the tower's life.
    """

    def __init__(
        self,
        bundle: Bundle,
        npu: Projections,
        config: VisionConfig,
        timing: Timing | None = None,
        *,
        way: str = "copy",
        release: bool | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Uploads the weights (`way`, `release`, `progress(done, total)` in bytes as in Weights.load).

        Raises BundleError for tensors that do not fit, and the binding's errors.
        """
        self.config, self._npu = config, npu
        self.timing = timing or Timing()
        c, tensors = config, bundle.tensors
        specs = {spec.name: spec for spec in vision_schema(c)}
        self._weights = Weights.load(
            bundle,
            npu.device,
            [name for name, spec in specs.items() if spec.rows],
            way=way,
            release=release,
            progress=progress,
        )

        def host(name: str) -> F32:
            return np.array(tensors.of(specs["vis." + name]))

        def factors(name: str, outputs: int) -> F32 | None:
            name = f"vis.{name}.f"
            return np.array(tensors.expect(name, "f32", outputs)) if name in tensors else None

        self._inner = npu.gemm_spec("v_fc1").n  # intermediate_size, or more where the exporter padded it
        self._table = host("pos")
        self._patch_factors = factors("patch", c.hidden_size)
        self._m1_factors, self._m2_factors = (
            factors("m1", c.n_merge * c.hidden_size),
            factors("m2", c.out_hidden_size),
        )
        self._blocks: list[_Block] = []
        before: F32 | None = None
        for i in range(c.depth):
            at = f"b{i}."
            self._blocks.append(
                _Block(
                    LayerNorm(
                        host(at + "ln1_w"),
                        host(at + "ln1_b"),
                        c.n_fc2 if i else 0,
                        before,
                    ),
                    FullAttention(c.num_heads, c.head_dim, factors(at + "qkv", 3 * c.hidden_size)),
                    LayerNorm(
                        host(at + "ln2_w"),
                        host(at + "ln2_b"),
                        1,
                        factors(at + "proj", c.hidden_size),
                    ),
                    factors(at + "fc1", self._inner),
                )
            )
            before = factors(at + "fc2", c.hidden_size)
        self._merger_norm = LayerNorm(host("m_ln_w"), host("m_ln_b"), c.n_fc2, before)
        self._free: list[Slot] = []

    @property
    def report(self) -> str:
        """One line: how the weights came to the device."""
        return self._weights.report

    def encode(self, patches: F32, grid: tuple[int, int], progress: Progress | None = None) -> F32:
        """Patches float32 [gh * gw, 3 p p] in merge-block order -> float32 [gh * gw / merge^2, out].

        `progress(block, depth)` is called after every block. Raises ImageError for a grid that does not
        fit the patches or the tower, and the binding's errors; after one, as after Ctrl-C, the tower is as
        before.
        """
        return self.encode_all([(patches, grid)], progress)[0]

    def encode_all(
        self, pictures: Sequence[tuple[F32, tuple[int, int]]], progress: Progress | None = None
    ) -> list[F32]:
        """`encode` of several pictures, some of them side by side, each as if it were alone.

        `progress` counts the blocks of all. They take no more device memory than the largest picture.
        """
        for patches, grid in pictures:
            self._check(patches, grid)
        self.timing.start()
        done, total = count(1), self.config.depth * len(pictures)

        def block_over() -> None:
            number = next(done)
            if progress is not None:
                progress(number, total)

        seen = [_Picture(self.config, *picture) for picture in pictures]
        waiting = deque(seen)
        lanes: dict[Lane, Slot] = {}
        try:
            while waiting or lanes:
                while waiting and self._fits(waiting[0], lanes.values()):
                    self._admit(waiting.popleft(), lanes, block_over)
                advance(list(lanes))
                for lane in [lane for lane in lanes if lane.ended]:
                    self._free.append(lanes.pop(lane))
        except BaseException:
            over = False
            try:
                for lane in lanes:
                    lane.close()
                over = self._npu.drain()
            finally:
                for slot in lanes.values():
                    if over:
                        slot.interrupted()
                        self._free.append(slot)
                    else:  # a command may write its buffers still: they are not used again
                        slot.abandon()
            raise
        return [picture.out for picture in seen]

    def _check(self, patches: F32, grid: tuple[int, int]) -> None:
        c, n = self.config, len(patches)
        whole = (
            grid[0] * grid[1] == n
            and not grid[0] % c.spatial_merge_size
            and not grid[1] % c.spatial_merge_size
        )
        if not whole or patches.shape[1:] != (c.patch_dim,):
            raise ImageError(f"patches {patches.shape} do not fit a grid of {grid[0]}x{grid[1]}")
        if not 1 <= n <= c.max_patches:
            raise ImageError(
                f"the picture has {n} patches; the tower takes 1..{c.max_patches}",
                remedy="give a smaller picture",
            )

    def _chunks(self, rows: int) -> int:
        return -(-rows // self._npu.gemm_spec("v_patch").m)

    def _fits(self, picture: _Picture, slots: Collection[Slot]) -> bool:
        """Whether a picture may come beside those whose lanes have these slots."""
        chunks = sum(slot.chunks for slot in slots) + self._chunks(picture.n)
        return not slots or (len(slots) < LANES and chunks <= self._chunks(self.config.max_patches))

    def _admit(self, picture: _Picture, lanes: dict[Lane, Slot], block_over: Callable[[], None]) -> None:
        """Makes a picture's lanes: two, where its chunks can be shared out."""
        cut = self._chunks(picture.n) // 2 * self._npu.gemm_spec("v_patch").m
        picture.share([cut] if cut and not cut % FullAttention.ALIGN else [])
        # The later lane has the larger part.
        # The first gets the merger's buffers, where there are some.
        self._free.sort(key=lambda slot: (slot.chunks, not slot.merges))
        own = [self._free.pop() if self._free else Slot(self._npu) for _ in picture.parts]
        own.reverse()
        needed = [self._chunks(end - first) for first, end in picture.parts]
        if any(chunks > slot.chunks for chunks, slot in zip(needed, own, strict=True)):
            self.release()
        for at, (chunks, slot) in enumerate(zip(needed, own, strict=True)):
            slot.reserve(chunks, self._sizes(chunks, 0 if at else picture.n))
            lane = Lane()
            lane.begin(self._steps(picture, at, lane, slot, block_over))
            lanes[lane] = slot

    def _steps(
        self, picture: _Picture, at: int, lane: Lane, slot: Slot, block_over: Callable[[], None]
    ) -> Steps:
        """Lane `at` of a picture: its rows through the tower; the first also ends the picture."""
        c, lap = self.config, self.timing.lap
        first, end = picture.parts[at]
        n = end - first
        chunks = self._chunks(n)

        def reads(key: str) -> U16:
            return self._reads(slot, key, "a")

        def gemm(key: str, a: str, weight: str, out: str, slices: int = 0, rows: int = n) -> Steps:
            return self._gemm(slot, key, rows, chunks, a, weight, out, slices)

        a = reads("v_patch")[: chunks * self._npu.gemm_spec("v_patch").m]
        a[:] = 0  # the padding of K, and rows past the picture
        a[:n, : c.patch_dim] = bf16.to_bf16(picture.patches[first:end])
        lap("vision.host")
        yield from gemm("v_patch", "a", "patch", "c", rows=len(a))
        picture.prepare(self._table, self._blocks[0].attention)
        x = picture.x[first:end]
        embedded = bf16.from_bf16(self._writes(slot, "v_patch", "c")[:n])
        x += embedded if self._patch_factors is None else embedded * self._patch_factors
        qkv, wide = self._writes(slot, "v_qkv", "qkv"), self._writes(slot, "v_fc1", "fc1")
        parts = [self._writes(slot, "v_fc2", f"part{j}") for j in range(c.n_fc2)]
        added = self._writes(slot, "v_proj", "c")
        for i, block in enumerate(self._blocks):
            lane.urgency = i
            block.norm_in.rows(x, parts if i else [], reads("v_qkv"))
            lap("vision.host")
            yield from gemm("v_qkv", "a", f"b{i}.qkv", "qkv")
            yield from self._attention(picture, at, i, qkv, reads("v_proj"))
            yield from gemm("v_proj", "a", f"b{i}.proj", "c")
            block.norm_mlp.rows(x, [added], reads("v_fc1"))
            lap("vision.host")
            yield from gemm("v_fc1", "a", f"b{i}.fc1", "fc1")
            if block.fc1_factors is not None:  # else the GEMM ends with the GELU
                activate(GELU_TANH, n, self._inner, [wide], wide, block.fc1_factors)
                lap("vision.host")
            yield from gemm("v_fc2", "fc1", f"b{i}.fc2", "part", c.n_fc2)
            picture.through[at] = i + 1
            if min(picture.through) == i + 1:
                block_over()
        self._merger_norm.rows(x, parts, picture.normed[first:end])
        lap("vision.host")
        picture.ended[at] = True
        if at == 0:
            if not all(picture.ended):
                yield lambda: all(picture.ended)
            yield from self._merge(picture, slot)
            del picture.x, picture.scratch, picture.normed, picture.cosines, picture.sines

    def _attention(self, picture: _Picture, at: int, i: int, qkv: U16, out: U16) -> Steps:
        """Block i's attention of a lane's rows, as the other lanes' keys come."""
        attention, heads = self._blocks[i].attention, self.config.num_heads
        first, end = queries = picture.parts[at]

        def unread() -> bool:  # nobody needs the keys of the block before
            return min(picture.attended) >= i

        if not unread():
            yield unread
        attention.load(qkv, picture.cosines, picture.sines, picture.scratch, first, end)
        self.timing.lap("vision.attention")
        picture.loaded[at] = i + 1
        for other, keys in enumerate(picture.parts):

            def loaded(other: int = other) -> bool:
                return picture.loaded[other] > i

            if not loaded():
                yield loaded
            step = max(PIECE // ((end - first) * (keys[1] - keys[0])), 1)
            for head in range(0, heads, step):
                yield None
                among = head, min(head + step, heads)
                attention.part(picture.scratch, picture.n, queries, keys, among, out)
                self.timing.lap("vision.attention")
        picture.attended[at] = i + 1

    def _merge(self, picture: _Picture, slot: Slot) -> Steps:
        """The merger: rows of merge^2 patches side by side -> linear -> GELU -> linear."""
        c, lap = self.config, self.timing.lap
        tokens, wide = picture.n // c.n_merge, c.n_merge * c.hidden_size
        chunks = -(-tokens // self._npu.gemm_spec("v_m1").m)
        self._reads(slot, "v_m1", "joined", wide)[:tokens] = picture.normed.reshape(tokens, wide)
        lap("vision.host")
        yield from self._gemm(slot, "v_m1", tokens, chunks, "joined", "m1", "inner", c.n_merge)
        inner = [self._writes(slot, "v_m1", f"inner{j}") for j in range(c.n_merge)]
        activate(GELU_ERF, tokens, wide, inner, self._reads(slot, "v_m2", "joined", wide), self._m1_factors)
        lap("vision.host")
        yield from self._gemm(slot, "v_m2", tokens, chunks, "joined", "m2", "out", c.n_merge)
        picture.out = out = np.zeros((tokens, c.out_hidden_size), np.float32)
        for j in range(c.n_merge):
            out += bf16.from_bf16(self._writes(slot, "v_m2", f"out{j}")[:tokens, : c.out_hidden_size])
        if self._m2_factors is not None:
            out *= self._m2_factors
        lap("vision.host")

    def _gemm(
        self, slot: Slot, key: str, rows: int, chunks: int, a: str, weight: str, c: str, slices: int = 0
    ) -> Steps:
        """One product, or its K slices, each reading A from its own column on; all submitted at once. The
        host has written `rows` rows of A and reads as many of C."""
        spec = self._npu.gemm_spec(key)
        operands = [
            (a, j * spec.k, self._weights[f"vis.{weight}.{j}"], f"{c}{j}") for j in range(slices)
        ] or [(a, 0, self._weights["vis." + weight], c)]
        group = slot.group(weight, key, chunks, rows, operands)
        slot.written(a, rows * spec.lda)
        group.start()
        self.timing.lap("vision.submit")
        yield group
        self.timing.lap("vision.npu." + key[2:])

    def _sizes(self, chunks: int, merged: int) -> dict[str, int]:
        """Elements of a lane's buffers, of which the merger's are for a picture of `merged` patches."""
        c, spec = self.config, self._npu.gemm_spec
        reads, writes = {}, {}
        tokens = -(-merged // c.n_merge // spec("v_m1").m)
        for key in _KEYS:
            over = tokens if key in ("v_m1", "v_m2") else chunks
            reads[key], writes[key] = self._npu.spans(key, over) if over else (0, 0)
        # K slices read shifted views, the last of which must end inside.
        shift, merger = (c.n_fc2 - 1) * c.hidden_size, (c.n_merge - 1) * c.hidden_size
        sizes = {
            "a": max(reads[key] for key in ("v_patch", "v_qkv", "v_proj", "v_fc1")),
            "c": max(writes["v_patch"], writes["v_proj"]),
            "qkv": writes["v_qkv"],
            "fc1": max(writes["v_fc1"], reads["v_fc2"] + shift),
        }
        sizes |= {f"part{j}": writes["v_fc2"] for j in range(c.n_fc2)}
        if merged:
            sizes["joined"] = max(reads["v_m1"], reads["v_m2"]) + merger
            sizes |= {f"inner{j}": writes["v_m1"] for j in range(c.n_merge)}
            sizes |= {f"out{j}": writes["v_m2"] for j in range(c.n_merge)}
        return sizes

    def _reads(self, slot: Slot, key: str, name: str, columns: int = 0) -> U16:
        """A device buffer as GEMM `key` reads it, bf16 bits [rows, K]; or more columns, for K slices."""
        spec = self._npu.gemm_spec(key)
        return slot.rows(name, spec.lda, columns or spec.k)

    def _writes(self, slot: Slot, key: str, name: str) -> U16:
        """A device buffer as GEMM `key` writes it, bf16 bits [rows, N]."""
        spec = self._npu.gemm_spec(key)
        return slot.rows(name, spec.c_stride, spec.n)

    def release(self) -> None:
        """Gives the activation buffers back; the next picture takes new ones."""
        slots, self._free = self._free, []
        for slot in slots:
            slot.release()

    def close(self) -> None:
        """Gives weights and buffers back. Idempotent."""
        self.release()
        self._weights.close()
