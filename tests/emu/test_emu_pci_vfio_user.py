"""The vfio-user server over a real socket, with a client that speaks the protocol word for word."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from amdxdna.cli import main
from amdxdna.cli.common import CommandError
from amdxdna.emu.pci import registers as reg
from amdxdna.emu.pci import vfio_user
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.function import Npu2Function
from amdxdna.emu.pci.vfio_user import Server
from tests.support.descriptors import descriptors
from tests.support.vfio_client import HEADER, PAGE, Client, sealed


class Served:
    def __init__(self, folder: Path) -> None:
        self.function = Npu2Function()
        self.lines: list[str] = []
        self.server = Server(folder / "npu.sock", self.function, self.lines.append)
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def close(self) -> None:
        self.server.close()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.function.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.close()


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    client = Client(served.server.path)
    yield client
    client.socket.close()


def test_greeting(client: Client) -> None:
    for version, spoken in ((0, 0), (7, 1)):
        reply = client.ask(vfio_user.VERSION, struct.pack("<HH", 0, version) + b'{"capabilities": {}}\0')
        assert (reply[:4], reply[-1:]) == (struct.pack("<HH", 0, spoken), b"\0")
    assert json.loads(reply[4:-1])["capabilities"] == {
        "max_msg_fds": 16,
        "max_data_xfer_size": 1 << 20,
        "pgsizes": 4096,
        "max_dma_maps": 65535,
    }
    assert struct.unpack("<IIII", client.ask(vfio_user.GET_INFO, bytes(16))) == (16, 3, 9, 5)


def test_regions(client: Client) -> None:
    sizes = []
    for region in range(9):
        reply = client.ask(vfio_user.GET_REGION_INFO, struct.pack("<IIIIQQ", 32, 0, region, 0, 0, 0))
        size = struct.unpack("<IIIIQQ", reply)[4]
        assert reply == struct.pack("<IIIIQQ", 32, 3 if size else 0, region, 0, size, 0)
        sizes.append(size)
    assert sizes == [1 << 20, 64 << 10, 512 << 10, 0, 8 << 10, 8 << 10, 0, 256, 0]


def test_reads_and_writes(client: Client) -> None:
    place = struct.pack("<QII", 0, vfio_user.CONFIG_REGION, 4)
    assert client.ask(vfio_user.REGION_READ, place) == place + struct.pack("<HH", 0x1022, 0x17F0)
    place = struct.pack("<QII", 0x40000, 2, 8)
    assert client.ask(vfio_user.REGION_WRITE, place + b"abcdefgh") == place
    assert client.ask(vfio_user.REGION_READ, place)[16:] == b"abcdefgh"
    multi = [struct.pack("<QII8s", 0x40000, 2, 4, b"ABCD"), struct.pack("<QII8s", 0x40004, 2, 2, b"EF")]
    client.ask(vfio_user.REGION_WRITE_MULTI, struct.pack("<Q", 2) + b"".join(multi))
    assert client.ask(vfio_user.REGION_READ, place)[16:] == b"ABCDEFgh"


def test_unanswered_writes(client: Client) -> None:
    """A write that asks for no reply gets none; the next request's reply is the next thing that comes."""
    place = struct.pack("<QII", 0x40000, 2, 4)
    client.send(client.message(vfio_user.REGION_WRITE, place + b"wxyz", flags=0x10))
    assert client.ask(vfio_user.REGION_READ, place)[16:] == b"wxyz"


def test_descriptors_stay_with_their_message(served: Served, client: Client) -> None:
    """Two mappings and a read in one burst: each mapping has its own file."""
    fds = [sealed(PAGE, bytes([65 + i])) for i in range(2)]
    for i, fd in enumerate(fds):
        client.send(client.message(vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, i * PAGE, PAGE)), [fd])
        os.close(fd)
    client.send(client.message(vfio_user.REGION_READ, struct.pack("<QII", 0, 0, 4)))
    assert [client.reply()[1] for _ in range(3)] == [0, 0, 0]
    assert served.function.memory.read(0, 1) + served.function.memory.read(PAGE, 1) == b"AB"
    client.ask(vfio_user.DMA_UNMAP, struct.pack("<IIQQ", 24, 0, 0, PAGE))
    assert not served.function.memory.covers(0, 1)
    assert served.function.memory.covers(PAGE, PAGE)
    client.ask(vfio_user.DMA_UNMAP, struct.pack("<IIQQ", 24, 2, 0, 0))
    assert not served.function.memory.covers(PAGE, 1)


def test_a_message_in_pieces(client: Client) -> None:
    message = client.message(vfio_user.REGION_READ, struct.pack("<QII", 0, vfio_user.CONFIG_REGION, 2))
    for i in range(len(message)):
        client.socket.sendall(message[i : i + 1])
    assert client.reply()[2][16:] == struct.pack("<H", 0x1022)


def test_mapping_without_a_file(served: Served, client: Client) -> None:
    """ROM is announced without a descriptor: accepted, and not reachable."""
    client.ask(vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 1, 0, 0xC0000, PAGE))
    assert not served.function.memory.covers(0xC0000, 1)


def test_interrupts(served: Served, client: Client) -> None:
    """Eventfds per vector; disabled ones are latched until the next ones come."""
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    client.ask(vfio_user.SET_IRQS, struct.pack("<IIIII", 20, 0x24, 2, 3, 1), [fd])
    served.function.interrupts.raise_vector(3)
    assert os.eventfd_read(fd) == 1
    client.ask(vfio_user.SET_IRQS, struct.pack("<IIIII", 20, 0x21, 2, 0, 0))
    served.function.interrupts.raise_vector(3)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    client.ask(vfio_user.SET_IRQS, struct.pack("<IIIII", 20, 0x24, 2, 3, 1), [fd])
    assert os.eventfd_read(fd) == 1
    for kind, found in ((2, (9, 34)), (1, (0, 0))):
        reply = client.ask(vfio_user.GET_IRQ_INFO, struct.pack("<IIII", 16, 0, kind, 0))
        assert reply == struct.pack("<IIII", 16, found[0], kind, found[1])
    os.close(fd)


def test_every_vector_has_its_own_eventfd(served: Served, client: Client) -> None:
    """As many in one message as it carries, up to the last; a vector's own is taken back without one."""
    fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(16)]
    every = struct.pack("<IIIII", 20, 0x24, 2, 18, 16)
    client.ask(vfio_user.SET_IRQS, every, fds)
    held = len(descriptors())
    client.ask(vfio_user.SET_IRQS, every, fds)
    assert len(descriptors()) <= held
    client.ask(vfio_user.SET_IRQS, struct.pack("<IIIII", 20, 0x24, 2, 20, 1))
    client.ask(vfio_user.SET_IRQS, struct.pack("<IIIII", 20, 0x21, 2, 21, 1))
    for i, fd in enumerate(fds):
        served.function.interrupts.raise_vector(18 + i)
        if i != 2:
            assert os.eventfd_read(fd) == 1
        os.close(fd)
    assert served.function.interrupts.pending == {20}


def test_interrupts_into_anything(served: Served, client: Client) -> None:
    """A vector's descriptor is the client's: one that cannot be written to, or would block, stops nothing."""
    full, null = os.eventfd(0), os.open("/dev/null", os.O_RDONLY)
    os.eventfd_write(full, (1 << 64) - 2)
    for vector, fd in ((3, full), (4, null)):
        client.ask(vfio_user.SET_IRQS, struct.pack("<IIIII", 20, 0x24, 2, vector, 1), [fd])
        served.function.interrupts.raise_vector(vector)
    assert os.eventfd_read(full) == (1 << 64) - 2
    os.close(full)
    os.close(null)


@pytest.mark.parametrize(
    ("command", "body", "expected"),
    [
        (vfio_user.DMA_READ, bytes(16), errno.EOPNOTSUPP),
        (99, b"", errno.EOPNOTSUPP),
        (vfio_user.REGION_READ, bytes(7), errno.EINVAL),
        (vfio_user.REGION_READ, struct.pack("<QII", 0, 0, 1 << 30), errno.EINVAL),
        (vfio_user.REGION_READ, struct.pack("<QII", 0, 0, (2 << 20) + 1), errno.EINVAL),
        (vfio_user.SET_IRQS, b"", errno.EINVAL),
        (vfio_user.SET_IRQS, struct.pack("<IIIII", 20, 0x24, 2, 0, 0xFFFFFFFF), errno.EINVAL),
        (vfio_user.SET_IRQS, struct.pack("<IIIII", 20, 0x24, 2, reg.VECTORS, 1), errno.EINVAL),
    ],
)
def test_bad_messages(served: Served, client: Client, command: int, body: bytes, expected: int) -> None:
    """Answered with an errno; the log tells of them, but for those too short; the connection goes on."""
    client.send(client.message(command, body))
    assert client.reply()[1] == expected
    told = [line for line in served.lines if line.startswith(f"command {command}")]
    assert bool(told) == (expected == errno.EOPNOTSUPP or len(body) >= 16)
    client.ask(vfio_user.GET_INFO, bytes(16))


def test_the_longest_messages(client: Client) -> None:
    place = struct.pack("<QII", 0, vfio_user.CONFIG_REGION, 2 << 20)
    assert len(client.ask(vfio_user.REGION_READ, place)) == len(place) + (2 << 20)
    for size in (0, (2 << 20) - HEADER.size):
        assert client.ask(vfio_user.GET_INFO, bytes(size))


def test_a_file_that_is_no_memory(served: Served, client: Client) -> None:
    reader, writer = os.pipe()
    client.send(client.message(vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, PAGE)), [reader])
    assert client.reply()[1] == errno.EINVAL
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("address", "size", "offset"),
    [
        (0, 2 * PAGE, 0),
        (0, PAGE, PAGE),
        (0, PAGE, (1 << 64) - PAGE),
        (0, (1 << 64) - PAGE, 0),
        (0, 0, 0),
        (1, PAGE, 0),
        (0, 1, 0),
        (0, PAGE, 1),
        ((1 << 48) - PAGE, 2 * PAGE, 0),
        ((1 << 64) - PAGE, PAGE, 0),
    ],
)
def test_a_mapping_of_what_is_not_there(
    address: int, size: int, offset: int, served: Served, client: Client
) -> None:
    """Beyond the file, beyond the address space, not of whole pages: refused, and nothing is reserved."""
    fd = sealed(PAGE)
    client.send(client.message(vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 3, offset, address, size)), [fd])
    os.close(fd)
    assert client.reply()[1] == errno.EINVAL
    assert (served.function.memory.ranges(), served.function.memory.windows) == ([], 0)


@pytest.mark.parametrize(("address", "size"), [(0, PAGE - 64), (64, PAGE), (PAGE - 1, 1), (1 << 63, 1)])
def test_unmapping_parts_of_pages(address: int, size: int, served: Served, client: Client) -> None:
    """Refused, and the mapping stays whole; the client can leave, and the next one come."""
    fd = sealed(PAGE)
    client.ask(vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, PAGE), [fd])
    os.close(fd)
    client.send(client.message(vfio_user.DMA_UNMAP, struct.pack("<IIQQ", 24, 0, address, size)))
    assert client.reply()[1] == errno.EINVAL
    assert served.function.memory.ranges() == [(0, PAGE)]
    client.socket.close()
    second = Client(served.server.path)
    second.ask(vfio_user.GET_INFO, bytes(16))
    second.socket.close()


def test_memory_that_can_shrink(served: Served, client: Client) -> None:
    """A file that its owner may still cut off would end the server at the next access."""
    fd = os.memfd_create("ram", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE)
    client.send(client.message(vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, PAGE)), [fd])
    assert client.reply()[1] == errno.EINVAL
    os.close(fd)


def test_windows_are_given_back(served: Served, client: Client) -> None:
    """Mappings all over the address space, one after the other, reserve no more than one of them needs."""
    fd = sealed(PAGE)
    for i in range(200):
        place = struct.pack("<QQ", i << 40, PAGE)
        client.ask(vfio_user.DMA_MAP, struct.pack("<IIQ", 32, 3, 0) + place, [fd])
        assert served.function.memory.windows == 1
        client.ask(vfio_user.DMA_UNMAP, struct.pack("<II", 24, 0) + place)
    os.close(fd)
    assert served.function.memory.windows == 0


@pytest.mark.parametrize("size", [0, 15, (2 << 20) + 1, 0xFFFFFFFF])
def test_an_impossible_size_ends_the_connection(served: Served, client: Client, size: int) -> None:
    client.send(HEADER.pack(1, vfio_user.GET_INFO, size, 0, 0))
    with pytest.raises(ConnectionError):
        client.reply()
    Client(served.server.path).ask(vfio_user.GET_INFO, bytes(16))
    lost = f"client lost: a message of {size} bytes"
    assert served.lines[:4] == ["client connected", lost, "client gone", "client connected"]


def test_a_client_that_leaves_takes_its_memory(served: Served) -> None:
    first = Client(served.server.path)
    fd = sealed(PAGE)
    first.ask(vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, PAGE), [fd])
    os.close(fd)
    first.socket.close()
    second = Client(served.server.path)
    second.ask(vfio_user.GET_INFO, bytes(16))
    assert not served.function.memory.covers(0, 1)
    second.socket.close()


def test_descriptors_of_a_message_cut_short_go_with_their_client(served: Served) -> None:
    first = Client(served.server.path)
    fd = sealed(PAGE)
    first.send(first.message(vfio_user.DMA_MAP, b"")[:8], [fd])
    os.close(fd)
    first.socket.close()
    second = Client(served.server.path)
    second.ask(vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, PAGE))
    assert not served.function.memory.covers(0, 1)
    second.socket.close()


def test_descriptors_that_nothing_takes_are_closed(served: Served, client: Client) -> None:
    client.ask(vfio_user.GET_INFO, bytes(16))
    fds = [os.eventfd(0) for _ in range(3)]
    before = descriptors()
    for flags, kind, number in ((0x24, 2, 1), (0x24, 3, 1), (0x21, 2, 0)):
        client.ask(vfio_user.SET_IRQS, struct.pack("<IIIII", 20, flags, kind, 0, number), fds)
    assert descriptors() <= before
    for fd in fds:
        os.close(fd)


def test_a_fault_of_the_model_is_an_error(
    served: Served, client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not look like a hang, nor end the server."""
    monkeypatch.setattr(served.function, "write", lambda *_: 1 // 0)
    client.send(client.message(vfio_user.REGION_WRITE, struct.pack("<QII", 0, 0, 4) + bytes(4)))
    assert client.reply()[1] == errno.EIO
    assert "ZeroDivisionError" in capsys.readouterr().err
    client.ask(vfio_user.GET_INFO, bytes(16))


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "npu.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as old:
        old.bind(str(path))
    function = Npu2Function()
    server = Server(path, function)
    server.close()
    function.close()
    assert not path.exists()


def test_a_live_socket_is_not_taken_over(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """A second server is refused with one line; the first goes on, and its socket stays when another ends."""
    path = served.server.path
    assert main(["emulate", "--vfio-user", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"amdxdna: error: cannot listen on {path}: another server listens there. Name another socket\n"
    )
    client = Client(path)
    client.ask(vfio_user.GET_INFO, bytes(16))
    assert main(["emulate", "--vfio-user", str(path)]) == 1, "also while it serves somebody"
    client.ask(vfio_user.GET_INFO, bytes(16))
    client.socket.close()


def test_a_server_that_is_busy_is_one(tmp_path: Path) -> None:
    """Also where not even its queue has room."""
    path, function = tmp_path / "npu.sock", Npu2Function()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as busy:
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as first:
            first.connect(str(path))
            with pytest.raises(OSError, match="another server listens there"):
                Server(path, function)
    function.close()


def test_close_leaves_a_successors_socket(tmp_path: Path) -> None:
    path = tmp_path / "npu.sock"
    function = Npu2Function()
    first = Server(path, function)
    path.unlink()
    second = Server(path, function)
    first.close()
    assert path.is_socket()
    second.close()
    assert not path.exists()
    function.close()


@pytest.mark.parametrize("mask", [0, 0o077, 0o177])
def test_only_the_owner_may_connect(mask: int, tmp_path: Path) -> None:
    function = Npu2Function()
    old = os.umask(mask)
    try:
        server = Server(tmp_path / "npu.sock", function)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "npu.sock").stat().st_mode) == 0o600
    server.close()
    function.close()


# -- the command


@pytest.mark.parametrize(
    ("number", "connected"),
    [
        (signal.SIGTERM, False),
        (signal.SIGHUP, False),
        (signal.SIGINT, False),
        (signal.SIGTERM, True),
    ],
)
def test_the_socket_goes_with_the_server(tmp_path: Path, number: signal.Signals, connected: bool) -> None:
    """Whatever asks the server to end, also as soon as it listens."""
    path = tmp_path / "npu.sock"
    words = [sys.executable, "-m", "amdxdna", "emulate", "--vfio-user", str(path), "--threads", "1"]
    words += ["--verbose"] * connected
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening on")
            if connected:
                client = Client(path)
                client.ask(vfio_user.GET_INFO, bytes(16))
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "")
    assert [line.split(maxsplit=1)[1] for line in err.splitlines()] == (
        ["client connected", "client gone"] if connected else []
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("slots", "memory"), [("1", "3G"), ("31", "1G")])
def test_printed_arguments(slots: str, memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/" + "x" * 106
    words = ["--print-qemu-args", "--slots", slots, *(["--memory", memory] if memory != "1G" else [])]
    assert main(["emulate", "--vfio-user", path, *words]) == 0
    command, *hints = capsys.readouterr().out.splitlines()
    device = {"driver": "vfio-user-pci", "id": "npu", "addr": "4.0", "rombar": 0}
    assert shlex.split(command) == [
        *("-machine", "q35,accel=tcg,memory-backend=ram", "-cpu", "max", "-smp", "1", "-m", memory),
        *("-object", f"memory-backend-memfd,id=ram,size={memory},share=on"),
        *("-device", "intel-iommu,intremap=off,caching-mode=on"),
        *("-device", json.dumps({**device, "socket": {"type": "unix", "path": path}})),
    ]
    assert [hint.rpartition(" ")[2] for hint in hints] == ["no_timer_check", "force_iova=1"]
    assert not Path(path).exists()


def test_what_the_firmware_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[FirmwareOptions] = []

    def function(options: FirmwareOptions, log: object) -> None:
        told.append(options)
        raise CommandError("that is enough")

    monkeypatch.setattr("amdxdna.cli.vfio_user.Npu2Function", function)
    rows = [((7, 0), ["--slots", "3", "--threads", "2"])]
    rows += [((6, minor), ["--protocol", f"6.{minor}"]) for minor in (12, 15, 18, 19, 24)]
    for protocol, words in rows:
        assert main(["emulate", "--vfio-user", str(tmp_path / "s"), *words]) == 1
        slots, threads = (3, 2) if "--slots" in words else (16, 0)
        assert told.pop() == FirmwareOptions(protocol, slots=slots, threads=threads)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slots", "0"], "--slots 0"),
        (["--slots", "32"], "--slots 32"),
        (["--threads", "-1"], "--threads -1"),
        (["--vfio-user", "/" + "x" * 120], "longer than"),
    ],
)
def test_bad_arguments(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", "--vfio-user", str(tmp_path / "s"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--vfio-user", str(tmp_path / "no" / "s")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
