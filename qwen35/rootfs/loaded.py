"""What of Python a program uses: found by running it in a child process and looking at what that loaded."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qwen35.errors import QwenError

__all__ = ["LEFT_OUT_MODULES", "Loaded", "imports", "loaded_by"]

#: Modules that are there on the host and not in an image: OpenSSL (5 MiB, for downloads only), and what needs
#: a display. Who imports them does without.
LEFT_OUT_MODULES = (
    "_ssl",
    "ssl",
    "_hashlib",
    "_tkinter",
    "tkinter",
    "_curses",
    "_gdbm",
    "_dbm",
    "_sqlite3",
    "readline",
    "setuptools",
    "pip",
    "IPython",
    "pytest",
)

_PROBE = """
import sys
before = set(sys.modules)
import contextlib, io, json, os
folder, runs, wanted, optional, left_out = json.loads(sys.argv[1])
if folder:
    sys.path.insert(0, folder)
sys.argv[1:] = []
for name in left_out:
    sys.modules[name] = None
for name in wanted:
    __import__(name)
for status, words in runs:
    from qwen35.cli import main
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        ended = main(words)
    if ended != status:
        sys.exit(f"qwen35 {' '.join(words)} ended with {ended}: {told.getvalue()}")
for name in optional:
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        __import__(name)
files = {}
for name, module in sorted(sys.modules.items()):
    path = getattr(module, '__file__', None)
    if path and name != '__main__' and os.path.isfile(path):
        own = os.path.realpath(path) if path.endswith('.py') else path
        files[name] = [own, name in before]
with open('/proc/self/maps') as maps:
    libraries = {line.split(None, 5)[5].strip() for line in maps if '.so' in line}
json.dump({'files': files, 'libraries': sorted(libraries)}, sys.__stdout__)
"""


@dataclass(frozen=True)
class Loaded:
    """Module name -> file, and the shared objects mapped into the process.

    `started`: the modules that were there before anything was imported: the interpreter's, and what the
    environment's .pth files bring along.
    """

    files: dict[str, Path]
    libraries: list[Path]
    started: frozenset[str] = frozenset()


def loaded_by(
    modules: Sequence[str],
    folder: Path | None = None,
    runs: Sequence[tuple[int, list[str]]] = (),
    optional: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> Loaded:
    """Imports `modules` in a child process with `folder` first on its path, then runs `qwen35` with each of
    `runs` (exit status, words), then imports those of `optional` that can be; `left_out` cannot.

    Raises QwenError with what the child said when it failed.
    """
    words = json.dumps([str(folder or ""), list(runs), list(modules), list(optional), list(left_out)])
    done = subprocess.run(
        [sys.executable, "-B", "-c", _PROBE, words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise QwenError(
            "what the image needs cannot be found out, since the main job fails here",
            "",
            said[-1] if said else f"exit status {done.returncode}",
        )
    record = json.loads(done.stdout)
    return Loaded(
        {name: Path(path) for name, (path, _) in record["files"].items()},
        [Path(path) for path in record["libraries"]],
        frozenset(name for name, (_, before) in record["files"].items() if before),
    )


def imports(sources: Iterable[Path]) -> Iterator[str]:
    """The standard library's modules that these files import anywhere, also inside functions."""
    for source in sources:
        for node in ast.walk(ast.parse(source.read_bytes())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                if name.partition(".")[0] in sys.stdlib_module_names:
                    yield name
