"""Runs the probes of pyxrt_probes.py under whichever `pyxrt` the interpreter finds; one JSON line a probe.

Each probe runs in a forked child, since some kill the real module's process. Needs the
standard library alone, as Debian's Python has no more.

    python pyxrt_side.py FOLDER [NAME...]        FOLDER: what pyxrt_files.py wrote
"""

import json
import os
import re
import signal
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))

SECONDS = 300
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


def shown(value: object) -> object:
    """A value as JSON: its type and what it says."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [shown(each) for each in value]]
    if value is None or type(value) in (bool, int, str, float):
        return [type(value).__name__, value]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, dict):
        return ["dict", sorted(value)]
    if hasattr(type(value), "__members__"):
        return [kind, str(value), repr(value), int(value), str(value.name)]
    return [kind, _ADDRESS.sub(">", repr(value)) if not isinstance(value, memoryview) else len(value)]


def outcome(code: str, folder: str, setup: str) -> object:
    """What a probe came to: a value, or an exception's type and text; and the warnings on the way."""
    names: dict[str, object] = {"FOLDER": folder}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        try:
            exec(setup, names)
            before, _, last = code.strip().rpartition("\n")
            exec(before, names)
            result = ["value", shown(eval(last, names))]
        except Exception as error:
            result = ["raised", type(error).__name__, str(error)]
    told = [warning.category.__name__ for warning in caught if warning.category is DeprecationWarning]
    return [*result, told]


def run(code: str, folder: str, setup: str) -> object:
    """A probe in a child; how that ended where it ended badly."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.alarm(SECONDS)
        try:
            text = json.dumps(outcome(code, folder, setup))
        except BaseException as error:
            text = json.dumps(["lost", repr(error)])
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return ["killed", signal.Signals(os.WTERMSIG(status)).name]
    return json.loads(text) if text else ["lost", status]


def main() -> None:
    sys.path.insert(0, HERE)
    import pyxrt  # noqa: F401  (once for all children)
    from pyxrt_probes import PROBES, SETUP

    folder, *wanted = sys.argv[1:]
    for name in wanted or PROBES:
        print(json.dumps([name, run(PROBES[name], folder, SETUP)]), flush=True)


if __name__ == "__main__":
    main()
