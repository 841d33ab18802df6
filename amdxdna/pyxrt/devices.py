"""`pyxrt.device` and `pyxrt.uuid`."""

from __future__ import annotations

import errno
import os
import threading
import uuid as _uuid
import warnings
from typing import Any

from amdxdna import sysfs
from amdxdna.device import Device
from amdxdna.errors import NoDevice
from amdxdna.pyxrt.calls import incompatible, refuse, select, text, translated, whole
from amdxdna.pyxrt.enums import xrt_info_device
from amdxdna.pyxrt.uuids import uuid
from amdxdna.pyxrt.xclbins import xclbin
from amdxdna.signals import imports
from amdxdna.weak import LiveValues

DEVICE = "AMDXDNA_PYXRT_DEVICE"
"""Environment: what device 0 is, as ``Device.open`` takes it. The emulated NPU is never taken unasked."""

_open: LiveValues[str, Device] = LiveValues()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


def enumerate_devices() -> int:
    """How many NPUs there are."""
    return max(len(sysfs.find_nodes()), 1 if os.environ.get(DEVICE) else 0)


def _opened(spec: str) -> Device:
    with _lock:
        found = _open.get(spec)
        if found is None:
            found = _open[spec] = Device.open(spec)
        return found


class device:
    """An NPU. All of a process on one NPU share one open node."""

    __module__ = "pyxrt"

    def __init__(self, *args: Any) -> None:
        form, values = select("__init__", args, {}, (), (("", whole(32)),), (("", text),))
        self._device: Device | None = None
        self._registered: dict[_uuid.UUID, xclbin] = {}
        self._last: xclbin | None = None
        if form == 1:
            self._device = self._by_index(int(values[0]))
        elif form == 2:
            with translated():
                self._device = self._by_bdf(values[0])

    @staticmethod
    def _by_index(index: int) -> Device:
        chosen = os.environ.get(DEVICE)
        if chosen and index == 0:
            try:
                with translated():
                    return _opened(chosen)
            except RuntimeError as error:
                if isinstance(error.__cause__, NoDevice):
                    raise RuntimeError(f" No such device with index '0'\n{error}") from error
                raise
        nodes = sysfs.find_nodes()
        if index >= len(nodes):
            cause, remedy = (
                (f"{DEVICE} names device 0 alone", "Give index 0")
                if chosen and not nodes
                else sysfs.why_none()
                if not nodes
                else (f"there are {len(nodes)}", "Give a smaller index")
            )
            refuse(f" No such device with index '{index}'\n{cause}. {remedy}")
        try:
            return _opened(nodes[index].path)
        except NoDevice as error:
            raise RuntimeError(f" No such device with index '{index}'\n{error}") from error
        except OSError as error:
            raise RuntimeError(str(error)) from error

    @staticmethod
    def _by_bdf(bdf: str) -> Device:
        found = [node.path for node in sysfs.find_nodes() if bdf in (node.pci, node.pci.partition(":")[2])]
        if not found:
            refuse(f"No such device '{bdf}'", errno.EINVAL)
        return _opened(found[0])

    @property
    def opened(self) -> Device:
        """The binding's device. Raises RuntimeError for an empty one."""
        if self._device is None:
            refuse("this device object is empty: make it with an index, device(0)")
        return self._device

    def register_xclbin(self, file: xclbin) -> uuid:
        """Makes `file` known to contexts of this device."""
        if not isinstance(file, xclbin):
            incompatible("register_xclbin", self, file)
        self._registered[file.read.uuid] = file
        self._last = file
        return file.get_uuid()

    def load_xclbin(self, file: xclbin | str) -> uuid:
        """Registers a file. XRT's own fails on every NPU."""
        if not isinstance(file, (str, xclbin)):
            incompatible("load_xclbin", self, file)
        warnings.warn(
            "device.load_xclbin is deprecated: use register_xclbin and hw_context",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.register_xclbin(xclbin(file) if isinstance(file, str) else file)

    def registered(self, wanted: uuid) -> xclbin:
        """A registered file. Raises RuntimeError for an unknown one."""
        found = self._registered.get(wanted._uuid)
        if found is None:
            refuse(f"No xclbin with uuid '{wanted.to_string()}'", errno.EINVAL)
        return found

    def get_xclbin_uuid(self) -> uuid:
        """The file that was registered last; zeros without one."""
        return self._last.get_uuid() if self._last is not None else uuid("")

    def get_info(self, key: xrt_info_device) -> str:
        """What the device says of itself, a text."""
        imports("amdxdna.pyxrt.queries")
        from amdxdna.pyxrt.queries import answer

        if not isinstance(key, xrt_info_device):
            incompatible("get_info", self, key)
        with translated():
            return answer(self.opened, int(key))
