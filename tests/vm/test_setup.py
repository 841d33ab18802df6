"""The set-up's own parts, without a machine: archives, module order, log checks, and machines that cannot."""

from __future__ import annotations

import importlib.util
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from . import debs, guest, python_root
from .image import CHECKOUT
from .initramfs import Initramfs, module_dependencies, modules_in_order


def entries(archive: bytes) -> dict[str, tuple[int, bytes, tuple[int, int]]]:
    """What a newc archive holds: path -> (mode, data, device), in order; checks headers and padding."""
    found: dict[str, tuple[int, bytes, tuple[int, int]]] = {}
    at = 0
    while True:
        assert archive[at:at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i:at + 14 + 8 * i], 16) for i in range(13)]
        name = archive[at + 110:at + 109 + fields[11]].decode()
        assert archive[at + 109 + fields[11]] == 0
        at = (at + 110 + fields[11] + 3) & ~3
        data = archive[at:at + fields[6]]
        at = (at + fields[6] + 3) & ~3
        if name == "TRAILER!!!":
            assert at == len(archive)
            return found
        assert name not in found
        found[name] = (fields[1], data, (fields[9], fields[10]))


def test_archive(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program").write_bytes(b"#!")
    (tmp_path / "sub" / "program").chmod(0o755)
    (tmp_path / "link").symlink_to("sub/program")
    archive = Initramfs()
    assert archive.file("/a/b/file", b"12345") == 5
    assert archive.file("a/b/file", b"again") == 0, "of a path the first wins"
    archive.device("dev/null", 1, 3)
    archive.link("a/link", "b/file")
    archive.tree(tmp_path, "tree", wanted=lambda path: path != "sub/left-out")
    found = entries(archive.done())
    order = list(found)
    assert order[:3] == ["a", "a/b", "a/b/file"], "folders before what is in them"
    assert stat.S_ISDIR(found["a"][0]) and stat.S_ISREG(found["a/b/file"][0])
    assert found["a/b/file"][1] == b"12345"
    assert stat.S_ISCHR(found["dev/null"][0]) and found["dev/null"][2] == (1, 3)
    assert stat.S_ISLNK(found["a/link"][0]) and found["a/link"][1] == b"b/file"
    assert found["tree/sub/program"][0] == stat.S_IFREG | 0o755
    assert found["tree/link"][1] == b"sub/program"
    assert archive.bytes == 7


def fake_module(depends: str) -> bytes:
    """An ELF64 object with a .modinfo section."""
    names = b"\0.modinfo\0.names\0"
    info = b"license=GPL\0depends=" + depends.encode() + b"\0"
    body = bytes(64) + info + names
    sections = [bytes(64),
                struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 64, len(info), 0, 0, 1, 0),
                struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, 64 + len(info), len(names), 0, 0, 1, 0)]
    image = bytearray(body + b"".join(sections))
    struct.pack_into("<Q", image, 0x28, len(body))
    struct.pack_into("<HH", image, 0x3C, 3, 2)
    return bytes(image)


def test_module_order(tmp_path: Path) -> None:
    """Dependencies come first, each once; a dash in a file's name is an underscore in a module's."""
    depends = {"top": "gpu_sched,base", "gpu-sched": "base", "base": "built_in", "other": ""}
    for name, needed in depends.items():
        (tmp_path / f"{name}.ko").write_bytes(fake_module(needed))
    assert module_dependencies(fake_module("a-b,c")) == ["a_b", "c"]
    assert [name for name, _ in modules_in_order(tmp_path, "top")] == ["base", "gpu_sched", "top"]


def test_shared_object_names() -> None:
    """The name by which the dynamic loader looks for a library, from the file."""
    libc = python_root.loaded_by(["math"], CHECKOUT).libraries
    names = {python_root.shared_object_name(Path(os.path.realpath(path))) for path in libc}
    assert "libc.so.6" in names
    extension = importlib.util.find_spec("amdxdna._native")
    assert extension is not None and extension.origin is not None
    assert python_root.shared_object_name(Path(extension.origin)) == ""


def test_compiled_modules_run(tmp_path: Path) -> None:
    """A module without its source, as it goes into an image."""
    source = tmp_path / "answer.py"
    source.write_text("value = 6 * 7\n")
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "answer.pyc").write_bytes(python_root.compiled(source))
    done = subprocess.run([sys.executable, "-c", "import answer; print(answer.value)"], cwd=folder,
                          capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"


@pytest.mark.parametrize("line", [
    "WARNING: drivers/accel/amdxdna/amdxdna_gem.c:12 at amdxdna_x+0x1/0x2 [amdxdna], CPU#0: t/1",
    "BUG: kernel NULL pointer dereference, address: 0000000000000008", "Call Trace:",
])
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
    """Another version than the tested one is a warning; another file of that version is refused."""
    version, sha256 = debs.PINS["seabios"]
    debs.check_pins([deb("seabios", version, sha256), deb("unknown", "1")])
    with pytest.warns(UserWarning, match="seabios 2.0 instead of the tested"):
        debs.check_pins([deb("seabios", "2.0", "0" * 64)])
    with pytest.raises(debs.Unavailable, match="not the pinned"):
        debs.check_pins([deb("seabios", version, "0" * 64)])


@pytest.mark.parametrize(("mode", "status", "word"), [
    ("", 0, "skipped"), ("require", 1, "errors"), ("off", 0, "skipped")])
def test_a_machine_that_cannot(tmp_path: Path, mode: str, status: int, word: str) -> None:
    """Without apt the guest's tests are skipped with one line saying why, or fail where they are required."""
    environment = {**os.environ, "PATH": str(tmp_path), "AMDXDNA_VM": mode,
                   "AMDXDNA_VM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/vm/test_firmware_faults.py",
         "-k", "protocols"], cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert (done.returncode != 0) == bool(status), done.stdout
    reason = "AMDXDNA_VM=off" if mode == "off" else "no apt-get on this machine"
    lines = [line for line in done.stdout.splitlines() if reason in line and line.startswith("SKIPPED")]
    assert len(lines) == (0 if status else 1), done.stdout
    assert reason in done.stdout
    assert word in done.stdout.splitlines()[-1]
