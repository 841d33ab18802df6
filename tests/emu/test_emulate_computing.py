"""Programs that leave while a command still computes: the device goes on, and the emulator ends with them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from amdxdna.emu import kernels
from amdxdna.emu.kernels import Family, isa, stream
from amdxdna.emu.kernels.stream import BFP16, BIAS, Gemm, Gemv
from tests.support.emulation import NODE, ROOT, emulate_python
from tests.support.program import python

START = """
import os, signal, sys, time
from amdxdna.emu.kernels import Family, pdi, stream
from amdxdna.emu.kernels.stream import Gemm
from amdxdna.node import KernelNode
from tests.conformance import kit
def start(node):
    # Minutes of multiplying.
    gemm = Gemm(2048, 1, 4096, 4096, 4096, 4096, 0, 0, stream.weight_bytes(4096, 4096))
    ready = kit.Ready(node)
    buffers = [ready.bo(size) for size in gemm.spans()]
    buffers[0].view()[:] = b"\\x80\\x3f" * (buffers[0].size // 2)
    hwctx, syncobj = ready.context()
    ready.configure(hwctx, ready.dev(0x1000, pdi(Family.GEMM)).handle)
    seq = ready.start(stream.program([gemm] * 256), *[buffer.device for buffer in buffers], hwctx=hwctx,
                      code=ready.dev(1 << 16))
    print("computes", flush=True)
    return ready, syncobj, seq
"""
WAITS = f"""
ready, syncobj, seq = start(KernelNode("{NODE}"))
ready.wait(syncobj, seq, 600)"""
DEAF = "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))"
ORPHAN = """
parent = os.getpid()
if os.fork():
    os._exit(3)
while os.getppid() == parent:
    time.sleep(0.01)
"""


def test_a_killed_program_leaves_the_device_to_others() -> None:
    ended = emulate_python(
        f"""{START}
reader, writer = os.pipe()
child = os.fork()
if not child:
    ready, syncobj, seq = start(KernelNode("{NODE}"))
    os.write(writer, b"x")
    ready.wait(syncobj, seq, 600)
    os._exit(1)
os.close(writer)
assert os.read(reader, 1)
mine = kit.Ready(KernelNode("{NODE}"))
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
kit.until(lambda: [entry.pid for entry in mine.contexts()] == [os.getpid()], 60, "the child's context going")
print(mine.copy())
""",
        before="from amdxdna.emu.driver import teardown; teardown.LONGEST = 1.0",
    )
    assert ended.stdout.splitlines() == ["computes", "4"], ended.stderr
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("program", "signals", "status"),
    [
        (WAITS, 1, 143),
        (f"{ORPHAN}{WAITS}", 1, 3),
        (f"{DEAF}\n{WAITS}", 2, 137),
        (f"{ORPHAN}{DEAF}\n{WAITS}", 2, 3),
    ],
    ids=["the program", "what it started", "deaf", "deaf and started"],
)
def test_sigterm_ends_the_emulator_whatever_computes(program: str, signals: int, status: int) -> None:
    code = START + program
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "amdxdna",
            "emulate",
            "-O",
            "threads=1,quiet",
            "--",
            sys.executable,
            "-c",
            code,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "computes\n"
            for again in range(signals):
                if again:  # two that come at once are one signal
                    assert process.stdout.readline() == "asked\n"
                process.send_signal(signal.SIGTERM)
            assert process.wait(60) == status
        finally:
            process.kill()


@pytest.mark.parametrize("leave", ["ready.close()", "pass"], ids=["close", "exit"])
def test_a_process_ends_whatever_its_own_device_computes(leave: str) -> None:
    ended = python(
        "-c",
        f"""{START}
from amdxdna.emu.driver import teardown
from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
teardown.LONGEST = 0.5
node = EmuNode(EmuOptions(threads=1))
ready, _, _ = start(node)
kit.until(lambda: node.driver.npu.computing, 30, "the command to compute")
{leave}
if node.driver.npu.contexts == 0:
    kit.until(lambda: not node.driver.npu.computing, 30, "the command to end")
print("over")
""",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "computes\nover\n", "")


GEMM = Gemm(512, 1, 4096, 4096, 4096, 4096, 0, BFP16, stream.weight_bytes(4096, 4096))
GEMV = Gemv(1 << 15, 1 << 15, BIAS, BFP16, stream.weight_bytes(1 << 15, 1 << 15, BFP16, BIAS))


@pytest.mark.parametrize(("op", "threads"), [(GEMM, 1), (GEMM, 2), (GEMV, 1)])
def test_a_computation_ends_in_the_middle_of_an_op(
    op: Gemm | Gemv, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow variant takes seconds for one of these: it does not reach the end of what it writes."""
    monkeypatch.setattr(isa, "chosen", lambda: isa.variants().index("portable") + 1)
    family = Family.GEMM if isinstance(op, Gemm) else Family.GEMV
    source, weights, target = (np.zeros(size // 2, np.uint16) for size in op.spans())
    source[:] = 0x3F80
    if op.flags & BIAS:  # the weights are zeros, which take no memory
        weights[-(1 << 16) :] = 0x3F80
    else:
        weights[:] = 0x3F80
    operands = [at(source), at(weights), at(target)]
    stop, results = kernels.Stop(), []

    def compute() -> None:
        results.append(kernels.execute(stream.program([op]), family, operands, threads=threads, stop=stop))

    worker = threading.Thread(target=compute)
    worker.start()
    while not target.any() and worker.is_alive():
        time.sleep(0.001)
    stop.set()
    worker.join(60)
    compute()
    assert [(result.status, result.op) for result in results] == [(kernels.ABORTED, 0)] * 2
    assert not target.all()


def at(array: np.ndarray) -> Callable[[int], int]:
    """A resolver of an array."""
    return lambda nbytes: int(array.ctypes.data)
