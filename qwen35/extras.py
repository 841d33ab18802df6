"""Optional packages and this environment's programs, by the commands that install and start them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from qwen35.errors import UsageError

__all__ = ["install_command", "own_program", "require"]

#: Extra of pyproject.toml -> what it must bring along for the code that uses it.
_NEEDED = {"json": ("llguidance",), "train": ("torch", "transformers"), "bench": ("xllamacpp", "gguf")}


def require(extra: str, option: str) -> None:
    """Raises UsageError, with the command that installs it, where a package of an extra is missing.

    Imports none of them. `option` is what asked for it.
    """
    lacking = [name for name in _NEEDED[extra] if find_spec(name) is None]
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        raise UsageError(f"{' and '.join(lacking)} {verb} not installed", option, install_command(lacking))


def install_command(packages: list[str]) -> str:
    """The command that installs packages into this environment, in versions that this package takes."""
    try:
        wanted = metadata.requires("amdxdna") or []
    except metadata.PackageNotFoundError:
        wanted = []  # the package was copied: no versions are recorded
    known = {text.split(";")[0].strip() for text in wanted}
    exact = [next((one for one in sorted(known) if _name(one) == name), name) for name in packages]
    return f"{own_program('python')} -m pip install {' '.join(map(shlex.quote, exact))}"


def own_program(name: str) -> str:
    """How to call a program of this environment from the current folder; its bare name where it has none."""
    path = Path(sys.executable) if name == "python" else Path(sys.executable).with_name(name)
    if not path.is_file():
        return name
    for short in (name, path.name):  # "python3" may be there where "python" is not
        if shutil.which(short) == str(path):
            return short
    try:
        relative = ".." if os.getcwd() == "/" else os.path.relpath(path)
    except OSError:  # a current folder that is gone
        relative = ".."
    return shlex.quote(str(path) if relative.startswith("..") else relative)


def _name(requirement: str) -> str:
    return requirement.partition("[")[0].rstrip("0123456789.,<>=!~ ")
