"""Which bundle is meant: a directory, an id of the Hugging Face Hub, the environment's or the built-in one.

Light, as the command line looks folders up before anything is loaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from amdxdna.entry import nearest
from qwen35.arguments import path as is_path
from qwen35.errors import ModelError

__all__ = ["DEFAULT_BUNDLE", "find_bundle", "model_size", "nearest_folders", "where_from"]

DEFAULT_BUNDLE = Path(__file__).parent / "data" / "default"


def find_bundle(path: str | os.PathLike[str] | None = None) -> Path:
    """The bundle directory to use: `path`, else the environment's QWEN35_BUNDLE, else the one in the package.

    A Hugging Face id (owner/name, owner/name@revision) is taken from the hub's cache, else downloaded.

    Raises ModelError naming what was tried when there is no bundle there.
    """
    if path is not None:
        is_path("path", path)
    named = os.environ.get("QWEN35_BUNDLE", "")
    if path or named:
        chosen = Path(path or named)
        where = str(chosen) if path else f"QWEN35_BUNDLE={named}"
        remedy = "give a directory with a manifest.txt"
        if (chosen / "manifest.txt").exists():  # whoever reads it says what is wrong with one that is no file
            return chosen
        if not chosen.exists():
            from qwen35.bundle.hub import fetch, is_id

            if is_id(str(path or named)):
                return fetch(str(path or named))
            if near := nearest_folders(str(chosen)):
                remedy += f" (did you mean {' or '.join(near)}?)"
            raise ModelError("there is no such bundle", where, where_from(chosen.name) or remedy)
        if (chosen / "config.json").is_file():
            remedy = f"it is a checkpoint; make a bundle of it: python -m qwen35 export {chosen} --out DIR"
        raise ModelError("this is no bundle", where, remedy)
    if (DEFAULT_BUNDLE / "manifest.txt").is_file():
        return DEFAULT_BUNDLE
    raise ModelError(
        "no bundle was given and this installation has no built-in one",
        str(DEFAULT_BUNDLE),
        "name a bundle directory, set QWEN35_BUNDLE, or make one with python -m qwen35 export",
    )


_MODEL = re.compile(r"(?:iron-)?(?:qwen3?\.?5?-)?(\d[\d.]*b)(?:-npu2)?", re.IGNORECASE)


def model_size(name: str) -> str:
    """The published size that a word names (2b, or qwen3.5-2b as a download is called); empty for none."""
    found = _MODEL.fullmatch(name)
    if found is None:
        return ""
    from qwen35.bundle.sizes import PUBLISHED  # no other word takes the time

    size = found[1].lower()
    return size if size in PUBLISHED else ""


def where_from(name: str) -> str:
    """How to come by what the README calls so, where it is not here; empty for other names."""
    from amdxdna.programs import own_program

    if size := model_size(name):
        return (
            f"not downloaded yet: python -m qwen35 info {size} says what it costs and "
            "which command downloads it"
        )
    if name == "bundle":
        return "make it of a checkpoint: python -m qwen35 export checkpoint --out bundle"
    if name == "checkpoint":
        from qwen35.bundle.sizes import REAL_CHECKPOINT

        return (
            f"not downloaded yet: {own_program('hf')} download {REAL_CHECKPOINT} --local-dir checkpoint, "
            "then make a bundle of it with python -m qwen35 export"
        )
    return ""


def nearest_folders(path: str) -> list[str]:
    """Bundles and checkpoints beside a path that is not there whose names are near its own."""
    parent, name = os.path.split(path.rstrip(os.sep))
    try:
        with os.scandir(parent or ".") as entries:
            folders = [entry.name for entry in entries if _holds_model(entry.path)]
    except OSError:
        return []
    return [os.path.join(parent, found) for found in nearest(name, folders)]


def _holds_model(folder: str) -> bool:
    return any(os.path.isfile(os.path.join(folder, name)) for name in ("manifest.txt", "config.json"))
