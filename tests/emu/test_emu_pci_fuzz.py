"""Seeded nonsense at the two servers of the PCI function: vfio-user messages, and registers and mailboxes.

Nothing may end or stop the server, cost it memory or descriptors, or raise what only a fault of the model
raises. AMDXDNA_FUZZ=N makes the runs N times as long.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amdxdna.emu.pci import commands, messages, psp, smu, vfio_user
from amdxdna.emu.pci import registers as reg
from amdxdna.emu.pci.firmware import FirmwareOptions
from amdxdna.emu.pci.function import Npu2Function
from amdxdna.emu.pci.vfio_user import CONFIG_REGION, Server
from tests.support.descriptors import descriptors
from tests.support.probe import SMU_INTERRUPT, Probe
from tests.support.vfio_client import HEADER, PAGE, Client, sealed

TIMES = int(os.environ.get("AMDXDNA_FUZZ", "1"))
MORE_MEMORY = 200 << 20
# The server's word for an exception that is neither an OSError nor a body too short.
FAULT = re.compile(r"^command \d+: \w+: ")
LONGEST = 60.0  # seconds a message may take on a machine that has no time


def value(rng: random.Random) -> int:
    """A number that some check may trip over."""
    return rng.choice(
        [
            *(0, 1, 2, 3, 4, 8, 31, 32, 33, 64, 255, 256, PAGE - 1, PAGE, 2 * PAGE, 1 << 20, 2 << 20),
            *(1 << 31, (1 << 32) - 1, 1 << 40, (1 << 48) - PAGE, 1 << 48, 1 << 63, (1 << 64) - PAGE),
            *((1 << 64) - 1, rng.getrandbits(16), rng.getrandbits(48) & -PAGE, rng.getrandbits(64)),
        ]
    )


def memory() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Watched:
    """A server in a thread, with its log."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self.function = Npu2Function()
        self.server = Server(folder / "npu.sock", self.function, self.lines.append)
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def close(self) -> None:
        self.server.close()
        self.thread.join(60)
        alive = self.thread.is_alive()
        self.function.close()
        assert not alive


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.close()


def body(rng: random.Random, command: int) -> bytes:
    """A body that is often nearly right."""

    def u32(*limits: int) -> int:
        return rng.choice([*limits, value(rng) & 0xFFFFFFFF])

    region, place = u32(0, 1, 2, 4, 5, CONFIG_REGION), rng.choice([value(rng), rng.randrange(1 << 20)])
    if command in (vfio_user.DMA_MAP, vfio_user.DMA_UNMAP):
        offset = [rng.choice([0, PAGE, value(rng)])] if command == vfio_user.DMA_MAP else []
        data = struct.pack(
            f"<II{2 + len(offset)}Q",
            32,
            u32(0, 1, 2, 3),
            *offset,
            rng.choice([0, PAGE, value(rng)]),
            rng.choice([PAGE, 4 * PAGE, value(rng)]),
        )
    elif command == vfio_user.SET_IRQS:
        data = struct.pack("<IIIII", 20, u32(0x21, 0x24), u32(2), u32(0, 3, 33), u32(0, 1, 34))
    elif command in (vfio_user.REGION_READ, vfio_user.REGION_WRITE):
        count = u32(1, 4, 8, PAGE)
        data = struct.pack("<QII", place, region, count) + rng.randbytes(min(count, 64))
    elif command == vfio_user.REGION_WRITE_MULTI:
        data = struct.pack("<Q", rng.choice([0, 1, 3, value(rng)])) + b"".join(
            struct.pack("<QIIQ", rng.randrange(1 << 20), region, u32(1, 4, 8), value(rng))
            for _ in range(rng.randrange(4))
        )
    else:
        data = struct.pack("<IIIIQQ", 32, value(rng) & 0xFFFFFFFF, region, 0, place, value(rng))
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.1 else data


@pytest.mark.parametrize("seed", range(4))
def test_vfio_user(seed: int, watched: Watched) -> None:
    """Messages with any number, size, body and descriptors: each is answered, the next client is served."""
    rng = random.Random(seed)
    before, held = memory(), descriptors()
    for _ in range(6 * TIMES):
        client = Client(watched.server.path)
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            for _ in range(60):
                command = rng.choice([*range(18), vfio_user.DMA_MAP, vfio_user.SET_IRQS, rng.getrandbits(16)])
                data = body(rng, command)
                fds = [
                    rng.choice(
                        [
                            lambda: sealed(4 * PAGE),
                            lambda: os.eventfd(0),
                            lambda: os.open("/dev/null", os.O_RDONLY),
                        ]
                    )()
                    for _ in range(rng.choice([0, 0, 0, 1, 2, 16]))
                ]
                message, broken = client.message(command, data), rng.random() < 0.01
                if broken:
                    size, flags = value(rng) & 0xFFFFFFFF, value(rng) & 0xFFFFFFFF
                    message = HEADER.pack(1, command, size, flags, 0) + data
                client.socket.settimeout(LONGEST)
                try:
                    client.send(message, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
                if broken:
                    # Whether a reply comes depends on what the header says: leave, in the middle of it.
                    break
                client.reply()
        client.socket.close()
    last = Client(watched.server.path)
    assert last.ask(vfio_user.GET_INFO, bytes(16))
    last.socket.close()
    assert not [line for line in watched.lines if FAULT.match(line)]
    watched.close()
    assert (watched.function.memory.ranges(), watched.function.memory.windows) == ([], 0)
    assert descriptors() <= held
    assert memory() - before < MORE_MEMORY


def request(rng: random.Random) -> tuple[int, bytes]:
    """An opcode and a body that is often of the right size."""
    opcode = rng.choice(
        [
            *messages.MANAGEMENT,
            *commands.CHAINS,
            *commands.SINGLES,
            messages.CONFIGURE_CUS,
            messages.SYNC_BO,
            messages.CONFIGURE_DEBUG_BO,
            rng.getrandbits(12),
        ]
    )
    layout = messages.MANAGEMENT.get(opcode)
    size = layout.request if layout else rng.choice([0, 4, 16, 24, 76, 132, 160, 184])
    if rng.random() < 0.1:
        size = rng.randrange(0, 300)
    return opcode, struct.pack("<40Q", *(value(rng) for _ in range(40)))[:size]


def works(probe: Probe) -> None:
    """After a reset the function starts, and a context can be made."""
    probe.function.reset()
    management = probe.start()
    assert probe.context(management)[0] == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("protocol", [(6, 12), (7, 0)])
def test_mailbox(protocol: tuple[int, int], seed: int) -> None:
    """Requests of any opcode and body on both kinds of channel; management's are answered in their size."""
    rng = random.Random(seed)
    probe = Probe(FirmwareOptions(protocol=protocol, threads=1))
    before = memory()
    for _ in range(2 * TIMES):
        management = probe.start()
        _, own = probe.context(management)
        assert own is not None
        for _ in range(120):
            channel = rng.choice([management, own])
            opcode, data = request(rng)
            if opcode in (messages.SUSPEND, messages.DESTROY_CONTEXT) and rng.random() < 0.9:
                continue
            began = time.monotonic()
            channel.send(opcode, data)
            assert time.monotonic() - began < LONGEST
            while (reply := channel.receive()) is not None:
                layout = messages.MANAGEMENT.get(reply[0])
                if channel is management:
                    assert len(reply[2]) == (layout.reply if layout else 4), hex(reply[0])
        works(probe)
        probe.function.reset()
    probe.close()
    assert memory() - before < MORE_MEMORY


@pytest.mark.parametrize("seed", range(6))
def test_registers(seed: int) -> None:
    """Writes anywhere, the rings and their pointers among them: none raises, and a reset mends everything."""
    rng = random.Random(seed)
    probe = Probe(FirmwareOptions(threads=1))
    before = memory()
    for _ in range(3 * TIMES):
        management = probe.start()
        probe.context(management)
        for _ in range(400):
            place = rng.choice(
                [
                    lambda: (reg.REGISTERS_BAR, reg.MAILBOX_REGISTERS + 4 * rng.randrange(3 * 8)),
                    lambda: (reg.SRAM_BAR, reg.RINGS + 4 * rng.randrange(2 * reg.RING_SIZE)),
                    lambda: (reg.SMU_BAR, rng.choice([reg.SMU_COMMAND, reg.SMU_ARGUMENT, SMU_INTERRUPT])),
                    lambda: (reg.PSP_BAR, rng.choice([reg.PSP_COMMAND, reg.PSP_INTERRUPT])),
                    lambda: (rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 255]), value(rng)),
                ]
            )()
            data = rng.choice(
                [
                    struct.pack("<I", value(rng) & 0xFFFFFFFF),
                    rng.randbytes(rng.randrange(9)),
                    struct.pack("<I", rng.choice([1, psp.START, psp.RELEASE, smu.POWER_ON])),
                ]
            )
            began = time.monotonic()
            probe.function.write(*place, data)
            probe.function.read(*place, rng.choice([0, 1, 4, 8]))
            assert time.monotonic() - began < LONGEST, place
        works(probe)
        probe.function.reset()
    probe.close()
    assert memory() - before < MORE_MEMORY
