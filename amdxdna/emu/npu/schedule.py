"""When the commands of a timed NPU begin and end, by a :class:`amdxdna.emu.timing.TimingModel`.

A chain begins when it has come and its columns are free, whenever its thread gets there, and ends when its
time is over. Contexts that share a column take turns, chain by chain, in the order in which they ask;
contexts on other columns run beside them. Kernels are computed first, within the modelled time; then the
thread that executes the chain waits, asleep, until that is over.

A thread that sleeps wakes up later than it asked to, by tens of microseconds or by what other programs
take. That is not the host's work, and would add up over the commands of a token; nor is what the emulator
takes for a submit and for an answer. So it is made up for: whoever goes on too late has a lag, which is taken
from the time at which the next chain of that context has come. A front end tells when a call begins and ends
(`enter`, `leave`): of what lies between only the wait for a chain's end counts. Over any number of commands
nothing is lost but the last lag, and nothing is gained.

A command that hangs leaves its columns to others once the time of what came before the hang is over, as on
the NPU that is not timed: what firmware does then is not known.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from amdxdna.emu import _kernels
from amdxdna.emu.kernels import Demand
from amdxdna.emu.npu.context import Context
from amdxdna.emu.timing import TimingModel

MOST_LAG = 0.01
"""Seconds that are made up for: more (a stopped program) is lost."""


@dataclass
class Totals:
    """What a timed NPU did. Seconds."""

    chains: int = 0
    commands: int = 0
    loads: int = 0
    """Changes of what a context's columns are configured for."""
    seconds: float = 0.0
    """The NPU's own time: what the commands took by the model."""
    late: int = 0
    """Chains that took longer to compute than they should take: the clock does not hold for them."""
    late_seconds: float = 0.0
    """How much longer, in all."""
    overslept: float = 0.0
    """How much too late threads woke up, in all; made up for by the chains that followed."""


class _Turn:
    """A chain that has its columns."""

    __slots__ = ("began", "commands", "due", "holds", "loads", "start")

    def __init__(self, start: float, began: float) -> None:
        self.start = self.due = start
        self.began = began
        self.holds = True
        self.commands = self.loads = 0


class _Call(threading.local):
    """The call of a front end's user that is in progress on a thread."""

    began = 0.0
    """0: there is none."""
    context: int | None = None
    """Whose commands it concerns."""
    asked = 0.0
    """When it would have begun without the lag."""


class Schedule:
    """The columns' time.

    The thread that executes a context's chain calls `begin` or `begin_soon`, then what the chain takes, then
    `end`; `wake`, `forget` and `totals` may be called by any. `clock`: seconds. `log`: as the NPU's.
    """

    def __init__(
        self, model: TimingModel, columns: int, clock: Callable[[], float], log: Callable[[str], None]
    ) -> None:
        self.model = model
        self._clock = clock
        self._log = log
        self._change = threading.Condition(threading.Lock())
        self._taken = 0
        """Columns of chains that run, a bit each."""
        self._free_at = [0.0] * columns
        self._asking: deque[Context] = deque()
        self._turns: dict[Context, _Turn] = {}
        self._lags: dict[int, float] = {}
        """By context's number."""
        self._ends: dict[int, float] = {}
        """By context's number, the end of its last chain that is over."""
        self._call = _Call()
        self._loaded: list[tuple[int, int] | None] = [None] * columns
        """By column, whose configuration it holds: the context's number and the PDI's address."""
        self._totals = Totals()

    def totals(self) -> Totals:
        """A copy of the sums so far."""
        with self._change:
            return replace(self._totals)

    def wake(self) -> None:
        """Some context is gone: who waits for its turn looks whether it is its own."""
        with self._change:
            self._change.notify_all()

    def forget(self, context: int) -> None:
        """A context is gone: a new one of its number finds the columns configured for somebody else."""
        with self._change:
            self._loaded = [None if held and held[0] == context else held for held in self._loaded]
            self._lags.pop(context, None)
            self._ends.pop(context, None)

    def enter(self) -> None:
        """A call of the front end's user begins on this thread."""
        self._call.began = self._clock()

    def leave(self) -> None:
        """The call is over, and the thread goes back to the host's work: what it took, but for a wait, is its
        context's lag."""
        call = self._call
        context, call.context, call.began = call.context, None, 0.0
        if context is not None:
            over = max(call.asked, self._ends.get(context, 0.0))
            self._lags[context] = min(max(self._clock() - over, 0.0), MOST_LAG)

    def asks(self, context: int) -> float:
        """This thread's call submits to a context, or waits for it: when it would have begun without the lag,
        or this moment without it where there is no call. A submit's is kept as Context.queued_at."""
        call = self._call
        if call.context == context:
            return call.asked
        asked = (call.began or self._clock()) - self._lags.get(context, 0.0)
        if call.began:
            call.context, call.asked = context, asked
        return asked

    def begin(self, context: Context) -> bool:
        """Takes the context's columns, for which it waits; false: it is gone."""
        with self._change:
            self._asking.append(context)
            try:
                while not (context.gone.is_set() or self._may_begin(context)):
                    with context.wait_of(None):
                        self._change.wait()
                if context.gone.is_set():
                    return False
                self._take(context, self._turn(context))
                return True
            finally:
                self._asking.remove(context)
                self._change.notify_all()

    def begin_soon(
        self, context: Context, seconds: float, times: Sequence[float], pdis: Iterable[int | None]
    ) -> bool:
        """Takes the context's columns for a chain that is over within `seconds` from now.

        False, and nothing has changed: it would end later, they are not free, or the context is gone.
        `times`: what each command's kernels take; `pdis`: what each runs on.
        """
        with self._change:
            if context.gone.is_set() or not self._may_begin(context):
                return False
            model, commands = self.model, len(times)
            turn = self._turn(context)
            end = turn.start + model.dispatch + (commands - 1) * model.member + sum(times)
            spare = seconds - (end - turn.began)
            # Loads are counted only where they matter.
            if spare < commands * model.load and spare < self._loads(context, pdis) * model.load:
                return False
            self._take(context, turn)
            return True

    def _turn(self, context: Context) -> _Turn:
        """The turn of a chain of which the columns are free now."""
        return _Turn(max(context.queued_at, *self._free_at[_columns(context)]), self._clock())

    def _take(self, context: Context, turn: _Turn) -> None:
        self._taken |= _mask(context)
        self._turns[context] = turn

    def _loads(self, context: Context, pdis: Iterable[int | None]) -> int:
        """How often the columns would be configured for commands on these PDIs."""
        held, loads = self._loaded[_columns(context)], 0
        for pdi in pdis:
            wanted = _wanted(context, pdi)
            if pdi is not None and held != wanted:
                held, loads = wanted, loads + 1
        return loads

    def _may_begin(self, context: Context) -> bool:
        """Whether the columns are free and nobody has asked for one of them before."""
        wanted = _mask(context)
        if self._taken & wanted:
            return False
        for earlier in self._asking:
            if earlier is context:
                return True
            if wanted & _mask(earlier):
                return False
        return True

    def command(self, context: Context) -> None:
        """The chain's next command begins."""
        turn = self._turns[context]
        turn.due += self.model.member if turn.commands else self.model.dispatch
        turn.commands += 1

    def load(self, context: Context, pdi: int) -> None:
        """The PDI at a device address is what the command runs on."""
        span = _columns(context)
        wanted = _wanted(context, pdi)
        turn = self._turns[context]
        # The columns are this chain's.
        if turn.holds and self._loaded[span] != wanted:
            with self._change:
                self._loaded[span] = wanted
            turn.loads += 1
            turn.due += self.model.load

    def kernels(self, context: Context, demands: Iterable[Demand]) -> None:
        """The command runs these kernels."""
        self.add(context, self.model.kernels(demands))

    def add(self, context: Context, seconds: float) -> None:
        """Makes the context's command take `seconds` more."""
        self._turns[context].due += seconds

    def wait(self, context: Context, seconds: float | None) -> bool:
        """A wait of a command: modelled time, or for ever. True: the context is gone."""
        if seconds is not None:
            self.add(context, seconds)
            return context.gone.is_set()
        turn = self._turns[context]
        # Not before the hang's own time has come: a context that goes until then still has its columns.
        while turn.holds and (left := turn.due - self._clock()) > 0:
            if context.wait(left):
                return True
        self._give(context)
        return context.wait(None)

    def kernel_wait(self, context: Context, seconds: float | None) -> bool:
        """The same for a kernel's own wait, whose time :meth:`kernels` has counted."""
        return self.wait(context, None if seconds is None else 0.0)

    def end(self, context: Context, computed: bool) -> None:
        """Waits until the chain's time is over, or its context is gone, and gives the columns back.

        `computed`: its kernels have been, which may have taken longer than the chain should take.
        """
        turn = self._turns[context]
        if turn.holds and not context.gone.is_set():
            now = self._clock()
            took, modelled = now - turn.began, turn.due - turn.start
            late = max(took - modelled, 0.0) if computed else 0.0
            if late:
                turn.due = max(turn.due, now)
            overslept = self._sleep(context, turn.due, now)
            self._ends[context.id] = turn.due
            self._count(turn, modelled, late, overslept)
        self._give(context)
        del self._turns[context]

    def _sleep(self, context: Context, due: float, now: float) -> float:
        """Waits until `due`, and notes the lag; by how much the thread has woken up too late."""
        if now - self._lags.get(context.id, 0.0) >= due:
            return 0.0  # who asks has come after the end
        overslept = 0.0
        if now < due:
            slack = _kernels.lib.emu_timer_slack(1)
            try:
                while now < due and not context.wait(due - now):
                    now = self._clock()
            finally:
                _kernels.lib.emu_timer_slack(slack)
            overslept = max(now - due, 0.0)
        self._lags[context.id] = min(max(now - due, 0.0), MOST_LAG)
        return overslept

    def _count(self, turn: _Turn, modelled: float, late: float, overslept: float) -> None:
        with self._change:
            totals = self._totals
            totals.chains += 1
            totals.commands += turn.commands
            totals.loads += turn.loads
            totals.seconds += modelled
            totals.overslept += overslept
            if late:
                totals.late += 1
                totals.late_seconds += late
            first = bool(late) and totals.late == 1
        if first:
            self._log(
                f"timed: commands computed for {(modelled + late) * 1e3:.3g} ms where they should take "
                f"{modelled * 1e3:.3g} ms: from here on the times do not hold (instant computes nothing)"
            )

    def _give(self, context: Context) -> None:
        turn = self._turns[context]
        if not turn.holds:
            return
        turn.holds = False
        # A chain whose context is gone ends at once.
        free = min(turn.due, self._clock()) if context.gone.is_set() else turn.due
        with self._change:
            self._taken &= ~_mask(context)
            self._free_at[_columns(context)] = [free] * context.columns
            for other in self._asking:
                other.end_wait()
            self._change.notify_all()


def _columns(context: Context) -> slice:
    return slice(context.start_column, context.start_column + context.columns)


def _wanted(context: Context, pdi: int | None) -> list[tuple[int, int] | None]:
    """What a context's columns hold when they are configured for a PDI."""
    return [None if pdi is None else (context.id, pdi)] * context.columns


def _mask(context: Context) -> int:
    return ((1 << context.columns) - 1) << context.start_column
