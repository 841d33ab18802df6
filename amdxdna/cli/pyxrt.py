"""`python -m amdxdna pyxrt`: a program written for XRT's Python module, without XRT."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import io
import os
import pkgutil
import signal
import sys
import zipfile
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from amdxdna.cli.common import FAILED, Parser, UsageError
from amdxdna.cli.emulate import split

_DESCRIPTION = """\
Runs a Python script (or -m MODULE) for which, and for whatever Python it starts, `import pyxrt` gives this
project's module on the Linux driver's ioctls, also where XRT is installed. Nothing is changed on disk."""

_EPILOG = """\
Ends with the program's own exit status. From Python: amdxdna.pyxrt.install(), or
`with amdxdna.pyxrt.installed():`. For good: put the folder that --path prints first on PYTHONPATH."""


def parser() -> Parser:
    """The options."""
    p = Parser(
        "pyxrt",
        usage="amdxdna pyxrt [--device DEVICE] -- SCRIPT|FOLDER|- [ARGUMENT...]\n"
        "       amdxdna pyxrt [--device DEVICE] -- -m MODULE [ARGUMENT...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    p.add_argument(
        "--device",
        metavar="DEVICE",
        help="what pyxrt.device(0) is: an index, a node's path, "
        "emu or emu:KEY=VALUE,... (default: the first NPU; never an emulated one unasked)",
    )
    p.add_argument("--path", action="store_true", help="print the folder for PYTHONPATH")
    return p


def _require(device: str) -> None:
    """Raises UsageError for a device that cannot be there."""
    from amdxdna.emu.options import EmuOptions
    from amdxdna.errors import XdnaError
    from amdxdna.opening import is_emulated, resolve

    try:
        where = resolve(device)
        if is_emulated(where):
            EmuOptions.parse(where[4:])
            return
    except XdnaError as error:
        raise UsageError(f"pyxrt: --device {device}: {error.meaning}", error.remedy) from error
    if not os.path.exists(where):
        raise UsageError(
            f"pyxrt: --device {device}: there is no such node",
            "Give an index, a node's path, emu or emu:KEY=VALUE,...",
        )


def environment(device: str | None) -> None:
    """Sets what child processes need."""
    from amdxdna.pyxrt import FOLDER
    from amdxdna.pyxrt.devices import DEVICE

    if device is not None:
        os.environ[DEVICE] = device
    # The package itself goes last: it must shadow nothing of the program's.
    parts = [str(FOLDER), os.environ.get("PYTHONPATH", ""), str(FOLDER.parents[2])]
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)


def pyxrt_main(argv: list[str]) -> int:
    """Runs `pyxrt` with `argv`; the exit status."""
    if argv == ["--path"]:
        from amdxdna.pyxrt import FOLDER

        print(FOLDER)
        return 0
    own, command = split(argv, "pyxrt")
    given = parser().parse_args(own)
    if command[0] == "-m" and len(command) < 2:
        raise UsageError("pyxrt: -m without a module", "Give its name: python -m amdxdna pyxrt -- -m MODULE")
    if command[0] not in ("-m", "-") and not os.path.exists(command[0]):
        raise UsageError(f"pyxrt: there is no script {command[0]}", "Give a file's path, or -m MODULE")
    if given.device is not None:
        _require(given.device)
    environment(given.device)

    import amdxdna.pyxrt

    amdxdna.pyxrt.install()
    return _run(command)


def _begin(argv: list[str], folder: str, **facts: Any) -> dict[str, Any]:
    """Makes this process the program's: its arguments, where it finds modules (`folder` in the place of this
    one's), and a module ``__main__`` with `facts`, whose dict it returns. That stays: threads and functions
    run at exit use it when the program's last line is over."""
    from amdxdna.pyxrt import FOLDER

    sys.argv[:] = argv
    sys.path[0] = folder
    # A spawned child has this path alone to find the package by.
    package = str(FOLDER.parents[2])
    if package not in sys.path:
        sys.path.append(package)
    _replaced.append(sys.modules.get("__main__"))
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update({"__builtins__": builtins, "__package__": None, **facts})
    return vars(main)


_replaced: list[ModuleType | None] = []
"""This program's own ``__main__``, which its last lines need."""


def _of_spec(spec: ModuleSpec | None, name: str) -> tuple[CodeType, dict[str, Any]]:
    """The code of a module that was found, and what it knows of itself. Raises ImportError without one."""
    if spec is not None and isinstance(spec.loader, InspectLoader):
        code = spec.loader.get_code(name)
        if code is not None:
            facts = {"__spec__": spec, "__loader__": spec.loader, "__package__": spec.parent}
            return code, {**facts, "__file__": spec.origin}
    raise ImportError(name)


def _load(command: list[str]) -> tuple[CodeType, dict[str, Any]]:
    """The program's code, and what it runs in, as Python's command line finds them."""
    target = command[0]
    if target == "-m":
        sys.path[0] = os.getcwd()
        name = command[1]
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                name += ".__main__"
                spec = importlib.util.find_spec(name)
            code, facts = _of_spec(spec, name)
        except (ImportError, ValueError, AttributeError):
            raise UsageError(
                f"pyxrt: no module named {name} that can be run", "Give one that Python finds"
            ) from None
        facts["__file__"] = facts["__file__"] or command[1]
        return code, _begin([facts["__file__"], *command[2:]], os.getcwd(), **facts)
    if target == "-":
        code = compile(sys.stdin.buffer.read(), "<stdin>", "exec")
        return code, _begin(command, "")
    if os.path.isdir(target) or zipfile.is_zipfile(target):
        spec = PathFinder.find_spec("__main__", [target])
        try:
            code, facts = _of_spec(spec, "__main__")
        except ImportError:
            raise UsageError(
                f"pyxrt: there is no __main__.py in {target}", "Give a script, or a folder with one"
            ) from None
        return code, _begin(command, target, **facts)
    with io.open_code(os.path.abspath(target)) as script:
        code = pkgutil.read_code(script)  # of a .pyc
        if code is None:
            script.seek(0)
            code = compile(script.read(), target, "exec")
    loader = SourceFileLoader("__main__", target)
    folder = os.path.dirname(os.path.realpath(target))
    return code, _begin(command, folder, __file__=target, __loader__=loader, __spec__=None, __cached__=None)


def _run(command: list[str]) -> int:
    """Runs the program in this process, as Python would; its exit status."""
    main: dict[str, Any] = {}
    try:
        code, main = _load(command)
        exec(code, main)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return FAILED
    except UsageError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            # Python's end by a Ctrl-C: by that signal, after all that is done at exit.
            atexit.register(_interrupted)
        # Without this function's frame; of source that is wrong, without any.
        frames = error.__traceback__.tb_next if main and error.__traceback__ is not None else None
        if isinstance(error, RuntimeError) and _ends_inside(frames):
            from amdxdna.errors import XdnaError

            # What the binding said is in the refusal; what the program was handling is the program's.
            own = error.__context__
            while isinstance(own, XdnaError):
                own = own.__context__
            error.__cause__, error.__context__, error.__suppress_context__ = None, own, own is None
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return FAILED
    return 0


def _ends_inside(frames: TracebackType | None) -> bool:
    """Whether `frames` end in this package, as XRT's refusals do; cuts them to the program's own then."""
    from amdxdna.pyxrt import FOLDER

    inside = f"{FOLDER.parent.parent}{os.sep}"
    last, ends = None, False
    while frames is not None:
        ends = frames.tb_frame.f_code.co_filename.startswith(inside)
        if not ends:
            last = frames
        frames = frames.tb_next
    if last is None or not ends:
        return False
    last.tb_next = None
    return True


def _interrupted() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
