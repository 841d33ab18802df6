"""Every command of a part of the run, compared with the first single one of the same operands.

The tolerant checks would not see a wrong bit in the middle of an answer, so parts run twice: what the first
pass's commands wrote is kept as a digest, by kernel, weights and activations, and must come again. A wrong
bit that a chain's member wrote can vanish on its way to the logits, so each member is compared too.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.kernel import Kernel
    from qwen35.model.dispatch import Operands
    from qwen35.model.projections import Projections

__all__ = ["Ledger"]

Key = tuple[str, int, "Buffer", bytes]
"""Kernel and its chunks (0: the GEMV), weights, and a digest of the activations."""


class Ledger:
    """Digests of results by operands: as `Projections.watcher` it is told of each command that ended.

    A buffer of weights is the same one as long as it is the same object: the ledger keeps them.
    """

    def __init__(self, npu: Projections) -> None:
        self._npu = npu
        self._first: dict[Key, bytes] = {}
        self._once: set[Key] = set()
        self._seen = self._asked = 0
        self.compared = 0
        """Commands of operands that were seen before."""
        self.seconds = 0.0
        """What the ledger itself has taken."""
        self._differing: dict[str, int] = {}
        self._chains_differing: dict[str, int] = {}
        self._chains_alone: dict[str, int] = {}

    @property
    def alone(self) -> int:
        """Commands whose operands did not come again."""
        return len(self._once)

    def told(self) -> bool:
        """Whether it was told of a command since it was asked last."""
        before, self._asked = self._asked, self._seen
        return self._seen > before

    def differing(self) -> str:
        """Kernels of which two commands of the same operands differed, and how often, since the last call."""
        found, self._differing = self._differing, {}
        return _counted(found)

    def chains_wrong(self) -> str:
        """What of the chains since the last call is not what single commands of the same operands wrote."""
        differing, self._chains_differing = self._chains_differing, {}
        alone, self._chains_alone = self._chains_alone, {}
        if differing:
            return f"members of chains gave other bits than single commands: {_counted(differing)}"
        if alone:
            return f"members of chains had operands that no single command had: {_counted(alone)}"
        return ""

    def __call__(self, runs: Iterable[tuple[Kernel, Operands]], chained: bool) -> None:
        """Looks at the operands of single commands, or of a chain's, that are over."""
        began = time.perf_counter()
        for kernel, (a, b, c) in runs:
            name, chunks = self._npu.name_of(kernel)
            text = f"gemm {name} x{chunks}" if chunks else f"gemv {name}"
            key = name, chunks, b, self._read(name, chunks, a)
            result = self._written(name, chunks, c)
            if chained:
                known = self._first.get(key)
                if known != result:
                    wrong = self._chains_alone if known is None else self._chains_differing
                    wrong[text] = wrong.get(text, 0) + 1
                continue
            self._seen += 1
            first = self._first.setdefault(key, result)
            if first is result:
                self._once.add(key)
                continue
            self.compared += 1
            self._once.discard(key)
            if first != result:
                self._differing[text] = self._differing.get(text, 0) + 1
        self.seconds += time.perf_counter() - began

    def _read(self, name: str, chunks: int, a: Buffer) -> bytes:
        if not chunks:
            return _digest(a, 1, 0, self._npu.gemv_spec(name).k)
        spec = self._npu.gemm_spec(name)
        return _digest(a, chunks * spec.m, spec.lda, spec.k)

    def _written(self, name: str, chunks: int, c: Buffer) -> bytes:
        if not chunks:
            return _digest(c, 1, 0, self._npu.gemv_spec(name).m)
        spec = self._npu.gemm_spec(name)
        return _digest(c, chunks * spec.m, spec.c_stride, self._npu.columns(name))


def _counted(found: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in found.items())


def _digest(buffer: Buffer, rows: int, stride: int, columns: int) -> bytes:
    """Of `columns` bf16 elements of each row: what lies between rows belongs to nobody."""
    words = np.frombuffer(buffer.read(), np.uint16)
    whole = np.lib.stride_tricks.as_strided(words, (rows, columns), (2 * stride, 2), writeable=False)
    assert (rows - 1) * stride + columns <= len(words)
    return hashlib.blake2b(whole.tobytes(), digest_size=16).digest()
