"""Descriptors, processes, signals and memory of programs under `emulate`."""

from __future__ import annotations

import os

from tests.support.emulation import emulate_python


def test_descriptor_of_a_forked_child() -> None:
    """A child that inherited the descriptor uses the same open; its memory is its own."""
    ended = emulate_python("""
import fcntl, os, struct
fd = os.open("/dev/accel/accel0", os.O_RDWR)
os.set_inheritable(fd, True)
def create():
    args = bytearray(struct.pack("<QQQII", 0, 0, 4096, 1, 0))
    fcntl.ioctl(fd, 0xC0206443, args)
    return struct.unpack_from("<I", args, 28)[0]
first = create()
reader, writer = os.pipe()
if not os.fork():
    os.write(writer, bytes([create()]))
    os._exit(0)
os.wait()
second = os.read(reader, 1)[0]
print(first, second, create())
os.dup2(fd, 50)
os.close(fd)
fd = 50
print(create())
os.execv(os.sys.executable, ["python", "-c", "import os; print(os.path.exists('/dev/accel/accel0'))"])
""")
    assert ended.stdout.splitlines() == ["1 2 3", "4", "True"], ended.stderr


def test_signal_in_a_wait_runs_its_handler() -> None:
    """Ctrl-C in a blocked wait: Python's handler runs at once, the wait can be begun again, and the device is
    usable afterwards."""
    ended = emulate_python(
        """
import os, signal, threading
from tests.conformance import kit
from amdxdna._native import lib
from amdxdna.node import KernelNode
from amdxdna.emu.kernels import stream
ready = kit.Ready(KernelNode("/dev/accel/accel0"))
other = ready.new_context()
hung = ready.bo(4096, lib.AMDXDNA_BO_CMD)
seq = ready.start(stream.hang(), command=hung, code=ready.dev(4096))
def blocked():
    call = open(f"/proc/self/task/{os.getpid()}/syscall").read().split()
    return call[0] == "16" and int(call[2], 16) & 0xFFFFFFFF == lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT
def interrupt():
    kit.until(blocked, 60, "the wait")
    os.kill(os.getpid(), signal.SIGINT)
def wait(syncobj, seq):
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        ready.wait(syncobj, seq, 300)
        return "not interrupted"
    except KeyboardInterrupt:
        return "interrupted"
for _ in range(2):
    print(wait(ready.syncobj, seq), kit.state(hung))
seq = ready.start(stream.delay(300_000), hwctx=other[0])
print(wait(other[1], seq))
ready.wait(other[1], seq)
print(kit.state(ready.command), ready.copy(other))
""",
        options="tdr=0",
    )
    first, second, third, last = ended.stdout.splitlines()
    assert first == second == "interrupted 1", ended.stderr
    assert third in ("interrupted", "not interrupted")  # the command may be over before the signal comes
    assert last == "4 4", ended.stderr


def test_no_signal_is_lost_that_comes_while_a_program_is_made_to_call() -> None:
    """As it is to enter a folder of the device's: what comes then is handled after it."""
    ended = emulate_python("""
import os, signal, threading, time
from tests.conformance import kit
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.signal(signal.SIGRTMIN, lambda *_: None)
signal.siginterrupt(signal.SIGRTMIN, False)
signal.set_wakeup_fd(writer)
main, over, sent = threading.get_ident(), False, 0
def send():
    global sent
    while not over:
        signal.pthread_kill(main, signal.SIGRTMIN)
        sent += 1
        time.sleep(0.001)
thread = threading.Thread(target=send, daemon=True)
thread.start()
while sent < 300:
    os.chdir("/dev/accel")
    assert os.getcwd() == "/dev/accel"
    os.chdir("/")
over = True
thread.join()
got = 0
def all_came():
    global got
    os.set_blocking(reader, False)
    try:
        got += len(os.read(reader, 1 << 16))
    except BlockingIOError:
        pass
    return got >= sent
kit.until(all_came, 60, "the last signal")
print(got - sent, signal.pthread_sigmask(signal.SIG_BLOCK, []))
""")
    assert ended.stdout == "0 set()\n", ended.stderr


ORPHAN = """
import os, signal, time
from amdxdna import Device, errors
from tests.support.binding import adder
device = Device.open(0)
kernel, buffer = adder(device, 64, 1), device.alloc(64)
kernel.run(buffer, buffer)
emulator = os.getppid()
os.kill(emulator, signal.SIGKILL)
while os.getppid() == emulator:
    time.sleep(0.01)
for call in (lambda: kernel.run(buffer, buffer), lambda: device.alloc(64), device.contexts):
    try:
        call()
    except errors.DeviceLost as error:
        print("lost" if "emulating process" in str(error) else error)
device.close()
print("closed")
"""


def test_a_program_whose_emulator_is_killed() -> None:
    ended = emulate_python(ORPHAN)
    assert ended.stdout.split() == ["lost"] * 3 + ["closed"], ended.stderr


def test_sigkill_in_a_command_frees_everything() -> None:
    """A program killed in a blocked wait: its contexts go, other programs go on."""
    ended = emulate_python("""
import os, signal, time
from tests.conformance import kit
from amdxdna.node import KernelNode
from amdxdna.emu.kernels import stream
reader, writer = os.pipe()
child = os.fork()
if not child:
    ready = kit.Ready(KernelNode("/dev/accel/accel0"))
    seq = ready.start(stream.delay(400_000))
    os.write(writer, b"x")
    ready.wait(ready.syncobj, seq)
os.read(reader, 1)
mine = kit.Ready(KernelNode("/dev/accel/accel0"))
time.sleep(0.05)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(mine.copy())
kit.until(lambda: [entry.pid for entry in mine.contexts()] == [os.getpid()], 60, "the child's context going")
print(mine.copy())
""")
    assert ended.stdout.splitlines() == ["4", "4"], ended.stderr


def test_forgetful_program() -> None:
    """Sixty contexts made and dropped, each with an open of its own, on three slots."""
    ended = emulate_python(
        """
from tests.conformance import kit
from amdxdna.node import KernelNode
done = 0
for _ in range(60):
    ready = kit.Ready(KernelNode("/dev/accel/accel0"))
    done += ready.copy() == 4
    ready.close()
print(done)
""",
        options="slots=3",
    )
    assert ended.stdout == "60\n", ended.stderr


def test_threads_fill_the_queue() -> None:
    """Eight threads submit to one context at once: submits past the fourth wait, none is lost."""
    ended = emulate_python("""
import threading
from tests.conformance import kit
from amdxdna._native import lib
from amdxdna.node import KernelNode
from amdxdna.emu.kernels import stream
ready = kit.Ready(KernelNode("/dev/accel/accel0"))
commands = [ready.bo(4096, lib.AMDXDNA_BO_CMD) for _ in range(8)]
program = ready.load(stream.delay(3000))
seqs = []
def work(command):
    ready.pack(stream.delay(3000), command=command)
    for _ in range(4):
        seq = ready.submit(ready.hwctx, command.handle)
        seqs.append(seq)
        ready.wait(ready.syncobj, max(seq, 1))
        ready.raw(command, *list(command.words()[:12]))
threads = [threading.Thread(target=work, args=(c,)) for c in commands]
[t.start() for t in threads]
[t.join() for t in threads]
print(sorted(seqs) == list(range(32)))
""")
    assert ended.stdout == "True\n", ended.stderr


def test_bo_memory_goes_back() -> None:
    """Mapped, closed and unmapped BOs give their pages back, in whatever order."""
    ended = emulate_python("""
import ctypes, os
from amdxdna.node import KernelNode
from tests.conformance.kit import Client
client = Client(KernelNode("/dev/accel/accel0"))
links = {int(fd): os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
(node,) = (fd for fd, link in links.items() if link == "/dev/accel/accel0")
def held():
    total = at = 0
    while True:
        try:
            at = os.lseek(node, at, os.SEEK_DATA)
        except OSError:
            return total
        end = os.lseek(node, at, os.SEEK_HOLE)
        total, at = total + end - at, end
size = 8 << 20
for first in ("close", "unmap"):
    for _ in range(3):
        handle = client.create_bo(1, size)
        address = client.node.mmap(size, client.info(handle).map_offset)
        ctypes.memset(address, 1, size)
        if first == "close":
            client.close_bo(handle)
        assert held() >= size
        client.node.munmap(address, size)
        if first == "unmap":
            client.close_bo(handle)
client.close_bo(client.create_bo(1, 4096))
print(held())
""")
    assert ended.stdout == "0\n", ended.stderr


def test_a_submit_that_gets_no_thread_leaves_its_place() -> None:
    """EAGAIN, once: later submits find the queue as if that one had never been."""
    from amdxdna.emu.driver.device import EmuDriver
    from amdxdna.emu.options import EmuOptions
    from amdxdna.emu.seccomp.client import RemoteClient

    class Full:
        jobs = (1,) * 4
        id = 7

    class Submit:
        arguments = (3, 0x46, 0)
        thread = os.getpid()
        queued = 0

        def check(self) -> None:
            """It still waits."""

    client = RemoteClient(EmuDriver(EmuOptions(quiet=True)), os.getpid())
    client.contexts[0] = Full()  # type: ignore[assignment]
    try:
        given_up = Submit()
        assert client.may_block(given_up)  # type: ignore[arg-type]
        client.forget(given_up)  # type: ignore[arg-type]
        Full.jobs = ()
        assert not client.may_block(Submit())  # type: ignore[arg-type]
    finally:
        client.contexts.clear()
        client.close()


def test_a_buffer_is_known_as_soon_as_it_is_mapped() -> None:
    """By a submit that is the next thing to come, though nobody tells of mappings."""
    ended = emulate_python("""
from tests.conformance import kit
from amdxdna._native import lib
from amdxdna.emu.kernels import stream
from amdxdna.node import KernelNode
ready = kit.Ready(KernelNode("/dev/accel/accel0"))
space = ready.reserve(8192)
offset = ready.info(ready.create_bo(lib.AMDXDNA_BO_SHARE, 4096)).map_offset
for _ in range(2):
    ready.pack(stream.copy(4096, 1), ready.source.device, space)
    assert ready.node.mmap(4096, offset, address=space) == space
    ready.wait(ready.syncobj, ready.submit(ready.hwctx, ready.command.handle))
    print(kit.state(ready.command))
    ready.node.munmap(space, 4096)
""")
    assert ended.stdout == "4\n4\n", ended.stderr
