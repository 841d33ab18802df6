"""`pyxrt` with control code in ELF files: programs in the shape of public ones, and lifetimes."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref

import numpy as np
import pytest

import amdxdna.pyxrt as pyxrt
from amdxdna.emu.kernels import stream
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.pyxrt import devices
from tests.support import control_code
from tests.support.binding import flushes
from tests.support.program import python

TO = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
FROM = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
BYTES = 4096
COUNT = BYTES // 4


def buffers(device, count=2, nbytes=2 * BYTES):
    made = [pyxrt.ext.bo(device, nbytes) for _ in range(count)]
    for bo in made:
        np.frombuffer(bo.map(), np.uint32)[:] = np.arange(nbytes // 4)
        bo.sync(TO)
    return made


def words(bo, first=0):
    bo.sync(FROM)
    return np.frombuffer(bo.map(), np.uint32)[first : first + COUNT]


@pytest.mark.parametrize("kind", ["fifo", "device", "sparse", "folder"])
def test_what_is_no_file_of_a_size_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "code.elf"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    where = "/dev/zero" if kind == "device" else str(path)
    # In a child of little memory and time: what waits or reads without end must not take this process along.
    code = (
        "import resource, signal, sys, amdxdna.pyxrt as p\nsignal.alarm(300)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "try: p.elf(sys.argv[1])\nexcept RuntimeError as error: print(error)"
    )
    ended = python("-c", code, where)
    assert ended.stdout.startswith(f"{where} is not found or is not a valid ELF file\n"), ended.stderr
    assert {
        "fifo": "not a regular file",
        "device": "not a regular file",
        "sparse": "longer than",
        "folder": "cannot be read",
    }[kind] in ended.stdout


def test_a_pointer_with_a_size_of_no_file(emu):
    made = ctypes.pythonapi.PyCapsule_New
    made.restype, made.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    data = ctypes.create_string_buffer(64)
    with pytest.raises(RuntimeError, match="not valid ELF data"):
        pyxrt.elf(made(ctypes.addressof(data), None, None), 1 << 31)


def test_a_full_file(emu, folder, monkeypatch):
    """Of mlir-aie's test/python/npu-xrt: elf, context, kernel by name, run, set_arg, start, wait2."""
    device = pyxrt.device(0)
    elf = pyxrt.elf(str(folder / "full.elf"))
    context = pyxrt.hw_context(device, elf)
    kernel = pyxrt.ext.kernel(context, "main:seq")
    a, b = buffers(device)
    run = pyxrt.run(kernel)
    run.set_arg(0, a)
    head = bytes(run.job.packet)
    assert head[-8:] == a.address().to_bytes(8, "little")  # the packet has the first argument alone
    run.set_arg(1, b)
    assert bytes(run.job.packet) == head
    seen = flushes(monkeypatch)
    for flushed in (True, False):  # the code is written back once
        seen.clear()
        run.start()
        assert bool(seen) == flushed
        run.wait2()
    assert run.state() == pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    # The stream takes its input from the second word on, and puts the result from the third on.
    assert (words(b, 2) == np.arange(COUNT) + 2).all() and (words(b)[:2] == [0, 1]).all()


def test_polling_and_eight_buffers(emu, folder):
    """Of Triton's launcher, which polls the state; the first two of eight buffers are used."""
    device = pyxrt.device(0)
    context = pyxrt.hw_context(device, pyxrt.elf(str(folder / "many.elf")))
    made = buffers(device, 8)
    run = pyxrt.ext.kernel(context, "main")(*made)
    while run.state() == pyxrt.ert_cmd_state.ERT_CMD_STATE_NEW:
        run.wait(10)
    assert (words(made[1]) == np.arange(COUNT) + 1).all()


def test_a_module_for_an_xclbins_kernel(emu, folder):
    """Of mlir-aie's runtime: kernel(3, None, 0, *buffers) with a module."""
    device = pyxrt.device(0)
    xclbin = pyxrt.xclbin(str(folder / "copy.xclbin"))
    device.register_xclbin(xclbin)
    context = pyxrt.hw_context(device, xclbin.get_uuid())
    for name, first in (("part", 1), ("pre", 0)):
        module = pyxrt.module(pyxrt.elf(str(folder / f"{name}.elf")))
        kernel = pyxrt.ext.kernel(context, module, "MLIR_AIE")
        a, b = buffers(device)
        assert kernel(3, None, 0, a, b).wait() == pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
        assert (words(b, first) == np.arange(COUNT) + 1).all()


def test_a_full_file_without_its_note_is_no_module(emu, folder):
    path = folder / "noteless.elf"
    full = (folder / "full.elf").read_bytes()
    path.write_bytes(full.replace(b".note.xrt.configuration", b".note.xrt.xonfiguration"))
    code = pyxrt.elf(str(path))
    context = pyxrt.hw_context(pyxrt.device(0), str(folder / "copy.xclbin"))
    with pytest.raises(RuntimeError, match="ELF is missing xrt configuration info"):
        pyxrt.program(code).get_partition_size()
    with pytest.raises(RuntimeError, match="ELF is missing xrt configuration info"):
        pyxrt.ext.kernel(context, pyxrt.module(code), "MLIR_AIE")


def test_parameters_in_the_scratchpad(emu, folder):
    """Of mlir-aie's tests of scratchpad parameters: where the input begins, and a number for the kernel."""
    device = pyxrt.device(0)
    context = pyxrt.hw_context(device, pyxrt.elf(str(folder / "scratch.elf")))
    run = pyxrt.run(pyxrt.ext.kernel(context, "main"))
    pad = run.get_ctrl_scratchpad_bo()
    assert pad.size() == 256 and bytes(pad.map()) == bytes(256)
    a, b = buffers(device)
    run.set_arg(0, a)
    run.set_arg(1, b)
    for first, added in ((0, 0), (5, 8), (9, 1 << 20)):
        np.frombuffer(pad.map(), np.uint32)[:2] = first, added
        pad.sync(TO)
        run.start()
        run.wait2()
        assert (words(b) == np.arange(COUNT) + first + added).all()
    assert np.frombuffer(run.get_ctrl_scratchpad_bo().map(), np.uint32)[:3].tolist() == [9, 1 << 20, 0]


def test_several_kernels_in_a_list(emu, folder):
    """Of mlir-aie's test of reconfiguration: kernels of one file, each with PDIs, in one runlist."""
    device = pyxrt.device(0)
    context = pyxrt.hw_context(device, pyxrt.elf(str(folder / "two.elf")))
    context.add_config(pyxrt.elf(str(folder / "other.elf")))
    kernels = [pyxrt.ext.kernel(context, name) for name in ("main:seq", "main:turn", "more", "other:seq")]
    made = buffers(device, 5)
    runlist = pyxrt.runlist(context)
    runs = []
    for place, kernel in enumerate(kernels):
        run = pyxrt.run(kernel)
        run.set_arg(0, made[place])
        run.set_arg(1, made[place + 1])
        runlist.add(run)
        runs.append(run)
    for _ in range(2):
        runlist.execute()
        runlist.wait()
    assert (words(made[4]) == np.arange(COUNT) + 1 + 9 + 5 + 7).all()


def test_a_file_patched_in_memory(emu):
    """Of IRON: the file in memory, as a capsule, changed and loaded again into a new context."""
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made = control_code.carrier(stream.copy(BYTES, 0x1234), full=True, pdi=1)
    file = control_code.full({"main": (2, {"seq": made})}, {1: pdi(Family.COPY)})
    data = np.frombuffer(file, np.uint8).copy()
    at = file.index((0x1234).to_bytes(4, "little"))
    device = pyxrt.device(0)
    a, b = buffers(device)
    for addend in (3, 5):
        data[at : at + 4].view(np.uint32)[:] = addend
        elf = pyxrt.elf(capsule(data.ctypes.data, None, None), data.nbytes)
        context = pyxrt.hw_context(device, elf)
        pyxrt.ext.kernel(context, "main")(a, b).wait2()
        assert (words(b) == np.arange(COUNT) + addend).all()


def test_contexts_end_by_reference_count(emu, folder):
    device = pyxrt.device(0)
    elf = pyxrt.elf(str(folder / "scratch.elf"))
    seen = []
    for _ in range(20):
        context = pyxrt.hw_context(device, elf)
        run = pyxrt.run(pyxrt.ext.kernel(context, "main"))
        pad = run.get_ctrl_scratchpad_bo()
        seen.append(weakref.ref(context))
        del context, run
        assert seen[-1]() is None
        # The memory is still there.
        pad.map()[:4] = b"1234"


def test_a_run_keeps_its_buffers(emu, folder):
    device = pyxrt.device(0)
    context = pyxrt.hw_context(device, pyxrt.elf(str(folder / "slow.elf")))
    a, b = buffers(device)
    run = pyxrt.ext.kernel(context, "main")(a, b)
    view = b.map()
    del a, b
    gc.collect()
    run.wait2()
    assert (np.frombuffer(view, np.uint32)[:COUNT] == np.arange(COUNT) + 1).all()


def test_a_run_dropped_in_flight(emu, folder):
    device = pyxrt.device(0)
    context = pyxrt.hw_context(device, pyxrt.elf(str(folder / "slow.elf")))
    kernel = pyxrt.ext.kernel(context, "main")
    a, b = buffers(device)
    kernel(a, b)
    c, d = buffers(device)
    kernel(c, d).wait2()
    assert (words(d) == np.arange(COUNT) + 1).all() and (words(b) == np.arange(COUNT) + 1).all()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ve2", "not for NPU2"),
        ("bare", "has no PDI"),
        ("cut", "do not fit"),
        ("nopdi", "no PDI"),
    ],
)
def test_what_cannot_run_is_one_clear_error(emu, folder, name, why):
    full = control_code.carrier(stream.copy(BYTES), full=True)
    (folder / "bare.elf").write_bytes(control_code.full({"main": (2, {"seq": full})}, {}))
    (folder / "cut.elf").write_bytes((folder / "full.elf").read_bytes()[:-40])
    wanting = control_code.carrier(stream.copy(BYTES), full=True, pdi=7)
    (folder / "nopdi.elf").write_bytes(control_code.full({"main": (2, {"seq": wanting})}, {1: bytes(64)}))
    device = pyxrt.device(0)
    with pytest.raises(RuntimeError, match=why):
        pyxrt.ext.kernel(pyxrt.hw_context(device, pyxrt.elf(str(folder / f"{name}.elf"))), "main")
    # The device is as good as before.
    context = pyxrt.hw_context(device, pyxrt.elf(str(folder / "full.elf")))
    pyxrt.ext.kernel(context, "main")(*buffers(device)).wait2()


def test_an_old_driver_is_told(monkeypatch, folder):
    monkeypatch.setenv(devices.DEVICE, "emu:quiet,threads=1,minor=5")
    context = pyxrt.hw_context(pyxrt.device(0), pyxrt.elf(str(folder / "full.elf")))
    with pytest.raises(RuntimeError, match=r"0\.6 or newer"):
        pyxrt.ext.kernel(context, "main")
