"""This environment's programs, by the commands that start them from the current folder."""

from __future__ import annotations

import os
import re
import shlex
import sys

__all__ = ["own_commands", "own_program"]

_COMMAND = re.compile(r"(?<![\w./-])python(?= -m (?:qwen35|amdxdna|tests|pip)\b)")


def own_commands(text: str) -> str:
    """A message, its `python -m` commands as they run from here: what is printed can be copied."""
    return _COMMAND.sub(lambda _: own_program("python"), text)


def own_program(name: str) -> str:
    """How to call a program of this environment from the current folder; its bare name where it has none."""
    import shutil  # no command line that has nothing to name takes the time

    folder, own = os.path.split(sys.executable or "")  # None where Python is embedded
    path = os.path.join(folder, own if name == "python" else name)
    if not os.path.isfile(path):
        return name
    for short in (name, os.path.basename(path)):  # "python3" may be there where "python" is not
        if shutil.which(short) == path:
            return short
    try:
        relative = ".." if os.getcwd() == "/" else os.path.relpath(path)
    except OSError:  # a current folder that is gone
        relative = ".."
    return shlex.quote(path if relative.startswith("..") else relative)
