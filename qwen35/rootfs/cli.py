"""The command line of `images`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from amdxdna.files import open_regular
from qwen35.cli.args import Parser, add_number
from qwen35.cli.output import notice
from qwen35.errors import QwenError, UsageError

if TYPE_CHECKING:
    from qwen35.rootfs.boot import Machine
    from qwen35.rootfs.tree import Tree

__all__ = ["image_main"]

SHAPE = 1
"""Version of the --json shape: {"shape", "out", "format", "bytes", "unpacked", "parts", "memory"}."""
_MIB = 1 << 20
_QUESTION = 'python3 -m qwen35 --prompt "What is a whale?"'
_FETCH = "python -m tests.vm.debs in a checkout fetches one from Debian's archive"
#: What each part is, and what of it could still go.
_PARTS = {
    "python": "interpreter, libc and libstdc++, the standard library's modules that are used",
    "numpy": "its core, numpy.random; with a small BLAS and no LAPACK unless --lapack",
    "tokenizers": "one shared object",
    "pillow": "PNG, JPEG, WebP, GIF and BMP; its core asks for libtiff, openjpeg and xcb, which nothing uses",
    "cffi": "its run-time",
    "ours": "amdxdna with the emulated NPU, and qwen35",
    "model": "the bundle, or the built-in model",
    "modules": "the driver and what it depends on; a fifth of them describes types for BPF",
    "busybox": "shell and /init",
    "firmware": "of the NPU",
    "added": "--add",
}


def _parser() -> Parser:
    parser = Parser(
        prog="qwen35 image",
        description="Writes an initramfs that runs the main job on /dev/accel/accel0 and holds nothing else: "
        "this Python and what it loads for a question with a picture, the model, the driver's kernel modules "
        "and busybox. No XRT, compiler or package manager. Prints what each part weighs and how to boot it.",
        epilog="Kernel, modules, busybox and QEMU are taken from the cache that python -m tests.vm.debs "
        "fills in a checkout (AMDXDNA_VM_CACHE), else from this system. Exit status: 0, 1 failed, 2 wrong "
        "usage, 130 Ctrl-C; with --boot that of --run.",
    )
    add = parser.add_argument
    add("out", metavar="OUT", type=Path, help="file to write; with --dir, a folder to make")
    add("--bundle", metavar="DIR", help="this model, as /bundle, instead of the built-in one")
    add(
        "--add",
        action="append",
        default=[],
        metavar="FILE:PATH",
        help="a file or folder to put in; repeatable",
    )
    add(
        "--run",
        metavar="CMD",
        help="shell lines to run, then power off (default: a shell; with --boot, a question)",
    )
    add("--compress", choices=["zstd", "gzip", "none"], help="default zstd where there is one, else gzip")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--squashfs", action="store_true", help="a squashfs instead (needs squashfs-tools)")
    form.add_argument("--dir", action="store_true", help="a folder instead, without device nodes")
    add(
        "--no-kernel",
        action="store_true",
        help="without kernel modules, busybox, firmware and /init: for a container or chroot",
    )
    add(
        "--lapack",
        action="store_true",
        help="with numpy's own BLAS and LAPACK (28 MiB more), for programs you add",
    )
    add("--json", action="store_true", help="the sizes as one JSON object on stdout")
    boot = parser.add_argument_group("booting it")
    add = boot.add_argument
    add("--boot", action="store_true", help="boot it in QEMU on the emulated NPU and print what --run prints")
    memory = "of the guest (default 384 and what the image needs more)"
    add_number(boot, "--memory", int, 64, 1 << 20, "MIB", memory)
    add_number(boot, "--seconds", float, 1, 86400, "S", "most time for the guest (default 300)", 300.0)
    add("--kernel", type=Path, metavar="FILE", help="a kernel to boot")
    add("--modules", type=Path, metavar="DIR", help="that kernel's modules, such as /lib/modules/RELEASE")
    add("--busybox", type=Path, metavar="FILE", help="a busybox that needs no libraries")
    add(
        "--firmware",
        type=Path,
        metavar="DIR",
        help="linux-firmware's folder amdnpu, for an NPU that is not emulated (default: placeholders)",
    )
    add("--qemu", metavar="PROGRAM", help="QEMU 10.1 or newer, with vfio-user-pci")
    return parser


def image_main(argv: Sequence[str]) -> int:
    """Writes the image: 0; with --boot the status of what it ran. Raises QwenError, OSError."""
    options = _parser().parse_args(list(argv))
    _check(options)
    from qwen35.rootfs import archive
    from qwen35.rootfs.boot import boot, by_hand, guest_memory

    # What is not a person's reads the one line of JSON.
    say = (lambda line: None) if options.json else notice
    parts = _Parts(options)
    tree = _tree(options, parts, say)
    compress = options.compress or ("zstd" if shutil.which("zstd") else "gzip")
    say(f"writing {options.out}: {tree.total / _MIB:.0f} MiB before compression")
    if options.dir:
        archive.write_folder(tree, options.out)
    elif options.squashfs:
        archive.write_squashfs(tree, options.out, compress)
    else:
        archive.write_initramfs(tree, options.out, compress)
    packed = 0 if options.dir else options.out.stat().st_size
    memory = options.memory or guest_memory(tree.total, packed)
    # The answer of what is booted has stdout to itself.
    out = sys.stderr if options.boot else sys.stdout
    form = "dir" if options.dir else "squashfs" if options.squashfs else "initramfs"
    if options.json:
        print(
            json.dumps(
                {
                    "shape": SHAPE,
                    "out": str(options.out),
                    "format": form,
                    "bytes": packed,
                    "unpacked": tree.total,
                    "parts": dict(tree.sizes),
                    "memory": memory,
                }
            ),
            file=out,
        )
    else:
        print("\n".join(_lines(tree.sizes, packed)), file=out)
    if form != "initramfs" or options.no_kernel:
        return 0
    machine = parts.machine(required=options.boot)
    if not options.json and machine is not None and not options.boot:
        print(f"boot it by hand:\n{by_hand(machine, options.out, memory)}", file=out)
    if options.boot:
        assert machine is not None
        out.flush()
        say(f"booting it with {memory} MiB of memory")
        return boot(machine, options.out, memory, options.seconds)
    return 0


def _lines(sizes: Counter[str], packed: int) -> Iterator[str]:
    for name, what in _PARTS.items():
        if sizes[name]:
            yield f"{name:<12}{sizes[name] / _MIB:7.1f} MiB  {what}"
    for name in sorted(set(sizes) - set(_PARTS)):
        yield f"{name:<12}{sizes[name] / _MIB:7.1f} MiB"
    written = f", {packed / _MIB:.1f} as written" if packed else ""
    yield f"{'all':<12}{sum(sizes.values()) / _MIB:7.1f} MiB{written}"


def _check(options: argparse.Namespace) -> None:
    if options.boot and (options.dir or options.squashfs or options.no_kernel):
        raise UsageError("--boot starts an initramfs", "", "leave --dir, --squashfs and --no-kernel out")
    if options.dir and options.compress:
        raise UsageError("a folder is not compressed", "", "leave --compress out")
    for given in options.add:
        source, colon, target = given.rpartition(":")
        if not colon or not source or not target.startswith("/"):
            raise UsageError(f"--add {given}: not FILE:PATH", "", "such as --add notes.txt:/root/notes.txt")
        if ".." in target.split("/"):
            raise UsageError(f"--add {given}: the path has .. in it", "", "give the path in the image")
        if not os.path.exists(source):
            raise UsageError("there is no such file to add", source, "give one that is there")
        if not os.path.isdir(source):
            _require_file("--add", source)
    for name in ("kernel", "modules", "busybox", "firmware"):
        if (path := getattr(options, name)) is None:
            continue
        if not path.exists():
            raise UsageError(f"--{name}: no such file or folder", str(path))
        if name in ("kernel", "busybox"):
            _require_file(f"--{name}", path)
        elif not path.is_dir():
            raise UsageError(f"--{name}: not a folder", str(path))
    if options.run is not None and "\0" in options.run:
        raise UsageError("--run holds a NUL", "", "give shell lines")
    if not options.out.absolute().parent.is_dir():
        raise UsageError("there is no such folder", str(options.out.parent), "make it first")
    if options.out.is_dir() and not options.dir:
        raise UsageError("this is a folder", str(options.out), "give a file's name, or --dir")


def _require_file(option: str, path: str | Path) -> None:
    """Raises UsageError for what is no file, or cannot be read: it could wait, or never end."""
    try:
        open_regular(path).close()
    except OSError as error:
        raise UsageError(f"{option}: {(error.strerror or str(error)).lower()}", str(path)) from None


class _Parts:
    """What an image takes from outside: each from its option, else from the cache, else from this system."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._cache_read = False

    def _cached(self, name: str) -> Path | None:
        from amdxdna.emu.pci import rig

        if not self._cache_read:
            self._rig, self._cache_read = rig.cached(), True
        return None if self._rig is None else getattr(self._rig, name)

    def modules(self) -> Path:
        """Folder of kernel modules with the driver in it. Raises QwenError."""
        given = self._options.modules
        for folder in (given or self._cached("modules"), Path("/lib/modules", os.uname().release)):
            if folder is not None and next(folder.rglob("amdxdna.ko*"), None) is not None:
                return folder
            if given is not None:
                raise QwenError(
                    "no amdxdna.ko is below it", str(given), "give the modules of Linux 6.14 or newer"
                )
        raise QwenError(
            "no kernel modules with the amdxdna driver are here", "", f"give --modules DIR; {_FETCH}"
        )

    def busybox(self) -> Path:
        """A static busybox. Raises QwenError."""
        from qwen35.rootfs import elf

        found: Path | None = self._options.busybox or self._cached("busybox")
        here = shutil.which("busybox")
        if found is None and here is not None and elf.dynamic(Path(here).read_bytes()) is None:
            found = Path(here)
        if found is None:
            raise QwenError("no static busybox is here", "", f"give --busybox FILE; {_FETCH}")
        return found

    def machine(self, required: bool) -> Machine | None:
        """QEMU and a kernel; None where there is none and none is required. Raises QwenError."""
        from qwen35.rootfs.boot import Machine

        kernel = self._options.kernel or self._cached("vmlinuz")
        if self._options.qemu is not None:
            if shutil.which(self._options.qemu) is None:
                raise UsageError("--qemu: no such program", self._options.qemu)
            command = [self._options.qemu]
        elif self._cached("qemu") is not None:
            assert self._rig is not None
            command = self._rig.qemu_command
        else:
            command = [found] if (found := shutil.which("qemu-system-x86_64")) else []
        if kernel is not None and command:
            return Machine(command, kernel)
        if required:
            raise QwenError(
                f"no {'kernel' if command else 'QEMU'} to boot it with is here",
                "",
                f"give --{'kernel FILE' if command else 'qemu PROGRAM'}; {_FETCH}",
            )
        return None


def _tree(options: argparse.Namespace, parts: _Parts, say: Callable[[str], None]) -> Tree:
    from qwen35.find import find_bundle
    from qwen35.rootfs import machine
    from qwen35.rootfs.boot import LEAST_MIB, guest_memory
    from qwen35.rootfs.python import add_packages
    from qwen35.rootfs.tree import Tree

    bundle = None if options.bundle is None else find_bundle(options.bundle)
    tree = Tree()
    tree.kind = "added"
    for given in options.add:
        source, _, target = given.rpartition(":")
        if os.path.isdir(source):
            tree.tree(Path(source), target)
        else:
            tree.copy(Path(source), target)
    model = 0
    if bundle is not None:
        tree.kind = "model"
        tree.tree(bundle, machine.BUNDLE)
        model = tree.sizes["model"]
    if not options.no_kernel:
        lines = options.run or (_QUESTION if options.boot else machine.SHELL)
        least = options.memory or max(LEAST_MIB, guest_memory(model, 0))
        environment = f"QWEN35_BUNDLE=/{machine.BUNDLE}" if bundle is not None else ""
        modules = parts.modules()
        machine.add_machine(
            tree, parts.busybox(), modules, options.firmware, least=least, environment=environment
        )
        machine.add_run(tree, lines)
    say("collecting what Python and the packages need")
    add_packages(tree, built_in=bundle is None, lapack=options.lapack)
    machine.finish(tree)
    return tree
