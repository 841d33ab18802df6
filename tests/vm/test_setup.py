"""The set-up's own parts, without a machine: archives, module order, log checks, and machines that cannot."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from amdxdna.emu.npu import BadAddress
from amdxdna.emu.pci import rig

from . import debs, guest, shared_addresses
from .image import CHECKOUT


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: drivers/accel/amdxdna/amdxdna_gem.c:12 at amdxdna_x+0x1/0x2 [amdxdna], CPU#0: t/1",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "Call Trace:",
    ],
)
def test_kernel_trouble(line: str) -> None:
    with pytest.raises(guest.KernelTrouble):
        guest.check_log(["all is well", line])


def test_expected_kernel_trouble() -> None:
    """A warning that a test provokes is let through, with its trace, and no other."""
    warning = "WARNING: drivers/accel/amdxdna/amdxdna_gem.c:12 at amdxdna_x"
    guest.check_log([warning, "Call Trace:", "amdxdna: *ERROR* it failed, ret -22"], "amdxdna_gem.c")
    with pytest.raises(guest.KernelTrouble):
        guest.check_log([warning, "BUG: unable to handle page fault"], "amdxdna_gem.c")


def deb(name: str, version: str, sha256: str = "") -> debs.Deb:
    return debs.Deb(name, version, f"{name}.deb", 1, sha256)


def test_pins() -> None:
    """A newer version than the tested one is a warning; an older one, or another file of it, is refused."""
    version, sha256 = debs.PINS["seabios"]
    debs.check_pins([deb("seabios", version, sha256), deb("unknown", "1")])
    with pytest.warns(UserWarning, match="seabios 2.0 instead of the tested"):
        debs.check_pins([deb("seabios", "2.0", "0" * 64)])
    with pytest.raises(debs.Unavailable, match="is older than the tested"):
        debs.check_pins([deb("seabios", "1.16.9", sha256)])
    with pytest.raises(debs.Unavailable, match="not the pinned"):
        debs.check_pins([deb("seabios", version, "0" * 64)])


def test_what_was_unpacked_is_looked_at(tmp_path: Path) -> None:
    """A tree whose files are not those that were unpacked is not used."""
    stamp = tmp_path / "stamp"

    def make() -> Path:
        tree = tmp_path / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "bin").mkdir(parents=True)
        (tree / "bin/qemu").write_bytes(b"program")
        (tree / "lib").symlink_to("bin")
        rig.seal(tmp_path, ["tree"], stamp, {"kernel": "7"})
        return tree

    assert rig.sealed(tmp_path, stamp) is None, "nothing was unpacked"
    make()
    assert rig.sealed(tmp_path, stamp) == {"kernel": "7"}
    for change in (
        lambda tree: (tree / "bin/qemu").write_bytes(b"progr\0m"),
        lambda tree: (tree / "bin/libc.so.6").write_bytes(b""),
        lambda tree: (tree / "bin/qemu").unlink(),
        lambda tree: ((tree / "lib").unlink(), (tree / "lib").symlink_to("/tmp")),
    ):
        change(make())
        with pytest.warns(UserWarning, match="not what was unpacked"):
            assert rig.sealed(tmp_path, stamp) is None
    stamp.write_text("{")
    assert rig.sealed(tmp_path, stamp) is None


def test_a_cache_that_is_only_read_is_used(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    rig.seal(tmp_path, ["tree"], tmp_path / "rig.json", {"kernel": "7", "versions": {"qemu": "10"}})
    (tmp_path / "lock").mkdir()  # what nobody, root included, can open for writing
    found = rig.cached(tmp_path)
    assert found is not None and (found.root, found.kernel_release, found.versions) == (
        tmp_path,
        "7",
        {"qemu": "10"},
    )


def test_layouts_have_their_own_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkouts of several ages share a cache without undoing each other's."""
    monkeypatch.setenv("AMDXDNA_VM_CACHE", "/cache")
    assert rig.cache_dir() == Path(f"/cache/layout-{rig.LAYOUT}")


@pytest.mark.skipif(not shutil.which("apt-config"), reason="no apt on this machine")
def test_apt_trusts_what_we_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose apt takes unsigned or outdated lists does not make the private one take them."""
    careless = tmp_path / "careless.conf"
    settings = (
        "APT::Get::AllowUnauthenticated",
        "Acquire::AllowInsecureRepositories",
        "Acquire::AllowWeakRepositories",
        "Acquire::AllowDowngradeToInsecureRepositories",
    )
    careless.write_text(
        "".join(f'{name} "true";\n' for name in settings)
        + 'Acquire::Check-Valid-Until "false"; Acquire::Check-Date "false";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(careless))
    apt = debs.Apt(tmp_path / "private", "http://archive.invalid/debian")
    dump = subprocess.run(
        ["apt-config", "-c", str(apt.config), "dump"], capture_output=True, text=True, check=True
    ).stdout
    seen = dict(re.findall(r'^(\S+) "(.*)";$', dump, re.M))
    assert {name: seen[name] for name in settings} == dict.fromkeys(settings, "false")
    assert seen["Acquire::Check-Valid-Until"] == seen["Acquire::Check-Date"] == "true"
    assert int(seen["Acquire::Max-ValidTime"]) <= 366 * 86400


@pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt on this machine")
@pytest.mark.parametrize("signed", [False, True])
def test_lists_that_nobody_signed(signed: bool, tmp_path: Path) -> None:
    """An archive without a signature, or with one that is not Debian's, is refused."""
    for suite in (debs.RELEASE, debs.BACKPORTS):
        folder = tmp_path / "archive/dists" / suite
        (folder / "main/binary-amd64").mkdir(parents=True)
        (folder / "main/binary-amd64/Packages").write_text("")
        text = f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nComponents: main\nArchitectures: amd64\n"
        (folder / "Release").write_text(text)
        if signed:
            (folder / "InRelease").write_text(
                f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{text}-----BEGIN PGP SIGNATURE-----\n\n"
                "AAAA\n-----END PGP SIGNATURE-----\n"
            )
    apt = debs.Apt(tmp_path / "private", f"file:{tmp_path}/archive")
    with pytest.raises(debs.Unavailable):
        apt.update()


KALLSYMS = """\
ffffffff81000000 T iommu_sva_bind_device
ffffffff81000040 T __pfx_iommu_sva_get_pasid
ffffffff81000050 T iommu_sva_get_pasid
ffffffff81000080 T iommu_sva_unbind_device
ffffffff810000a0 T iommu_sva_next
ffffffff81001000 b __log_buf
ffffffff81021000 b next
"""


def kernel(functions: tuple[int, ...] = (0, 0x50, 0x80)) -> int:
    """RAM with a kernel at KALLSYMS' addresses, each function of which begins as a kernel's do."""
    ram = shared_addresses.new_ram("32M")
    for at in functions:
        os.pwrite(ram, bytes.fromhex("f30f1efa0f1f440000"), 0x1000000 + at)
    return ram


def test_shared_addresses() -> None:
    """A place in the table becomes a PASID's page tables; what the functions do is run here."""
    ram = kernel()
    tables = shared_addresses.share(ram, KALLSYMS)
    os.pwrite(ram, struct.pack("<Q", 0x5018), 0x1001000 + 8 * 3)
    # Page tables at 0x5000 whose only page is address 0x1000, frame 0x30.
    for at, entry in ((0x5000, 0x6007), (0x6000, 0x7007), (0x7000, 0x8007), (0x8008, 0x30007)):
        os.pwrite(ram, struct.pack("<Q", entry), at)
    os.pwrite(ram, b"page", 0x30000)
    assert ctypes.string_at(tables.pointer(0, 3, 0x1000, 4), 4) == b"page"
    for pasid in (0, 2, 1 << 20):
        with pytest.raises(BadAddress):
            tables.pointer(0, pasid, 0x1000, 4)
    tables.close()
    os.close(ram)


def test_shared_addresses_code() -> None:
    """Handles are places of the table in turn, a handle's number is its place's, unbind empties it."""
    anywhere = mmap.mmap(-1, 1 << 17, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)  # MAP_32BIT
    table = ctypes.addressof(ctypes.c_char.from_buffer(anywhere))
    code = shared_addresses.functions(table)
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))

    def load(offset: int, name: str) -> object:
        # CR3 is for the kernel alone: here the second argument stands for it.
        page[offset : offset + len(code[name])] = code[name].replace(b"\x0f\x20\xd8", b"\x48\x89\xf0")
        kind = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
        return kind(at + offset)

    bind, pasid, unbind = (
        load(256 * i, name)
        for i, name in enumerate((shared_addresses.BIND, shared_addresses.PASID, shared_addresses.UNBIND))
    )
    handles = [bind(0, 0x1000 * (i + 1)) for i in range(3)]  # type: ignore[operator]
    numbers = [pasid(handle, 0) for handle in handles]  # type: ignore[operator]
    assert numbers == [1, 2, 3]
    assert struct.unpack_from("<4Q", anywhere) == (3, 0x1000, 0x2000, 0x3000)
    unbind(handles[1], 0)  # type: ignore[operator]
    assert struct.unpack_from("<4Q", anywhere) == (3, 0x1000, 0, 0x3000)


@pytest.mark.parametrize(
    ("listing", "functions", "reason"),
    [
        ("", (), "does not list iommu_sva_bind_device"),
        (KALLSYMS.replace("ffffffff", "00000000"), (), "outside the kernel's image"),
        (KALLSYMS.replace("810000a0 T", "81000084 T"), (0, 0x50, 0x80), "has 4 bytes"),
        (KALLSYMS.replace("81021000 b", "81002000 b"), (0, 0x50, 0x80), "__log_buf has 4096 bytes"),
        (KALLSYMS, (0, 0x50), "no function begins at iommu_sva_unbind_device"),
    ],
)
def test_a_kernel_that_is_not_as_expected(listing: str, functions: tuple[int, ...], reason: str) -> None:
    """Said in one line, and nothing of it is overwritten."""
    ram = kernel(functions=functions)
    before = os.pread(ram, 0x2000, 0x1000000)
    with pytest.raises(shared_addresses.CannotShare, match=reason):
        shared_addresses.share(ram, listing)
    assert os.pread(ram, 0x2000, 0x1000000) == before
    os.close(ram)


@pytest.mark.parametrize(
    ("mode", "status", "word"), [("", 0, "skipped"), ("require", 1, "errors"), ("off", 0, "skipped")]
)
def test_a_machine_that_cannot(tmp_path: Path, mode: str, status: int, word: str) -> None:
    """Without apt the guest's tests are skipped with one line saying why, or fail where they are required."""
    environment = {
        **os.environ,
        "PATH": str(tmp_path),
        "AMDXDNA_VM": mode,
        "AMDXDNA_VM_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/vm/test_firmware_faults.py",
            "-k",
            "protocols",
        ],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode != 0) == bool(status), done.stdout
    reason = "AMDXDNA_VM=off" if mode == "off" else "no apt-get on this machine"
    lines = [line for line in done.stdout.splitlines() if reason in line and line.startswith("SKIPPED")]
    assert len(lines) == (0 if status else 1), done.stdout
    assert reason in done.stdout
    assert word in done.stdout.splitlines()[-1]
