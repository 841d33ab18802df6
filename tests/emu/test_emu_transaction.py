"""Transactions that carry streams of the emulated NPU: what is understood, and what is refused."""

from __future__ import annotations

import struct

import pytest

from amdxdna.elf.patch import APERTURE
from amdxdna.emu.kernels import stream, transaction
from tests.support.control_code import CORE, DESCRIPTORS
from tests.support.streams import transaction as build

PROGRAM = stream.copy(64, 8)
WORDS = struct.unpack(f"<{len(PROGRAM) // 4}I", PROGRAM)
KERNEL = (1, 0, CORE, 16 + len(PROGRAM), *WORDS)
TOKEN = (0x80, 16, 0x10100, 0x10000)


def descriptor(number: int, address: int, column: int = 0) -> tuple[int, ...]:
    at = DESCRIPTORS + 32 * number + (column << 25)
    address += APERTURE
    return (1, 0, at, 48, 16, address & 0xFFFFFFFF | 3, 0xABCD0000 | address >> 32 & 0xFFFF, 0, 0, 0, 0, 0)


def patched(number: int, argument: int, plus: int = 0) -> tuple[int, ...]:
    at = DESCRIPTORS + 32 * number + 4
    return (0x81, 48, 0, 0, 0, 0, at, 0, argument, 0, plus & 0xFFFFFFFF, plus >> 32)


def test_buffers_by_descriptor_and_by_argument() -> None:
    (step,) = transaction.parse(
        build(descriptor(0, 0x7F0012345000), descriptor(1, 0xFFFFFFFFE000), patched(0, 1, 64), KERNEL, TOKEN)
    )
    assert (step.program, step.pdi, step.op) == (PROGRAM, 0, 4)
    # Without arguments the descriptors count, up to the last address; with them the patches do.
    assert step.addresses(()) == (0x7F0012345000, 0xFFFFFFFFE000)
    assert step.addresses((0x1000, 0x2000)) == (0x2040, 0xFFFFFFFFE000)
    assert step.addresses((0x1000,)) == (0, 0xFFFFFFFFE000)
    (step,) = transaction.parse(build(descriptor(0, 0), patched(0, 4, 4), KERNEL, TOKEN))
    assert step.addresses((1, 2, 3, 4, 0x5000)) == (0x5004,)
    # From the sixth argument on the compiler adds the aperture.
    (step,) = transaction.parse(build(descriptor(0, 0), patched(0, 5, APERTURE + 4), KERNEL, TOKEN))
    assert step.addresses((1, 2, 3, 4, 5, 0x6000)) == (0x6004,)


def test_short_ops_and_other_columns() -> None:
    at = DESCRIPTORS + 32
    (step,) = transaction.parse(
        build(
            (8 | 7 << 16, 64, 0x4008000, 0),
            (1, at, 44, 16, 0x80001000, 0, 0, 0, 0, 0, 0),
            (0x81, 24, at + 4, 0, 4, 0),
            (1, CORE, 12 + len(PROGRAM), *WORDS),
            TOKEN,
            version=(1, 0),
        )
    )
    assert (step.pdi, step.addresses(()), step.addresses((0x5000,))) == (0x4008000, (0, 0x1000), (0, 0x5004))
    for number, column, place in ((3, 1, 19), (9, 1, 25), (15, 0, 15)):
        (step,) = transaction.parse(build(descriptor(number, 0x9000, column), KERNEL, TOKEN))
        assert step.addresses(()) == (0,) * place + (0x9000,)
    (step,) = transaction.parse(build((1, 0, at, 28, 16, 0x80002000, 0), KERNEL, TOKEN))
    assert step.addresses(()) == (0, 0x2000)  # as much of a descriptor as has the address


def test_several_kernels() -> None:
    first, second = transaction.parse(
        build(
            descriptor(0, 0x1000),
            KERNEL,
            TOKEN,
            TOKEN,
            (8, 64, 0x4000000, 0),
            descriptor(0, 0x2000),
            KERNEL,
            TOKEN,
        )
    )
    assert (first.addresses(()), second.addresses(())) == ((0x1000,), (0x2000,))
    assert (first.pdi, second.pdi) == (0, 0x4000000)


def test_parameters() -> None:
    """Sums of a pair of words; the low two bits go, of an address' as of a number's."""
    table = struct.pack("<3I", 7, 3, 0x80000000)
    (step,) = transaction.parse(
        build(
            (10, 128, 0x4010000, 0),
            descriptor(0, 0x1000),
            KERNEL,
            (12, 4, DESCRIPTORS + 4),
            (12 | 2 << 8, 4, DESCRIPTORS + 4),
            (12 | 1 << 8, 5, CORE + 20),
            (12 | 31 << 8, 1, CORE + 20),  # the table's last
            TOKEN,
        )
    )
    assert step.table == (0x4010000, 128)
    program, addresses = step.updated(step.addresses(()), table)
    assert addresses == (0x1000 + 28 + 0x200000000,)
    assert program == stream.copy(64, (8 + 15) & ~3) and len(program) == len(PROGRAM)


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        ((TOKEN,), "no kernel"),
        ((KERNEL,), "nothing waits"),
        ((KERNEL, KERNEL, TOKEN), "nothing waits"),
        (((0, 0, 0x1D000, 0, 7, 24), KERNEL, TOKEN), "WRITE writes to the array"),
        (((1, 0, CORE, 24, 1, 2), KERNEL, TOKEN), "a write to register 0x200000"),
        ((descriptor(16, 0), KERNEL, TOKEN), "a write to register"),
        ((descriptor(0, 0, column=2), KERNEL, TOKEN), "a write to register"),
        ((descriptor(10, 0, column=1), KERNEL, TOKEN), "a write to register 0x201d140"),
        (((1, 0, DESCRIPTORS, 24, 16, 0), KERNEL, TOKEN), "a write to register"),
        (((1, 0, DESCRIPTORS + 4, 28, 16, 0, 0), KERNEL, TOKEN), "a write to register"),
        (((0x81, 48, 0, 0, 0, 0, 0x1D000, 0, 0, 0, 0, 0), KERNEL, TOKEN), "a patch of register"),
        (((8, 64, 0, 0), KERNEL, TOKEN), "LOADPDI without an address"),
        ((KERNEL, (12, 1, CORE + 20), TOKEN), "a state table of 0 bytes"),
        (((10, 128, 0, 0), KERNEL, (12 | 32 << 8, 1, CORE + 20), TOKEN), "entry 32"),
        (((10, 127, 0, 0), KERNEL, (12 | 31 << 8, 1, CORE + 20), TOKEN), "entry 31"),
        (((10, 128, 0, 0), KERNEL, (12, 1, CORE + 24), TOKEN), "an update of register"),
        (((10, 128, 0, 0), KERNEL, (12, 1, CORE + 18), TOKEN), "an update of register"),
        (((10, 128, 0, 0), KERNEL, (12, 1, CORE - 4), TOKEN), "an update of register"),
        (((10, 128, 0, 0), KERNEL, (12, 1, DESCRIPTORS + 4), TOKEN), "an update of register"),
        (((10, 128, 0, 0), KERNEL, (12 | 1 << 16, 1, CORE), TOKEN), "an update of register"),
        (((0x99,), KERNEL, TOKEN), "op code 0x99"),
    ],
)
def test_what_is_refused(ops: tuple[tuple[int, ...], ...], why: str) -> None:
    with pytest.raises(stream.StreamError, match=why):
        transaction.parse(build(*ops))


def test_what_is_no_transaction() -> None:
    assert not transaction.is_transaction(PROGRAM) and not transaction.is_transaction(b"")
    assert transaction.own_bytes(PROGRAM) == 0
    whole = build(KERNEL, TOKEN)
    assert transaction.own_bytes(whole + b"1234") == transaction.own_bytes(whole[:16]) == len(whole)
    with pytest.raises(stream.StreamError, match="no transaction"):
        transaction.parse(PROGRAM)
    for end in range(16, len(whole), 4):
        with pytest.raises(stream.StreamError):
            transaction.parse(whole[:end])
