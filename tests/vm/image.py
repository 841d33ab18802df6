"""The minimal image, as `python -m qwen35 image` makes it, with the agent and tests in it."""

from __future__ import annotations

from pathlib import Path

from qwen35.rootfs import machine
from qwen35.rootfs.loaded import loaded_by
from qwen35.rootfs.python import PythonRoot, add_packages

from . import debs, guest

CHECKOUT = Path(__file__).resolve().parents[2]
BUNDLE = machine.BUNDLE


def build(rig: debs.Rig, main: str, bundle: Path, extra: list[str]) -> bytes:
    """The image with the built-in model and a bundle, whose /init ends in the shell lines `main`.

    `extra` modules of the checkout go to /app, and what they need beyond the main job with them.
    """
    tree = guest.base_tree(rig, main)
    add_packages(tree)
    root = PythonRoot(tree, CHECKOUT)
    loaded = loaded_by(extra, CHECKOUT)
    for name, path in loaded.files.items():
        packages = (CHECKOUT / "amdxdna", CHECKOUT / "qwen35")
        # The packages are installed in the image, and numpy's LAPACK was left out of it.
        if not any(map(path.is_relative_to, packages)) and not name.startswith("numpy.linalg"):
            root.module(path)
    for path in loaded.libraries:
        if root.site_target(path) is None:
            root.library(path)
    tree.kind = "model"
    tree.tree(bundle, BUNDLE)
    return guest.packed(tree)
