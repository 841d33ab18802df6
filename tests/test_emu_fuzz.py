"""Seeded nonsense at the ioctl interface: nothing crashes, hangs or allocates without bound."""

from __future__ import annotations

import mmap
import random
import resource
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from amdxdna._native import ffi, lib
from amdxdna.emu.driver.table import ENTRIES
from amdxdna.emu.kernels import stream
from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from tests.conformance import kit

PAGE = 4096
NUMBERS = [n for n in ENTRIES if n != 0xCA]
"""Waits are fuzzed apart: a random deadline may be centuries away, rightly."""


@pytest.fixture(params=["pasid", "iova"])
def client(request: pytest.FixtureRequest) -> Iterator[kit.Ready]:
    options = EmuOptions(address=request.param, threads=1, quiet=True, tdr=0.05, privileged=True, slots=6)
    ready = kit.Ready(EmuNode(options))
    yield ready
    ready.close()


def value(rng: random.Random, pointers: list[int]) -> int:
    """A number that some check may trip over."""
    return rng.choice([
        0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100, 144, 255, 256, PAGE, PAGE - 1, 1 << 16, 1 << 20,
        64 << 20, 128 << 20, 1 << 30, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 47, 1 << 62, (1 << 63) - 1,
        (1 << 64) - 1, rng.getrandbits(8), rng.getrandbits(32), rng.getrandbits(64), *pointers])


def issue(node: Any, request: int, address: int) -> None:
    """An ioctl may fail with any errno; anything else is an error of the model."""
    try:
        assert node.ioctl(request, address) == 0
    except OSError as refused:
        assert refused.errno


def still_works(client: kit.Ready) -> None:
    """A new client of the same device computes."""
    other = kit.Ready(EmuNode(client.node.options))  # type: ignore[attr-defined]
    try:
        kit.until(lambda: other.copy(other.new_context()) == kit.COMPLETED, 20, "a copy completing")
    finally:
        other.close()


@pytest.mark.parametrize("seed", range(4))
def test_structs(client: kit.Ready, seed: int) -> None:
    rng = random.Random(seed)
    # Answers may go anywhere in here, and nowhere else: pages that are not there follow.
    inside = lib.xdna_mmap(0, 2 << 20, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    lib.xdna_mmap(inside, 1 << 20, mmap.PROT_READ | mmap.PROT_WRITE,
                  mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0)
    scratch = ffi.cast("char *", inside)
    pointers = [8, inside, inside + 1, inside + (1 << 20) - 4, client.instructions.device]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    args = ffi.new("char[]", 256)
    address = int(ffi.cast("uintptr_t", args))
    keep = {client.pdi.handle, client.instructions.handle, client.command.handle}
    for _ in range(1500):
        number = rng.choice(NUMBERS) if rng.random() < 0.97 else rng.randrange(256)
        entry = ENTRIES.get(number)
        size = entry.size if entry and rng.random() < 0.9 else rng.choice([0, 1, 4, 8, 16, 200])
        fields = b"".join(struct.pack("<I", value(rng, pointers) & 0xFFFFFFFF) if rng.random() < 0.5
                          else struct.pack("<Q", value(rng, pointers)) for _ in range(32))
        ffi.memmove(args, fields, min(len(fields), 256))
        ffi.memmove(scratch, bytes(rng.getrandbits(8) for _ in range(64)), 64)
        if number == 0x09 and int.from_bytes(fields[:4], "little") in keep:
            continue
        where = address if rng.random() < 0.98 else 8
        issue(client.node, rng.choice([3, 3, 3, 2, 1, 0]) << 30 | size << 16 | 0x6400 | number, where)
    lib.xdna_munmap(inside, 2 << 20)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10, f"{grown >> 10} MiB more"
    still_works(client)


@pytest.mark.parametrize("seed", range(4))
def test_waits(client: kit.Ready, seed: int) -> None:
    rng = random.Random(seed)
    scratch = ffi.new("uint64_t[]", 64)
    inside = int(ffi.cast("uintptr_t", scratch))
    for _ in range(300):
        if rng.random() < 0.2:
            client.start(stream.copy(PAGE, 1), client.source.device, client.destination.device)
        for i in range(64):
            scratch[i] = rng.choice([0, 1, 2, client.syncobj, rng.getrandbits(64)])
        args = ffi.new("struct drm_syncobj_timeline_wait *", {
            "handles": rng.choice([8, inside, inside]), "points": rng.choice([8, inside + 256, inside]),
            "timeout_nsec": rng.choice([0, -1, 1, time.monotonic_ns() + rng.randrange(2_000_000)]),
            "count_handles": rng.choice([0, 1, 1, 2, 3, 16, 1 << 20, (1 << 32) - 1]),
            "flags": rng.choice([0, 1, 2, 3, 2, 3, 4, 6, 8, 1 << 31])})
        issue(client.node, lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, int(ffi.cast("uintptr_t", args)))
    still_works(client)


def _mutate(rng: random.Random, words: list[int], pool: list[int]) -> list[int]:
    words = list(words)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(words))
        words[at] = rng.choice([0, 1, 0xFFFFFFFF, rng.getrandbits(32), words[at] ^ 1 << rng.randrange(32), *pool])
    return words


@pytest.mark.parametrize("seed", range(4))
def test_packets_and_streams(client: kit.Ready, seed: int) -> None:
    """Mutated packets, chains and instruction streams; hangs are mutated into being too."""
    rng = random.Random(seed)
    member = client.bo(PAGE, lib.AMDXDNA_BO_CMD)
    pool = [client.source.device & 0xFFFFFFFF, client.destination.device & 0xFFFFFFFF, member.handle,
            client.instructions.device, 0x4000000, 0x3FFFFFF, 0x8000000]
    streams = [list(struct.unpack(f"<{len(s) // 4}I", s)) for s in (
        stream.copy(PAGE, 1), stream.fail(5), stream.delay(10), stream.hang(),
        stream.program([stream.Copy(64, 1)] * 20))]
    for _ in range(250):
        program = rng.choice(streams)
        if rng.random() < 0.5:
            program = _mutate(rng, program, [])
        code = struct.pack(f"<{len(program)}I", *program)
        client.pack(code, client.source.device, client.destination.device)
        words = list(client.command.words()[:12])
        if rng.random() < 0.3:
            client.raw(member, *(_mutate(rng, words, pool)))
            count = rng.choice([1, 2, 3, 40, 0xFFFFFFFF])
            words = [kit.header(kit.CHAIN, 6 + 2 * min(count, 40)), count, 0, 0, 0, 0, 0]
            words += [member.handle, 0] * min(count, 40)
        if rng.random() < 0.7:
            words = _mutate(rng, words, pool)
        client.raw(client.command, *words)
        seq = client.submit(client.hwctx, client.command.handle, *rng.sample([3, 4, 5, 6], rng.randrange(3)))
        client.wait(client.syncobj, seq, 30)
        assert kit.state(client.command) in range(16)
    still_works(client)
