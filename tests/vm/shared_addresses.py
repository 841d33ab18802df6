"""Shared virtual addresses in a guest whose IOMMU has no PASIDs.

Linux's driver shares a process's addresses with the NPU through three functions of the kernel:
iommu_sva_bind_device gives a handle for the calling process, iommu_sva_get_pasid the handle's number, and
iommu_sva_unbind_device gives it back (include/linux/iommu.h). QEMU's IOMMU cannot do what they need, so
they are overwritten in the guest's RAM before anything called them: bind notes CR3, the physical address of
the process's page tables, in the next place of a table; a handle is the address of its place and a PASID its
number; unbind empties the place. The model then walks the page tables (:mod:`amdxdna.emu.pci.page_tables`).

The driver's module is untouched. What this proves is which addresses the driver hands to the firmware, and
that they are right; an IOMMU's faults it cannot show.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

from amdxdna.emu.pci.page_tables import PageTables

# The kernel where its own symbols say it is, four levels of page tables, and a log buffer larger than the
# kernel image's own, __log_buf, which then holds nothing any more (kernel/printk/printk.c, setup_log_buf).
KERNEL_ARGUMENTS = ("nokaslr", "no5lvl", "log_buf_len=1M")
# arch/x86/include/asm/page_64_types.h: __START_KERNEL_map, where physical address 0 is without KASLR.
_KERNEL = 0xFFFFFFFF80000000
_PAGE = 4096
_PLACES = 8192
_TABLE_BYTES = 8 * (_PLACES + 1)

BIND, PASID, UNBIND = "iommu_sva_bind_device", "iommu_sva_get_pasid", "iommu_sva_unbind_device"
_TABLE = "__log_buf"
# Kernels up to 6.17 have these too; the driver calls them around its use of PASIDs.
_FEATURES = ("iommu_dev_enable_feature", "iommu_dev_disable_feature")
_WANTED = (BIND, PASID, UNBIND, _TABLE, *_FEATURES)
# Symbols are listed by address: those behind a wanted one tell where it ends.
SYMBOLS_COMMAND = f"/bin/busybox grep -E -A 8 ' ({'|'.join(_WANTED)})$' /proc/kallsyms"

# Instructions, AMD64 Architecture Programmer's Manual volume 3. A function begins with ENDBR64, where
# indirect branches must land, and the five bytes that tracing makes a call of.
_ENDBR64 = bytes.fromhex("f30f1efa")
_NOP5 = bytes.fromhex("0f1f440000")
_RET = b"\xc3"


class CannotShare(Exception):
    """The guest's kernel is not what this expects; the text says where."""


def new_ram(size: str) -> int:
    """A memfd for a guest's RAM of `size` (QEMU's notation, M or G), which cannot shrink any more."""
    fd = os.memfd_create("guest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, int(size[:-1]) << {"M": 20, "G": 30}[size[-1]])
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def symbols(listing: str) -> dict[str, tuple[int, int]]:
    """Address and size of the wanted symbols in lines of /proc/kallsyms. Raises CannotShare."""
    lines = [line.split() for line in listing.splitlines()]
    entries = sorted((int(words[0], 16), words[2]) for words in lines if len(words) == 3)
    found = {}
    for at, name in entries:
        if name in _WANTED:
            end = next((other for other, _ in entries if other > at), at)
            found[name] = (at, end - at)
    for name in (BIND, PASID, UNBIND, _TABLE):
        if name not in found:
            raise CannotShare(f"the guest's /proc/kallsyms does not list {name}: {listing[:200]!r}")
        if found[name][0] < _KERNEL:
            raise CannotShare(f"{name} is at {found[name][0]:#x}, outside the kernel's image")
    return found


def _load_rcx(address: int) -> bytes:
    return b"\x48\xc7\xc1" + struct.pack("<I", address & 0xFFFFFFFF)


def functions(table: int) -> dict[str, bytes]:
    """The code that takes the place of each function; `table` is where the counter before place 1 is."""
    bind = (
        _load_rcx(table)
        + bytes.fromhex("b801000000")  # mov eax, 1
        + bytes.fromhex("f00fc101")  # lock xadd [rcx], eax
        + b"\x25"
        + struct.pack("<I", _PLACES - 1)  # and eax, places - 1
        + bytes.fromhex("488d4cc108")  # lea rcx, [rcx + rax * 8 + 8]
        + bytes.fromhex("0f20d8")  # mov rax, cr3
        + bytes.fromhex("488901")  # mov [rcx], rax
        + bytes.fromhex("4889c8")  # mov rax, rcx
        + _RET
    )
    pasid = (
        _load_rcx(table)
        + bytes.fromhex("4889f8")  # mov rax, rdi
        + bytes.fromhex("4829c8")  # sub rax, rcx
        + bytes.fromhex("48c1e803")  # shr rax, 3
        + _RET
    )
    unbind = bytes.fromhex("48c70700000000") + _RET  # mov qword [rdi], 0
    nothing = bytes.fromhex("31c0") + _RET  # xor eax, eax
    return {
        name: _ENDBR64 + code
        for name, code in (
            (BIND, bind),
            (PASID, pasid),
            (UNBIND, unbind),
            *((name, nothing) for name in _FEATURES),
        )
    }


def share(ram: int, listing: str) -> PageTables:
    """Overwrites the functions in the RAM of a booted guest; its processes' address spaces by PASID.

    `listing`: what SYMBOLS_COMMAND printed in the guest. Raises CannotShare, with nothing overwritten.
    """
    found = symbols(listing)
    table, size = found[_TABLE]
    if size < _TABLE_BYTES:
        raise CannotShare(f"{_TABLE} has {size} bytes and not the {_TABLE_BYTES} of the table")
    memory = mmap.mmap(ram, 0)
    codes = {name: code for name, code in functions(table).items() if name in found}
    for name, code in codes.items():
        at, size = found[name]
        start = memory[at - _KERNEL : at - _KERNEL + 9]
        if not start.startswith((_ENDBR64, _NOP5)) or len(start) < 9:
            raise CannotShare(f"no function begins at {name}, {at:#x}: {start.hex()}")
        if size < len(code):
            raise CannotShare(f"{name} has {size} bytes and not the {len(code)} that replace it")
    counter = table - _KERNEL
    memory[counter : counter + _TABLE_BYTES] = bytes(_TABLE_BYTES)
    for name, code in codes.items():
        at = found[name][0] - _KERNEL
        memory[at : at + len(code)] = code

    def root(pasid: int) -> int:
        if not 0 < pasid <= _PLACES:
            return 0
        return int(struct.unpack_from("<Q", memory, counter + 8 * pasid)[0])

    return PageTables(ram, root)
