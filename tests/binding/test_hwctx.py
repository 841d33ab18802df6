"""Hardware contexts: creation, refusals told apart, compute units, close."""

from __future__ import annotations

import errno
import gc
import os

import pytest

from amdxdna import errors, packet
from amdxdna._native import ffi, lib
from amdxdna.create_hwctx import QoS
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.hwctx import HwContext
from amdxdna.opening import open_node
from amdxdna.packet import State
from amdxdna.reaper import reap
from amdxdna.xclbin import Xclbin, writer
from tests.support import control_code
from tests.support.binding import COPY, ProxyNode, adder, copy_xclbin


def test_create_and_close(device):
    context = device.context(copy_xclbin())
    assert context.handle and context.syncobj
    context.close()
    context.close()
    assert device.contexts() == ()
    with pytest.raises(errors.Closed):
        context.run(packet.start_cu(0, 4096, 4, []))


def test_what_the_driver_is_asked_for():
    seen = {}

    def look(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX:
            create = ffi.cast("struct amdxdna_drm_create_hwctx *", address)
            qos = ffi.cast("struct amdxdna_qos_info *", create.qos_p)
            seen["create"] = (
                create.num_tiles,
                create.max_opc,
                create.mem_size,
                qos.gops,
                qos.fps,
                qos.dma_bandwidth,
                qos.latency,
                qos.frame_exec_time,
                qos.priority,
            )
        if request == lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX:
            config = ffi.cast("struct amdxdna_drm_config_hwctx *", address)
            cus = ffi.cast("struct amdxdna_hwctx_param_config_cu *", config.param_val)
            seen["cus"] = [(cus.cu_configs[i].cu_bo, cus.cu_configs[i].cu_func) for i in range(cus.num_cus)]
            seen["size"] = config.param_val_size

    xclbin = Xclbin.read(
        writer.build(
            [writer.PdiSpec(COPY, (0x901, 0x903)), writer.PdiSpec(pdi(Family.GEMM), (0x902,))],
            [
                writer.KernelSpec("A", 0x901, "a"),
                writer.KernelSpec("B", 0x902, "b", 2),
                writer.KernelSpec("C", 0x903, "c", 1),
            ],
            columns=3,
            ops_per_cycle=512,
        )
    )
    with (
        Device.open(ProxyNode(open_node("emu:quiet"), look)) as opened,
        opened.context(xclbin, QoS(11, 2, 3, 4, (1 << 32) - 1, lib.AMDXDNA_QOS_HIGH_PRIORITY)),
    ):
        pass
    assert seen["create"] == (3 * 4, 512, 0, 11, 2, 3, 4, (1 << 32) - 1, 0x180)
    for wrong in ({"fps": 1 << 32}, {"latency": -1}):
        with pytest.raises(errors.BadArgument, match=next(iter(wrong))):
            QoS(**wrong)
    first, second, third = seen["cus"]
    assert seen["size"] == 8 + 3 * 8
    assert first[0] == third[0] != second[0]
    assert [cu[1] for cu in seen["cus"]] == [0, 2, 1]


def test_every_cu_of_every_pdi_runs(device):
    """A copy CU behind a GEMM CU: the CU index in the packet picks the PDI."""
    xclbin = Xclbin.read(
        writer.build(
            [writer.PdiSpec(pdi(Family.GEMM), (0x901,)), writer.PdiSpec(COPY, (0x902,))],
            [writer.KernelSpec("GEMM", 0x901, "g"), writer.KernelSpec("COPY", 0x902, "c")],
        )
    )
    kernel = device.pool.kernel(xclbin, stream.copy(64, 5), name="COPY")
    source, result = device.alloc(64), device.alloc(64)
    source.view("u4")[:] = 37
    kernel.run(source, result, outputs=[result])
    assert result.view("u4").tolist() == [42] * 16
    wrong = device.pool.kernel(xclbin, stream.copy(64, 5), name="GEMM")
    with pytest.raises(errors.CommandFailed):
        wrong.run(source, result)


def test_transactions_run_with_their_arguments_in_the_packet(device):
    """The firmware's own patching (DDR_PATCH); the size in words, as some programs give it, is right too."""
    source, result, insts = device.alloc(8192), device.alloc(8192), device.alloc(4096, "dev")
    code = control_code.carrier(stream.copy(4096, 3), offsets=(0, 64)).code
    insts.write(code)
    source.write(bytes(8192))
    for size in (len(code), len(code) // 4):
        result.write(b"\xff" * 8192)
        with device.context(copy_xclbin()) as context:
            words = packet.start_cu(0, insts.address, size, [source.address, result.address])
            context.run(words, [source, result, insts]).wait()
        assert result.read(60, 8) == b"\xff\xff\xff\xff\3\0\0\0"


# Refusals: all are EINVAL on the wire


@pytest.mark.parametrize("minor", [10, 4, 3, 1, 0])
def test_no_free_context_names_the_holders(open_emu, minor):
    """With resource info (minor 4), with GET_ARRAY alone, with QUERY_HW_CONTEXTS alone."""
    opened = open_emu(f"slots=2,minor={minor}")
    keep = [opened.context(copy_xclbin(i)) for i in range(2)]
    with pytest.raises(errors.NoFreeContext) as caught:
        opened.context(copy_xclbin(2))
    assert caught.value.errno == errno.EINVAL
    assert caught.value.holders == ((os.getpid(), 2),)
    assert "this process holds 2" in str(caught.value)
    keep[0].close()
    opened.context(copy_xclbin(2)).close()


def test_contexts_of_another_process_are_reported(open_emu):
    with pytest.raises(errors.NoFreeContext) as caught:
        open_emu("slots=3,held_slots=3").context(copy_xclbin())
    ((pid, count),) = caught.value.holders
    assert pid != os.getpid() and count == 3 and "all 3" in str(caught.value)


def test_other_refusals_are_not_called_a_full_device(open_emu):
    opened = open_emu("refuse=1-3:0x4000003")
    with pytest.raises(errors.ContextRefused, match="0 of 16") as caught:
        opened.context(copy_xclbin())
    assert "0x2000003 means it has no context left" in str(caught.value)
    opened.context(copy_xclbin()).close()


def test_a_slot_freed_in_between_is_taken(open_emu):
    """The firmware said "full", twice, but by the time the driver is asked it no longer is."""
    opened = open_emu("refuse=1-2:0x2000003")
    opened.context(copy_xclbin()).close()


def test_a_context_needs_room_in_the_heap_for_four_buffers_of_its_own(open_emu):
    """32 KiB each (aie2_ctx.c); the heap is enlarged for them where it can be."""
    opened = open_emu()
    room = opened.alloc((64 << 20) - (96 << 10), "dev", flush=False)
    most, opened.heap.limit = opened.heap.limit, opened.heap.size
    with pytest.raises(errors.OutOfHeap) as caught:
        opened.context(None, columns=8)
    assert (caught.value.call, caught.value.requested) == ("CREATE_HWCTX", 128 << 10)
    opened.heap.limit = most
    opened.context(None, columns=8).close()
    assert opened.heap.size == 128 << 20
    room.close()


def test_without_resource_info_no_context_at_all_means_another_refusal(open_emu):
    with pytest.raises(errors.ContextRefused):
        open_emu("minor=1,refuse=*:0x4000003").context(copy_xclbin())


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENODEV, errors.DeviceLost),
        (errno.EBUSY, errors.NoFreeContext),
        (errno.ETIME, errors.DeviceLost),
        (errno.ENOMEM, errors.OutOfMemory),
    ],
)
def test_errnos_the_emulator_does_not_give(code, error):
    def refuse(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CREATE_HWCTX:
            raise OSError(code, os.strerror(code))

    with Device.open(ProxyNode(open_node("emu:quiet"), refuse)) as opened:
        with pytest.raises(error) as caught:
            opened.context(copy_xclbin())
        assert caught.value.errno == code
        assert opened.bo_usage().heap == 0  # its PDIs are given back


def test_a_failed_configuration_leaves_no_context():
    def refuse(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX:
            raise OSError(errno.EINVAL, "no")

    with Device.open(ProxyNode(open_node("emu:quiet"), refuse)) as opened:
        with pytest.raises(errors.BadArgument):
            opened.context(copy_xclbin())
        assert opened.contexts() == ()


def test_checks_before_the_driver_is_asked(open_emu):
    opened = open_emu("columns=4")
    with pytest.raises(errors.BadArgument, match="8 columns, the device has 4"):
        opened.context(copy_xclbin())
    for make in (opened.context, lambda _: HwContext(opened.client, None)):
        with pytest.raises(errors.BadArgument, match="0 columns"):
            make(None)
    opened.context(None, columns=1).close()
    most, many = (
        Xclbin.read(
            writer.build(
                [writer.PdiSpec(COPY, tuple(range(count)))],
                [writer.KernelSpec(f"K{i}", i, "x") for i in range(count)],
                columns=4,
            )
        )
        for count in (32, 33)
    )
    opened.context(most).close()
    with pytest.raises(errors.BadArgument, match="33 compute units"):
        opened.context(many)


# Lifetime


def test_the_pdis_stay_open_with_the_context(device):
    context = device.context(copy_xclbin())
    gc.collect()
    reap()
    in_use = device.bo_usage().heap
    assert in_use >= len(COPY)
    context.close()
    assert device.bo_usage().heap < in_use


def test_a_dropped_context_is_destroyed_at_the_next_use(device):
    context = device.context(copy_xclbin())
    assert len(device.contexts()) == 1
    del context
    gc.collect()
    device.alloc(64)
    assert device.contexts() == ()


def test_a_dropped_context_with_a_command_in_flight_is_left_to_the_node(open_emu):
    """Destroying it would block for a hung command, which no finalizer may do."""
    requests = []

    def look(request, address):
        requests.append(request)

    opened = Device.open(ProxyNode(open_node("emu:quiet,tdr=600"), look))
    context = opened.context(copy_xclbin())
    insts = opened.alloc(64, "dev")
    code = stream.hang()
    insts.write(code)
    run = context.run(packet.start_cu(0, insts.address, len(code), []), [insts])
    del context, run
    gc.collect()
    requests.clear()
    opened.alloc(64)
    assert lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX not in requests
    opened.close()


def test_close_waits_for_the_commands_in_flight(device):
    source, result = device.alloc(64), device.alloc(64)
    view = result.view("u4")
    view[:] = 0
    source.write(bytes(64))
    insts = device.alloc(4096, "dev")
    code = stream.program([stream.Delay(100_000), stream.Copy(64, 9)])
    insts.write(code)
    context = device.context(copy_xclbin())
    run = context.run(
        packet.start_cu(0, insts.address, len(code), [source.address, result.address]),
        [source, result, insts],
    )
    context.close()
    assert view.tolist() == [9] * 16
    assert run.wait().state is State.COMPLETED


def test_close_ends_a_hung_command(open_emu):
    opened = open_emu("tdr=0.2")
    context = opened.context(copy_xclbin())
    insts = opened.alloc(64, "dev")
    code = stream.hang()
    insts.write(code)
    run = context.run(packet.start_cu(0, insts.address, len(code), []), [insts])
    context.close()
    with pytest.raises(errors.CommandFailed):
        run.wait()
    assert opened.contexts() == ()


def test_a_context_the_driver_cannot_destroy_is_closed_all_the_same():
    refusing = []

    def refuse(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX and refusing:
            raise OSError(errno.EIO, "gone")

    with Device.open(ProxyNode(open_node("emu:quiet"), refuse)) as opened:
        first, second = adder(opened, 64, 1), adder(opened, 64, 2, variant=1)
        a, b = opened.alloc(64), opened.alloc(64)
        first.run(a, b)
        second.run(a, b)
        contexts = [first.shared.context, second.shared.context]
        refusing.append(True)
        with pytest.raises(errors.DeviceLost):
            opened.pool.close()
        assert [context.handle for context in contexts] == [0, 0]
        for context in contexts:
            context.close()


def test_what_ran_in_a_context_the_driver_cannot_destroy_is_over(monkeypatch):
    """Nobody can tell how it ended, and nobody waits for it: it counts as ended with the context."""
    refusing = []

    def refuse(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX and refusing:
            raise OSError(errno.EIO, "gone")

    with Device.open(ProxyNode(open_node("emu:quiet,threads=1,tdr=600"), refuse)) as opened:
        context = opened.context(copy_xclbin())
        insts, code = opened.alloc(64, "dev"), stream.hang()
        insts.write(code)
        run = context.run(packet.start_cu(0, insts.address, len(code), []), [insts])
        monkeypatch.setattr(type(context), "drain", lambda _: False)
        refusing.append(True)
        with pytest.raises(errors.DeviceLost):
            context.close()
        assert run.done and run.state is State.ABORT
        with pytest.raises(errors.CommandFailed) as caught:
            run.wait()
        assert caught.value.state is State.ABORT


def test_a_packet_longer_than_its_buffer(device):
    with device.context(copy_xclbin()) as context:
        with pytest.raises(errors.BadArgument, match="4097 bytes"):
            context.run(bytes(4097))
        with pytest.raises(errors.CommandRejected):
            context.run(bytes(4096)).wait()


@pytest.mark.parametrize("count", [0, 10, 11, 12, 13, 16, 17, 40])
def test_a_submit_lists_any_number_of_buffers(count):
    listed = []

    def look(request, address):
        if request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD:
            cmd = ffi.cast("struct amdxdna_drm_exec_cmd *", address)
            handles = ffi.cast("uint32_t *", cmd.args)
            listed.extend(handles[at] for at in range(cmd.arg_count))

    with (
        Device.open(ProxyNode(open_node("emu:quiet,threads=1"), look)) as opened,
        opened.context(copy_xclbin()) as context,
    ):
        buffers = [opened.alloc(64) for _ in range(count)]
        with pytest.raises(errors.CommandRejected):
            context.run(bytes(64), [*buffers, *buffers]).wait()
        assert listed == [buffer.handle for buffer in buffers]


@pytest.mark.parametrize(
    "words",
    [
        (5 << 23) | 11 << 12 | 1,  # an opcode nobody knows
        (0 << 23) | 0x7FF << 12 | 1,  # a count beyond the buffer
        0,
    ],
    ids=["opcode", "count", "zero"],
)
def test_packets_the_driver_drops(device, words):
    """They "succeed": submit and wait return 0, and the state stays NEW."""
    with device.context(copy_xclbin()) as context:
        run = context.run(words.to_bytes(4, "little") + bytes(64))
        with pytest.raises(errors.CommandRejected) as caught:
            run.wait()
        assert caught.value.state == State.NEW == run.state
        assert context.broken
