"""Commands in flight: EXEC_CMD, completion, and what becomes of them when their context goes."""

from __future__ import annotations

import errno
import threading
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Any

from amdxdna._native import lib
from amdxdna.emu.driver import answers, packet
from amdxdna.emu.driver.bo import SHARE
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.hwctx import MAX_JOBS, catch_up
from amdxdna.emu.driver.objects import Client, Hwctx, Job
from amdxdna.emu.driver.packet import Rejected
from amdxdna.emu.npu import Health, Reply
from amdxdna.packet import State
from amdxdna.signals import interruptible
from amdxdna.usermem import WORDS

MAX_ARGUMENTS = 4095


_is_done = attrgetter("done")


def answered(job: Job, reply: Reply) -> None:
    """The firmware's answer, on whichever thread executed the command."""
    hwctx = job.hwctx
    with hwctx.lock:
        if not job.done:
            _answer(job, reply)
        finish(hwctx, job)


def _answer(job: Job, reply: Reply) -> None:
    """Writes the answer into the packet."""
    hwctx = job.hwctx
    hwctx.device.progressed = hwctx.device.clock()
    if not reply.status:
        packet.set_state(job.command, State.COMPLETED)
    elif not reply.slot_status:
        answers.fail(job, State.ABORT)
    else:
        answers.failed(job, reply)
    hwctx.completions += 1


def submit(client: Client, args: Any) -> None:
    """EXEC_CMD. Fills in seq. Blocks while four commands of the context are in flight."""
    device = client.device
    if device.faults.active and device.faults.event("lose", errno.ENODEV):
        device.lose()
        raise error(errno.ENODEV)
    if args.ext or args.ext_flags or args.type != lib.AMDXDNA_CMD_SUBMIT_EXEC_BUF:
        raise error(errno.EINVAL)
    count = args.arg_count
    if count > MAX_ARGUMENTS or args.cmd_count != 1:
        raise error(errno.EINVAL)
    handles = client.user.numbers(WORDS, args.args, count) if count else ()
    table = client.handles
    memory = client.memory
    with memory.lock:
        command = table.get(args.cmd_handles & 0xFFFFFFFF)
        if command is None or command.kind != SHARE:
            raise error(errno.EINVAL)
        try:
            listed = [table[handle] for handle in handles]
        except KeyError:
            raise error(errno.ENOENT) from None
        hwctx = client.contexts.get(args.hwctx)
        if hwctx is None:
            raise error(errno.EINVAL)
        job = Job(hwctx, command, [command, *listed])
        memory.begin(job.bos)
    try:
        if hwctx.configure_at:
            catch_up(hwctx)
        with hwctx.lock:
            while len(hwctx.jobs) >= MAX_JOBS and not hwctx.closing:
                if not _run_inline(hwctx) and len(hwctx.jobs) >= MAX_JOBS and not hwctx.closing:
                    _wait_for_room(hwctx)
            if hwctx.closing:
                raise error(errno.EINVAL)
            if hwctx.cus is None and hwctx.device.kind.refuses_unconfigured:
                raise error(errno.EINVAL)
            if len(set(handles)) != count:
                raise error(errno.EALREADY)
            _start(hwctx, job, args)
    except BaseException:
        # A signal's exception may come when the command is in the queue already: then its end settles it.
        if job.done or not job.queued:
            job.settle()
        raise


def _run_inline(hwctx: Hwctx) -> bool:
    """Executes the oldest command here, with the context's lock let go; false when that is not possible."""
    hwctx.lock.release()
    try:
        return hwctx.run_inline(threading.TIMEOUT_MAX)
    finally:
        hwctx.lock.acquire()


def _wait_for_room(hwctx: Hwctx) -> None:
    """Waits, with the context's lock let go, until a command is over."""
    gate = threading.Lock()
    gate.acquire()
    hwctx.room.append(gate)
    hwctx.lock.release()
    try:
        interruptible(gate.acquire)
    finally:
        hwctx.lock.acquire()
        if gate in hwctx.room:
            hwctx.room.remove(gate)


def _start(hwctx: Hwctx, job: Job, args: Any) -> None:
    """Gives the command its place and number and sends it. Holds the context's lock."""
    device = hwctx.device
    if hwctx.firmware is not None and not hwctx.broken:
        # Before the command has its place: what comes behind one that never ran would wait for it.
        device.watch()
        device.npu.prepare(hwctx.firmware)
    sequence = job.sequence = hwctx.sequence
    hwctx.sequence = sequence + 1
    jobs = hwctx.jobs
    now = device.clock()
    if not jobs:
        hwctx.head_since = now
    job.queued = True
    jobs.append(job)
    args.seq = sequence
    hwctx.timeline.add(sequence)
    if hwctx.firmware is None or hwctx.broken:
        finish(hwctx, job)
        return
    try:
        packet.set_state(job.command, State.NEW)
        with device.memory.lock:
            slots = packet.parse(job.command, hwctx.client.command_bo, device.kind.packet_words)
    except Rejected:
        device.log("packet rejected")
        finish(hwctx, job)
        return
    if hwctx.configure_at:
        # It meets a context whose CUs are not configured yet; the context does not recover from that.
        hwctx.broken = True
    device.progressed = now
    device.watch()
    if device.npu.submit(hwctx.firmware, slots, partial(answered, job)):
        finish(hwctx, job)


def finish(hwctx: Hwctx, job: Job) -> None:
    """Marks a job over; signals and settles what is over in order. Holds the context's lock."""
    # In an order that allows a second call after one that a signal's exception has left early.
    job.done = True
    jobs = hwctx.jobs
    over = list(takewhile(_is_done, jobs))
    if over:
        hwctx.head_since = hwctx.device.clock()
        hwctx.timeline.signal(over[-1].sequence)
        for each in over:
            each.settle()
            jobs.popleft()
        make_room(hwctx)


def make_room(hwctx: Hwctx) -> None:
    """Wakes the submitters that wait. Holds the context's lock."""
    while hwctx.room:
        hwctx.room.popleft().release()


def abort_all(hwctx: Hwctx) -> None:
    """Ends every command of a context that has been disconnected: ABORT."""
    with hwctx.lock:
        end_all(hwctx)


def end_all(hwctx: Hwctx, report: Health | None = None) -> None:
    """Ends every command: ABORT, but for the oldest a time-out with `report`, if given.

    Holds the context's lock.
    """
    for position, job in enumerate(list(hwctx.jobs)):
        if job.done:
            continue
        if position == 0 and report is not None:
            answers.timed_out(job, report)
        else:
            answers.dropped(job)
        hwctx.completions += 1
        finish(hwctx, job)
