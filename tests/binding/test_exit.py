"""The interpreter ends with things open and in flight: at once, without a word."""

from __future__ import annotations

import pytest

from tests.support.program import python

BEGIN = """
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from amdxdna import packet
from tests.support.binding import adder, copy_xclbin, hanging
device = Device.open("emu:quiet,threads=1")
source, target = device.alloc(4096), device.alloc(4096)
view = target.view("u4")
"""
CASES = {
    "idle": "kernel = adder(device, 4096, 1); kernel.run(source, target)",
    "running": "run = adder(device, 4096, 1, delay_us=300_000).start(source, target)",
    "dropped": "adder(device, 4096, 1, delay_us=300_000).start(source, target); del device, source, target",
    "hung": "run = hanging(device).start()",
    "chain": "kernels = [adder(device, 4096, n, delay_us=100_000) for n in range(3)]\n"
    "run = device.pool.chain([(kernel, (source, target)) for kernel in kernels])",
    "context": "context = device.context(copy_xclbin())\n"
    "raw = device.alloc(64, 'dev'); raw.write(stream.hang())\n"
    "run = context.run(packet.start_cu(0, raw.address, len(stream.hang()), []), [raw])",
    "cycle": "device.me = [device, adder(device, 4096, 1), source, target]; view.flags.writeable = False",
    "thread": "import threading\nkernel = adder(device, 4096, 1, delay_us=200_000)\n"
    "threading.Thread(target=kernel.run, args=(source, target), daemon=True).start()",
    "module": "import sys, amdxdna.buffer\nsys.keep = adder(device, 4096, 1), source, target, view, device",
    "atexit": "import atexit\nkernel = adder(device, 4096, 1)\n"
    "atexit.register(lambda: kernel.start(source, target))",
}


@pytest.mark.parametrize("case", CASES)
def test_exit(case):
    code = f"{BEGIN}{CASES[case]}\nprint('end')"
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.parametrize("then", ["pass", "time.sleep(600)"])
def test_ctrl_c_in_a_finalizer_is_not_lost(then):
    """Python drops what a finalizer raises, and with it the one Ctrl-C that a user has pressed."""
    code = """
import os, signal, sys, time
from amdxdna.entry import guarded
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
def body():
    Dying()
    THEN
    return 0
sys.exit(guarded(body, lambda line: print(line, file=sys.stderr), lambda error: 1))
"""
    done = python("-c", code.replace("THEN", then))
    assert (done.returncode, done.stderr) == (130, "stopped\n")


def test_a_reader_that_went_away_costs_no_descriptor():
    code = """
import os, sys
from amdxdna.entry import guarded
def body():
    raise BrokenPipeError
before = len(os.listdir("/proc/self/fd"))
status = guarded(body, print, lambda error: 3)
sys.exit(status + 10 * (len(os.listdir("/proc/self/fd")) - before))
"""
    assert python("-c", code).returncode == 1


def test_ctrl_c_again_and_again_ends_in_one_word():
    """Who leans on the key meets the command, the telling of its end and the interpreter's end."""
    code = """
import atexit, os, signal, subprocess, sys, time
from amdxdna.entry import guarded
def slowly():
    for _ in range(300):
        time.sleep(0.001)
class Dying:
    def __del__(self):
        slowly()
atexit.register(slowly)
keep = Dying()
go, begin = os.pipe()
leaning = subprocess.Popen([sys.executable, "-c", "import os, time\\nos.read(0, 1)\\n"
    f"for _ in range(2000): os.kill({os.getpid()}, 2); time.sleep(0.001)"],
    stdin=go, stderr=subprocess.DEVNULL)  # it ends when there is nobody to signal
def tell(line):
    slowly()
    print(line, file=sys.stderr)
def body():
    os.write(begin, b"x")
    time.sleep(600)
    return 0
sys.exit(guarded(body, tell, lambda error: 1, last=True))
"""
    for _ in range(3):
        done = python("-c", code)
        assert (done.returncode, done.stderr) == (130, "stopped\n")
