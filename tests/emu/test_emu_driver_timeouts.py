"""Timeouts of the emulated driver, by a clock that the tests set."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from amdxdna._native import lib
from amdxdna.emu.kernels import stream
from amdxdna.emu.npu import inline
from tests.conformance import kit
from tests.conformance.kit import ABORT, COMPLETED, ERROR, NEW, TIMEOUT, fails
from tests.support.driver_clients import Clock, Open, context_of, driver

PAGE = 4096


def test_a_command_right_after_a_timeout_breaks_the_context(ready: Open) -> None:
    client = ready()
    clock = Clock(client)
    clock.hang()
    assert kit.state(client.command) == TIMEOUT
    assert client.copy() == ERROR
    clock.forward(0.41)
    assert client.copy() == NEW
    assert client.copy() == NEW
    fresh = client.new_context()
    assert client.copy(fresh) == COMPLETED
    client.destroy(client.hwctx)
    assert len(client.contexts()) == 1


def test_a_context_that_cannot_be_made_anew_is_dead(ready: Open) -> None:
    client = ready()
    driver(client).faults.next("refuse")
    Clock(client).hang()
    assert kit.state(client.command) == TIMEOUT
    assert client.copy() == NEW
    client.destroy(client.hwctx)


def test_the_pdi_is_looked_up_again_by_its_handle(ready: Open) -> None:
    client = ready()
    clock = Clock(client)
    client.close_bo(client.pdi.handle)
    assert client.copy() == COMPLETED
    clock.hang()
    assert kit.state(client.command) == TIMEOUT
    clock.forward(0.41)
    assert client.copy() == ERROR


def test_queue_behind_a_hang(ready: Open) -> None:
    client = ready()
    clock = Clock(client)
    commands = [client.bo(PAGE, lib.AMDXDNA_BO_CMD) for _ in range(4)]
    for command in commands:
        seq = client.start(stream.hang(), command=command)
    clock.until_waiting()
    clock.forward(2.1)
    client.wait(client.syncobj, seq)
    assert [kit.state(command) for command in commands] == [TIMEOUT, ABORT, ABORT, ABORT]
    (entry,) = client.contexts()
    assert (entry.command_submissions, entry.command_completions) == (4, 4)


def test_health_of_a_hung_context_is_in_the_queries(ready: Open) -> None:
    client = ready(tdr=0)
    driver(client).idle_wait = 0.05
    client.start(
        stream.program([stream.Copy(PAGE, 1), stream.Hang()]), client.source.device, client.destination.device
    )

    def stalled() -> bool:
        return int(client.contexts()[0].txn_op_idx) == 1

    kit.until(stalled, 60, "the hang")
    assert client.contexts()[0].ctx_pc == client.instructions.device + 24


@pytest.mark.parametrize("minor", [8, 9])
def test_health_came_with_minor_nine(ready: Open, minor: int) -> None:
    """Older drivers leave the entry's fields 0, and ones in the packet of a command that timed out."""
    client = ready(minor=minor)
    clock = Clock(client)
    command = client.bo(PAGE, lib.AMDXDNA_BO_CMD)
    seq = client.start(
        stream.program([stream.Copy(PAGE, 1), stream.Hang()]),
        client.source.device,
        client.destination.device,
        command=command,
    )
    clock.until_waiting()
    entry = client.contexts()[0]
    at = client.instructions.device + 24
    assert (entry.txn_op_idx, entry.ctx_pc) == ((1, at) if minor >= 9 else (0, 0))
    clock.forward(2.1)
    client.wait(client.syncobj, seq)
    payload = tuple(command.words()[1:5])
    assert payload == ((1, 0, 1, at) if minor >= 9 else (0xFFFFFFFF,) * 4)


def test_computing_slowly_is_no_hang(ready: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take longer here than on an array: only a command that waits can time out."""
    from amdxdna.emu.kernels import runner

    client = ready()
    clock = Clock(client)
    compute = runner.compute
    computing, go_on = threading.Event(), threading.Event()

    def slowly(*args: Any) -> Any:
        computing.set()
        go_on.wait(60)
        return compute(*args)

    monkeypatch.setattr(runner, "compute", slowly)
    monkeypatch.setattr(inline, "SHORT", -1)
    seq = client.start(stream.copy(PAGE), client.source.device, client.destination.device)
    assert computing.wait(60)
    for _ in range(5):
        clock.forward(2.1)
    go_on.set()
    client.wait(client.syncobj, seq)
    assert kit.state(client.command) == COMPLETED


def test_a_command_on_its_way_to_the_npu_does_not_time_out(
    ready: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its submitter is not given the processor until the watchdog has looked."""
    from amdxdna.emu.kernels import runner

    client = ready()
    clock = Clock(client)
    look = threading.Thread(target=clock.forward, args=(2.1,))
    npu = driver(client).npu
    submit, compute = npu.submit, runner.compute

    def starved(*args: Any) -> Any:
        look.start()
        look.join(0.2)
        return submit(*args)

    def slowly(*args: Any) -> Any:
        look.join(60)
        return compute(*args)

    monkeypatch.setattr(npu, "submit", starved)
    monkeypatch.setattr(runner, "compute", slowly)
    monkeypatch.setattr(inline, "SHORT", -1)
    seq = client.start(stream.copy(PAGE), client.source.device, client.destination.device)
    client.wait(client.syncobj, seq)
    assert kit.state(client.command) == COMPLETED


def test_a_command_that_has_not_begun_does_not_time_out(ready: Open) -> None:
    """Nor one that began a moment ago, however long ago it was sent."""
    client = ready()
    clock = Clock(client)
    with driver(client).npu.context(context_of(client).firmware).turn:  # its worker cannot begin
        seq = client.start(stream.hang())
        for _ in range(5):
            clock.forward(2.1)
        assert kit.state(client.command) == NEW
    clock.until_waiting()
    clock.forward(1.9)
    assert kit.state(client.command) == NEW
    clock.forward(1.9)
    client.wait(client.syncobj, seq)
    assert kit.state(client.command) == TIMEOUT


def test_a_delay_that_is_over_does_not_time_out(ready: Open) -> None:
    """Whose thread does not get the processor is not taken for one that hangs."""
    client = ready()
    clock = Clock(client)
    gone = driver(client).npu.context(context_of(client).firmware).gone
    go_on = threading.Event()
    gone.wait = lambda seconds: go_on.wait(60) and False
    seq = client.start(stream.delay(1_000_000))
    clock.until_waiting()
    clock.forward(1.1)
    for _ in range(5):
        clock.forward(2.1)
    assert kit.state(client.command) == NEW
    go_on.set()
    client.wait(client.syncobj, seq)
    assert kit.state(client.command) == COMPLETED


def test_tdr_off(ready: Open) -> None:
    client = ready(tdr=0)
    driver(client).idle_wait = 0.05
    seq = client.start(stream.hang())
    with fails(errno.ETIME):
        client.wait(client.syncobj, seq, 0.3)
    assert kit.state(client.command) == NEW
