"""What an image has that a running system has already, how it is written and booted; without a machine."""

from __future__ import annotations

import ctypes
import gzip
import importlib.util
import json
import lzma
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qwen35.errors import QwenError, UsageError
from qwen35.find import DEFAULT_BUNDLE
from qwen35.rootfs import archive, boot, cli, elf, machine
from qwen35.rootfs.modules import modules_in_order
from qwen35.rootfs.tree import Tree
from tests.support.initramfs import entries, fake_module


def segments(image: bytes) -> list[tuple[int, ...]]:
    """The program headers: type, flags, offset, address, physical one, bytes in file, in memory, align."""
    table, count = *struct.unpack_from("<Q", image, 0x20), *struct.unpack_from("<H", image, 0x38)
    return [struct.unpack_from("<IIQQQQQQ", image, table + 56 * at) for at in range(count)]


@pytest.mark.parametrize("name", ["numpy._core._multiarray_umath", "tokenizers.tokenizers", "PIL._imaging"])
def test_a_compact_object_has_the_segments_that_the_loader_maps(name: str) -> None:
    """What each holds stays the same, at the place in a page that its address has."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    whole = Path(spec.origin).read_bytes()
    small = elf.compact(whole)
    assert len(small) < len(whole)
    assert struct.unpack_from("<Q", small, 0x28) == (0,) and small[0x3A:0x40] == bytes(6), "no sections"
    assert [h[0] for h in segments(small)] == [h[0] for h in segments(whole)]
    # the file's header and the table of segments tell of the file itself
    own = [slice(0, 64), slice(*(struct.unpack_from("<Q", whole, 0x20)[0] + x for x in (0, 56 * 20)))]
    plain = [bytearray(image) for image in (whole, small)]
    for image in plain:
        for place in own:
            image[place] = bytes(place.stop - place.start)
    for old, new in zip(segments(whole), segments(small), strict=True):
        assert new[:2] + new[3:7] == old[:2] + old[3:7]
        assert new[7] == min(old[7], 4096)
        assert new[2] % max(new[7], 1) == new[3] % max(new[7], 1)
        if old[0] != 0x6474E552:  # what is made read-only may end behind the file's part
            held, kept = (image[h[2] :][: h[5]] for image, h in zip(plain, (old, new), strict=True))
            assert held == kept


def test_a_table_behind_all_segments_is_brought_along(tmp_path: Path) -> None:
    """Where some editors of objects put it. In the copy it begins at a multiple of eight."""
    (tmp_path / "part.c").write_text("int answer(void) { return 42; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "whole", tmp_path / "part.c"], check=True)
    image = bytearray((tmp_path / "whole").read_bytes())
    table = b"".join(struct.pack("<IIQQQQQQ", *header) for header in segments(image))
    image += bytes(-len(image) % 8)
    struct.pack_into("<Q", image, 0x20, len(image))
    small = elf.compact(bytes(image + table) + bytes(4096))
    assert len(small) < len(image)
    at = struct.unpack_from("<Q", small, 0x20)[0]
    ends = [header[2] + header[5] for header in segments(small) if header[0] == 1]
    assert at == -(-max(ends) // 8) * 8 and len(small) == at + len(table)
    (tmp_path / "small").write_bytes(small)
    assert ctypes.CDLL(str(tmp_path / "small")).answer() == 42


@pytest.mark.parametrize("wrong", [0, 4, 5, 16, 0x36])
def test_what_is_no_object_for_the_loader_stays_as_it_is(wrong: int) -> None:
    image = bytearray(Path(sys.executable).resolve().read_bytes())
    assert elf.dynamic(bytes(image)) is not None
    image[wrong] += 4
    assert elf.compact(bytes(image)) == image and elf.dynamic(bytes(image)) is None
    assert elf.compact(bytes(image[:63])) == image[:63]


def _tree(tmp_path: Path, **more: Any) -> Tree:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "amdxdna.ko").write_bytes(fake_module("gpu-sched"))
    (modules / "gpu-sched.ko").write_bytes(fake_module(""))
    (tmp_path / "busybox").write_bytes(b"#!busybox")
    (tmp_path / "busybox").chmod(0o755)
    tree = Tree()
    tree.file("early", b"1")
    machine.add_machine(tree, tmp_path / "busybox", modules, **more)
    machine.add_run(tree, "echo hi")
    machine.finish(tree)
    return tree


def test_the_files_of_a_machine(tmp_path: Path) -> None:
    tree = _tree(tmp_path, least=400, environment="A=b")
    found = entries(b"".join(archive.newc(tree)))
    assert list(found)[:3] == ["init", "bin", "bin/busybox"] and list(found)[-1] == "etc/whole"
    before = list(found)[: list(found).index("early")]
    assert {"bin/sh", "bin/poweroff", "dev/console", "dev/null", "proc", "sys", "tmp", "root"} <= {*before}
    assert [found[name][2] for name in ("dev/console", "dev/null")] == [(5, 1), (1, 3)]
    assert [found[name][0] for name in ("init", "bin/busybox", "etc/run")] == [stat.S_IFREG | 0o755] * 3
    assert found["dev/null"][0] == stat.S_IFCHR | 0o600 and found["proc"][0] == stat.S_IFDIR | 0o755
    init = found["init"][1].decode()
    assert " PYTHONHOME=/usr A=b\n" in init and '"400 or more are needed"' in init
    assert subprocess.run(["sh", "-n"], input=init, text=True).returncode == 0
    assert found["etc/run"][1] == b"echo hi\n"
    assert found["lib/modules/order"][1] == b"gpu_sched.ko\namdxdna.ko"
    assert found["lib/modules/gpu_sched.ko"][1] == fake_module("")
    firmware = [name for name in found if name.startswith("lib/firmware/amdnpu/17f0_10/")]
    assert len(firmware) == 3 and all(found[name][1] == bytes(4096) for name in firmware)
    modules = sum(len(found[f"lib/modules/{name}"][1]) for name in ("amdxdna.ko", "gpu_sched.ko", "order"))
    assert dict(tree.sizes) == {
        "": 1,
        "busybox": len(found["init"][1]) + len(b"#!busybox") + len(b"echo hi\n"),
        "modules": modules,
        "firmware": 3 * 4096,
    }


def test_firmware_that_is_given_goes_in_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "amdnpu/17f0_11").mkdir(parents=True)
    (tmp_path / "amdnpu/17f0_11/npu.sbin").write_bytes(b"real")
    found = entries(b"".join(archive.newc(_tree(tmp_path, firmware=tmp_path / "amdnpu"))))
    assert [data for name, (_, data, _) in found.items() if "firmware" in name and data] == [b"real"]


PACKERS: dict[str, Callable[[bytes], bytes]] = {"xz": lzma.compress, "gz": gzip.compress}
if shutil.which("zstd"):
    PACKERS["zst"] = lambda data: subprocess.run(["zstd", "-qc"], input=data, capture_output=True).stdout


@pytest.mark.parametrize("suffix", PACKERS)
def test_modules_that_are_compressed(tmp_path: Path, suffix: str) -> None:
    """busybox loads those of xz and gzip as they are."""
    packed = PACKERS[suffix](fake_module(""))
    (tmp_path / f"amd-xdna.ko.{suffix}").write_bytes(packed)
    kept = suffix != "zst"
    assert [*modules_in_order(tmp_path, "amd_xdna")] == [
        (f"amd-xdna.ko.{suffix}", packed) if kept else ("amd_xdna.ko", fake_module(""))
    ]
    for broken in (packed[: len(packed) // 2], PACKERS[suffix](b"no module")):
        (tmp_path / f"amd-xdna.ko.{suffix}").write_bytes(broken)
        with pytest.raises(QwenError, match=rf"not a kernel module \(.*amd-xdna\.ko\.{suffix}"):
            next(modules_in_order(tmp_path, "amd_xdna"))


def test_files_that_an_initramfs_cannot_hold(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with open(big, "wb") as file:
        file.truncate(1 << 32)
    tree = Tree()
    tree.file("big", big)
    with pytest.raises(QwenError, match=r"a file of 4,294,967,296 bytes.*\(big\): write a --squashfs"):
        next(archive.newc(tree))
    os.truncate(big, (1 << 32) - 1)
    assert next(archive.newc(tree))[54:62] == b"FFFFFFFF"
    big.write_bytes(b"1234")
    blocks = archive.newc(tree)
    next(blocks)
    big.write_bytes(b"123")
    with pytest.raises(QwenError, match="changed while it was read"):
        list(blocks)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("cat > /dev/null; echo first >&2; echo last >&2; exit 3", "zstd failed: last"),
        ("exit 3", "zstd failed: exit status 3"),
        ("exec < /dev/null; sleep 0.2; exit 4", "zstd failed: exit status 4"),
        ("cat; exit 0", None),
    ],
)
def test_a_packer_that_fails_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str | None
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "zstd").write_text(f"#!/bin/sh\n{script}\n")
    (tools / "zstd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    tree = Tree()
    tree.file("a", bytes(1 << 20))
    if said is None:
        archive.write_initramfs(tree, tmp_path / "out", "zstd")
        assert (tmp_path / "out").read_bytes() == b"".join(archive.newc(tree))
        return
    with pytest.raises(QwenError, match=said):
        archive.write_initramfs(tree, tmp_path / "out", "zstd")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("compress", ["zstd", "gzip", "none"])
def test_what_a_squashfs_is_packed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: str
) -> None:
    """By a mksquashfs that keeps the tar it is given, and tells how it was called."""
    tools = tmp_path / "tools"
    tools.mkdir()
    script = f'#!/bin/sh\necho "$@ $SOURCE_DATE_EPOCH" > {tmp_path}/told\ncat > "$2"\n'
    (tools / "mksquashfs").write_text(script)
    (tools / "mksquashfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    tree = Tree()
    tree.file("etc/a", b"a" * 3000)
    tree.file("bin/b", tools / "mksquashfs", 0o755)
    tree.link("bin/c", "b")
    tree.device("dev/null", 1, 3)
    archive.write_squashfs(tree, tmp_path / "out", compress)
    words = (tmp_path / "told").read_text().split()
    options = ["-tar", "-noappend", "-all-root", "-root-mode", "0755", "-quiet", "-no-progress"]
    packer = ["-comp", "gzip" if compress == "gzip" else "zstd"]
    packer += ["-noI", "-noD", "-noF", "-noX"] if compress == "none" else []
    assert words[0] == "-" and words[2:] == [*options, *packer, "0"]
    with tarfile.open(tmp_path / "out") as tar:
        found = {each.name: (each.type, each.mode, each.size) for each in tar}
        assert tar.extractfile("etc/a").read() == b"a" * 3000  # type: ignore[union-attr]
        assert tar.extractfile("bin/b").read() == script.encode()  # type: ignore[union-attr]
        assert tar.getmember("bin/c").linkname == "b"
        assert (tar.getmember("dev/null").devmajor, tar.getmember("dev/null").devminor) == (1, 3)
    folder, file = (tarfile.DIRTYPE, 0o755, 0), tarfile.REGTYPE
    assert found == {
        "etc": folder,
        "etc/a": (file, 0o644, 3000),
        "bin": folder,
        "bin/b": (file, 0o755, len(script)),
        "bin/c": (tarfile.SYMTYPE, 0o777, 0),
        "dev": folder,
        "dev/null": (tarfile.CHRTYPE, 0o600, 0),
    }


def test_a_folder_that_is_written_has_no_devices(tmp_path: Path) -> None:
    tree = Tree()
    tree.file("bin/b", b"#!", 0o755)
    tree.link("bin/c", "b")
    tree.device("dev/null", 1, 3)
    archive.write_folder(tree, tmp_path / "deep/out")
    out = tmp_path / "deep/out"
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == ["bin", "bin/b", "bin/c", "dev"]
    assert (out / "bin/b").read_bytes() == b"#!" and (out / "bin/b").stat().st_mode & 0o777 == 0o755
    assert os.readlink(out / "bin/c") == "b"
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    for taken in (out, out / "bin/b", tmp_path / "link"):
        with pytest.raises(QwenError, match="it is there already, and no empty folder"):
            archive.write_folder(tree, taken)
    (tmp_path / "empty").mkdir()
    archive.write_folder(tree, tmp_path / "empty")


MIB = 1 << 20


@pytest.mark.parametrize(
    ("unpacked", "packed", "memory"),
    [
        (0, 0, 384),
        (64 * MIB, 30 * MIB, 384),
        (64 * MIB + 1, 30 * MIB, 400),
        (72 * MIB, 0, 400),
        (72 * MIB + 1, 0, 416),
        (64 * MIB, 46 * MIB, 400),
        (64 * MIB, 46 * MIB + 1, 416),
        (68 * MIB, 38 * MIB, 400),
    ],
)
def test_a_larger_image_needs_more_memory(unpacked: int, packed: int, memory: int) -> None:
    assert boot.guest_memory(unpacked, packed) == memory


@pytest.mark.parametrize("length", [10, 103, 104])
def test_the_lines_that_boot_an_image_by_hand(tmp_path: Path, length: int) -> None:
    """The socket lies beside the image, unless its path would be too long for one."""
    image = Path("/i", "x" * (length - 3))
    assert len(str(image)) == length
    first, second = boot.by_hand(boot.Machine(["qemu", "-a b"], Path("/k")), image, 400).splitlines()
    npu = f"{image}.npu" if length < 104 else f"{tempfile.gettempdir()}/qwen35-image.npu"
    assert first == f"rm -f {npu}; {sys.executable} -m amdxdna emulate --vfio-user {npu} &"
    assert second.startswith(f"while [ ! -S {npu} ]; do sleep 0.1; done; qemu '-a b' -nodefaults ")
    assert second.endswith(f"; kill $!; rm -f {npu}")
    assert f" -kernel /k -initrd {image} -append 'console=ttyS0 quiet panic=-1 " in second
    assert " -m 400M " in second and "amdxdna.force_iova=1'" in second and "-serial mon:stdio" in second


GUEST = """
import re, socket, sys, time
said, error, seconds = sys.argv[1:4]
console = socket.socket(fileno=int(re.search(r"id=console,fd=([0-9]+)", " ".join(sys.argv))[1]))
console.sendall(said.encode())
print(error, file=sys.stderr)
sys.stderr.flush()
time.sleep(float(seconds))
"""


@pytest.mark.parametrize(
    ("said", "error", "seconds", "told"),
    [
        ("a\nKernel panic - x\nb\n", "", 0, "the guest ended before it answered: Kernel panic - x"),
        ("one\n two\n\nthree\nfour\n", "", 0, "the guest ended before it answered: two; three; four"),
        ("", "", 0, "ended before it answered: its console is empty: more memory (--memory) may help"),
        ("image: short\n", "qemu: no such device\nqemu: warning: x", 0, "answered: qemu: no such device"),
        ("image: short\n", "qemu: warning: x", 0, "before it answered: image: short"),
        ("still booting\n", "", 3600, "the guest did not answer within 1 s: still booting"),
    ],
)
def test_a_guest_that_gives_no_answer_is_told_with_its_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: str,
    error: str,
    seconds: float,
    told: str,
) -> None:
    def guest(*given: Any) -> list[str]:
        return [sys.executable, "-c", GUEST, said, error, str(seconds), *given[4]]

    monkeypatch.setattr(boot, "arguments", guest)
    with pytest.raises(QwenError) as caught:
        boot.boot(boot.Machine(["qemu"], tmp_path), tmp_path, 64, 1.0 if seconds else 60.0)
    assert str(caught.value).endswith(told)
    assert capsys.readouterr() == ("", said)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of an image of fakes; of Python it gets a word."""

    def packages(tree: Tree, built_in: bool, lapack: bool) -> None:
        tree.kind = "python"
        tree.file("python", f"{built_in} {lapack}".encode())

    monkeypatch.setattr("qwen35.rootfs.python.add_packages", packages)
    monkeypatch.setenv("AMDXDNA_VM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/amdxdna.ko").write_bytes(fake_module(""))
    (tmp_path / "note").mkdir()
    (tmp_path / "note/n.txt").write_text("noted")
    for name in ("busybox", "kernel"):
        (tmp_path / name).write_bytes(b"#!" * (1 << 20))
    words = [str(tmp_path / "out"), "--compress", "gzip", "--add", f"{tmp_path}/note:/root"]
    words += [f"--{name}={tmp_path / name}" for name in ("modules", "busybox", "kernel")]
    return [*words, "--qemu", "true"]


def _written(tmp_path: Path) -> dict[str, tuple[int, bytes, tuple[int, int]]]:
    return entries(gzip.decompress((tmp_path / "out").read_bytes()))


def test_an_image_tells_what_it_weighs_and_how_to_boot_it(
    tmp_path: Path, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.image_main([*parts, "--run", "echo"]) == 0
    found = _written(tmp_path)
    assert found["etc/run"][1] == b"echo\n" and found["root/n.txt"][1] == b"noted"
    assert found["python"][1] == b"True False" and b"384 or more" in found["init"][1]
    out = capsys.readouterr().out.splitlines()
    assert [line[:19] for line in out[:5]] == [
        "python          0.0",
        "modules         0.0",
        "busybox         2.0",
        "firmware        0.0",
        "added           0.0",
    ]
    assert out[0].endswith(
        " MiB  interpreter, libc and libstdc++, the standard library's modules that are used"
    )
    size = (tmp_path / "out").stat().st_size / MIB
    assert out[5] == f"all             2.0 MiB, {size:.1f} as written"
    assert out[6:] == [
        "boot it by hand:",
        *boot.by_hand(boot.Machine(["true"], tmp_path / "kernel"), tmp_path / "out", 384).splitlines(),
    ]


def test_an_images_facts(tmp_path: Path, parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.image_main([*parts, "--json", "--memory", "500", "--bundle", str(DEFAULT_BUNDLE)]) == 0
    found = _written(tmp_path)
    sizes = {name: len(data) for name, (mode, data, _) in found.items() if stat.S_ISREG(mode)}
    facts = json.loads(capsys.readouterr().out)
    assert found["etc/run"][1].decode() == machine.SHELL + "\n" and found["python"][1] == b"False False"
    assert b" QWEN35_BUNDLE=/bundle\n" in found["init"][1] and b"500 or more" in found["init"][1]
    model = sum(size for name, size in sizes.items() if name.startswith("bundle/"))
    assert model == sum(path.stat().st_size for path in DEFAULT_BUNDLE.rglob("*") if path.is_file())
    parts_of = facts.pop("parts")
    assert (parts_of["model"], parts_of["added"], parts_of["python"]) == (model, 5, len("False False"))
    assert sum(parts_of.values()) == sum(sizes.values())
    assert facts == {
        "shape": 1,
        "out": str(tmp_path / "out"),
        "format": "initramfs",
        "bytes": (tmp_path / "out").stat().st_size,
        "unpacked": sum(sizes.values()),
        "memory": 500,
    }


def test_an_image_that_is_booted_has_stdout_to_itself(
    tmp_path: Path, parts: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    booted: list[tuple[Any, ...]] = []
    monkeypatch.setattr(boot, "boot", lambda *given: booted.append(given) or 7)
    assert cli.image_main([*parts, "--boot", "--seconds", "9", "--lapack"]) == 7
    out, err = capsys.readouterr()
    assert out == "" and "all             2.0 MiB" in err and "by hand" not in err
    assert "booting it with 384 MiB of memory" in err
    assert booted == [(boot.Machine(["true"], tmp_path / "kernel"), tmp_path / "out", 384, 9.0)]
    found = _written(tmp_path)
    assert re.fullmatch(r"python3 -m qwen35 --prompt .*\?\"\n", found["etc/run"][1].decode())
    assert found["python"][1] == b"True True"


def test_what_no_option_names_comes_from_the_cache(
    tmp_path: Path, parts: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tmp_path / name for name in ("modules", "busybox")}
    rig = SimpleNamespace(**places, vmlinuz=tmp_path / "kernel", qemu=tmp_path, qemu_command=["true", "-x"])
    asked: list[None] = []
    monkeypatch.setattr("amdxdna.emu.pci.rig.cached", lambda: asked.append(None) or rig)
    assert cli.image_main(parts[:5]) == 0
    found = _written(tmp_path)
    assert (
        found["bin/busybox"][1] == (tmp_path / "busybox").read_bytes() and "lib/modules/amdxdna.ko" in found
    )
    wanted = boot.by_hand(boot.Machine(["true", "-x"], tmp_path / "kernel"), tmp_path / "out", 384)
    assert capsys.readouterr().out.endswith(f"boot it by hand:\n{wanted}\n") and len(asked) == 1


def test_what_boots_an_image_and_is_not_here(
    tmp_path: Path, parts: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for words, said in (
        ([*parts[:-2], "--boot"], "no QEMU to boot it with is here: give --qemu PROGRAM"),
        ([*parts, "--boot"], r"--qemu: no such program \(true\)"),
        ([word for word in parts if "busybox" not in word], "no static busybox is here: give --busybox FILE"),
    ):
        with pytest.raises((QwenError, UsageError), match=said):
            cli.image_main(words)
    assert cli.image_main(parts[:-2]) == 0
    assert "boot it by hand" not in capsys.readouterr().out
    (tmp_path / "qemu-system-x86_64").write_text("#!")
    (tmp_path / "qemu-system-x86_64").chmod(0o755)
    with pytest.raises(QwenError, match="no kernel to boot it with is here: give --kernel FILE"):
        cli.image_main([word for word in parts[:-2] if "kernel" not in word] + ["--boot"])
