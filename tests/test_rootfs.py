"""The minimal image without a machine: its archive, its parts, and its root run as in a container."""

from __future__ import annotations

import ctypes
import gzip
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qwen35.rootfs import archive, boot, elf, loaded
from qwen35.rootfs.modules import module_dependencies, modules_in_order
from qwen35.rootfs.python import compiled
from qwen35.rootfs.tree import Tree
from tests.support.emulation import ROOT as CHECKOUT
from tests.support.initramfs import entries, fake_module
from tests.support.program import python


def test_archive(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program").write_bytes(b"#!")
    (tmp_path / "sub" / "program").chmod(0o755)
    (tmp_path / "link").symlink_to("sub/program")
    tree = Tree()
    assert tree.file("/a/b/file", b"12345") == 5
    assert tree.file("a/b/file", b"again") == 0, "of a path the first wins"
    tree.device("dev/null", 1, 3)
    tree.link("a/link", "b/file")
    tree.tree(tmp_path, "tree", wanted=lambda path: path != "sub/left-out")
    found = entries(b"".join(archive.newc(tree)))
    order = list(found)
    assert order[:3] == ["a", "a/b", "a/b/file"], "folders before what is in them"
    assert stat.S_ISDIR(found["a"][0]) and stat.S_ISREG(found["a/b/file"][0])
    assert found["a/b/file"][1] == b"12345"
    assert stat.S_ISCHR(found["dev/null"][0]) and found["dev/null"][2] == (1, 3)
    assert stat.S_ISLNK(found["a/link"][0]) and found["a/link"][1] == b"b/file"
    assert found["tree/sub/program"][0] == stat.S_IFREG | 0o755
    assert found["tree/link"][1] == b"sub/program"
    assert tree.total == 7


def test_module_order(tmp_path: Path) -> None:
    """Dependencies come first, each once; a dash in a file's name is an underscore in a module's."""
    depends = {"top": "gpu_sched,base", "gpu-sched": "base", "base": "built_in", "other": ""}
    for name, needed in depends.items():
        (tmp_path / f"{name}.ko").write_bytes(fake_module(needed))
    assert module_dependencies(fake_module("a-b,c")) == ["a_b", "c"]
    assert [name for name, _ in modules_in_order(tmp_path, "top")] == ["base.ko", "gpu_sched.ko", "top.ko"]


def test_shared_object_names() -> None:
    """The name by which the dynamic loader looks for a library, what it asks for and takes, from the file."""
    mapped = loaded.loaded_by(["math"], CHECKOUT).libraries
    libc = elf.dynamic(next(path for path in mapped if path.name.startswith("libc.")).read_bytes())
    assert libc is not None and libc.name == "libc.so.6"
    extension = importlib.util.find_spec("amdxdna._native")
    assert extension is not None and extension.origin is not None
    found = elf.dynamic(Path(extension.origin).read_bytes())
    assert found is not None and found.name == "" and "libc.so.6" in found.needed
    assert {"PyModule_Create2", "ioctl"} & found.undefined
    assert elf.dynamic(b"#!/bin/sh\n") is None


def test_compiled_modules_run(tmp_path: Path) -> None:
    """A module without its source, as it goes into an image."""
    source = tmp_path / "answer.py"
    source.write_text("value = 6 * 7\n")
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "answer.pyc").write_bytes(compiled(source))
    done = python("-c", "import answer; print(answer.value)", cwd=folder, check=True)
    assert done.stdout == "42\n"


def test_compact_objects_load(tmp_path: Path) -> None:
    """A shared object without sections, debugger's symbols and padding works as it did."""
    source = tmp_path / "part.c"
    source.write_text("static int kept = 41; __thread int own = 1; int next(void) { return kept + own; }\n")
    whole = tmp_path / "part.so"
    flags = ["-g3", "-Wl,-z,max-page-size=0x200000", "-Wl,-z,separate-code"]
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", whole, source], check=True)
    image = elf.compact(whole.read_bytes())
    assert len(image) < 20_000 < whole.stat().st_size
    small = tmp_path / "small.so"
    small.write_bytes(image)
    assert ctypes.CDLL(str(small)).next() == 42
    assert elf.compact(image) == image and elf.dynamic(image) == elf.dynamic(whole.read_bytes())
    assert elf.compact(b"no program") == b"no program"


def test_docstrings_go(tmp_path: Path) -> None:
    """Other people's modules lose their docstrings and nothing else."""
    source = tmp_path / "told.py"
    source.write_text(
        '"""Module."""\nfrom __future__ import annotations\ndef one():\n    """One."""\n'
        'class Two:\n    """Two."""\n    x = "kept"\n'
    )
    for docstrings in (True, False):
        code = importlib.util.spec_from_file_location("told", tmp_path / "told.pyc")
        (tmp_path / "told.pyc").write_bytes(compiled(source, "usr/told.py", docstrings))
        assert code is not None and code.loader is not None
        module = importlib.util.module_from_spec(code)
        code.loader.exec_module(module)
        assert (module.__doc__, module.one.__doc__) == (("Module.", "One.") if docstrings else (None, None))
        assert module.Two.x == "kept" and module.one.__code__.co_filename == "usr/told.py"
        assert module.one() is None


REAL, COMPLEX = ("s", "d"), ("c", "z")
KINDS = {"s": "f4", "d": "f8", "c": "c8", "z": "c16"}


@pytest.mark.parametrize("kind", KINDS)
def test_blas(kind: str) -> None:
    """Every function of the small BLAS against numpy, in every order, transposition and direction."""
    np = pytest.importorskip("numpy")
    from qwen35.rootfs._blas import ffi, lib  # type: ignore[import-untyped]

    rng = np.random.default_rng(8)
    dtype = np.dtype(KINDS[kind])
    tolerance = 1e-4 if kind in "sc" else 1e-12

    def values(*shape: int) -> object:
        made = rng.standard_normal(shape)
        return (made + 1j * rng.standard_normal(shape) if kind in COMPLEX else made).astype(dtype)

    def at(array: object) -> object:
        ctype = {"s": "float *", "d": "double *"}.get(kind, "void *")
        return ffi.cast(ctype, array.ctypes.data)  # type: ignore[attr-defined]

    def scalar(array: object) -> object:
        return at(array) if kind in COMPLEX else float(array[0])  # type: ignore[index]

    def call(name: str, *arguments: object) -> object:
        return getattr(lib, f"scipy_cblas_{kind}{name}64_")(*arguments)

    transpositions = {111: lambda a: a, 112: lambda a: a.T, 113: lambda a: a.conj().T}
    alpha, half, zero = values(1), values(1), np.zeros(1, dtype)
    m, n, k = 5, 70, 9
    for order, layout in ((101, "C"), (102, "F")):
        for ta, turn_a in transpositions.items():
            for tb, turn_b in transpositions.items():
                a = np.array(values(*((m, k) if ta == 111 else (k, m))), order=layout)
                b = np.array(values(*((k, n) if tb == 111 else (n, k))), order=layout)
                for beta in (half, zero):
                    c = np.array(values(m, n), order=layout)
                    if beta is zero:
                        c[:] = np.nan  # what is not read does not matter
                    want = alpha * (turn_a(a) @ turn_b(b)) + (0 if beta is zero else beta * c)
                    lead = [x.shape[1] if layout == "C" else x.shape[0] for x in (a, b, c)]
                    call(
                        "gemm",
                        order,
                        ta,
                        tb,
                        m,
                        n,
                        k,
                        scalar(alpha),
                        at(a),
                        lead[0],
                        at(b),
                        lead[1],
                        scalar(beta),
                        at(c),
                        lead[2],
                    )
                    np.testing.assert_allclose(c, want, rtol=tolerance, atol=tolerance)
            x, y = values(2 * a.shape[1 if ta == 111 else 0]), values(a.shape[0 if ta == 111 else 1])
            want = alpha * (turn_a(a) @ x[::-2]) + half * y
            lead_a = a.shape[1] if layout == "C" else a.shape[0]
            call(
                "gemv",
                order,
                ta,
                *a.shape,
                scalar(alpha),
                at(a),
                lead_a,
                at(x[1:]),
                -2,
                scalar(half),
                at(y),
                1,
            )
            np.testing.assert_allclose(y, want, rtol=tolerance, atol=tolerance)
        for uplo, keep in ((121, np.triu), (122, np.tril)):
            for trans in (111, 112):
                a = np.array(values(*((n, k) if trans == 111 else (k, n))), order=layout)
                c = np.array(values(n, n), order=layout)
                full = alpha * (a @ a.T if trans == 111 else a.T @ a) + half * c
                want = keep(full) + (c - keep(c))
                lead_a = a.shape[1] if layout == "C" else a.shape[0]
                call("syrk", order, uplo, trans, n, k, scalar(alpha), at(a), lead_a, scalar(half), at(c), n)
                np.testing.assert_allclose(c, want, rtol=10 * tolerance, atol=10 * tolerance)
    x, y = values(22), values(11)
    if kind in REAL:
        np.testing.assert_allclose(call("dot", 11, at(x), 2, at(y), -1), x[::2] @ y[::-1], rtol=tolerance)
    else:
        for name, left in (("dotu_sub", x[::2]), ("dotc_sub", x[::2].conj())):
            out = values(1)
            call(name, 11, at(x), 2, at(y), -1, at(out))
            np.testing.assert_allclose(out[0], left @ y[::-1], rtol=tolerance)
    want = y + alpha * x[::2]
    call("axpy", 11, scalar(alpha), at(x), 2, at(y), 1)
    np.testing.assert_allclose(y, want, rtol=tolerance, atol=tolerance)


def image(*words: str, status: int = 0, **environment: str) -> str:
    """Runs `images`; its stdout, or its stderr where it is to fail."""
    done = python("-m", "qwen35", "image", *words, env=environment)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root without a kernel, a note and its sizes beside it, as a folder."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "note.txt").write_text("noted\n")
    said = image(
        str(folder / "root"), "--dir", "--no-kernel", "--json", "--add", f"{folder}/note.txt:/root/n.txt"
    )
    (folder / "sizes").write_text(said)
    return folder / "root"


def inside(root: Path, *command: str, stdin: str = "", status: int = 0) -> str:
    """Runs a program with `root` as its root, without the host's environment; its stdout."""
    if subprocess.run(["unshare", "-r", "-m", "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody have a root of their own (unshare -r -m)")
    mounts = ""
    for name in ("dev", "proc"):
        (root / name).mkdir(exist_ok=True)
        mounts += f"mount --rbind /{name} {root}/{name} && "
    words = ["unshare", "-r", "-m", "sh", "-c", f'{mounts}exec chroot {root} "$@"', "sh", *command]
    done = subprocess.run(
        words,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PATH": "/usr/bin:/usr/sbin:/bin:/sbin"},
    )
    assert done.returncode == status, done.stderr
    return done.stdout if not status else done.stderr


def on_host(*words: str) -> str:
    return python("-m", "qwen35", *words, check=True).stdout


def test_root_is_small(root: Path) -> None:
    """What is in the folder is what was said, no more than 61 MiB, and holds nothing that is not needed."""
    sizes = json.loads((root.parent / "sizes").read_text())
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) == sizes["unpacked"] == sum(sizes["parts"].values())
    assert sizes["unpacked"] < 61 << 20
    assert (root / "root/n.txt").read_text() == "noted\n"
    names = {path.name for path in files}
    assert not [name for name in names if name.endswith((".py", ".h", ".pyi")) or "crypto" in name]
    for path in files:
        program = ".so" in path.name or path.name.startswith("python3")
        assert path.stat().st_mode & 0o777 == (0o755 if program else 0o644), path


@pytest.mark.parametrize(
    "words",
    [
        ["--prompt", "What is a penguin?"],
        ["--prompt", "What is in the picture?", "--image", "PICTURE"],
        ["--prompt", "What is a whale?", "--repetition-penalty", "1.1", "--seed", "3"],
    ],
    ids=lambda words: words[-2],
)
def test_same_answers(root: Path, words: list[str]) -> None:
    """The root answers as the host does, a text and a picture, on the emulated NPU."""
    picture = "qwen35/data/sample.png"
    options = ["--quiet", "--device", "emu", "--max-new", "12"]
    site = next(root.glob("usr/lib/python3.*/site-packages")).relative_to(root)
    there = [f"/{site}/{picture}" if word == "PICTURE" else word for word in words]
    out = inside(root, "/usr/bin/python3", "-m", "qwen35", *there, *options)
    assert out.strip()
    assert out == on_host(*(picture if word == "PICTURE" else word for word in words), *options)


@pytest.mark.parametrize("suffix", ["jpg", "webp", "gif", "bmp"])
def test_picture_formats(root: Path, suffix: str) -> None:
    """The other formats of pictures are read too."""
    image_module = pytest.importorskip("PIL.Image")
    target = root / f"root/{suffix}.{suffix}"
    image_module.open(CHECKOUT / "qwen35/data/sample.png").convert("RGB").save(target)
    out = inside(
        root,
        "/usr/bin/python3",
        "-m",
        "qwen35",
        "--quiet",
        "--device",
        "emu",
        "--max-new",
        "6",
        "--prompt",
        "What?",
        "--image",
        f"/root/{suffix}.{suffix}",
    )
    assert out.strip()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["qwen35", "--chat", "--device", "emu", "--quiet"], "whale"),
        (["qwen35", "info"], "layers"),
        (["qwen35", "bench", "--help"], "usage"),
        (["amdxdna", "selftest", "--device", "emu:threads=1,quiet"], "0 failed"),
        (["amdxdna", "info", "--device", "emu:quiet"], "NPU"),
        (["amdxdna", "doctor", "--help"], "usage"),
        (["qwen35", "serve", "x"], "no command serve"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, list) else "",
)
def test_other_commands(root: Path, words: list[str], expected: str) -> None:
    """What the image holds beside the main job works, and what was left out says so."""
    status = 2 if "serve" in words else 0
    out = inside(root, "/usr/bin/python3", "-m", *words, stdin="What is a whale?\n", status=status)
    assert expected.lower() in out.lower()


def test_numpy_without_lapack(root: Path) -> None:
    """Products of matrices are right with the small BLAS; what needs LAPACK says that it was left out."""
    program = (
        "import numpy as n; a = n.arange(12.).reshape(3, 4); print((a @ a.T).tolist(), "
        "(a.astype('f4') @ a[0].astype('f4')).tolist(), n.vdot(a, a))\n"
        "try: n.linalg.inv(n.eye(2))\nexcept ImportError as e: print(e)"
    )
    out = inside(root, "/usr/bin/python3", "-c", program)
    assert out.splitlines() == [
        "[[14.0, 38.0, 62.0], [38.0, 126.0, 214.0], [62.0, 214.0, 366.0]] [14.0, 38.0, 62.0] 506.0",
        "numpy.linalg's inv needs LAPACK, which was left out of this image: write it with --lapack",
    ]


def test_compressed(tmp_path: Path) -> None:
    """The same files give the same archive, whatever it is compressed with."""
    tree = Tree()
    tree.file("etc/a", b"a" * 100_000)
    for compress in archive.COMPRESSORS:
        archive.write_initramfs(tree, tmp_path / compress, compress)
    plain = (tmp_path / "none").read_bytes()
    assert gzip.decompress((tmp_path / "gzip").read_bytes()) == plain
    assert (tmp_path / "zstd").stat().st_size < 1000
    unpacked = subprocess.run(["zstd", "-dc", tmp_path / "zstd"], capture_output=True, check=True).stdout
    assert unpacked == plain and entries(plain)["etc/a"][1] == b"a" * 100_000


def packs_tars() -> bool:
    """Whether there are squashfs-tools that take a tar: 4.5 or newer."""
    if shutil.which("mksquashfs") is None or shutil.which("unsquashfs") is None:
        return False
    told = subprocess.run(["mksquashfs", "-help"], capture_output=True, text=True)
    return "-tar" in told.stdout + told.stderr


@pytest.mark.skipif(not packs_tars(), reason="no squashfs-tools here that pack a tar")
@pytest.mark.parametrize("compress", ["zstd", "gzip", "none"])
def test_squashfs(tmp_path: Path, compress: str) -> None:
    """What was put in comes out, owned by root, in a root only it writes to; the same bytes each time."""
    tree = Tree()
    tree.file("etc/a", b"a" * 300_000)
    tree.file("bin/b", b"#!", 0o755)
    tree.link("bin/c", "b")
    tree.device("dev/null", 1, 3)
    archive.write_squashfs(tree, tmp_path / "one", compress)
    time.sleep(1.1)  # the times in it are seconds
    archive.write_squashfs(tree, tmp_path / "two", compress)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    listed = subprocess.run(
        ["unsquashfs", "-lln", tmp_path / "one"], capture_output=True, check=True, text=True
    ).stdout
    lines = [line.split() for line in listed.splitlines() if " squashfs-root" in line]
    assert {(words[0], words[1], words[-1 if "->" not in words else -3]) for words in lines} == {
        ("drwxr-xr-x", "0/0", "squashfs-root"),
        ("drwxr-xr-x", "0/0", "squashfs-root/etc"),
        ("-rw-r--r--", "0/0", "squashfs-root/etc/a"),
        ("drwxr-xr-x", "0/0", "squashfs-root/bin"),
        ("-rwxr-xr-x", "0/0", "squashfs-root/bin/b"),
        ("lrwxrwxrwx", "0/0", "squashfs-root/bin/c"),
        ("drwxr-xr-x", "0/0", "squashfs-root/dev"),
        ("crw-------", "0/0", "squashfs-root/dev/null"),
    }
    subprocess.run(["unsquashfs", "-q", "-n", "-d", tmp_path / "out", tmp_path / "one", "etc"], check=True)
    assert (tmp_path / "out/etc/a").read_bytes() == b"a" * 300_000


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["{}/x", "--add", "nothing"], 2, "--add nothing: not FILE:PATH"),
        (["{}/x", "--add", "nothing:/a"], 2, "there is no such file to add (nothing)"),
        (["{}/x", "--add", "README.md:/../a"], 2, "the path has .. in it"),
        (["{}/no/x"], 2, "there is no such folder"),
        (["{}"], 2, "this is a folder"),
        (["{}/x", "--dir", "--boot"], 2, "--boot starts an initramfs"),
        (["{}/x", "--dir", "--squashfs"], 2, "not allowed with"),
        (["{}/x", "--dir", "--compress", "gzip"], 2, "a folder is not compressed"),
        (["{}/x", "--modules", "{}"], 1, "no amdxdna.ko is below it"),
        (["{}/x", "--modules", "{}/no"], 2, "--modules: no such file or folder"),
        (["{}/x", "--modules", "README.md"], 2, "--modules: not a folder (README.md)"),
        (["{}/x", "--kernel", "{}"], 2, "--kernel: is a directory"),
        (["{}/x", "--kernel", "/dev/zero"], 2, "--kernel: not a regular file (/dev/zero)"),
        (["{}/x", "--busybox", "/dev/zero"], 2, "--busybox: not a regular file (/dev/zero)"),
        (["{}/x", "--busybox", "{}/fifo"], 2, "--busybox: not a regular file"),
        (["{}/x", "--add", "/dev/zero:/a"], 2, "--add: not a regular file (/dev/zero)"),
        (["{}/x", "--add", "{}/fifo:/a"], 2, "--add: not a regular file"),
        (["{}/x", "--bundle", "{}"], 1, "this is no bundle"),
        (["{}/x", "--busybox", "README.md"], 1, "no kernel modules with the amdxdna driver are here"),
        (["{}/full", "--dir", "--no-kernel"], 1, "no empty folder"),
        (["{}/x", "--no-kernel", "--squashfs"], 2, "no mksquashfs on this machine"),
        (["{}/x", "--no-kernel", "--compress", "zstd"], 2, "no zstd on this machine"),
    ],
    ids=lambda words: " ".join(words[1:]) if isinstance(words, list) else "",
)
def test_what_cannot_be_written(tmp_path: Path, words: list[str], status: int, said: str) -> None:
    """One line, and nothing is left where the image was to be."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    os.mkfifo(tmp_path / "fifo")
    tools = tmp_path / "tools"
    tools.mkdir()
    environment = {"AMDXDNA_VM_CACHE": str(tmp_path / "cache"), "PATH": str(tools)}
    told = image(*(word.format(tmp_path) for word in words), status=status, **environment)
    lines = told.splitlines()
    errors = [line for line in lines if line.startswith("qwen35: error: ")]
    assert errors == lines[-1:] and said in lines[-1], told
    assert all(line.startswith(("qwen35: collecting ", "qwen35: writing ")) for line in lines[:-1])
    assert not (tmp_path / "x").exists()


GUEST = """
import os, re, socket, sys
fd = re.search(r"id=answer,fd=([0-9]+)", " ".join(sys.argv))[1]
answer, seen = socket.socket(fileno=int(fd)), None
for part in (b"hel", b"lo\\nwor", b"ld\\0stat", b"istics of a guest\\n", b"end\\0status 25", b"5\\n"):
    answer.sendall(part)
    seen = seen or open(os.environ["SEEN"], "rb", buffering=0)
    seen.read(1)  # what was sent has been shown
"""


def test_a_guests_answer_is_shown_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it but the status at its end, which may come in pieces."""
    seen = tmp_path / "seen"
    os.mkfifo(seen)
    monkeypatch.setenv("SEEN", str(seen))
    shown: list[bytes] = []
    reader = os.open(seen, os.O_RDONLY | os.O_NONBLOCK)  # so that nobody waits to open it
    writer = os.open(seen, os.O_WRONLY)

    class Screen:
        buffer: Screen

        def write(self, data: bytes) -> None:
            if data:
                shown.append(data)
                os.write(writer, b".")

        def flush(self) -> None:
            pass

    screen = Screen()
    screen.buffer = screen

    def guest(*given: object) -> list[str]:
        return [sys.executable, "-c", GUEST, *given[4]]  # type: ignore[misc]

    with monkeypatch.context() as patch:
        patch.setattr(boot, "arguments", guest)
        patch.setattr(sys, "stdout", screen)
        status = boot.boot(boot.Machine(["qemu"], tmp_path), tmp_path, 64, 60.0)
    os.close(reader)
    os.close(writer)
    assert status == 255
    assert shown == [b"hel", b"lo\nwor", b"ld", b"\0statistics of a guest\n", b"end"]
