"""The acceptance run: its items in order, each standing on those before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from amdxdna.errors import DeviceLost, XdnaError
from amdxdna.opening import is_emulated, resolve
from qwen35.accept import answers, kernels, ways
from qwen35.accept.item import BUNDLE_FAULT, Item, Verdict
from qwen35.accept.ledger import Ledger
from qwen35.bundle.errors import BundleError
from qwen35.errors import TokenizerError, explain
from qwen35.options import StepProgress

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.bundle import Bundle
    from qwen35.model.text import TextModel

__all__ = ["Acceptance"]

_WATCHED = ("chains", "user-pointer", "contexts", "hang", "check", "speed", "prompts")
"""Parts whose commands are compared with single ones of the same operands."""
_NO_LONGER = "results are no longer those that were right: "


class Acceptance:
    """The run over one bundle and device: `for item in acceptance.items()`, then `close`.

    Everything is single commands over copied weights unless an item is about something else. An item that
    raises is a FAIL of its name, and the run goes on as far as it can: without a model there is nothing to go
    on with, and a lost device ends it.
    """

    def __init__(
        self,
        path: Path,
        device: str = "auto",
        *,
        hang: bool = False,
        max_ctx: int = 2048,
        progress: StepProgress | None = None,
    ) -> None:
        """`hang`: also try a command that never ends. `progress(what, done, total)` is told of long parts."""
        # A relative one may be any word, which no report could take out of its text.
        self.path, self.device = path.absolute(), device
        self.hang, self.max_ctx, self.progress = hang, max_ctx, progress
        self.chains = self.mapped = False
        """What the run found fit to use."""
        self.model: Qwen35 | None = None
        self._ran_emulated = False
        self._kept = kernels.Kept()
        self._redone = 0
        self._ledger: Ledger | None = None

    @property
    def emulated(self) -> bool:
        """Whether the NPU is the emulated one: by its name, and by what it says once the model is loaded."""
        return self._ran_emulated or is_emulated(self._where)

    @cached_property
    def _where(self) -> str:
        """What `device` names; itself where nothing is there, which the run tells."""
        try:
            return resolve(self.device)
        except XdnaError:
            return self.device

    def close(self) -> None:
        """Gives the device back."""
        model, self.model = self.model, None
        if model is not None:
            model.close()

    def items(self) -> Iterator[Item]:
        """Makes the items one by one. Raises KeyboardInterrupt only: an item's own failure is its verdict."""
        parts: list[tuple[str, Callable[[], Iterator[Item]]]] = [
            ("doctor", self._doctor),
            ("bundle", self._bundle),
            ("load", self._load),
            ("driver", self._driver),
            ("kernels", self._kernels),
            ("chains", self._chains),
            ("user-pointer", self._memory),
            ("contexts", self._contexts),
            ("hang", self._hang),
            ("kernels again", self._again),
            ("check", self._references),
            ("speed", self._speed),
            ("kernels after speed", self._again),
            ("prompts", self._prompts),
            ("kernels at the end", self._again),
            ("commands", self._commands),
        ]
        lost = ""
        for name, part in parts:
            if lost or (self.model is None and parts.index((name, part)) > 2):
                yield Item(name, Verdict.SKIP, lost or "there is no model to try it with")
                continue
            began = time.perf_counter()
            try:
                with self._watched(name):
                    for item in part():
                        now = time.perf_counter()
                        yield replace(item, name=item.name or name, seconds=now - began)
                        began = time.perf_counter()
                yield from self._unwritten()
                for item in self._twice(name):
                    yield replace(item, name=f"{name}: commands")
            except Exception as error:
                values = BUNDLE_FAULT if isinstance(error, (BundleError, TokenizerError)) else {}
                yield Item(name, Verdict.FAIL, explain(error), values, time.perf_counter() - began)
                if isinstance(error, DeviceLost):
                    lost = "the device was lost"

    def _unwritten(self) -> Iterator[Item]:
        """A FAIL when single commands that were called completed had not been run."""
        redone = 0 if self.model is None else self._text.npu.redone
        if redone > self._redone:
            yield Item(
                "completion",
                Verdict.FAIL,
                f"{redone - self._redone} times a command was called "
                "completed and had not written its result",
            )
        self._redone = redone

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """Shows the ledger what the commands of part `name` write."""
        if name not in _WATCHED or self.model is None:
            yield
            return
        npu = self._text.npu
        if self._ledger is None:
            self._ledger = Ledger(npu)
        npu.watcher = self._ledger
        try:
            yield
        finally:
            npu.watcher = None

    def _spent(self) -> float:
        """Seconds that the ledger has taken."""
        return 0.0 if self._ledger is None else self._ledger.seconds

    def _canaries(self) -> list[str]:
        """Kernels that no longer give their first results, which were compared with the host's."""
        npu = self._text.npu
        watcher, npu.watcher = npu.watcher, None
        try:
            return self._kept.differing()
        finally:
            npu.watcher = watcher

    def _twice(self, name: str) -> Iterator[Item]:
        """A FAIL when a command of part `name` gave other bits than another one of the same operands.

        A part that is judged with a tolerance, or once, is done again for it. The kernels' first results must
        come again after each pass: bits that are wrong for a while are wrong in one of the two, or there.
        """
        if self._ledger is None or not self._ledger.told():
            return
        steps: dict[str, Callable[[], object]] = {
            "chains": lambda: ways.token(self._text),
            "check": lambda: [*self._references()],
            "speed": lambda: [*self._speed()],
            "prompts": lambda: answers.singly(self._model),
        }
        if differing := self._canaries():
            yield Item("", Verdict.FAIL, _NO_LONGER + ", ".join(differing))
        if name in steps:
            with self._watched(name):
                steps[name]()
            if differing := self._canaries():
                yield Item("", Verdict.FAIL, _NO_LONGER + ", ".join(differing))
        self._ledger.told()
        if wrong := self._ledger.differing():
            yield Item("", Verdict.FAIL, f"commands of the same operands gave different bits: {wrong}")

    def _commands(self) -> Iterator[Item]:
        ledger = self._ledger
        if ledger is None or not ledger.compared:
            yield Item("", Verdict.SKIP, "none was compared with another")
            return
        text = f"{ledger.compared:,} gave the bits of the first of the same operands"
        if ledger.alone:
            text += f"; not compared: {ledger.alone:,}, whose operands came once"
        yield Item("", Verdict.OK, text, {"compared": ledger.compared, "not_compared": ledger.alone})

    def _again(self) -> Iterator[Item]:
        """The kernels' first results, which were compared with the host's, once more and bit for bit."""
        differing = self._kept.differing()
        if differing:
            yield Item("", Verdict.FAIL, _NO_LONGER + ", ".join(differing))
        else:
            yield Item(
                "",
                Verdict.OK if len(self._kept) else Verdict.SKIP,
                f"{len(self._kept)} kernels give the same bits as before",
            )

    def _members(self, item: Item) -> Item:
        """An item about chains that went well, unless a member wrote other bits than single commands do."""
        tried = "chains" in item.name and item.verdict is Verdict.OK
        if tried and self._ledger is not None and (wrong := self._ledger.chains_wrong()):
            return Item(item.name, Verdict.OFF, wrong)
        return item

    def _settled(self, item: Item) -> Item:
        """A way that differed from single commands is not to blame where those differ from themselves."""
        tried = "profile" not in item.values
        if item.verdict is Verdict.OFF and tried and (differing := self._canaries()):
            names = ", ".join(differing)
            return Item(
                item.name,
                Verdict.FAIL,
                f"single commands no longer give the results that were right ({names}); {item.text}",
            )
        return item

    @property
    def _bundle_open(self) -> Bundle:
        from qwen35.bundle import Bundle

        return Bundle.open(self.path)

    def _doctor(self) -> Iterator[Item]:
        from amdxdna.doctor import Status, examine

        report = examine(self._where if is_emulated(self._where) else self.device)
        told = [f"{f.check}: {f.meaning}" for f in report.findings if f.status in (Status.WARN, Status.FAIL)]
        verdict = Verdict.OK if report.ok else Verdict.FAIL
        yield Item(
            "doctor",
            verdict,
            "; ".join(told) or f"{len(report.findings)} checks, nothing is missing",
            {"checks": [finding.as_json() for finding in report.findings]},
        )

    def _bundle(self) -> Iterator[Item]:
        from amdxdna.xclbin import Xclbin

        bundle = self._bundle_open
        for key, spec in bundle.xclbins.items():
            xclbin = Xclbin.read(bundle.file(spec.file))
            if len(xclbin.kernels) != 1:
                xclbin.cu_index(spec.kernel)
            yield Item(
                f"xclbin {key}",
                Verdict.OK,
                f"{len(xclbin.pdis)} PDI, {xclbin.partition.column_width} columns, kernel {spec.kernel}",
                {"pdi_bytes": [len(pdi.data) for pdi in xclbin.pdis]},
            )
        files = {stream.insts for gemm in bundle.gemms.values() for stream in gemm.streams}
        files |= {gemv.insts for gemv in bundle.gemvs.values()}
        sizes = {file: len(bundle.insts(file)) for file in sorted(files)}
        text = f"{len(sizes)} instruction streams, {sum(sizes.values()):,} bytes"
        if bundle.warnings:
            text += "; unusual: " + "; ".join(map(str, bundle.warnings))
        yield Item(
            "bundle",
            Verdict.OK,
            text,
            {
                "streams": sizes,
                "emulated": bundle.emulated,
                "warnings": [str(error) for error in bundle.warnings],
            },
        )

    def _load(self) -> Iterator[Item]:
        from qwen35.api import Qwen35

        began = time.perf_counter()
        self.model = Qwen35.load(
            self.path, self.max_ctx, self.device, cache_bytes=0, chains="off", weights="copy"
        )
        self._ran_emulated = self.model.info.emulated
        yield Item(
            "load",
            Verdict.OK,
            f"{time.perf_counter() - began:.2f} s: {self._text.weights.report}",
            {"weights_bytes": self._text.weights.nbytes},
        )

    @property
    def _model(self) -> Qwen35:
        assert self.model is not None
        return self.model

    @property
    def _text(self) -> TextModel:
        assert self.model is not None
        model: TextModel = self.model.model  # type: ignore[assignment]
        return model

    def _driver(self) -> Iterator[Item]:
        from amdxdna import query

        device = self._text.device
        profile = device.profile
        firmware = ""
        try:
            found = query.firmware_version(device.client)
            firmware = f", firmware {found.major}.{found.minor}.{found.patch}.{found.build}"
        except XdnaError:
            pass  # a driver that does not tell it
        text = f"{profile.name} {profile.version} on Linux {profile.release}{firmware}; {profile.tdr}"
        verdict = Verdict.NOTE if profile.careful else Verdict.OK
        if profile.careful:
            text += "; this package does not know it: the careful ways are used"
        elif not profile.singles_trusted:
            text += (
                "; it may call a failed single command completed: they go as chains of one, whose "
                "failure shows (a build of September 2025 or newer needs no such detour)"
            )
            verdict = Verdict.NOTE
        yield Item("driver", verdict, text, profile.as_json())

    def _kernels(self) -> Iterator[Item]:
        yield from kernels.text_kernels(self._text, self._kept)
        yield from kernels.vision_kernels(self._text, self._kept)

    def _chains(self) -> Iterator[Item]:
        item = self._settled(self._members(ways.chains(self._text, self._spent)))
        self.chains = item.verdict is Verdict.OK
        yield item

    def _memory(self) -> Iterator[Item]:
        item = self._settled(ways.user_memory(self._text))
        self.mapped = item.verdict is Verdict.OK
        yield item

    def _contexts(self) -> Iterator[Item]:
        yield ways.contexts(self._text)

    def _hang(self) -> Iterator[Item]:
        yield ways.hang(self._text) if self.hang else Item("hang", Verdict.SKIP, "not asked for (--hang)")

    def _references(self) -> Iterator[Item]:
        assert self.model is not None
        yield from answers.references(self.model, self._text.bundle, self.progress)

    def _speed(self) -> Iterator[Item]:
        assert self.model is not None
        yield answers.speed(self.model, self._spent)

    def _prompts(self) -> Iterator[Item]:
        assert self.model is not None
        for item in map(self._members, answers.prompts(self.model, self.chains)):
            self.chains = self.chains and item.verdict is Verdict.OK
            yield item
