"""Commands: results, order, queue depth, chains, refused and failing packets."""

from __future__ import annotations

import errno
import threading

from amdxdna._native import lib
from amdxdna.emu.kernels import stream

from .kit import (
    CHAIN,
    COMPLETED,
    ERROR,
    NEW,
    START_CU,
    START_NPU,
    Bo,
    Ready,
    Target,
    case,
    fails,
    header,
    in_time,
    state,
)

FAILED = 0xFFFFFFFF
INVALID_INSTRUCTION = 0x3000002


@case()
def copy(t: Target) -> None:
    """A command runs, its packet says so, and nothing else of the packet changes."""
    ready = t.ready()
    packet = ready.pack(stream.copy(4096, 1), ready.source.device, ready.destination.device)
    before = list(packet.words()[:12])
    assert ready.copy() == COMPLETED
    after = list(packet.words()[:12])
    assert after == [before[0] & ~15 | COMPLETED, *before[1:]]


@case()
def sequence_numbers(t: Target) -> None:
    """A context's commands count from 0; waiting for one is waiting for all before it."""
    ready = t.ready()
    program = stream.copy(4096, 1)
    buffers = ready.source.device, ready.destination.device
    seqs = []
    for _ in range(3):
        seqs.append(ready.start(program, *buffers))
        ready.wait(ready.syncobj, seqs[-1])
    assert seqs == [0, 1, 2]
    ready.wait(ready.syncobj, 0)
    _, other = ready.new_context()
    with fails(errno.ETIME):
        ready.wait(other, 0, 0.05)


@case()
def start_npu(t: Target) -> None:
    """START_NPU carries the instruction stream in its own words, before the kernel's."""
    ready = t.ready()
    code = ready.load(stream.copy(4096, 1))
    size = len(stream.copy(4096, 1))
    words = [1, code.device, 0, size, 0, 3, 0, code.device, 0, size]
    for bo in (ready.source, ready.destination):
        words += [bo.device & 0xFFFFFFFF, bo.device >> 32]
    ready.raw(ready.command, header(START_NPU, len(words)), *words)
    ready.wait(ready.syncobj, ready.submit(ready.hwctx, ready.command.handle))
    assert state(ready.command) == COMPLETED
    ready.check_copy(ready.destination)


@case(protocol=(6, 12))
def older_protocol(t: Target) -> None:
    """Firmware that speaks 6.12 gets the older command lists: the same results."""
    ready = t.ready()
    for _ in range(2):
        assert ready.copy() == COMPLETED
    assert _chain(ready, [stream.copy(4096, 1)] * 3) == COMPLETED
    ready.check_copy(ready.destination)


def _commands(ready: Ready, count: int) -> list[tuple[Bo, Bo]]:
    return [(ready.bo(0x1000, lib.AMDXDNA_BO_CMD), ready.dev(0x1000)) for _ in range(count)]


@case()
def four_in_flight(t: Target) -> None:
    """Four commands of a context are accepted at once; the fifth submit waits for the first to end."""
    slots: list[tuple[Bo, Bo]] = []

    def four(ready: Ready, long: bytes) -> bool:
        """The first four submits do not block."""
        slots[:] = _commands(ready, 6)
        for number, (command, code) in enumerate(slots[:4]):
            ready.start(stream.delay(10_000) if number else long, command=command, code=code)
        return state(slots[0][0]) == NEW

    ready = in_time(t, four)
    for number, (command, code) in enumerate(slots[4:], 4):
        seq = ready.start(stream.delay(10_000), command=command, code=code)
        if number == 4:
            assert state(slots[0][0]) == COMPLETED, "the fifth submit did not block"
    ready.wait(ready.syncobj, seq)
    assert [state(command) for command, _ in slots] == [COMPLETED] * 6


@case()
def submits_from_two_threads(t: Target) -> None:
    """Two threads may submit to one context; every command runs once."""
    ready = t.ready()
    errors: list[BaseException] = []

    def work(target: Bo, command: Bo, code: Bo) -> None:
        try:
            for _ in range(5):
                seq = ready.start(
                    stream.copy(4096, 1), ready.source.device, target.device, command=command, code=code
                )
                ready.wait(ready.syncobj, seq)
                assert state(command) == COMPLETED
        except BaseException as error:
            errors.append(error)

    targets = [ready.bo(4096) for _ in range(2)]
    threads = [
        threading.Thread(target=work, args=(target, *slot))
        for target, slot in zip(targets, _commands(ready, 2), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for target in targets:
        ready.check_copy(target)
    (entry,) = ready.contexts()
    assert (entry.command_submissions, entry.command_completions) == (10, 10)


# -- chains


def _chain(ready: Ready, programs: list[bytes], members: list[Bo] | None = None) -> int:
    """Runs a chain whose members copy source to destination; the chain's state. Fills `members`."""
    handles = []
    for program, (command, code) in zip(programs, _commands(ready, len(programs)), strict=True):
        ready.pack(program, ready.source.device, ready.destination.device, command=command, code=code)
        handles.append(command.handle)
        if members is not None:
            members.append(command)
    words = [len(handles), 0, 0, 0, 0, 0]
    for handle in handles:
        words += [handle, 0]
    ready.raw(ready.command, header(CHAIN, len(words)), *words)
    ready.wait(ready.syncobj, ready.submit(ready.hwctx, ready.command.handle))
    return state(ready.command)


@case()
def chain(t: Target) -> None:
    """A chain runs its members in order with one reply; the members' own packets keep their state."""
    ready = t.ready()
    members: list[Bo] = []
    programs = [stream.copy(4096, addend) for addend in (9, 5, 1)]
    assert _chain(ready, programs, members) == COMPLETED
    ready.check_copy(ready.destination)
    assert [state(member) for member in members] == [NEW] * 3


@case()
def chain_of_one(t: Target) -> None:
    """The shortest chain."""
    ready = t.ready()
    assert _chain(ready, [stream.copy(4096, 1)]) == COMPLETED
    ready.check_copy(ready.destination)


@case()
def long_chain(t: Target) -> None:
    """As many members as one 4 KiB command list holds."""
    ready = t.ready()
    assert _chain(ready, [stream.copy(4096, 1)] * 24) == COMPLETED
    ready.check_copy(ready.destination)


@case()
def failing_chain(t: Target) -> None:
    """A chain stops at the member that fails; the chain's packet names its index."""
    ready = t.ready()
    members: list[Bo] = []
    programs = [stream.copy(4096, 1), stream.fail(INVALID_INSTRUCTION), stream.copy(4096, 5)]
    assert _chain(ready, programs, members) == ERROR
    assert ready.command.words()[3] == 1, "error index"
    ready.check_copy(ready.destination)


@case()
def chain_after_a_failure(t: Target) -> None:
    """A failure does not harm the context."""
    ready = t.ready()
    assert _chain(ready, [stream.fail(INVALID_INSTRUCTION)]) == ERROR
    assert ready.copy() == COMPLETED


@case()
def chain_refused(t: Target) -> None:
    """A chain of nothing, or with a handle that is no command BO, ends unrun with its state unchanged."""
    ready = t.ready()
    for words in ([0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 4242, 0]):
        ready.raw(ready.command, header(CHAIN, len(words)), *words)
        ready.wait(ready.syncobj, ready.submit(ready.hwctx, ready.command.handle))
        assert state(ready.command) == NEW


# -- packets that do not run


@case()
def failing_command(t: Target) -> None:
    """Firmware's refusal is state ERROR and a payload of ones."""
    ready = t.ready()
    assert ready.run(stream.fail(INVALID_INSTRUCTION)) == ERROR
    count = ready.command.words()[0] >> 12 & 0x7FF
    assert list(ready.command.words()[1 : 1 + count]) == [FAILED] * count
    assert ready.copy() == COMPLETED


@case()
def wrong_addresses(t: Target) -> None:
    """Memory that the context cannot reach is an error of that command."""
    ready = t.ready()
    assert ready.run(stream.copy(4096, 1), 0x1000, ready.destination.device) == ERROR
    assert ready.run(stream.copy(4096, 1), ready.source.device, 0x1000) == ERROR
    packet = ready.pack(stream.copy(4096, 1), ready.source.device, ready.destination.device)
    packet.words()[4] = 0x3FFF000
    ready.wait(ready.syncobj, ready.submit(ready.hwctx, packet.handle))
    assert state(packet) == ERROR
    assert ready.copy() == COMPLETED


@case()
def before_configuration(t: Target) -> None:
    """A context without CUs refuses commands, and takes them once it has."""
    ready = t.ready()
    context = ready.context()
    assert ready.copy(context) == ERROR
    ready.configure(context[0], ready.pdi.handle)
    assert ready.copy(context) == COMPLETED


@case()
def foreign_pdi(t: Target) -> None:
    """A PDI that the array cannot run is an error of the command, not of the configuration."""
    ready = t.ready()
    context = ready.context()
    ready.configure(context[0], ready.dev(0x1000, b"\\xab" * 64).handle)
    assert ready.copy(context) == ERROR


@case()
def several_cus(t: Target) -> None:
    """The CU mask picks one of the configured CUs; one that is not there is an error."""
    ready = t.ready()
    other = ready.dev(0x1000, b"\\xab" * 64)
    context = ready.context()
    ready.configure(context[0], other.handle, ready.pdi.handle)
    for mask, expected in ((1, ERROR), (2, COMPLETED), (1 << 9, ERROR)):
        packet = ready.pack(stream.copy(4096, 1), ready.source.device, ready.destination.device)
        packet.words()[1] = mask
        packet.flush()
        ready.wait(context[1], ready.submit(context[0], packet.handle))
        assert state(packet) == expected, f"CU mask {mask:#x}"


@case()
def rejected_packets(t: Target) -> None:
    """The driver rejects a malformed packet quietly: submit and wait succeed and its state stays NEW."""
    ready = t.ready()
    good = ready.pack(stream.copy(4096, 1), ready.source.device, ready.destination.device)
    words = list(good.words()[:12])
    packets = {
        "all zero": [0] * 12,
        "opcode 5": [words[0] | 5 << 23, *words[1:]],
        "CU mask 0": [words[0], 0, *words[2:]],
        "START_NPU, count beyond the BO": [header(START_NPU, 2000), *words[1:]],
        "START_NPU, 27 argument words": [header(START_NPU, 1 + 4 + 27), *words[1:]],
        "START_NPU too short": [header(START_NPU, 3), *words[1:]],
        "START_DPU": [header(18, 11), *words[1:]],
    }
    for name, packet in packets.items():
        ready.raw(ready.command, *packet)
        ready.wait(ready.syncobj, ready.submit(ready.hwctx, ready.command.handle))
        assert state(ready.command) == NEW, f"{name}: header {ready.command.words()[0]:#x}"
    assert ready.copy() == COMPLETED


@case()
def count_beyond_the_bo(t: Target) -> None:
    """A START_CU packet longer than its BO goes to the firmware without arguments, which refuses it."""
    ready = t.ready()
    packet = ready.pack(stream.copy(4096, 1), ready.source.device, ready.destination.device)
    packet.words()[0] = header(START_CU, 2000)
    packet.flush()
    ready.wait(ready.syncobj, ready.submit(ready.hwctx, packet.handle))
    assert state(packet) == ERROR


@case()
def argument_words(t: Target) -> None:
    """START_CU carries as many argument words as its kernel has: 37 are the sixteen buffers of mlir-aie's
    designs (tools/aiecc/SidecarFiles.h)."""
    ready = t.ready()
    for words in (27, 38):
        packet = ready.pack(stream.copy(4096, 1), ready.source.device, ready.destination.device)
        packet.words()[0] = header(START_CU, words)
        packet.flush()
        ready.wait(ready.syncobj, ready.submit(ready.hwctx, packet.handle))
        assert state(packet) == COMPLETED, f"{words - 1} argument words"


@case()
def bo_list(t: Target) -> None:
    """A command's BOs are each named once."""
    ready = t.ready()
    packet = ready.pack(stream.copy(4096, 1), ready.source.device, ready.destination.device)
    with fails(errno.EALREADY):
        ready.submit(ready.hwctx, packet.handle, ready.source.handle, ready.source.handle)
    with fails(errno.ENOENT):
        ready.submit(ready.hwctx, packet.handle, 9999)
    ready.wait(
        ready.syncobj, ready.submit(ready.hwctx, packet.handle, ready.source.handle, ready.destination.handle)
    )
    ready.check_copy(ready.destination)


@case()
def relative_timeout(t: Target) -> None:
    """A wait's timeout is an absolute time: one in the past is ETIME at once."""

    def at_once(ready: Ready, long: bytes) -> bool:
        """A wait until a time in the past."""
        ready.start(long)
        return not ready.over(0, -1)

    ready = in_time(t, at_once)
    ready.wait(ready.syncobj, 0)
