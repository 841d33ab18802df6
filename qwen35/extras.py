"""Optional packages, by the commands that install them."""

from __future__ import annotations

import shlex
from importlib import metadata
from importlib.util import find_spec

from amdxdna.programs import own_program
from qwen35.errors import UsageError

__all__ = ["install_command", "require"]

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


def _name(requirement: str) -> str:
    return requirement.partition("[")[0].rstrip("0123456789.,<>=!~ ")
