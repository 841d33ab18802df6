"""Other kernels for the guest, by version, from the same archive: older drivers to try the binding on.

Up to 6.18 one package holds image and modules; from 6.19 on they are two. Superseded kernels leave the
archive over time: what it no longer has, and the cache neither, is :class:`.debs.Unavailable`.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

from . import debs
from .debs import Apt, Rig

_FLAVOUR = "+deb13-amd64"
_IMAGE = re.compile(r"linux-(?:image|binary)-(\d+\.\d+\.\d+)" + re.escape(_FLAVOUR))


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def reachable(rig: Rig, series: str) -> list[str]:
    """Versions of a series ("6.18") in the package lists or unpacked already, oldest first."""
    with debs.locked(rig.root):
        apt = Apt(rig.root, debs.archive_uri())
        names = [name for kind in ("image", "binary") for name in apt.names(f"linux-{kind}-{series}.")]
    found = {match[1] for name in names if (match := _IMAGE.fullmatch(name))}
    found |= {path.stem.removeprefix("kernel-") for path in rig.root.glob(f"kernel-{series}.*.json")}
    return sorted(found, key=_number)


def take(rig: Rig, version: str) -> Rig:
    """The rig with this kernel, fetched and unpacked if need be. Raises Unavailable."""
    tree = f"kernel-{version}"
    stamp = rig.root / f"{tree}.json"
    with debs.locked(rig.root):
        record = debs.sealed(rig.root, stamp)
        if record is None:
            record = {"versions": _unpack(rig.root, version, tree)}
            debs.seal(rig.root, [tree], stamp, record)
    return dataclasses.replace(
        rig, kernel_release=version + _FLAVOUR, kernel_tree=tree, versions=rig.versions | record["versions"]
    )


def _unpack(root: Path, version: str, tree: str) -> dict[str, str]:
    apt = Apt(root, debs.archive_uri())
    names = (
        [f"linux-image-{version}{_FLAVOUR}"]
        if _number(version) < (6, 19)
        else [f"linux-binary-{version}{_FLAVOUR}", f"linux-modules-{version}{_FLAVOUR}"]
    )
    packages = apt.describe(names)
    debs.check_pins(packages)
    apt.download(packages)
    shutil.rmtree(root / tree, ignore_errors=True)
    for deb in packages:
        apt.unpack(deb, root / tree, debs.kernel_part)
    for deb in packages:
        # What is kept of it is a small part.
        (apt.downloads / deb.file).unlink()
    return {deb.name: deb.version for deb in packages}
