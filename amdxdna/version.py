"""The version of the driver's interface: DRM_IOCTL_VERSION."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from amdxdna import ioctl
from amdxdna._native import ffi
from amdxdna.errors import NoDevice, XdnaError
from amdxdna.node import Node

SINCE = {
    "GET_ARRAY": 1,
    "the last asynchronous error": 2,
    "the resource information": 4,
    "telemetry": 5,
    "the preemption state": 6,
    "control code that saves its state or loads PDIs": 6,
    "the sensors": 7,
    "the buffer usage": 8,
    "health reports": 9,
}
"""Feature -> the DRM minor that brought it (the ladder of amdxdna_pci_drv.c)."""


@dataclass(frozen=True)
class DrmVersion:
    """DRM_IOCTL_VERSION: the interface's version (features are gated on `minor`) and the driver's names."""

    major: int
    minor: int
    patch: int
    name: str
    description: str

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    def has(self, feature: str) -> bool:
        """Whether the driver is new enough for a feature of :data:`SINCE`. Out-of-tree drivers say 1.0."""
        return self.major > 0 or self.minor >= SINCE[feature]


def read_version(node: Node) -> DrmVersion:
    """What the driver behind a node says. Raises NoDevice where it is none of DRM's."""
    texts = [ffi.new("char[]", 128) for _ in range(3)]
    request = ffi.new("struct drm_version *")
    for name, text in zip(("name", "date", "desc"), texts, strict=True):
        setattr(request, name, ioctl.address_of(text))
        setattr(request, f"{name}_len", 127)
    try:
        ioctl.call(node, "VERSION", request)
    except XdnaError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL):
            raise NoDevice(
                f"{node.path} is no DRM device",
                call="open",
                errno=errno.ENOTTY,
                remedy="Give the path of an accel node, such as /dev/accel/accel0",
            ) from None
        raise
    name, _, description = (ffi.string(text).decode("utf-8", "replace") for text in texts)
    return DrmVersion(
        request.version_major, request.version_minor, request.version_patchlevel, name, description
    )
