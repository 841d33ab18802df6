"""Commands that never end: what user space sees, and how the device is usable again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from amdxdna._native import lib
from amdxdna.emu.kernels import stream

from .kit import ABORT, CHAIN, COMPLETED, ERROR, NEW, TIMEOUT, Bo, Ready, Target, case, header, state

# After a timeout it makes the context anew. A device that is closed meanwhile makes the kernel warn, in
# aie2_config_cu: the restart still looks at the buffers that the closing takes away.
RESTART = 1.0
_Made = TypeVar("_Made")


def _in_good_time(t: Target, start: Callable[[Ready], _Made]) -> tuple[Ready, _Made]:
    """A client, and what `start` did on it long before the driver looks: a machine that came later is asked
    again."""
    for _ in range(20):
        ready = t.ready()
        began = time.monotonic()
        made = start(ready)
        if time.monotonic() - began < t.tdr / 2:
            return ready, made
        time.sleep(2 * t.tdr + RESTART)
        ready.close()
    raise AssertionError("this machine is too busy to start two commands in half of a driver's limit")


@case(settle=RESTART)
def hang(t: Target) -> None:
    """A hung command ends with TIMEOUT after its driver's time and leaves a health report in its packet."""
    ready = t.ready()
    began = time.monotonic()
    assert ready.run(stream.program([stream.Delay(1000), stream.Hang()])) == TIMEOUT
    took = time.monotonic() - began
    assert took > t.tdr * 0.4, f"the timeout came after {took:.1f} s"
    version, _, transaction, pc, *fatal = ready.command.words()[1:9]
    assert version == 1
    assert transaction == 0, "the index of the operation that hangs"
    assert pc == ready.instructions.device + 12
    assert fatal == [0] * 4


@case()
def recovery(t: Target) -> None:
    """The context is made anew: commands work again a while after the timeout."""
    ready = t.ready()
    assert ready.run(stream.hang()) == TIMEOUT
    time.sleep(RESTART)
    assert ready.copy() == COMPLETED
    assert ready.copy() == COMPLETED


@case()
def submit_right_after(t: Target) -> None:
    """A command submitted at once after a timeout may meet the context before its CUs are configured.

    Whatever becomes of it, a fresh context works.
    """
    ready = t.ready()
    assert ready.run(stream.hang()) == TIMEOUT
    assert ready.copy() in (COMPLETED, ERROR, NEW)
    time.sleep(RESTART)
    assert ready.copy(ready.new_context()) == COMPLETED


@case(settle=RESTART)
def queue_behind_a_hang(t: Target) -> None:
    """What was queued behind the hung command is aborted."""

    def both(ready: Ready) -> tuple[int, Bo, Bo]:
        first, second = ready.bo(0x1000, lib.AMDXDNA_BO_CMD), ready.bo(0x1000, lib.AMDXDNA_BO_CMD)
        code = ready.dev(0x1000)
        ready.start(stream.hang(), command=first)
        seq = ready.start(
            stream.copy(4096, 1), ready.source.device, ready.destination.device, command=second, code=code
        )
        return seq, first, second

    ready, (seq, first, second) = _in_good_time(t, both)
    ready.wait(ready.syncobj, seq)
    assert (state(first), state(second)) == (TIMEOUT, ABORT)


@case(settle=RESTART)
def hang_in_a_chain(t: Target) -> None:
    """A chain that hangs times out as one command."""
    ready = t.ready()
    good, hung = ready.bo(0x1000, lib.AMDXDNA_BO_CMD), ready.bo(0x1000, lib.AMDXDNA_BO_CMD)
    ready.pack(stream.copy(4096, 1), ready.source.device, ready.destination.device, command=good)
    ready.pack(stream.hang(), command=hung, code=ready.dev(0x1000))
    ready.raw(ready.command, header(CHAIN, 10), 2, 0, 0, 0, 0, 0, good.handle, 0, hung.handle, 0)
    ready.wait(ready.syncobj, ready.submit(ready.hwctx, ready.command.handle))
    assert state(ready.command) == TIMEOUT


@case()
def slow_command(t: Target) -> None:
    """A command within the limit is not disturbed."""
    while True:
        ready = t.ready()
        began = time.monotonic()
        done = ready.run(stream.delay(round(0.45e6 * t.tdr)))
        if done == COMPLETED:
            return
        # With a machine so busy that it took longer than the limit, it did not get on in time.
        assert time.monotonic() - began > t.tdr, done
        time.sleep(RESTART)
        ready.close()


@case()
def late_reply(t: Target) -> None:
    """A command that ends after its timeout: the reply goes nowhere, the context works again."""
    for limits in (2.25, 5.0, 10.0):
        ready = t.ready()
        done = ready.run(stream.delay(round(1e6 * limits * t.tdr)))
        if done == TIMEOUT:
            break
        # The driver, too, had no time to look before it was over.
        assert done == COMPLETED
        ready.close()
    assert done == TIMEOUT
    time.sleep((limits - 0.95) * t.tdr)
    assert ready.copy(ready.new_context()) == COMPLETED


@case(settle=RESTART)
def other_context_keeps_going(t: Target) -> None:
    """While any context gets on, nothing times out; when all is quiet the hung one does."""
    ready = t.ready()
    hung = ready.bo(0x1000, lib.AMDXDNA_BO_CMD)
    began = last = time.monotonic()
    seq = ready.start(stream.hang(), command=hung, code=ready.dev(0x1000))
    other = ready.new_context()
    quiet = 0.0
    while last - began < 2 * t.tdr + 0.5:
        assert ready.copy(other) == COMPLETED
        time.sleep(0.02)
        last, before = time.monotonic(), last
        quiet = max(quiet, last - before)
    # Where nobody had the processor for that long, no context got on.
    assert state(hung) == NEW or quiet > 0.9 * t.tdr, "it timed out while another context got on"
    ready.wait(ready.syncobj, seq)
    assert state(hung) == TIMEOUT


@case()
def destroy_with_a_hung_command(t: Target) -> None:
    """Destroying a context with a hung command takes until the timeout and aborts it."""
    ready, (began, seq) = _in_good_time(t, lambda ready: (time.monotonic(), ready.start(stream.hang())))
    ready.destroy(ready.hwctx)
    took = time.monotonic() - began
    assert took > 0.4 * t.tdr, f"destroyed after {took:.2f} s"
    ready.wait(ready.syncobj, seq)
    assert state(ready.command) == ABORT
    assert ready.copy(ready.new_context()) == COMPLETED


@case(settle=RESTART)
def command_bo_closed_in_flight(t: Target) -> None:
    """Closing a hung command's BO changes nothing: it times out, and its packet says so."""
    ready = t.ready()
    seq = ready.start(stream.hang())
    ready.close_bo(ready.command.handle)
    ready.wait(ready.syncobj, seq)
    assert state(ready.command) == TIMEOUT


@case()
def close_with_a_hung_command(t: Target) -> None:
    """Closing the device with a hung command works; the device serves the next client."""
    ready = t.ready()
    ready.start(stream.hang())
    ready.close()
    time.sleep(0.1)
    assert t.ready().copy() == COMPLETED
