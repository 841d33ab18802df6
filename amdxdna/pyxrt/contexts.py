"""`pyxrt.hw_context`: one hardware context of the driver's for each."""

from __future__ import annotations

from typing import Any

from amdxdna.hwctx import HwContext, QoS
from amdxdna.pyxrt.calls import incompatible, refuse, select, settings, text, translated
from amdxdna.pyxrt.devices import device
from amdxdna.pyxrt.enums import Enumeration, enumeration
from amdxdna.pyxrt.uuids import uuid
from amdxdna.pyxrt.xclbins import xclbin

# XRT's name of a setting -> the field of the driver's QoS block (xdna-driver's src/shim/hwctx.cpp).
_QOS = {"gops": "gops", "fps": "fps", "dma_bandwidth": "dma_bandwidth", "latency": "latency",
        "frame_execution_time": "frame_exec_time", "priority": "priority"}


@enumeration(exclusive=0, shared=1)
class _AccessMode(Enumeration):
    __slots__ = ()


_AccessMode.__name__, _AccessMode.__qualname__ = "access_mode", "hw_context.access_mode"


def _is(kind: type) -> Any:
    return lambda value: isinstance(value, kind)


_DEVICE, _UUID, _XCLBIN = ("device", _is(device)), ("uuid", _is(uuid)), ("xclbin", _is(xclbin))
_PATH, _MODE, _CONFIG = ("xclbin_path", text), ("mode", _is(_AccessMode)), ("cfg_param", settings)
_FORMS = tuple((_DEVICE, first, *more) for more in ((), (_MODE,), (_CONFIG,))
               for first in (_UUID, _XCLBIN, _PATH))


class hw_context:
    """A hardware context, made at once. It ends when nothing refers to it."""

    __module__ = "pyxrt"
    access_mode = _AccessMode
    exclusive = _AccessMode(0)
    shared = _AccessMode(1)

    def __init__(self, *args: Any, **keywords: Any) -> None:
        form, values = select("__init__", args, keywords, (), *_FORMS, (_DEVICE, _CONFIG, _MODE))
        self._context: HwContext | None = None
        self._xclbin: xclbin | None = None
        self._mode = _AccessMode(1)
        self._device: device | None = values[0] if values else None
        self._qos = QoS()
        for value in values[1:]:
            if isinstance(value, _AccessMode):
                self._mode = value
            elif isinstance(value, dict):
                self._qos = QoS(**{_QOS[key]: int(number) for key, number in value.items() if key in _QOS})
        if self._device is None or form == len(_FORMS) + 1:
            return
        file = values[1]
        if isinstance(file, uuid):
            self._xclbin = self._device.registered(file)
        else:
            self._xclbin = xclbin(file) if isinstance(file, str) else file
            self._device.register_xclbin(self._xclbin)
        read = self._xclbin.read
        with translated():
            self._context = self._device.opened.context(read, self._qos,
                                                        cus=self._xclbin.metadata.units(read))

    @property
    def context(self) -> HwContext:
        """The binding's context. Raises RuntimeError where there is none yet."""
        if self._context is None:
            refuse("this hw_context object is empty: it has no xclbin")
        return self._context

    @property
    def file(self) -> xclbin:
        """The xclbin. Raises RuntimeError for a context without one."""
        if self._xclbin is None:
            refuse("this hw_context object is empty: it has no xclbin")
        return self._xclbin

    def add_config(self, elf: Any) -> None:
        """Adds control code, whose ELF files this module does not read."""
        incompatible("add_config", self, elf)

    def get_device(self) -> device:
        """The device it is of."""
        if self._device is None:
            refuse("this hw_context object is empty: it has no device")
        return self._device

    def get_xclbin_uuid(self) -> uuid:
        """Its xclbin's UUID, or zeros."""
        return uuid("") if self._xclbin is None else self._xclbin.get_uuid()

    def get_xclbin(self) -> xclbin:
        """Its xclbin."""
        return self.file

    def get_mode(self) -> _AccessMode:
        """How it was asked for."""
        return self._mode


