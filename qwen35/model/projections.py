"""The projections on the NPU: kernels from a bundle's records, and groups of runs of them.

Instruction streams and xclbins are opaque here. A GEMM takes (A, B, C), a GEMV (x, W, y): bf16 activations,
packed weights. One packed tensor serves the prompt's GEMM and the token's GEMV of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amdxdna.buffer import Buffer
from amdxdna.chain import Staged
from amdxdna.errors import Closed, CommandFailed, CommandTimeout, DeviceLost, XdnaError
from amdxdna.losses import pause
from amdxdna.marks import Marks
from amdxdna.packet import State
from amdxdna.xclbin import Xclbin
from qwen35.bundle.specs import GemmSpec, GemvSpec
from qwen35.errors import ModelError, one_line
from qwen35.model.options import LONGER, Options

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.kernel import Kernel, Shared
    from amdxdna.pool import ContextPool
    from amdxdna.run import Run
    from qwen35.bundle.bundle import Bundle

__all__ = ["Dispatch", "Group", "Projections", "Operands"]

Operands = tuple[Buffer, Buffer, Buffer]
"""A, B, C of a GEMM or x, W, y of a GEMV."""

_UNWRITTEN = 0x7FD3
"""NaN in bf16, with a payload that arithmetic does not make."""
_CHAIN = 32
"""Runs in one chain: less than the driver's command list holds."""


class Dispatch:
    """Runs that do not depend on each other, made once and run as often as wanted.

    `start` submits all of them, `finish` waits: as one command chain where the model uses chains (one submit,
    one wait), else as single commands. When a chain fails in any way, the group runs again as single commands
    and so does every later group of the model. That is sound since a group is idempotent: each run reads its
    first two operands and writes its third, which no run of the group reads. The first and the last element
    of each result are marked before: what the driver calls completed without its having been run does not
    pass, but is run again too. With `read` the results are made readable for the host.

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
    )

    def __init__(
        self,
        model: Projections,
        pool: ContextPool,
        calls: Sequence[tuple[Kernel, Operands, int]],
        read: bool = True,
    ) -> None:
        """`calls`: kernels, operands, and the result's last element that the kernel writes."""
        self._projections, self._pool = model, pool
        runs = [(kernel, operands) for kernel, operands, _ in calls]
        self._chains = [runs[at : at + _CHAIN] for at in range(0, len(runs), _CHAIN)]
        self._results = tuple(operands[2] for _, operands in runs) if read else ()
        self._ready = self._chained = False
        self._staged: list[Staged] = []
        self._unread: list[tuple[Kernel, Operands]] = []
        """Runs whose result no host reads: its rows may have a stride of the kernels' own, so only the first
        element is marked, until it is seen that the kernel does not write it."""
        if read:
            self._marks = Marks((operands[2], 2 * at) for _, operands, last in calls for at in (0, last))
        else:
            self._mark_unread(runs)

    @property
    def runs(self) -> int:
        """How many runs the group has; chains concern those of two or more."""
        return sum(map(len, self._chains))

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
            self._wait(runs)
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


class Projections:
    """The kernels of one bundle on one device; kernels are made at first use and kept. Not thread-safe.

    Use: `npu.gemm("lin", chunks, a, b, c)`, or `npu.dispatch(...)` for a group of runs that is used again and
    again.
    """

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        options: Options | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """`note(line)` is told what a user should know: a chain that failed, buffers that were given up."""
        self.bundle, self.device, self.options = bundle, device, options or Options()
        self.note: Callable[[str], None] = note or (lambda line: None)
        self.chains = self.options.chains != "off"
        """Whether groups of runs go as command chains; qwen35.model.probe decides it at load."""
        self.chains_why = {"on": "as asked", "off": "as asked", "auto": "not tried"}[self.options.chains]
        self.blind = False
        """The device computes nothing (the benchmark's modes): results are not looked at."""
        self.redone = 0
        """Dispatches that were done again since a single command called completed had not been run."""
        self.unmarked: set[Kernel] = set()
        """Kernels that do not write the first element of a result that no host reads."""
        self.writing: set[Kernel] = set()
        """Kernels that have written it."""
        self.watcher: Callable[[Iterable[tuple[Kernel, Operands]], bool], None] | None = None
        """Is shown kernels and operands of commands once they are over, and whether they were a chain's (the
        acceptance run)."""
        if self.options.wait is not None:
            device.wait_seconds = self.options.wait
        device.client.longer = LONGER
        self.retries_at_load = 0
        """How often single commands that fail are run again: while the model loads, never in an answer."""
        self._pool = device.pool
        self._xclbins: dict[str, Xclbin] = {}
        self._kernels: dict[tuple[str, int], Kernel] = {}

    def alloc(self, nbytes: int) -> Buffer:
        """A zeroed SHARE buffer."""
        buffer = self.device.alloc(nbytes)
        buffer.view()[:] = 0
        buffer.to_device()
        return buffer

    def gemm_spec(self, key: str) -> GemmSpec:
        """The manifest's record. Raises ModelError."""
        spec = self.bundle.gemms.get(key)
        if spec is None:
            raise ModelError(f"the bundle has no gemm {key}", str(self.bundle.path), "export it again")
        return spec

    def gemv_spec(self, key: str) -> GemvSpec:
        """The manifest's record. Raises ModelError."""
        spec = self.bundle.gemvs.get(key)
        if spec is None:
            raise ModelError(f"the bundle has no gemv {key}", str(self.bundle.path), "export it again")
        return spec

    def columns(self, key: str) -> int:
        """Columns of GEMM `key`'s C that mean something: the text model's by its own widths, as N may count
        gu's gate and up, or padding."""
        c = self.bundle.config
        widths = {
            "lin": c.n_lin,
            "att": c.n_att,
            "o": c.hidden_size,
            "gu": c.intermediate_size,
            "down": c.hidden_size,
        }
        return widths[key] if key in widths else self.gemm_spec(key).n

    def spans(self, key: str, chunks: int) -> tuple[int, int]:
        """Elements that GEMM `key` over `chunks` chunks spans in A and in C: whole rows of them, or more.

        A bundle may leave the last row's unused end out of its own count.
        """
        spec = self.gemm_spec(key)
        rest = (chunks - 1) % spec.max_chunks + 1
        stream, rows = spec.stream(rest), (chunks - rest) * spec.m
        whole = chunks * spec.m
        return (
            max(rows * spec.lda + stream.a_elems, whole * spec.lda),
            max(rows * spec.c_stride + stream.c_elems, whole * spec.c_stride),
        )

    def dispatch(self, key: str, chunks: int, operands: Iterable[Operands], *, read: bool = True) -> Dispatch:
        """Runs of one kernel: GEMM `key` over `chunks` chunks of rows, or the GEMV where `chunks` is 0.

        A is then `chunks * M` rows of stride lda, C the same of stride c_stride. Where the bundle has no
        stream over so many chunks, each GEMM becomes several runs over parts of A and C.
        """
        calls: list[tuple[Kernel, Operands, int]] = []
        for a, b, c in operands:
            if chunks == 0:
                calls.append((self.kernel(key, 0), (a, b, c), self.gemv_spec(key).m - 1))
            else:
                calls += self._parts(self.gemm_spec(key), chunks, a, b, c)
        return Dispatch(self, self._pool, calls, read)

    def gemm(self, key: str, chunks: int, a: Buffer, b: Buffer, c: Buffer) -> None:
        """C = A B over `chunks` chunks of rows; waits, and C is readable then."""
        self.dispatch(key, chunks, [(a, b, c)]).run()

    def kernel(self, key: str, chunks: int) -> Kernel:
        """The kernel of GEMM `key` over exactly `chunks` chunks, or of the GEMV where `chunks` is 0."""
        found = self._kernels.get((key, chunks))
        if found is None:
            if chunks == 0:
                gemv = self.gemv_spec(key)
                context, file, work = gemv.ctx, gemv.insts, 2 * gemv.m * gemv.k
            else:
                gemm = self.gemm_spec(key)
                stream = gemm.stream(chunks)
                context, file = stream.ctx, stream.insts
                work = 2 * gemm.m * gemm.k * gemm.n * chunks
            xclbin, name = self._xclbin(context), self.bundle.xclbins[context].kernel
            # The only kernel of a file runs whatever the manifest calls it, as in the reference runtime.
            chosen = None if len(xclbin.kernels) == 1 else name
            found = self._pool.kernel(xclbin, self.bundle.insts(file), name=chosen, ops=work)
            self._kernels[key, chunks] = found
        return found

    def name_of(self, kernel: Kernel) -> tuple[str, int]:
        """What `kernel(key, chunks)` was asked for to give this kernel. Raises StopIteration."""
        return next(name for name, found in self._kernels.items() if found is kernel)

    def warm(self, keys: Sequence[str]) -> None:
        """Makes the kernels of these GEMMs, over every number of chunks, and of all GEMVs of those names.

        What a first prompt would wait for. Their contexts are not opened yet.
        """
        for key in keys:
            if key in self.bundle.gemms:
                for stream in self.gemm_spec(key).streams:
                    self.kernel(key, stream.chunks)
            if key in self.bundle.gemvs:
                self.kernel(key, 0)

    def open_contexts(self) -> None:
        """Opens the contexts of the kernels made so far: those of GEMVs first, a prompt's last."""
        order = sorted(self._kernels, key=lambda key: key[1] > 0)
        for shared in {id(k.shared): k.shared for k in map(self._kernels.__getitem__, order)}.values():
            with shared.lock:
                shared.ready()

    def give_up_chains(self, error: XdnaError) -> None:
        """After a chain that failed: its context is replaced, and groups are single commands from now on.

        Raises `error` where something may still be in flight, which a group that runs again could meet.
        """
        self.refresh(error)
        self._end_chains(error)

    def _end_chains(self, error: XdnaError) -> None:
        self.chains, self.chains_why = False, one_line(f"failed: {error}")
        self.note(f"command chains are off, single commands go on: {error}")

    def unwritten(self, error: XdnaError, chained: bool) -> None:
        """Counts and tells a dispatch that was done again; with chains, they are over."""
        if chained:
            self._end_chains(error)
            return
        self.redone += 1
        if self.redone == 1:
            self.note(f"done again, as every further time: {error}")

    def unmark(self, kernel: Kernel) -> None:
        """Notes and tells a kernel of whose results no first element is looked at any more."""
        self.unmarked.add(kernel)
        self.note(
            f"{kernel.name} does not write the first element of its result: that its commands have run is "
            "taken from the driver's word"
        )

    def refresh(self, error: XdnaError) -> None:
        """Makes the next runs go in fresh contexts. Raises `error` where something may still be in flight."""
        if not self.drain():
            raise error
        self.replace_contexts()

    def forgive(self, error: CommandFailed, losses: int, before: int) -> int:
        """After single commands that failed: returns where they are to be run again, which is sound (see
        Dispatch): at the `losses`-th loss in a row of their context, which a driver drops when a child
        process ends; and once while the model loads, since a fresh context may be refused its compute units,
        or be caught in another program's time-out. `before`: the client's losses before they were submitted.

        Returns the losses in a row. Raises ContextLost for too many, and `error` where it does not help or
        something is still in flight.
        """
        if self._dropped(error, before):
            losses += 1
            pause(losses, error.call)
            return losses
        if not self.retries_at_load:
            raise error
        self.refresh(error)
        self.retries_at_load -= 1
        self.note(f"the model's first commands run again: {error}")
        return 0

    def _dropped(self, error: CommandFailed, before: int) -> bool:
        """Whether a command was not run since the driver has dropped its context. All are new then.

        Linux 6.14 to 6.18 end the commands in flight when they drop a context, after two seconds if they
        must (aie2_hwctx_fini of aie2_ctx.c; at once in 6.14 before 4fd6ca90fc7f): NEW, or ABORT of a list.
        """
        unrun = error.state in (State.NEW, State.ABORT) and not isinstance(error, CommandTimeout)
        if not (unrun and self.device.profile.loses_contexts and self.drain()):
            return False
        self.device.pool.unload()
        return self.device.client.losses != before

    def replace_contexts(self) -> None:
        """Makes the next run of each kernel find a fresh context."""
        for shared in self._contexts():
            shared.replace()

    def drain(self) -> bool:
        """Waits, after an exception, until nothing is in flight; a context that stays busy is destroyed.

        True: buffers may be written again. False: the driver could not even end a context, so a command may
        write its buffers at any later time: the caller must leave them alone and take new ones.
        """
        over = True
        for shared in self._contexts():
            over = shared.settle() and over
        return over

    def _contexts(self) -> Iterable[Shared]:
        return {id(kernel.shared): kernel.shared for kernel in self._kernels.values()}.values()

    def close(self) -> None:
        """Gives the kernels back. Idempotent."""
        kernels, self._kernels = self._kernels, {}
        for kernel in kernels.values():
            kernel.close()

    def _parts(
        self, spec: GemmSpec, chunks: int, a: Buffer, b: Buffer, c: Buffer
    ) -> list[tuple[Kernel, Operands, int]]:
        calls: list[tuple[Kernel, Operands, int]] = []
        last = self.columns(spec.key) - 1
        at = 0
        while at < chunks:
            count = min(spec.max_chunks, chunks - at)
            stream, rows = spec.stream(count), at * spec.m
            whole = count == chunks
            part_a = a if whole else a.sub(rows * spec.lda * 2)
            part_c = c if whole else c.sub(rows * spec.c_stride * 2)
            if part_a.nbytes < stream.a_elems * 2 or part_c.nbytes < stream.c_elems * 2:
                raise ModelError(
                    f"gemm {spec.key} over {count} chunks spans {stream.a_elems}, {stream.c_elems} elements,"
                    f" the buffers hold {part_a.nbytes // 2} and {part_c.nbytes // 2}"
                )
            end = (count * spec.m - 1) * spec.c_stride + last
            calls.append((self.kernel(spec.key, count), (part_a, b, part_c), end))
            at += count
        return calls

    def _xclbin(self, context: str) -> Xclbin:
        spec = self.bundle.xclbins[context]
        found = self._xclbins.get(spec.file)
        if found is None:
            found = self._xclbins[spec.file] = Xclbin.read(self.bundle.file(spec.file))
        return found
