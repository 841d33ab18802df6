"""`python -m amdxdna pyxrt`: a program written for XRT's Python module, without XRT."""

from __future__ import annotations

import os
import runpy
import sys
import traceback

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
        usage="amdxdna pyxrt [--device DEVICE] -- SCRIPT [ARGUMENT...]\n"
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
    from amdxdna.opening import resolve

    try:
        where = resolve(device)
        if where == "emu" or where.startswith("emu:"):
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
        raise UsageError("pyxrt: -m without a module", "Give its name: amdxdna pyxrt -- -m MODULE")
    if command[0] != "-m" and not os.path.isfile(command[0]):
        raise UsageError(f"pyxrt: there is no script {command[0]}", "Give a file's path, or -m MODULE")
    if given.device is not None:
        _require(given.device)
    environment(given.device)

    import amdxdna.pyxrt

    amdxdna.pyxrt.install()
    return _run(command)


def _begin(argv: list[str], folder: str) -> None:
    """What the program sees as its arguments, and finds modules in: `folder` in the place of this one's."""
    from amdxdna.pyxrt import FOLDER

    sys.argv[:] = argv
    sys.path[0] = folder
    # A spawned child has this path alone to find the package by.
    package = str(FOLDER.parents[2])
    if package not in sys.path:
        sys.path.append(package)


def _run(command: list[str]) -> int:
    """Runs the program in this process, as Python would; its exit status."""
    try:
        if command[0] == "-m":
            _begin(command[1:], os.getcwd())
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            _begin(command, os.path.dirname(os.path.abspath(command[0])))
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return FAILED
    except Exception:
        traceback.print_exc()
        return FAILED
    return 0
