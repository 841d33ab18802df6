"""The text model's figures: load, prompts, tokens, and what of them is the host's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from amdxdna.device import Device
from amdxdna.emu.npu import Npu
from amdxdna.emu.timing import DEFAULT, MODELS
from amdxdna.opening import open_node
from qwen35.bench import machine
from qwen35.bench.figures import Printer, median
from qwen35.bench.load import dropped
from qwen35.bench.null_node import NullNode, bare_seconds
from qwen35.bundle.bundle import Bundle
from qwen35.bundle.schema import packed_kernels, text_schema
from qwen35.model.embed import Embedding
from qwen35.model.options import Options
from qwen35.model.text import TextModel

__all__ = [
    "Subject",
    "chain_figures",
    "cold_figures",
    "host_figures",
    "load_figures",
    "memory_figures",
    "profile_lines",
    "warm",
]

_WARM = 3
_ONE = 0x3F80
"""1.0 in bf16."""


class Subject:
    """The model under measurement, on a device whose commands can be made to complete at once.

    Where the device is emulated, `mode("instant")` also has its driver model in it, but no kernel, and
    `mode("timed")` the time that hardware would take.
    """

    def __init__(self, bundle: Bundle, device: str, max_ctx: int, options: Options | None = None) -> None:
        warm(bundle)
        self.bundle = bundle
        self.node = NullNode(open_node(device))
        self.device = Device.open(self.node)
        try:
            began = time.perf_counter()
            self.model = TextModel(bundle, self.device, max_ctx, options=options)
            self.seconds = time.perf_counter() - began
            npu = self._emulated_npu
            self.model.npu.blind = npu is not None and npu.instant
        except BaseException:
            self.device.close()
            raise
        self._ids = np.random.default_rng(0).integers(0, self.model.config.vocab_size, max_ctx)

    def close(self) -> None:
        """Gives everything back."""
        self.model.close()
        self.device.close()

    @contextmanager
    def mode(self, name: str) -> Iterator[None]:
        """`real`; `instant`: an emulated device without kernels; `timed`: the same, where commands take as
        long as on hardware; `null`: no driver either."""
        npu = self._emulated_npu
        if name in ("instant", "timed") and npu is None:
            raise ValueError("only an emulated device has a mode without kernels")
        before, schedule = (npu.instant, npu.schedule) if npu is not None else (False, None)
        self.node.null = name == "null"
        if npu is not None:
            npu.instant = name in ("instant", "timed") or before
            if name == "timed" and schedule is None:
                npu.time(MODELS[DEFAULT])
        self.model.npu.blind = name == "null" or (npu is not None and npu.instant)
        try:
            yield
        finally:
            self.node.null, self.model.npu.blind = False, before
            if npu is not None:
                npu.instant, npu.schedule = before, schedule

    @property
    def _emulated_npu(self) -> Npu | None:
        npu: Npu | None = getattr(getattr(self.node.node, "driver", None), "npu", None)
        return npu

    def timed(self, run: Callable[[], object]) -> tuple[float, float]:
        """Seconds of a run, and those of them that the NPU works by its model. In `timed` mode."""
        before, began = self.npu_seconds(), time.perf_counter()
        run()
        seconds = time.perf_counter() - began
        return seconds, self.npu_seconds() - before

    def npu_seconds(self) -> float:
        """What the NPU has worked so far by its model; 0 outside of `timed` mode."""
        npu = self._emulated_npu
        return 0.0 if npu is None or npu.schedule is None else npu.schedule.totals().seconds

    @property
    def emulated(self) -> bool:
        """Whether there is a mode without kernels."""
        return self.node.emulated

    def prompt(self, tokens: int, filled: bool = False) -> float:
        """Seconds of a prompt of `tokens` tokens, up to its first logits.

        With `filled` the rows behind it, up to a whole chunk, hold something: the emulated NPU skips rows of
        zeros, hardware computes them.
        """
        self.model.reset()
        self.model._prefill.padding = _ONE if filled else 0
        began = time.perf_counter()
        self.model.prefill(self._ids[:tokens])
        return time.perf_counter() - began

    def fill(self, tokens: int) -> None:
        """Makes a state of `tokens` tokens with random rows: values do not change what a token costs."""
        self.model.reset()
        cache: Any = self.model._cache
        rng = np.random.default_rng(tokens)
        for rows in (kv for kv in cache.kv if kv is not None):
            for array in (rows.keys, rows.values):
                # Sixteen bits with exponents around one in either format.
                array[:tokens] = rng.integers(0x3800, 0x3C00, array[:tokens].shape, np.uint16)
        cache.clear_side()
        cache.reserve(tokens)
        cache.commit(tokens, tokens)

    def tokens(self, context: int, count: int) -> list[float]:
        """Seconds of `count` tokens from a state of `context` tokens on, after a few that are not counted."""
        self.fill(context)
        found = []
        for index in range(_WARM + count):
            began = time.perf_counter()
            self.model.decode(int(self._ids[index]))
            found.append(time.perf_counter() - began)
        return found[_WARM:]

    def token(self, context: int, count: int) -> float:
        """The median of `tokens`."""
        return median(self.tokens(context, count))

    def ioctls(self) -> tuple[int, int]:
        """(ioctls, dispatches) of one token; a chain is one dispatch."""
        self.fill(64)
        self.model.decode(1)
        self.model.timing.reset()
        before = self.node.calls
        self.model.decode(2)
        dispatches = sum(calls for name, calls, _ in self.model.timing.items() if name.startswith("gemv."))
        return self.node.calls - before, dispatches

    def dispatch_seconds(self, count: int = 2000, repeats: int = 15) -> float:
        """Seconds of one kernel run in `null` mode, packet to wait, with operands and result flushed."""
        layer = self.model._decoder._plans[0]
        with self.mode("null"):
            return _best(layer.output.run, count, repeats)


def _best(work: Callable[[], None], count: int, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(count):
            work()
        best = min(best, (time.perf_counter() - began) / count)
    return best


def warm(bundle: Bundle) -> None:
    """Brings the bundle's tensors into the page cache, as far as memory allows."""
    with open(bundle.tensors.path, "rb", buffering=0) as file:
        buffer = bytearray(8 << 20)
        while file.readinto(buffer):
            pass


def load_figures(subject: Subject, out: Printer, bandwidth: float) -> None:
    """How the weights came to the device, and how fast memory does."""
    weights = subject.model.weights
    rate = weights.nbytes / weights.seconds
    out.add(
        "load",
        rate / 1e9,
        "GB/s",
        f"half of memory bandwidth: {bandwidth / 2e9:.1f}",
        way=weights.way,
        seconds=round(weights.seconds, 3),
        megabytes=round(weights.nbytes / 1e6),
    )
    out.add("load_model", subject.seconds, "s")
    count = machine.cores()
    out.add("fresh_pages", machine.fresh_pages(1 << 30, subject.device, count) / 1e9, "GB/s", threads=count)


def host_figures(subject: Subject, out: Printer, context: int, prompt: int, count: int, repeats: int) -> None:
    """What is left when commands complete at once, and what a dispatch costs."""
    modes = ["null", "instant"] if subject.emulated else ["null"]
    for mode in modes:
        with subject.mode(mode):
            token = subject.token(context, count)
            limit = "at most 4 ms" if mode == "null" else ""
            out.add("host_token", token * 1e3, "ms", limit, context=context, device=mode)
            longest = median(subject.prompt(prompt) for _ in range(repeats))
            out.add(
                "host_prompt",
                longest,
                "s",
                "at most 1 s" if mode == "null" else "",
                tokens=prompt,
                device=mode,
            )
    bare, whole = bare_seconds(), subject.dispatch_seconds()
    out.add(
        "dispatch",
        (whole - bare) * 1e6,
        "us",
        "at most 15 us",
        over="two bare ioctls in C",
        bare=round(bare * 1e6, 2),
    )
    if subject.emulated:
        with subject.mode("instant"):
            layer = subject.model._decoder._plans[0]
            out.add("emulated_dispatch", _best(layer.output.run, 1000, 9) * 1e6, "us")
    calls, dispatches = subject.ioctls()
    out.add("ioctls_token", calls, "ioctls", "at most 2 a dispatch", dispatches=dispatches)


def chain_figures(subject: Subject, out: Printer, context: int, count: int, repeats: int) -> None:
    """A token with command chains over one of single commands, in turns; and what they save of the host."""
    npu = subject.model.npu
    before = npu.chains
    try:
        for mode in ("null", "real"):
            pairs = []
            with subject.mode(mode):
                for _ in range(repeats):
                    seconds = []
                    for npu.chains in (True, False):
                        seconds.append(subject.token(context, count))
                    pairs.append(seconds)
            singly = median(pair[1] for pair in pairs)
            out.add(
                "chains",
                median(on / off for on, off in pairs),
                "x",
                context=context,
                device=mode,
                pairs=repeats,
                singly_ms=round(singly * 1e3, 3),
                of="a token of single commands",
            )
    finally:
        npu.chains = before


def memory_figures(bundle: Bundle, device: str, out: Printer, context: int) -> None:
    """A process's memory after a chat that fills `context` tokens. Meant for a process of its own."""
    instant = device.startswith("emu")
    machine.reset_peak()
    with closing(Subject(bundle, device, context)) as subject, subject.mode("instant" if instant else "real"):
        answer = 16
        subject.prompt(context - answer)
        for index in range(answer):
            subject.model.decode(index)
        found = machine.memory()
        where: dict[str, Any] = {"context": context, "way": subject.model.weights.way}
        out.add("memory_anonymous", found.anonymous / 2**20, "MiB", "at most 250 MiB", **where)
        out.add("memory_resident", found.resident / 2**20, "MiB", **where)
        out.add("memory_peak", found.peak / 2**20, "MiB", **where)
        out.add("memory_weights", subject.model.weights.nbytes / 2**20, "MiB", **where)
        out.add("memory_state", subject.model.state_bytes / 2**20, "MiB", **where)


def cold_figures(bundle: Bundle, out: Printer, tokens: int, repeats: int) -> None:
    """Embedding rows of a prompt out of the mapped file with its page cache dropped, hinted first and not."""
    ids = np.random.default_rng(0).integers(0, bundle.config.vocab_size, (2 * repeats, tokens))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for index, row in enumerate(ids):
        hinted = bool(index % 2)
        seconds[hinted].append(_cold(str(bundle.path), row, hinted))
    for hinted, found in seconds.items():
        out.add(
            "cold_embedding",
            median(found) * 1e3,
            "ms",
            tokens=tokens,
            hinted="yes" if hinted else "no",
            rows="of the mapped file, page cache dropped",
        )


def _cold(path: str, ids: Any, hinted: bool) -> float:
    """Seconds until the rows are there. A mapping of its own: pages that are mapped cannot be dropped."""
    bundle = Bundle.open(path)
    config, tensors = bundle.config, bundle.tensors
    specs = {spec.part: spec for spec in text_schema(config) if spec.part == "embed"}
    if specs:
        embedding = Embedding(config, (), tensors.of(specs["embed"]))
    else:
        heads = [name for name, (_, gemv) in packed_kernels(config).items() if gemv == "head"]
        embedding = Embedding(config, [tensors.bytes(name) for name in heads])
    dropped(bundle.tensors.path)
    began = time.perf_counter()
    if hinted:
        embedding.hint(ids)
    embedding.rows(ids)
    return time.perf_counter() - began


def profile_lines(subject: Subject, prompt: int, context: int, count: int) -> list[str]:
    """Where a decoded token and a prompt spend their time, by stage."""
    lines = []
    for what, runs, go in (
        (f"a token at context {context}", count, lambda: subject.model.decode(1)),
        (f"a prompt of {prompt} tokens", 1, lambda: subject.prompt(prompt)),
    ):
        if runs > 1:
            subject.fill(context)
            go()
        subject.model.timing.reset()
        before, began = subject.npu_seconds(), time.perf_counter()
        for _ in range(runs):
            go()
        whole = (time.perf_counter() - began) / runs
        npu = (subject.npu_seconds() - before) / runs
        share = (
            f", {npu * 1e3:,.1f} the NPU's, {(whole - npu) * 1e3:,.1f} it waits for the host" if npu else ""
        )
        lines.append(f"{what}: {whole * 1e3:,.1f} ms{share}")
        for name, calls, seconds in subject.model.timing.items():
            each = seconds / runs
            lines.append(
                f"  {name:<18} {each * 1e3:9.2f} ms {each / whole:6.1%}  {calls / runs:5.0f} calls "
                f"{seconds / calls * 1e6:10.0f} us each"
            )
    return lines
