"""Ways of using the device that no public program has proved: each tried, and whether it is to be used."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from amdxdna.errors import DeviceLost, XdnaError
from qwen35.accept.item import Item, Verdict
from qwen35.bundle.schema import packed_kernels
from qwen35.errors import explain
from qwen35.model.probe import probe_chains, probe_mapped
from qwen35.model.weights import map_weights

if TYPE_CHECKING:
    from qwen35.model.text import TextModel

__all__ = ["chains", "contexts", "hang", "token", "user_memory"]

TRIALS = 20
"""How often each group runs as a chain: a load tries it once to three times."""
RELOADS = 5


def chains(model: TextModel, spent: Callable[[], float] = lambda: 0.0) -> Item:
    """Every group of runs as a chain and singly, again and again; and what a chain saves of a token.

    What `spent` counts meanwhile is no part of a token's time.
    """
    npu, name = model.npu, "chains"
    if not model.device.profile.chains_trusted:
        return Item(
            name,
            Verdict.OFF,
            f"this driver's word on a chain's end cannot be trusted ({model.device.profile.name})",
            {"profile": model.device.profile.name},
        )
    groups = [*model.probe_groups()]
    if not groups:
        return Item(name, Verdict.SKIP, "this bundle makes no group of runs")
    for _ in range(TRIALS):
        wrong = probe_chains(npu, groups)
        if wrong:
            return Item(name, Verdict.OFF, f"{wrong}; single commands gave the same each time")
    model.reset()
    model.prefill([1, 2, 3])
    at, want = model.snapshot(), model.decode(4)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(16):
        chained = npu.chains = turn % 2 == 0
        model.restore(at)
        began = time.perf_counter() - spent()
        logits = model.decode(4)
        seconds[chained].append(time.perf_counter() - spent() - began)
        gave_up, npu.chains = chained and not npu.chains, False
        if gave_up:
            return Item(name, Verdict.OFF, f"a token with chains: {npu.chains_why}")
        if not np.array_equal(logits, want):
            return Item(
                name,
                Verdict.OFF if chained else Verdict.FAIL,
                "a token's logits differ from those before" + ", with chains" * chained,
            )
    on, off = (float(np.median(seconds[way])) for way in (True, False))
    text = (
        f"{TRIALS} times {len(groups)} groups gave what single commands give; a token takes "
        f"{on * 1e3:.2f} ms, singly {off * 1e3:.2f} ms"
    )
    return Item(name, Verdict.OK, text, {"token_ms": on * 1e3, "token_singly_ms": off * 1e3})


def token(model: TextModel) -> None:
    """Runs the prompt and the token that `chains` runs, by single commands."""
    model.reset()
    model.prefill([1, 2, 3])
    model.decode(4)


def user_memory(model: TextModel) -> Item:
    """Weights read through a user-pointer BO over the mapped file, against copies."""
    name, kept = "user-pointer", model.device.profile.user_pointers
    if kept != "ro":
        return Item(
            name,
            Verdict.OFF,
            "this driver is not known to keep read-only user memory right "
            f"({model.device.profile.name}): weights are copied",
            {"profile": kept},
        )
    keys = {tensor: gemv for tensor, (_, gemv) in packed_kernels(model.config).items()}
    try:
        mapped = map_weights(model.bundle, model.device, list(keys))
    except XdnaError as error:
        return Item(name, Verdict.OFF, f"refused: {explain(error)}")
    try:
        wrong = probe_mapped(model.npu, keys, mapped or {})
    finally:
        for buffer in (mapped or {}).values():
            buffer.close()
    if wrong:
        return Item(name, Verdict.OFF, wrong)
    return Item(name, Verdict.OK, "results over user memory are those over copies")


def contexts(model: TextModel) -> Item:
    """Contexts given up and loaded again, PDIs at new addresses and old: a token's logits stay the same."""
    pool = model.device.pool
    model.reset()
    start = model.prefill(range(1, 9))
    at = model.snapshot()
    want, before = model.decode(5), pool.loads
    for _ in range(RELOADS):
        pool.unload()
        model.restore(at)
        if not np.array_equal(model.decode(5), want):
            return Item(
                "contexts",
                Verdict.FAIL,
                "after a context was given up and loaded again, a token's logits differ",
            )
        pool.unload()
        model.reset()
        if not np.array_equal(model.prefill(range(1, 9)), start):
            return Item(
                "contexts",
                Verdict.FAIL,
                "after a context was given up and loaded again, a prompt's logits differ",
            )
    loads = pool.loads - before
    return Item(
        "contexts",
        Verdict.OK,
        f"{loads} loads after giving contexts up; logits stay the same",
        {"loads": loads},
    )


def hang(model: TextModel) -> Item:
    """A command that never ends: how soon it is told, and whether the next one works.

    Only the modelled NPU has a kernel that hangs; there is none that is compiled.
    """
    if not model.bundle.emulated:
        return Item("hang", Verdict.SKIP, "no compiled kernel that hangs is at hand")
    from amdxdna.emu.kernels import stream
    from amdxdna.emu.xclbins import xclbin_bytes
    from amdxdna.xclbin import Xclbin

    model.reset()
    want = model.prefill([1, 2, 3])
    kernel = model.device.pool.kernel(Xclbin.read(xclbin_bytes("copy")), stream.hang())
    began = time.perf_counter()
    try:
        kernel.start().wait()
        return Item("hang", Verdict.FAIL, "a command that never ends was reported as over")
    except DeviceLost:
        raise
    except XdnaError as error:
        told = explain(error)
    finally:
        kernel.shared.settle()
        kernel.close()
    seconds = time.perf_counter() - began
    model.reset()
    if not np.array_equal(model.prefill([1, 2, 3]), want):
        return Item("hang", Verdict.FAIL, "after a hang a prompt's logits differ")
    return Item(
        "hang",
        Verdict.OK,
        f"told after {seconds:.1f} s, the next command works: {told}",
        {"seconds_to_error": seconds},
    )
