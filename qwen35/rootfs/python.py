"""Python in an image: the running interpreter, and of the standard library and the packages what is used.

Modules go in compiled, without their sources; other people's without docstrings too. Shared objects go in
without what the dynamic loader does not read.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import marshal
import os
import sys
import sysconfig
from pathlib import Path

from qwen35.rootfs import elf
from qwen35.rootfs.loaded import LEFT_OUT_MODULES, Loaded, imports, loaded_by
from qwen35.rootfs.tree import Tree

__all__ = ["APP", "HOME", "PythonRoot", "add_packages", "compiled"]

HOME = "/usr"
APP = "app"
LOADER = "lib64/ld-linux-x86-64.so.2"
PACKAGES = ("amdxdna", "qwen35")

#: Beside what the main job loads: other picture formats, and what the interpreter imports by a name in data.
_IMPORTED = [
    "PIL.JpegImagePlugin",
    "PIL.WebPImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.BmpImagePlugin",
    "amdxdna.emu._kernels",
    "amdxdna.cli",
    "numpy.ma",
    "_strptime",
    "traceback",
    "tokenize",
    "zlib",
    *(
        f"encodings.{name}"
        for name in (
            "ascii",
            "latin_1",
            "utf_8_sig",
            "utf_16",
            "utf_16_le",
            "utf_32",
            "cp437",
            "unicode_escape",
            "raw_unicode_escape",
            "aliases",
        )
    ),
]
#: Folders of the packages that a minimal machine has no use for, and files that no program reads.
_LEFT_OUT = {"__pycache__", "csrc", "train", "serve", "rootfs"}
_SUFFIXES_LEFT_OUT = (".pyi", ".h", ".c", ".typed", ".pyc")
_DATA = "data"

#: The head of a .pyc that is not checked against a source.
_PYC = importlib.util.MAGIC_NUMBER + bytes(12)
#: What stands in for numpy's LAPACK, which nothing here uses.
_NO_LAPACK = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(f"numpy.linalg's {name} needs LAPACK, which was left out of this image: "
                      "write it with --lapack")
"""


def compiled(source: Path, name: str = "", docstrings: bool = True) -> bytes:
    """A module's .pyc, unchecked against its source; tracebacks name it `name`."""
    tree = ast.parse(source.read_bytes(), str(source))
    if not docstrings:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0] if node.body else None
                if (
                    isinstance(first, ast.Expr)
                    and isinstance(first.value, ast.Constant)
                    and isinstance(first.value.value, str)
                ):
                    node.body[:1] = [] if len(node.body) > 1 else [ast.copy_location(ast.Pass(), first)]
    code = compile(tree, name or str(source), "exec", dont_inherit=True)
    return _PYC + marshal.dumps(code)


class PythonRoot:
    """Puts the interpreter, modules and shared objects to their places in a tree."""

    def __init__(self, tree: Tree, own: Path | None = None) -> None:
        """`own`: a checkout whose modules go to /app as they are, with their sources."""
        self._tree = tree
        self._own = own
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.stdlib = f"{HOME}/lib/{version}"
        self.site = f"{self.stdlib}/site-packages"
        self._host_stdlib = Path(os.path.realpath(sysconfig.get_path("stdlib")))
        # Also where a .pth file of the environment points.
        sites = [sysconfig.get_path(key) for key in ("purelib", "platlib")]
        sites += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        self._host_sites = [Path(os.path.realpath(path)) for path in sites]

    def interpreter(self) -> None:
        """The executable, as /usr/bin/python3, and the dynamic loader."""
        self._tree.kind = "python"
        executable = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
        self.binary(executable, f"{HOME}/bin/python3")
        self.binary(Path("/", LOADER).resolve(), LOADER)

    def loaded(self, loaded: Loaded) -> None:
        """Everything that was loaded, but for what the environment's .pth files brought along."""
        for name, path in loaded.files.items():
            if self.package(path) is None or name not in loaded.started:
                self.module(path)
        for library in loaded.libraries:
            self.library(library)

    def module(self, path: Path) -> None:
        """One module's file, to its place; nothing where it is of no package and not of the library."""
        if (target := self.site_target(path)) is not None:
            self._tree.kind = self.package(path) or ""
        elif self._own is not None and path.resolve().is_relative_to(self._own):
            # After the packages: an environment may lie in the checkout.
            self._tree.kind = "ours"
            self._tree.copy(path, f"{APP}/{path.resolve().relative_to(self._own)}")
            return
        elif path.resolve().is_relative_to(self._host_stdlib):
            self._tree.kind = "python"
            target = f"{self.stdlib}/{path.resolve().relative_to(self._host_stdlib)}"
        else:
            return
        self.put(path, target)

    def put(self, path: Path, target: str, docstrings: bool = False) -> None:
        """A file of Python's: a module compiled, a shared object compacted, anything else as it is."""
        if target in self._tree or (path.suffix == ".py" and target + "c" in self._tree):
            return
        if path.suffix == ".py":
            # numpy.ma changes the docstrings of numpy's functions, and needs them for it.
            docstrings = docstrings or self._tree.kind == "numpy"
            self._tree.file(target + "c", compiled(path, target, docstrings))
        elif ".so" in path.name:
            self.binary(path, target)
        else:
            self._tree.copy(path, target)

    def binary(self, path: Path, target: str) -> None:
        """A program or shared object, compacted."""
        self._tree.file(target, elf.compact(path.read_bytes()), 0o755)

    def package(self, path: Path) -> str | None:
        """The installed package that a file is of, by its folder's name; None for what is of none."""
        if (target := self.site_target(path)) is None:
            return None
        name = target[len(self.site) + 1 :].partition("/")[0].partition(".")[0].lower().strip("_")
        return {"pil": "pillow", "cffi_backend": "cffi"}.get(name, name)

    def site_target(self, path: Path) -> str | None:
        """Where a file of an installed package goes; None for what is of none."""
        real = Path(os.path.realpath(path))
        for site in self._host_sites:
            if real.is_relative_to(site):
                return f"{self.site}/{real.relative_to(site)}"
        return None

    def library(self, path: Path) -> None:
        """One shared object: beside the package that brought it, or to /lib for the system's.

        Nothing for what is no library of its own: extension modules, and the loader.
        """
        real = Path(os.path.realpath(path))
        target = self.site_target(real)
        if target is None:
            own = real.is_relative_to(self._host_stdlib) or "abi3" in path.name
            if own or path.name.startswith("ld-linux"):
                return
            found = elf.dynamic(real.read_bytes())
            self._tree.kind = "python"
            target = f"lib/{found.name if found and found.name else path.name}"
        else:
            self._tree.kind = self.package(real) or ""
        self.binary(real, target)


def _needed(loaded: Loaded, without: set[Path]) -> Loaded:
    """`loaded` without some shared objects and without the libraries that only those ask for."""

    def asks(path: Path) -> tuple[str, ...]:
        found = elf.dynamic(path.read_bytes())
        return found.needed if found else ()

    def name(path: Path) -> str:
        found = elf.dynamic(path.read_bytes())
        return found.name if found and found.name else path.name

    extensions = {path.resolve() for path in loaded.files.values() if path.suffix == ".so"} - without
    libraries = {path.resolve() for path in loaded.libraries} - extensions - without
    programs = [Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))]
    wanted: set[Path] = set()
    left = [*programs, *extensions]
    while left:
        asked = {needed for path in left for needed in asks(path)}
        # A wheel's library may be asked for by its file's name.
        left = [path for path in libraries - wanted if path.name in asked or name(path) in asked]
        wanted.update(left)
    return Loaded(
        {key: path for key, path in loaded.files.items() if path.resolve() not in without},
        [path for path in loaded.libraries if path.resolve() in wanted],
        loaded.started,
    )


def _without_lapack(root: PythonRoot, tree: Tree, loaded: Loaded) -> Loaded:
    """Puts the small BLAS in the place of numpy's OpenBLAS; `loaded` as it is where that cannot be done."""
    files = loaded.files
    core = files.get("numpy._core._multiarray_umath") or files.get("numpy.core._multiarray_umath")
    lapack = files.get("numpy.linalg._umath_linalg")
    small = importlib.util.find_spec("qwen35.rootfs._blas")
    if core is None or lapack is None or small is None or small.origin is None:
        return loaded
    found = elf.dynamic(core.read_bytes())
    if found is None:
        return loaded
    names = [name for name in found.needed if "openblas" in name]
    libraries = [path for path in loaded.libraries if path.name in names]
    symbols = [name for name in found.undefined if "blas" in name]
    offered = ctypes.CDLL(small.origin)
    if len(libraries) != 1 or not all(hasattr(offered, symbol) for symbol in symbols):
        return loaded
    target = root.site_target(libraries[0])
    where = root.site_target(lapack)
    if target is None or where is None:
        return loaded
    tree.kind = "numpy"
    root.binary(Path(small.origin), target)
    code = compile(_NO_LAPACK, where, "exec")
    tree.file(f"{where.rpartition('/')[0]}/_umath_linalg.pyc", _PYC + marshal.dumps(code))
    return _needed(loaded, {lapack.resolve(), libraries[0].resolve()})


def add_packages(tree: Tree, built_in: bool = True, lapack: bool = False) -> None:
    """Interpreter, standard library, dependencies and the packages, as far as the main job uses them.

    `built_in`: with the built-in model. `lapack`: with numpy's own BLAS and LAPACK. Raises QwenError where
    the main job does not run here.
    """
    root = PythonRoot(tree)
    root.interpreter()
    folders = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        folders[name] = Path(spec.origin).parent
    ours = {
        path: f"{name}/{path.relative_to(folder)}"
        for name, folder in folders.items()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix not in _SUFFIXES_LEFT_OUT
        and not _LEFT_OUT & set(path.relative_to(folder).parts)
        and (built_in or path.relative_to(folder).parts[:2] != (_DATA, "default"))
    }
    picture = str(folders["qwen35"] / _DATA / "sample.png")
    device = ["--device", "emu:quiet", "--max-new", "4"]
    runs = [
        (0, ["--prompt", "What is a whale?", *device]),
        (0, ["--prompt", "What?", "--image", picture, *device]),
        (0, ["--help"]),
        (2, ["--nonsense"]),
    ]
    optional = sorted(set(imports(path for path in ours if path.suffix == ".py")))
    found = loaded_by(_IMPORTED, folders["qwen35"].parent, runs, optional, LEFT_OUT_MODULES)
    if not lapack:
        found = _without_lapack(root, tree, found)
    root.loaded(found)
    for path, target in ours.items():
        tree.kind = "model" if f"/{_DATA}/" in target else "ours"
        root.put(path, f"{root.site}/{target}", docstrings=True)
