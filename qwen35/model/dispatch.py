"""Groups of runs: what a projection sends to the NPU at once, and again where that has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from amdxdna.buffer import Buffer
from amdxdna.chain import Staged
from amdxdna.errors import Closed, CommandFailed, DeviceLost, XdnaError
from amdxdna.marks import Marks
from amdxdna.packet import State

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.kernel import Kernel, Shared
    from amdxdna.pool import ContextPool
    from amdxdna.run import Run

__all__ = ["Dispatch", "Group", "Operands"]

Operands = tuple[Buffer, Buffer, Buffer]
"""A, B, C of a GEMM or x, W, y of a GEMV."""

_UNWRITTEN = 0x7FD3
"""NaN in bf16, with a payload that arithmetic does not make."""
_CHAIN = 32
"""Runs in one chain: less than the driver's command list holds."""


class Model(Protocol):
    """What a group needs of its model (:class:`qwen35.model.projections.Projections`)."""

    device: Device
    chains: bool
    blind: bool
    unmarked: set[Kernel]
    writing: set[Kernel]
    watcher: Callable[[Iterable[tuple[Kernel, Operands]], bool], None] | None

    def give_up_chains(self, error: XdnaError) -> None:
        """After a chain that failed: groups are single commands from now on."""

    def unwritten(self, error: XdnaError, chained: bool) -> None:
        """Counts and tells a dispatch that was done again."""

    def unmark(self, kernel: Kernel) -> None:
        """A kernel of whose results no first element is looked at any more."""

    def refresh(self, error: XdnaError) -> None:
        """Makes the next runs go in fresh contexts. Raises `error` where something may be in flight."""

    def forgive(self, error: CommandFailed, losses: int, before: int) -> int:
        """After single commands that failed: returns where they are to be run again."""


class Dispatch:
    """Runs that do not depend on each other, made once and run as often as wanted.

    `start` submits all of them, `finish` waits: as one command chain where the model uses chains (one submit,
    one wait), else as single commands. When a chain fails in any way, the group runs again as single commands
    and so does every later group of the model. That is sound since a group is idempotent: each run reads its
    first two operands and writes its third, which no run of the group reads. The first and the last element
    of each result are marked before: what the driver calls completed without its having been run does not
    pass, but is run again too.

    Between `start` and `finish` the buffers are the NPU's, and other groups may be started that do not write
    what this one reads or writes. One of the same xclbin that reads what this one writes is started `behind`
    it. Runs through one Dispatch must not overlap. `ready` takes most of a start's work out of it, to be done
    while a group before is running.
    """

    __slots__ = (
        "_behind",
        "_chained",
        "_chains",
        "_flying",
        "_late",
        "_losses",
        "_marks",
        "_pool",
        "_projections",
        "_ready",
        "_refused",
        "_results",
        "_staged",
        "_unread",
        "runs",
    )

    def __init__(
        self,
        model: Model,
        pool: ContextPool,
        calls: Sequence[tuple[Kernel, Operands, int]],
        results: Sequence[tuple[Buffer, int]],
    ) -> None:
        """`calls`: kernels, operands, and the result's last element that the kernel writes. `results`: what
        the host reads of them, buffers and bytes from their beginning."""
        self._projections, self._pool = model, pool
        runs = [(kernel, operands) for kernel, operands, _ in calls]
        self._chains = [runs[at : at + _CHAIN] for at in range(0, len(runs), _CHAIN)]
        self.runs = len(runs)
        """How many runs the group has; chains concern those of two or more."""
        self._results = tuple(buffer for buffer, _ in results)
        self._ready = self._chained = False
        self._staged: list[Staged] = []
        self._unread: list[tuple[Kernel, Operands]] = []
        """Runs whose result no host reads: its rows may have a stride of the kernels' own, so only the first
        element is marked, until it is seen that the kernel does not write it."""
        if results:
            places = ((operands[2], 2 * at) for _, operands, last in calls for at in (0, last))
            self._marks = Marks(places, results)
        else:
            self._mark_unread(runs)

    def writer(self, result: Buffer, at: int) -> str:
        """Which run of a chain writes byte `at` of `result`, as ", member 2 of 3"; empty for none."""
        place = result.host_address + at
        for calls in self._chains:
            for index, (_, (_, _, target)) in enumerate(calls, 1):
                if 0 <= place - target.host_address < target.nbytes:
                    return f", member {index} of {len(calls)}"
        return ""

    def run(self) -> None:
        """Runs and waits. Raises the binding's errors; see Projections.drain for what to do then."""
        self.start()
        self.finish()

    def ready(self) -> None:
        """Does what of a start needs no operand's contents. Nobody else writes the results until then."""
        self._marks.put()
        self._ready = True
        chained = self.runs > 1 and self._projections.chains
        if self._staged and self._chained == chained:
            return
        self.unready()
        self._chained, self._ready = chained, True
        staged: list[Staged] = []
        try:
            for calls in self._chains:
                for each in [calls] if chained else [[call] for call in calls]:
                    staged.append(Staged(each, not chained))
        except XdnaError:  # `start` will say it
            for one in staged:
                one.drop()
        else:
            self._staged = staged  # all of them or none, whatever interrupts

    def unready(self) -> None:
        """Takes `ready` back. Idempotent."""
        self._ready = False
        self._drop()

    def _drop(self) -> None:
        staged, self._staged = self._staged, []
        for each in staged:
            each.drop()

    def start(self, behind: Dispatch | None = None) -> None:
        """Submits the runs. What refuses them shows at `finish`.

        `behind`: a group in flight, to be finished first, whose results this one reads. Where those may have
        come too late, since it had to be run again or the two are in different contexts, this one runs again.
        """
        model = self._projections
        self._behind, self._late = behind, False
        if not self._ready:
            self._marks.put()
        self._ready = False
        self._losses = model.device.client.losses
        chained = self.runs > 1 and model.chains
        if self._staged and self._chained != chained:
            self._drop()
        staged, self._staged, self._chained = self._staged, [], chained
        self._refused: XdnaError | None = None
        try:
            if staged:
                self._flying = [each.start() for each in staged]
            elif chained:
                self._flying = [self._pool.chain(calls) for calls in self._chains]
            else:
                self._flying = [
                    kernel.start(*operands) for calls in self._chains for kernel, operands in calls
                ]
        except XdnaError as error:
            self._flying, self._refused = [], error
        if behind is not None and (
            model.device.client.losses != behind._losses or len(self._contexts() | behind._contexts()) > 1
        ):
            behind._late = True

    def _contexts(self) -> set[Shared]:
        """The contexts of the runs' kernels; only within one commands keep their order."""
        return {kernel.shared for calls in self._chains for kernel, _ in calls}

    @property
    def over(self) -> bool:
        """Whether `finish` would not wait for the NPU. After a `start`; does not block or raise."""
        return all(run.done for run in self._flying)

    def finish(self) -> None:
        """Waits for what `start` submitted. Raises as `run`."""
        model, marks = self._projections, self._marks
        runs, self._flying = self._flying, []
        behind, self._behind = self._behind, None
        chained = self._chained
        try:
            if self._refused is not None:
                raise self._refused
            for run in runs:
                run.wait()
        except XdnaError as error:
            if chained and not isinstance(error, (DeviceLost, Closed)):
                model.give_up_chains(error)
                self.run_singly()
                chained = False
            elif not chained and isinstance(error, CommandFailed):
                self._again_after(error, 0)
            else:
                raise
            self._late = True
        if behind is not None and behind._late:
            self.run()
            self._late = True
            return
        left = marks.left()
        if left and not model.blind:
            self._again(left, chained)
            self._late = True
        elif self._unread:
            model.writing.update(kernel for kernel, _ in self._unread)
        if model.watcher is not None:
            self.show(chained)

    def _again(self, left: int, chained: bool) -> None:
        """Runs singly in fresh contexts after commands that are over and have left so many marks.

        With the other mark: an element that is right and equal to the first one was written after all.
        """
        model, marks = self._projections, self._marks
        error = CommandFailed(
            "the driver calls a command completed that has not written its result",
            call="EXEC_CMD",
            state=State.COMPLETED,
            remedy="See `dmesg`, and `python -m qwen35 accept` for what works here",
        )
        model.refresh(error)
        marks.put(1)
        self.run_singly(1)
        if marks.left(1):
            if not self._unmark():
                raise error
        elif marks.left() < left:
            model.unwritten(error, chained)

    def _mark_unread(self, runs: Sequence[tuple[Kernel, Operands]]) -> None:
        self._unread = [run for run in runs if run[0] not in self._projections.unmarked]
        self._marks = Marks((operands[2], 0) for _, operands in self._unread)

    def _unmark(self) -> bool:
        """Whether all of the runs that have left their marks did run, by what else they write.

        Their kernels are not watched further. A kernel that has written its mark before is none of them.
        """
        for kernel, operands in self._unread:
            if not Marks([(operands[2], 0)]).left(1):
                continue
            if kernel in self._projections.writing or not _writes_elsewhere(kernel, operands):
                return False
            self._projections.unmark(kernel)
        found = bool(self._unread)
        self._mark_unread(self._unread)
        return found

    def run_singly(self, mark: int = 0) -> None:
        """Runs as single commands, whatever the model has chosen. `mark`: what the results hold before."""
        try:
            self._run_singly()
        except CommandFailed as error:
            self._again_after(error, mark)

    def _again_after(self, error: CommandFailed, mark: int) -> None:
        """Runs singly in fresh contexts where that helps (`Projections.forgive`). Raises `error` else."""
        losses = 0
        while True:
            losses = self._projections.forgive(error, losses, self._losses)
            self._marks.put(mark)
            try:
                return self._run_singly()
            except CommandFailed as again:
                error = again

    def _run_singly(self) -> None:
        self._losses = self._projections.device.client.losses
        self._wait([kernel.start(*operands) for calls in self._chains for kernel, operands in calls])

    def show(self, chained: bool = False) -> None:
        """Lets the model's watcher, if it has one, look at what single commands, or chains of them, wrote."""
        if self._projections.watcher is not None:
            self._projections.watcher((call for calls in self._chains for call in calls), chained)

    def run_chained(self) -> None:
        """Runs as command chains, whatever the model has chosen."""
        self._wait([self._pool.chain(calls) for calls in self._chains])

    def _wait(self, runs: list[Run]) -> None:
        for run in runs[:-1]:
            run.wait()
        runs[-1].wait(None, self._results)


def _writes_elsewhere(kernel: Kernel, operands: Operands) -> bool:
    """Whether a run writes its result but for the first element, which is 0 then, as in a new buffer; what
    else it does not write stays as it was."""
    result = operands[2]
    result.from_device()
    elements = result.view("u2")
    before = elements.copy()
    before[0] = 0
    elements[:] = _UNWRITTEN
    result.to_device()
    kernel.start(*operands).wait(None, [result])
    kept = elements == _UNWRITTEN
    elements[kept] = before[kept]
    result.to_device()
    return bool(kept[0] and not kept.all())


@dataclass(frozen=True)
class Group:
    """A group of several runs with the buffers it reads and writes, for a trial (qwen35.model.probe).

    The trial makes each way's run `rounds` times.
    """

    name: str
    dispatch: Dispatch
    inputs: Sequence[Buffer]
    results: Sequence[Buffer]
    rounds: int = 1
