"""Commands that are started again and again, contexts without an xclbin, register maps of any layout."""

from __future__ import annotations

import errno
import gc
import struct

import pytest

from amdxdna import errors, packet
from amdxdna._native import ffi, lib
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.opening import open_node
from amdxdna.packet import State
from amdxdna.reaper import reap
from amdxdna.restart import Restartable, RestartableChain
from amdxdna.xclbin import Xclbin, metadata, writer
from tests.support.binding import COPY, ProxyNode, copy_xclbin

WORDS = 256


def prepared(context, code, buffers, *, words=15, size=None):
    """A copy in MLIR_AIE's layout over `buffers`, in a map of `words` words."""
    head = packet.register_map(0, words)
    made = Restartable(context, head)
    struct.pack_into("<QQI", made.packet, 8, 3, code.address, code.nbytes if size is None else size)
    for index, buffer in enumerate(buffers):
        struct.pack_into("<Q", made.packet, 8 + 0x14 + 8 * index, buffer.address)
    return made


@pytest.fixture
def copy(device):
    """(context, instructions, source, target) of a copy that adds 1."""
    code = stream.copy(4 * WORDS, 1)
    instructions = device.alloc(len(code), "dev")
    instructions.write(code)
    source, target = device.alloc(4 * WORDS), device.alloc(4 * WORDS)
    source.view("u4")[:] = range(WORDS)
    source.to_device()
    with device.context(copy_xclbin()) as context:
        yield context, instructions, source, target


def test_started_again_with_other_arguments(device, copy):
    context, code, source, target = copy
    third = device.alloc(4 * WORDS)
    made = prepared(context, code, [source, target])
    assert made.state == State.NEW
    made.start([code, source, target]).wait(outputs=[target])
    assert made.state == State.COMPLETED
    assert target.view("u4").tolist() == list(range(1, WORDS + 1))
    struct.pack_into("<QQ", made.packet, 8 + 0x14, target.address, third.address)
    made.start([code, target, third]).wait(outputs=[third])
    assert third.view("u4").tolist() == list(range(2, WORDS + 2))


@pytest.mark.parametrize("words", [15, 26, 37, 45])
def test_maps_of_any_length(copy, words):
    context, code, source, target = copy
    extra = [target] * ((words - 5) // 2 - 2)
    prepared(context, code, [source, target, *extra], words=words).start([code, source, target]).wait(
        outputs=[target]
    )
    assert target.view("u4")[0] == 1


@pytest.mark.parametrize("per", [1, 4], ids=["bytes", "words"])
def test_the_instruction_size_in_bytes_or_words(copy, per):
    context, code, source, target = copy
    prepared(context, code, [source, target], size=code.nbytes // per).start([code, source, target]).wait(
        outputs=[target]
    )
    assert target.view("u4")[-1] == WORDS


@pytest.mark.parametrize("size", [4, 8, 16, 20])
def test_another_size_is_refused(copy, size):
    context, code, source, target = copy
    assert size not in (code.nbytes, code.nbytes // 4)
    with pytest.raises(errors.CommandFailed):
        prepared(context, code, [source, target], size=size).start([code, source, target]).wait()


def test_one_in_flight_is_not_started_again(device, copy, gate):
    context, _, source, target = copy
    slow = stream.program([stream.Delay(1), stream.Copy(4 * WORDS, 1)])
    code = device.alloc(len(slow), "dev")
    code.write(slow)
    made = prepared(context, code, [source, target])
    run = made.start([code, source, target])
    with pytest.raises(errors.BadArgument, match="in flight"):
        made.start([code, source, target])
    gate.open()
    run.wait()
    made.start([code, source, target]).wait()


def test_after_a_time_out_the_packet_is_whole_again(open_emu):
    opened = open_emu("hang=1,tdr=0.2")
    code_bytes = stream.copy(4 * WORDS, 1)
    code = opened.alloc(len(code_bytes), "dev")
    code.write(code_bytes)
    source, target = opened.alloc(4 * WORDS), opened.alloc(4 * WORDS)
    source.view("u4")[:] = 6
    source.to_device()
    with opened.context(copy_xclbin()) as context:
        made = prepared(context, code, [source, target])
        spent = made.ready()
        with pytest.raises(errors.CommandTimeout):
            made.start([code, source, target]).wait(60)
        assert made.state == State.TIMEOUT
        head = bytes(made.packet)
        again = made.ready()
        assert again is not spent  # which the driver may still write to
        assert bytes(again.packet[: len(head)]) == head
        with opened.context(copy_xclbin()) as fresh:
            again = Restartable(fresh, head)
            again.start([code, source, target]).wait(60, [target])
        assert bytes(made.packet) == head
    assert target.view("u4")[0] == 7


def test_a_dropped_one_gives_its_command_buffer_back(device, copy, gate):
    gate.addend = 2
    context, code, source, target = copy
    made = prepared(context, code, [source, target])
    first = made.ready()
    made.start([code, source, target]).wait()
    del made
    again = prepared(context, code, [source, target])
    assert again.ready() is first
    slow = stream.program([stream.Delay(1), stream.Copy(4 * WORDS, gate.addend)])
    longer = device.alloc(len(slow), "dev")
    longer.write(slow)
    flying = prepared(context, longer, [source, target])
    busy = flying.ready()
    run = flying.start([longer, source, target])
    del flying
    assert prepared(context, code, [source, target]).ready() is not busy
    gate.open()
    run.wait()


def test_one_that_is_dropped_in_a_cycle_gives_its_command_buffer_back_too():
    made: list[int] = []

    def count(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO:
            made.append(request)

    node = ProxyNode(open_node("emu:quiet,threads=1"), count)
    with Device.open(node) as device, device.context(copy_xclbin()) as context:
        counts = []
        for _ in range(10):
            cycle: list[object] = [Restartable(context, packet.register_map(0, 15))]
            cycle.append(cycle)
            del cycle
            gc.collect()
            counts.append(len(made))
    assert len(set(counts)) == 1, counts


def test_each_keeps_a_command_of_its_own(device, copy):
    """Also when its run is over: another one's start does not take it."""
    context, _, source, target = copy
    slow = stream.program([stream.Delay(100_000), stream.Copy(4 * WORDS, 1)])
    code = device.alloc(len(slow), "dev")
    code.write(slow)
    other = device.alloc(4 * WORDS)
    first = prepared(context, code, [source, target])
    first.start([code, source, target]).wait()
    second = prepared(context, code, [target, other])
    assert second.ready() is not first.ready()
    runs = [each.start([code, source, target, other]) for each in (first, second)]
    for run in runs:
        run.wait(outputs=[other])
    assert other.view("u4")[0] == 2


def test_nothing_of_an_earlier_packet_is_behind_a_shorter_one(copy):
    """Drivers up to Linux 6.18 copy 19 words whatever the count says."""
    context, code, source, target = copy
    long = prepared(context, code, [source, *[target] * 15], words=37)
    long.start([code, source, target]).wait()
    command = long.ready()
    del long
    short = prepared(context, code, [source, target])
    short.start([code, source, target]).wait()
    assert short.ready() is command
    assert bytes(command.packet[8 + 60 : 8 + 4 * 19]) == bytes(16)


def test_chains_of_restartables(copy, device):
    context, code, source, target = copy
    last = device.alloc(4 * WORDS)
    first, second = prepared(context, code, [source, target]), prepared(context, code, [target, last])
    chain = RestartableChain([first, second])
    for _ in range(3):
        chain.start([code, source, target, last]).wait(outputs=[last])
        assert last.view("u4")[0] == 2
    with pytest.raises(errors.BadArgument):
        RestartableChain([])
    other = Restartable(context, packet.start_npu(0, packet.Placed(code.address, code.nbytes)))
    with pytest.raises(errors.BadArgument, match="several opcodes"):
        RestartableChain([first, other]).start([code])


def test_the_longest_packet(copy):
    """A command buffer's 4 KiB, but for the 64 bytes behind it that are kept 0."""
    context, *_ = copy
    made = Restartable(context, bytes(4096 - 64))
    assert len(made.ready().packet) == 4096
    with pytest.raises(errors.BadArgument, match="At most 4032 fit"):
        Restartable(context, bytes(4096 - 63))


def held_code(device, addend):
    """Instructions of a copy that waits at the gate."""
    words = stream.program([stream.Delay(1), stream.Copy(4 * WORDS, addend)])
    code = device.alloc(len(words), "dev")
    code.write(words)
    return code


@pytest.fixture
def submitted(device, monkeypatch):
    """The handles of the command buffers that were submitted, in order."""
    found, node = [], device.node
    ioctl = node.ioctl

    def seen(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD:
            found.append(ffi.cast("struct amdxdna_drm_exec_cmd *", address).cmd_handles)
        return ioctl(request, address)

    monkeypatch.setattr(node, "ioctl", seen)
    return found


def handles(commands):
    """The handles of the command buffers of Restartables that are not in flight."""
    return {each.ready().buffer.handle for each in commands}


def test_a_chain_that_is_dropped_in_flight_keeps_its_commands_until_its_end(device, copy, gate, submitted):
    gate.addend = 2
    context, code, source, target = copy
    slow = held_code(device, gate.addend)
    last = device.alloc(4 * WORDS)
    members = [prepared(context, slow, [source, target]), prepared(context, code, [target, last])]
    chain = RestartableChain(members)
    flying = handles(members)
    run = chain.start([slow, code, source, target, last])
    flying |= set(submitted)
    assert len(flying) == 3
    del chain, members

    def more(count):
        made = [device.alloc(4 * WORDS) for _ in range(count)]
        return made, [prepared(context, code, [source, each]) for each in made]

    targets, again = more(3)
    at_once = handles(again)
    assert flying.isdisjoint(at_once)
    runs = [each.start([code, source, to]) for each, to in zip(again, targets, strict=True)]
    gate.open()
    run.wait(60, [last])
    assert last.view("u4").tolist() == [n + 3 for n in range(WORDS)]
    # All are back now, each once: these take them.
    more_targets, others = more(6)
    taken = at_once | handles(others)
    assert len(taken) == 9 and flying < taken
    for each, to in zip(others, more_targets, strict=True):
        runs.append(each.start([code, source, to]))
    for made, to in zip(runs, targets + more_targets, strict=True):
        made.wait(60, [to])
        assert to.view("u4").tolist() == list(range(1, WORDS + 1))


def test_a_run_that_is_in_a_chain_twice_gives_its_command_back_once(device, copy, gate):
    gate.addend = 2
    context, _, source, target = copy
    slow = held_code(device, gate.addend)
    twice = prepared(context, slow, [source, target])
    run = RestartableChain([twice, twice]).start([slow, source, target])
    del twice
    gc.collect()
    context.take().close()  # takes over what is dropped
    gate.open()
    run.wait(60)
    others = [prepared(context, slow, [source, target]) for _ in range(4)]
    assert len(handles(others)) == len(others)


def test_a_chain_whose_start_is_cut_short_leaves_nothing_to_who_takes_its_command(
    copy, monkeypatch, submitted
):
    context, code, source, target = copy
    member = prepared(context, code, [source, target])
    chain = RestartableChain([member])
    chain.start([code, source, target]).wait()
    (head,) = submitted
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(context, "submit", raising)
        chain.start([code, source, target])
    del chain
    again = prepared(context, code, [source, target])
    assert handles([again]) == {head}
    again.start([code, source, target]).wait(60, [target])
    assert target.view("u4").tolist() == list(range(1, WORDS + 1))
    del again
    others = [member, *(prepared(context, code, [source, target]) for _ in range(3))]
    assert len(handles(others)) == len(others)


def raising(*_):
    raise KeyboardInterrupt


def test_a_chain_in_flight_that_is_not_started_again_keeps_its_packets(device, copy, gate):
    gate.addend = 2
    context, code, source, target = copy
    slow = held_code(device, gate.addend)
    last, other = device.alloc(4 * WORDS), device.alloc(4 * WORDS)
    first, second = prepared(context, slow, [source, target]), prepared(context, code, [target, last])
    chain = RestartableChain([first, second])
    commands = [each.ready() for each in (first, second)]
    run = chain.start([slow, code, source, target, last])
    submitted = [bytes(each.packet) for each in commands]
    for each in (first, second):
        struct.pack_into("<Q", each.packet, 8 + 0x14 + 8, other.address)
    with pytest.raises(errors.BadArgument, match="in flight"):
        chain.start([slow, code, source, target, last, other])
    assert [bytes(each.packet) for each in commands] == submitted
    gate.open()
    run.wait(60, [last])
    assert last.view("u4").tolist() == [n + 3 for n in range(WORDS)]


def test_a_context_without_an_xclbin():
    """What the driver is asked for: tiles, no operations per cycle, and no CONFIG_HWCTX."""
    asked = []

    def look(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX:
            create = ffi.cast("struct amdxdna_drm_create_hwctx *", address)
            asked.append((create.num_tiles, create.max_opc))
        assert request != lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX

    with Device.open(ProxyNode(open_node("emu:quiet"), look)) as opened:
        with opened.context(None, columns=4) as context:
            assert context.handle and context.cus == ()
        assert asked == [(16, 0)]
        for columns in (0, 9):
            with pytest.raises(errors.BadArgument):
                opened.context(None, columns=columns)


def test_compute_units_in_the_metadatas_order():
    """IP_LAYOUT's order is the file's; the metadata's is what XRT numbers by."""
    file = Xclbin.read(
        writer.build(
            [writer.PdiSpec(COPY, (0x901, 0x902))],
            [writer.KernelSpec("A", 0x901, "a"), writer.KernelSpec("B", 0x902, "b")],
        )
    )
    found = metadata.read(file)
    assert [cu.name for cu in found.units(file)] == ["A:a", "B:b"]
    turned = metadata.Metadata(found.kernels[::-1], found.memories, found.connections)
    assert [cu.name for cu in turned.units(file)] == ["B:b", "A:a"]
    assert metadata.Metadata((), (), ()).units(file) == file.cus
    assert found.kernels[0].map_words == 15
    assert [found.bank(0, n) for n in (0, 1, 3)] == [None, 1, 0]
    with Device.open("emu:quiet,threads=1") as opened, opened.context(file, cus=turned.units(file)) as made:
        assert [cu.name for cu in made.cus] == ["B:b", "A:a"]
    reap()


def test_bounds_of_a_register_map():
    assert [len(packet.register_map(31, words)) for words in (4, 1010)] == [24, 4048]
    for words in (3, 1011):
        with pytest.raises(errors.BadArgument):
            packet.register_map(0, words)
    with pytest.raises(errors.BadArgument):
        packet.register_map(32, 15)
    assert packet.register_map(1, 15) == struct.pack("<II", 0x30000000 | 16 << 12 | 1, 2) + bytes(60)


def test_a_context_that_is_closed_gives_the_command_buffers_of_dropped_ones_back(device):
    device.alloc(64, "dev").close()  # the heap is there
    before = device.bo_usage()
    with device.context(copy_xclbin()) as context:
        Restartable(context, packet.register_map(0, 15))
        kept = Restartable(context, packet.register_map(0, 15))
        del kept
    assert device.bo_usage() == before


@pytest.mark.parametrize("raised", [OSError, KeyboardInterrupt])
def test_one_that_could_not_be_made_harms_no_other(raised):
    armed, kept = False, []

    def hook(request, address):
        if armed and request == lib.DRM_IOCTL_AMDXDNA_CREATE_BO:
            raise raised(errno.ENOMEM, "none")

    with Device.open(ProxyNode(open_node("emu:quiet"), hook)) as device:
        context = device.context(copy_xclbin())
        code = stream.copy(4 * WORDS, 1)
        instructions = device.alloc(len(code), "dev")
        instructions.write(code)
        source, target = device.alloc(4 * WORDS), device.alloc(4 * WORDS)
        source.view("u4")[:] = range(WORDS)
        for _ in range(3):
            armed = True
            with pytest.raises((errors.OutOfMemory, KeyboardInterrupt)):
                Restartable(context, packet.register_map(0, 15))
            armed = False
            made = prepared(context, instructions, [source, target])
            kept.append(made)  # a command that is given back would be taken
            target.view("u4")[:] = 0
            made.start([instructions, source, target]).wait(outputs=[target])
            assert target.view("u4").tolist() == list(range(1, WORDS + 1))
