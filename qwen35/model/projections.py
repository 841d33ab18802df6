"""The projections on the NPU: kernels from a bundle's records, and what to do where their commands fail.

Instruction streams and xclbins are opaque here. A GEMM takes (A, B, C), a GEMV (x, W, y): bf16 activations,
packed weights. One packed tensor serves the prompt's GEMM and the token's GEMV of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from amdxdna.buffer import Buffer
from amdxdna.errors import CommandFailed, CommandTimeout, XdnaError
from amdxdna.losses import pause
from amdxdna.packet import State
from amdxdna.xclbin import Xclbin
from qwen35.bundle.specs import GemmSpec, GemvSpec
from qwen35.errors import ModelError, one_line
from qwen35.model.dispatch import Dispatch, Operands
from qwen35.model.options import LONGER, Options

if TYPE_CHECKING:
    from amdxdna.device import Device
    from amdxdna.kernel import Kernel, Shared
    from qwen35.bundle.bundle import Bundle

__all__ = ["Projections"]


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

    def dispatch(
        self, key: str, chunks: int, operands: Iterable[Operands], *, rows: int | None = None
    ) -> Dispatch:
        """Runs of one kernel: GEMM `key` over `chunks` chunks of rows, or the GEMV where `chunks` is 0.

        Of each GEMM's C the host reads so many `rows` (None: all).
        A is then `chunks * M` rows of stride lda, C the same of stride c_stride. Where the bundle has no
        stream over so many chunks, each GEMM becomes several runs over parts of A and C.
        """
        calls: list[tuple[Kernel, Operands, int]] = []
        results: list[tuple[Buffer, int]] = []
        for a, b, c in operands:
            nbytes = c.nbytes
            if chunks == 0:
                calls.append((self.kernel(key, 0), (a, b, c), self.gemv_spec(key).m - 1))
            else:
                spec = self.gemm_spec(key)
                calls += self._parts(spec, chunks, a, b, c)
                if rows is not None:
                    nbytes = min(nbytes, rows * spec.c_stride * 2)
            if nbytes:
                results.append((c, nbytes))
        return Dispatch(self, self._pool, calls, results)

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
