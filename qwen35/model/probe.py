"""Trials at load: command chains and user-pointer weights, on the bundle's own kernels and weights.

No public program runs chains of this NPU's commands, or gives it weights in user memory, and some drivers
get either wrong (amdxdna.profile): so each is compared, bit for bit, with single commands over copied
weights, which are known to work. Milliseconds: a few runs more than the load's own warming up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from amdxdna.errors import Closed, DeviceLost, XdnaError
from qwen35.errors import ModelError, one_line
from qwen35.formats import to_bf16

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from qwen35.model.dispatch import Group
    from qwen35.model.projections import Projections

__all__ = ["run_singly", "probe_chains", "probe_mapped"]

_ROUNDS, _MOST = 2, 8
"""How often each way runs; the more, where one seems slower."""
_SLOWER = 1.5
GRACE = 5e-3
"""What is tried may take that many times the known way's time, and so many seconds: other work disturbs."""
_POISON = 0x7FC1
"""Before each run every element of a result is this NaN, which no kernel makes: what did not run shows."""


def probe_chains(npu: Projections, groups: Iterable[Group]) -> str:
    """Runs each group singly and as a chain, in turns; what is wrong with chains, or "" for nothing.

    The inputs are seeded noise; they and the results are zero afterwards, and nothing is in flight. Raises
    what single commands raise, ModelError where they give two results for the same input.
    """
    for group in groups:
        _fill(group.inputs)
        wrong = _try_group(npu, group)
        for buffer in (*group.inputs, *group.results):
            _write(buffer, np.zeros(buffer.nbytes, np.uint8))
        if wrong:
            return wrong
    return ""


def run_singly(groups: Iterable[Group]) -> None:
    """Runs each group once, as single commands over zeros. Raises what they raise."""
    for group in groups:
        group.dispatch.run_singly()
        for buffer in (*group.inputs, *group.results):
            _write(buffer, np.zeros(buffer.nbytes, np.uint8))


def _try_group(npu: Projections, group: Group) -> str:
    singly: list[float] = []
    chained: list[float] = []
    wanted: list[bytes] = []
    for turn in range(_MOST):
        if turn >= group.rounds and not _slow(chained, singly):
            break
        found, seconds = _run(group.results, group.dispatch.run_singly)
        singly.append(seconds)
        group.dispatch.show()
        if wanted and found != wanted:
            raise ModelError(
                f"single commands of {group.name} gave two results for the same input",
                "",
                "this NPU's results cannot be relied on",
            )
        wanted = found
        try:
            found, seconds = _run(group.results, group.dispatch.run_chained)
        except XdnaError as error:
            if isinstance(error, (DeviceLost, Closed)) or not npu.drain():
                raise
            npu.replace_contexts()
            return one_line(f"{group.name} as a chain: {error}")
        if found != wanted:
            return (
                f"a chain's result differs from single commands' ({group.name}{_where(group, found, wanted)})"
            )
        chained.append(seconds)
    if _slow(chained, singly):
        return (
            f"a chain took {min(chained) * 1e3:.1f} ms, single commands {min(singly) * 1e3:.1f} ms "
            f"({group.name})"
        )
    return ""


def _where(group: Group, found: Sequence[bytes], wanted: Sequence[bytes]) -> str:
    """The member that wrote the first byte that differs."""
    for buffer, one, other in zip(group.results, found, wanted, strict=True):
        differing = np.flatnonzero(np.frombuffer(one, np.uint8) != np.frombuffer(other, np.uint8))
        if differing.size:
            return group.dispatch.writer(buffer, int(differing[0]))
    return ""


def _slow(tried: Sequence[float], known: Sequence[float]) -> bool:
    """By the best of each: one run says little where other programs run too."""
    return min(tried) > _SLOWER * min(known) + GRACE


def _run(results: Sequence[Buffer], run: Callable[[], None]) -> tuple[list[bytes], float]:
    """(what the results hold after `run`, its seconds)."""
    for buffer in results:
        poison(buffer)
    began = time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    return [buffer.read() for buffer in results], seconds


def _fill(inputs: Iterable[Buffer]) -> None:
    rng = np.random.default_rng(14)
    for buffer in inputs:
        _write(buffer, to_bf16(rng.standard_normal(buffer.nbytes // 2, np.float32)))


def poison(result: Buffer) -> None:
    """Makes every element of a result NaN."""
    _write(result, np.full(result.nbytes // 2, _POISON, np.uint16))


def _write(buffer: Buffer, data: NDArray[Any]) -> None:
    """Writes and flushes. Whoever keeps a view may write again: `clean` stays as it was."""
    clean = buffer.clean
    buffer.write(data)
    buffer.clean = clean


def probe_mapped(npu: Projections, keys: Mapping[str, str], mapped: Mapping[str, Buffer]) -> str:
    """Runs GEMVs over user-pointer weights and over copies of them; what is wrong, or "" for nothing.

    `keys`: tensor name -> GEMV key, `mapped`: tensor name -> buffer. Tried are the smallest and the largest,
    and those at the ends of the range: pinning goes wrong by size, or at a first or last page. Raises what
    the copies' runs raise.
    """
    names = [name for name in mapped if keys.get(name)]
    orders = [
        sorted(names, key=lambda name: (mapped[name].nbytes, name)),
        sorted(names, key=lambda name: mapped[name].address),
    ]
    for name in dict.fromkeys(order[end] for order in orders for end in (0, -1) if order):
        wrong = _try_tensor(npu, name, keys[name], mapped[name])
        if wrong:
            return wrong
    return ""


def _try_tensor(npu: Projections, name: str, key: str, weights: Buffer) -> str:
    spec = npu.gemv_spec(key)
    x, y = npu.alloc(spec.k * 2), npu.alloc(spec.m * 2)
    copy = npu.device.alloc(weights.nbytes, flush=False)
    try:
        copy.write(npu.bundle.tensors.bytes(name))
        _fill([x])
        known, tried = (npu.dispatch(key, 0, [(x, w, y)]) for w in (copy, weights))
        found: set[bytes] = set()
        times: tuple[list[float], list[float]] = [], []
        for turn in range(_MOST):
            if turn >= _ROUNDS and not _slow(times[1], times[0]):
                break
            for way, dispatch in enumerate((known, tried)):
                try:
                    (result,), seconds = _run([y], dispatch.run)
                except XdnaError as error:
                    if not way or isinstance(error, (DeviceLost, Closed)) or not npu.drain():
                        raise
                    npu.replace_contexts()
                    return one_line(f"{name} in user memory: {error}")
                found.add(result)
                times[way].append(seconds)
        if len(found) > 1:
            return f"results over user memory differ from those over a copy ({name})"
        if _slow(times[1], times[0]):
            return (
                f"a run over user memory took {min(times[1]) * 1e3:.1f} ms, over a copy "
                f"{min(times[0]) * 1e3:.1f} ms ({name})"
            )
        return ""
    finally:
        for buffer in (x, y, copy):
            buffer.close()
