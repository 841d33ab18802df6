"""What a hardware context may ask for, up to the bounds, and what is left of one that goes."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import pytest

from amdxdna._native import ffi, lib
from amdxdna.emu.kernels.families import Family, pdi
from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from tests.conformance import errnos, kit
from tests.conformance.kit import fails


@pytest.fixture
def client() -> Iterator[kit.Client]:
    made = kit.Client(EmuNode(EmuOptions(threads=1, quiet=True)))
    made.heap()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("gops", "qos", "tiles", "refused"),
    [
        (29491, {"fps": 1}, 32, False),  # twice that is what eight columns do at 1,800 MHz
        (29492, {"fps": 1}, 32, True),
        (3686, {"fps": 1}, 4, False),
        (3687, {"fps": 1}, 4, True),
        (3687, {"fps": 1}, 8, False),
        (29491, {"latency": 1000}, 32, False),
        (29492, {"latency": 1000}, 32, True),
        (29492, {"latency": 1001}, 32, False),  # less than once a second
        (2949, {"latency": 100, "fps": 1}, 32, False),
        (2950, {"latency": 100, "fps": 1}, 32, True),
        (2949, {"latency": 1000, "fps": 10}, 32, False),
        (2950, {"latency": 1000, "fps": 10}, 32, True),
        (1 << 31, {"fps": 2}, 32, False),  # in 32 bits
        ((1 << 31) + 29491, {"fps": 1}, 32, False),
    ],
)
def test_how_much_may_be_asked_for(
    gops: int, qos: dict[str, int], tiles: int, refused: bool, client: kit.Client
) -> None:
    if refused:
        with fails(errno.EINVAL):
            client.context(tiles=tiles, gops=gops, **qos)
    else:
        client.context(tiles=tiles, gops=gops, **qos)


@pytest.mark.parametrize(
    ("most", "clocks"),
    [
        (12976, (396, 792)),
        (17301, (600, 1056)),
        (18874, (792, 1152)),
        (20758, (975, 1267)),
        (23068, (1056, 1408)),
        (25952, (1152, 1584)),
        (29491, (1267, 1800)),
    ],
)
def test_the_clocks_that_are_enough(most: int, clocks: tuple[int, int], client: kit.Client) -> None:
    """4,096 operations a cycle and column, of which half count; the top where no rate is asked for."""

    def level(**qos: int) -> tuple[int, int]:
        client.destroy(client.context(**qos)[0])
        now = client.get_info(lib.DRM_AMDXDNA_QUERY_CLOCK_METADATA, "amdxdna_drm_query_clock_metadata")
        return int(now.mp_npu_clock.freq_mhz), int(now.h_clock.freq_mhz)

    assert level(gops=most, fps=1) == clocks
    assert (level(gops=most + 1, fps=1) > clocks) if most < 29491 else True
    assert level(gops=1, latency=1000) == (396, 792)
    assert level(gops=1) == level(fps=1) == level(latency=1) == (1267, 1800)


def test_a_context_that_goes_leaves_nothing(client: kit.Client) -> None:
    """Nor does one that was refused when it had its place in the heap."""
    heap = client.node.client.heap  # type: ignore[attr-defined]
    before = heap.usage
    context, _ = client.context()
    assert heap.usage == before + 4 * 4096
    client.destroy(context)
    assert heap.usage == before
    for wrong in ({"tiles": 36}, {"gops": 1_000_000, "fps": 1000}):
        with fails(errno.EINVAL):
            client.context(**wrong)
        assert heap.usage == before


def test_virtual_contexts() -> None:
    """A driver that has them makes 32, in all opens together, whatever the firmware can hold; its telemetry
    names those that the firmware has a word for."""
    options = EmuOptions(threads=1, quiet=True, driver="oot-legacy", slots=2)
    clients = [kit.Client(EmuNode(options)) for _ in range(2)]
    for each, count in zip(clients, (31, 1), strict=True):
        each.heap()
        assert [each.context()[0] for _ in range(count)] == list(range(1, count + 1))
    for each in clients:
        with fails(errno.ENOENT):
            each.context()
    data = ffi.new("uint32_t[]", 8)
    fields = {"param": lib.DRM_AMDXDNA_QUERY_TELEMETRY, "buffer_size": 32}
    address = int(ffi.cast("uintptr_t", data))
    errnos.call(clients[0], "AMDXDNA_GET_INFO", "amdxdna_drm_get_info", buffer=address, **fields)
    assert list(data) == [1, 0, 0, 2, 1, 2, 0, 0]
    clients[1].destroy(1)
    clients[0].context()
    for each in clients:
        each.close()


def configure(client: kit.Client, context: int, block: bytes) -> None:
    data = ffi.from_buffer(block)
    errnos.call(
        client,
        "AMDXDNA_CONFIG_HWCTX",
        "amdxdna_drm_config_hwctx",
        handle=context,
        param_type=lib.DRM_AMDXDNA_HWCTX_CONFIG_CU,
        param_val=int(ffi.cast("uintptr_t", data)),
        param_val_size=len(block),
    )


def test_cus_at_their_bounds(client: kit.Client) -> None:
    """32 in a block of up to 4,096 bytes, each with its function; no padding means anything."""
    handle = client.dev(0x1000, pdi(Family.COPY)).handle
    context, _ = client.context()
    cus = [struct.pack("<IB3x", handle, n) for n in range(32)]
    whole = struct.pack("<H6x", 32) + b"".join(cus)
    for head in range(3):
        with fails(errno.EINVAL):
            configure(client, context, struct.pack("<4H", 32, *[n == head for n in range(3)]) + whole[8:])
    for pad in (5, 6, 7):
        with fails(errno.EINVAL):
            configure(client, context, whole[: 8 + pad] + b"\1" + whole[9 + pad :])
    for wrong, number in ((whole[:-1], errno.EINVAL), (whole.ljust(4097, b"\0"), errno.E2BIG)):
        with fails(number):
            configure(client, context, wrong)
    configure(client, context, whole.ljust(4096, b"\0"))
    driver = client.node.driver  # type: ignore[attr-defined]
    assert [cu.function for cu in driver.npu.context(0).cus] == list(range(32))
    with fails(errno.EINVAL):
        configure(client, context, whole)


@pytest.mark.parametrize(("capability", "value"), [(0x5, 3), (0x6, 1), (0x13, 1), (0x14, 1), (0x1, None)])
def test_capabilities(capability: int, value: int | None, client: kit.Client) -> None:
    """Of drm.h: DRM_CAP_PRIME both ways, monotonic times, syncobjs, timelines; an accel node has no more."""
    words = ffi.new("uint64_t[2]", [capability, 77])
    address = int(ffi.cast("uintptr_t", words))
    if value is None:
        with fails(errno.EOPNOTSUPP):
            client.node.ioctl(0xC010640C, address)
    else:
        client.node.ioctl(0xC010640C, address)
    assert list(words) == [capability, 77 if value is None else value]
