"""Command chains."""

from __future__ import annotations

import numpy as np
import pytest

from amdxdna import errors, packet
from amdxdna._native import ffi, lib
from amdxdna.chain import Staged, start_chain
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.stream import Copy, Fail
from amdxdna.marks import Marks
from amdxdna.opening import open_node
from amdxdna.packet import State
from tests.support.binding import ProxyNode, adder, copy_xclbin, flushes, hanging, numbers


def test_a_chain_runs_in_order(device):
    step = adder(device, 64, 1)
    double = adder(device, 64, 10)
    a, b, c = numbers(device, 16), device.alloc(64), device.alloc(64)
    run = device.pool.chain([(step, (a, b)), (double, (b, c)), (step, (c, a))])
    run.wait(outputs=[a])
    np.testing.assert_array_equal(a.view("u4"), np.arange(16) + 12)
    assert run.state is State.COMPLETED


def test_a_chain_flushes_what_is_not_clean_unless_told_otherwise(device, monkeypatch):
    kernel = adder(device, 64, 1)
    a, b = numbers(device, 16), device.alloc(64)
    device.pool.chain([(kernel, (a, b))] * 2).wait()  # the commands are there
    seen = flushes(monkeypatch)
    for options, flushed in (({}, [(a.host_address, 64)]), ({"flush": False}, [])):
        for start in (device.pool.chain, start_chain, lambda calls, **o: Staged(calls).start(**o)):
            start([(kernel, (a, b))] * 2, **options).wait()
            assert seen == flushed
            seen.clear()


def test_a_chains_command_buffers_are_used_again(device):
    kernel = adder(device, 64, 0)
    a, b = numbers(device, 16), device.alloc(64)
    device.pool.chain([(kernel, (a, b))] * 4).wait()
    usage = device.bo_usage().total
    for _ in range(10):
        device.pool.chain([(kernel, (a, b))] * 4).wait()
    assert device.bo_usage().total == usage


def test_the_failing_member_of_a_chain_is_named(device):
    good = adder(device, 64, 1)
    bad = device.pool.kernel(copy_xclbin(), stream.program([Copy(64, 5), Fail(0x3000002)]))
    a, b, c = numbers(device, 16), device.alloc(64), device.alloc(64)
    c.view()[:] = 0
    run = device.pool.chain([(good, (a, b)), (bad, (a, b)), (good, (a, c))])
    with pytest.raises(errors.CommandFailed, match="member 1 of 3") as caught:
        run.wait()
    assert caught.value.index == 1
    assert not c.view().any()  # what is behind the failure does not run
    device.pool.chain([(good, (a, b))]).wait()
    for count in (1, 2):
        with pytest.raises(errors.CommandFailed) as caught:
            device.pool.chain([(good, (a, b)), (bad, (a, b))][-count:]).wait()
        assert ("member 1 of 2" in str(caught.value), "chain" in str(caught.value)) == (count == 2,) * 2
        assert caught.value.index == count - 1
        device.pool.unload()


def test_a_chain_that_hangs(open_emu):
    opened = open_emu("tdr=0.2")
    good, bad = adder(opened, 64, 1), hanging(opened)
    a, b = numbers(opened, 16), opened.alloc(64)
    with pytest.raises(errors.CommandTimeout) as caught:
        opened.pool.chain([(good, (a, b)), (bad, (a, b))]).wait()
    assert isinstance(caught.value.health, packet.Health)
    opened.pool.chain([(good, (a, b))]).wait()


def test_the_longest_chain(device):
    kernel = adder(device, 4, 1)
    cells = numbers(device, 36)
    limit = packet.chain_limit(packet.START_CU_WORDS[2])
    assert limit == 35
    parts = [cells.sub(4 * i, 4) for i in range(limit + 1)]
    calls = [(kernel, (parts[i], parts[i + 1])) for i in range(limit)]
    device.pool.chain(calls).wait()
    np.testing.assert_array_equal(cells.view("u4"), np.arange(36))
    with pytest.raises(errors.BadArgument, match="35"):
        device.pool.chain([*calls, calls[0]])


def test_chains_that_cannot_be(device):
    one, other = adder(device, 64, 1), adder(device, 64, 1, variant=1)
    a = device.alloc(64)
    with pytest.raises(errors.BadArgument, match="several xclbins"):
        device.pool.chain([(one, (a, a)), (other, (a, a))])
    with pytest.raises(errors.BadArgument, match="without runs"):
        device.pool.chain([])


@pytest.mark.parametrize("single", [False, True])
def test_a_staged_start_takes_what_its_buffers_hold_then(device, single):
    kernel = adder(device, 64, 1)
    a, b = numbers(device, 16), device.alloc(64)
    usage = 0
    for round_ in range(4):
        staged = Staged([(kernel, (a, b))], single)
        a.view("u4")[:] = np.arange(16) + 100 * round_
        staged.start().wait(outputs=[b])
        np.testing.assert_array_equal(b.view("u4"), np.arange(16) + 100 * round_ + 1)
        usage = usage or device.bo_usage().total
        assert device.bo_usage().total == usage


@pytest.mark.parametrize(
    ("calls", "single", "opcode"),
    [
        (1, True, packet.Opcode.START_CU),
        (1, False, packet.Opcode.CMD_CHAIN),
        (2, True, packet.Opcode.CMD_CHAIN),
    ],
)
def test_one_call_alone_may_go_as_a_command_of_its_own(calls, single, opcode):
    submitted = []

    def look(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD:
            handle = ffi.cast("struct amdxdna_drm_exec_cmd *", address).cmd_handles
            words = node.inner.client.handles[handle].words()
            submitted.append(packet.opcode_of(int.from_bytes(words[:4], "little")))

    node = ProxyNode(open_node("emu:quiet,threads=1"), look)
    with Device.open(node) as device:
        kernel = adder(device, 64, 1)
        cells = [numbers(device, 16), device.alloc(64), device.alloc(64)]
        Staged([(kernel, tuple(cells[n : n + 2])) for n in range(calls)], single).start().wait(outputs=cells)
        assert submitted == [opcode]
        np.testing.assert_array_equal(cells[calls].view("u4"), np.arange(16) + calls)


@pytest.mark.parametrize("single", [False, True])
def test_a_staged_start_whose_context_is_given_up_meanwhile(device, single):
    kernel = adder(device, 64, 1)
    a, b = numbers(device, 16), device.alloc(64)
    kernel.run(a, b)
    staged = Staged([(kernel, (a, b))], single)
    assert device.pool.unload() == 1
    staged.start().wait(outputs=[b])
    assert device.pool.loads == 2
    np.testing.assert_array_equal(b.view("u4"), np.arange(16) + 1)


def test_what_is_staged_and_not_started_is_given_back(device):
    kernel = adder(device, 64, 1)
    a, b = numbers(device, 16), device.alloc(64)
    kernel.run(a, b)
    before = device.bo_usage().total
    staged = Staged([(kernel, (a, b))] * 3)
    staged.drop()
    staged.drop()
    assert device.bo_usage().total <= before
    staged = Staged([(kernel, (a, b))], True)
    b.close()
    with pytest.raises(errors.Closed, match="buffer"):
        staged.start()
    kernel.close()
    with pytest.raises(errors.Closed, match="kernel"):
        staged.start()


def test_marks_show_what_was_not_run_though_it_is_called_completed(open_emu):
    opened = open_emu("chain_skip=2")
    kernel = adder(opened, 64, 1)
    a, results = numbers(opened, 16), [opened.alloc(64) for _ in range(3)]
    clean = [result.clean for result in results]
    marks = Marks((result, at) for result in results for at in (0, 62))
    assert [result.clean for result in results] == clean
    for left in (0, 4):
        marks.put()
        assert marks.left() == 6
        run = opened.pool.chain([(kernel, (a, result)) for result in results]).wait(None, results)
        assert run.state is State.COMPLETED and marks.left() == left
    marks.put(1)
    assert (marks.left(), marks.left(1)) == (0, 6)
    for result in results:
        kernel.run(a, result, outputs=[result])
        np.testing.assert_array_equal(result.view("u4"), np.arange(16) + 1)
    assert marks.left(1) == 0


def test_marks_that_cannot_be(device):
    buffer = device.alloc(64)
    for at in (-2, 1, 63, 64):
        with pytest.raises(errors.BadArgument, match=f"byte {at} "):
            Marks([(buffer, at)])
    for nbytes in (0, 65):
        with pytest.raises(errors.BadArgument, match=f"{nbytes} bytes of 64"):
            Marks([], [(buffer, nbytes)])
    marks = Marks([(buffer, 62)], [(buffer, 64)])
    buffer.close()
    marks.put()  # the memory stays while it is marked
    assert marks.left() == 1
    with pytest.raises(errors.Closed):
        Marks([(buffer, 0)])
