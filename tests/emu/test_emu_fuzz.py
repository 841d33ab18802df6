"""Seeded nonsense at the ioctl interface: nothing crashes, hangs or allocates without bound."""

from __future__ import annotations

import errno
import mmap
import os
import random
import resource
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from amdxdna import uapi
from amdxdna._native import ffi, lib
from amdxdna.emu.driver.table import ENTRIES
from amdxdna.emu.kernels import stream
from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from amdxdna.usermem import UserMemory
from tests.conformance import kit

PAGE = 4096
NUMBERS = [n for n in ENTRIES if n != uapi.number("SYNCOBJ_TIMELINE_WAIT")]
"""Waits are fuzzed apart: a random deadline may be centuries away, rightly."""


@pytest.fixture(params=["pasid", "iova"])
def client(request: pytest.FixtureRequest) -> Iterator[kit.Ready]:
    options = EmuOptions(address=request.param, threads=1, quiet=True, tdr=0.05, privileged=True, slots=6)
    ready = kit.Ready(EmuNode(options))
    yield ready
    ready.close()


def value(rng: random.Random, pointers: list[int]) -> int:
    """A number that some check may trip over."""
    return rng.choice(
        [
            0,
            0,
            0,
            1,
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            8,
            16,
            32,
            64,
            100,
            144,
            255,
            256,
            PAGE,
            PAGE - 1,
            1 << 16,
            1 << 20,
            64 << 20,
            128 << 20,
            1 << 30,
            1 << 31,
            (1 << 32) - 1,
            1 << 32,
            1 << 40,
            1 << 47,
            1 << 62,
            (1 << 63) - 1,
            (1 << 64) - 1,
            *(rng.getrandbits(bits) for bits in (8, 32, 64)),
            *pointers,
        ]
    )


def issue(node: Any, request: int, address: int) -> int:
    """The errno, 0 for success: an ioctl may fail with any; anything else is an error of the model."""
    try:
        assert node.ioctl(request, address) == 0
    except OSError as refused:
        assert refused.errno
        return refused.errno
    return 0


def still_works(client: kit.Ready) -> None:
    """With the contexts that were made along the way gone, a new client of the same device computes."""
    for handle in list(client.node.client.contexts):  # type: ignore[attr-defined]
        client.destroy(handle)
    other = kit.Ready(EmuNode(client.node.options))  # type: ignore[attr-defined]
    try:
        kit.until(lambda: other.copy(other.new_context()) == kit.COMPLETED, 60, "a copy completing")
    finally:
        other.close()


SCRATCH, ARGUMENTS = 1 << 20, 1 << 16


class Fenced(UserMemory):
    """A program's memory of which only `inside` is there: a random pointer may hit this process's heap."""

    inside = 0

    def _fence(self, address: int, size: int) -> None:
        if not self.inside <= address <= self.inside + SCRATCH - size:
            raise OSError(errno.EFAULT, "fenced")

    def read_into(self, address: int, struct: Any, size: int) -> None:
        self._fence(address, size)
        super().read_into(address, struct, size)

    def write_from(self, address: int, struct: Any, size: int) -> None:
        self._fence(address, size)
        super().write_from(address, struct, size)


def scratch_memory(client: kit.Ready) -> int:
    """1 MiB, the only memory that the client's ioctls reach from now on. unfence() ends that."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    fenced = Fenced(os.getpid())
    fenced.inside = int(lib.xdna_mmap(0, SCRATCH, mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0))
    client.node.client.user = fenced  # type: ignore[attr-defined]
    return fenced.inside


def unfence(client: kit.Ready) -> None:
    client.node.client.user = UserMemory(os.getpid())  # type: ignore[attr-defined]


def requests(client: kit.Ready, inside: int) -> list[tuple[int, str, dict[str, int]]]:
    """Requests that succeed as they are (or nearly), for fields of them to be changed."""
    source, command, pdi = client.source.handle, client.command.handle, client.pdi.handle
    hwctx = client.hwctx
    text = {"name_len": 30, "name": inside, "date_len": 30, "date": inside, "desc_len": 30, "desc": inside}
    return [
        (0x00, "drm_version", text),
        (0x09, "drm_gem_close", {"handle": 20}),
        (0x2D, "drm_prime_handle", {"handle": source, "flags": 0o2000000}),
        (0x2E, "drm_prime_handle", {"fd": 5}),
        (0xC0, "drm_syncobj_destroy", {"handle": 3}),
        (0x40, "amdxdna_drm_create_hwctx", {"qos_p": inside, "num_tiles": 32}),
        (0x41, "amdxdna_drm_destroy_hwctx", {"handle": 2}),
        (0x42, "amdxdna_drm_config_hwctx", {"handle": 2, "param_val": inside, "param_val_size": 16}),
        (0x42, "amdxdna_drm_config_hwctx", {"handle": hwctx, "param_type": 1, "param_val": pdi}),
        *[
            (0x43, "amdxdna_drm_create_bo", {"type": kind, "size": size})
            for kind, size in ((1, PAGE), (2, 64 << 20), (3, PAGE), (4, PAGE), (1, 9 << 20), (3, 9 << 20))
        ],
        (0x43, "amdxdna_drm_create_bo", {"type": 1, "size": PAGE, "vaddr": inside}),
        (0x44, "amdxdna_drm_get_bo_info", {"handle": source}),
        (0x45, "amdxdna_drm_sync_bo", {"handle": source, "size": PAGE}),
        (
            0x46,
            "amdxdna_drm_exec_cmd",
            {"hwctx": hwctx, "cmd_handles": command, "args": inside, "cmd_count": 1, "arg_count": 1},
        ),
        *[
            (0x47, "amdxdna_drm_get_info", {"param": param, "buffer_size": 1 << 16, "buffer": inside})
            for param in (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13)
        ],
        *[
            (0x48, "amdxdna_drm_set_state", {"param": param, "buffer_size": 8, "buffer": inside})
            for param in (0, 3, 4)
        ],
        (0x49, "amdxdna_drm_wait_cmd", {"hwctx": hwctx}),
        *[
            (
                0x4A,
                "amdxdna_drm_get_array",
                {"param": param, "element_size": 144, "num_element": 20, "buffer": inside},
            )
            for param in (0, 2, 6)
        ],
    ]


@pytest.mark.parametrize("seed", range(6))
def test_changed_requests(client: kit.Ready, seed: int) -> None:
    """Good requests with a few fields of the struct, or of the memory it points to, changed."""
    rng = random.Random(seed)
    inside = scratch_memory(client)
    memory, arguments = ffi.cast("uint32_t *", inside), ffi.cast("char *", inside + ARGUMENTS)
    pointers = [8, inside, inside + 1, inside + SCRATCH - 4, client.instructions.device]
    templates = requests(client, inside)
    keep = {client.pdi.handle, client.instructions.handle, client.command.handle}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused: Counter[int] = Counter()
    for _ in range(1200):
        number, layout, fields = rng.choice(templates)
        for at in range(16):
            usual = rng.choice([0, 0, 1, 2])
            memory[at] = value(rng, pointers) & 0xFFFFFFFF if rng.random() < 0.15 else usual
        block = bytearray(ffi.buffer(ffi.new(f"struct {layout} *", fields)))
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            at = rng.randrange(0, len(block), 4)
            new = struct.pack("<Q", value(rng, pointers))[: rng.choice([4, 8])]
            block[at : at + len(new)] = new[: len(block) - at]
        if number == 0x09 and int.from_bytes(block[:4], "little") in keep:
            continue
        if number == 0x46:
            client.pack(stream.copy(PAGE, 1), client.source.device, client.destination.device)
        ffi.memmove(arguments, block, len(block))
        failed = issue(client.node, 3 << 30 | len(block) << 16 | 0x6400 | number, inside + ARGUMENTS)
        refused[failed] += 1
        if number == 0x2D and not failed:
            os.close(struct.unpack_from("<i", ffi.buffer(arguments, 12), 8)[0])
    assert refused[0] > 200, "nearly everything was refused: the templates are not good requests"
    unfence(client)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10, f"{grown >> 10} MiB more"
    still_works(client)


@pytest.mark.parametrize("seed", range(2))
def test_random_requests(client: kit.Ready, seed: int) -> None:
    """Random numbers, sizes, directions and contents."""
    rng = random.Random(seed)
    inside = scratch_memory(client)
    pointers = [8, inside, inside + 1, inside + SCRATCH - 4]
    args = ffi.cast("char *", inside + ARGUMENTS)
    address = inside + ARGUMENTS
    for _ in range(2000):
        number = rng.choice(NUMBERS) if rng.random() < 0.8 else rng.choice([*range(0xCA), *range(0xCB, 256)])
        entry = ENTRIES.get(number)
        size = entry.size if entry and rng.random() < 0.8 else rng.choice([0, 1, 4, 8, 16, 200])
        ffi.memmove(args, b"".join(struct.pack("<Q", value(rng, pointers)) for _ in range(32)), 256)
        where = address if rng.random() < 0.98 else 8
        issue(client.node, rng.choice([3, 3, 2, 1, 0]) << 30 | size << 16 | 0x6400 | number, where)
    unfence(client)
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
        args = ffi.new(
            "struct drm_syncobj_timeline_wait *",
            {
                "handles": rng.choice([8, inside, inside]),
                "points": rng.choice([8, inside + 256, inside]),
                "timeout_nsec": rng.choice([0, -1, 1, time.monotonic_ns() + rng.randrange(2_000_000)]),
                "count_handles": rng.choice([0, 1, 1, 2, 3, 16, 1 << 20, (1 << 32) - 1]),
                "flags": rng.choice([0, 1, 2, 3, 2, 3, 4, 6, 8, 1 << 31]),
            },
        )
        issue(client.node, lib.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, int(ffi.cast("uintptr_t", args)))
    still_works(client)


def _mutate(rng: random.Random, words: list[int], pool: list[int]) -> list[int]:
    words = list(words)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(words))
        flipped = words[at] ^ 1 << rng.randrange(32)
        words[at] = rng.choice([0, 1, 0xFFFFFFFF, rng.getrandbits(32), flipped, *pool])
    return words


@pytest.mark.parametrize("seed", range(4))
def test_packets_and_streams(client: kit.Ready, seed: int) -> None:
    """Mutated packets, chains and instruction streams; hangs are mutated into being too."""
    rng = random.Random(seed)
    member = client.bo(PAGE, lib.AMDXDNA_BO_CMD)
    pool = [
        client.source.device & 0xFFFFFFFF,
        client.destination.device & 0xFFFFFFFF,
        member.handle,
        client.instructions.device,
        0x4000000,
        0x3FFFFFF,
        0x8000000,
    ]
    streams = [
        list(struct.unpack(f"<{len(s) // 4}I", s))
        for s in (
            stream.copy(PAGE, 1),
            stream.fail(5),
            stream.delay(10),
            stream.hang(),
            stream.program([stream.Copy(64, 1)] * 20),
        )
    ]
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
        client.wait(client.syncobj, seq)
        assert kit.state(client.command) in range(16)
    still_works(client)
