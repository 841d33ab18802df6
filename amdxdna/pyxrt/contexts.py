"""`pyxrt.hw_context`: one hardware context of the driver's for each."""

from __future__ import annotations

from typing import Any

from amdxdna.create_hwctx import QoS
from amdxdna.hwctx import HwContext
from amdxdna.pyxrt.calls import refuse, select, settings, text, translated
from amdxdna.pyxrt.devices import device
from amdxdna.pyxrt.elfs import elf
from amdxdna.pyxrt.enums import Enumeration, enumeration
from amdxdna.pyxrt.uuids import uuid
from amdxdna.pyxrt.xclbins import xclbin

# XRT's name of a setting -> the field of the driver's QoS block (xdna-driver's src/shim/hwctx.cpp).
_QOS = {
    "gops": "gops",
    "fps": "fps",
    "dma_bandwidth": "dma_bandwidth",
    "latency": "latency",
    "frame_execution_time": "frame_exec_time",
    "priority": "priority",
}


@enumeration(exclusive=0, shared=1)
class _AccessMode(Enumeration):
    __slots__ = ()


_AccessMode.__name__, _AccessMode.__qualname__ = "access_mode", "hw_context.access_mode"


def _is(kind: type) -> Any:
    return lambda value: isinstance(value, kind)


_DEVICE, _UUID, _XCLBIN = ("device", _is(device)), ("uuid", _is(uuid)), ("xclbin", _is(xclbin))
_PATH, _MODE, _CONFIG = ("xclbin_path", text), ("mode", _is(_AccessMode)), ("cfg_param", settings)
_FORMS = tuple(
    (_DEVICE, first, *more) for more in ((), (_MODE,), (_CONFIG,)) for first in (_UUID, _XCLBIN, _PATH)
)
_ELF = ("elf", _is(elf))
_ELF_FORMS: tuple[Any, ...] = ((_DEVICE, _ELF), (_DEVICE, _ELF, _CONFIG, _MODE))


class hw_context:
    """A hardware context, made at once. It ends when nothing refers to it."""

    __module__ = "pyxrt"
    access_mode = _AccessMode
    exclusive = _AccessMode(0)
    shared = _AccessMode(1)

    def __init__(self, *args: Any, **keywords: Any) -> None:
        _, values = select("__init__", args, keywords, (), *_FORMS, *_ELF_FORMS, (_DEVICE, _CONFIG, _MODE))
        self._context: HwContext | None = None
        self._xclbin: xclbin | None = None
        self._elfs: dict[str, elf] = {}
        """By kernel."""
        self._mode = _AccessMode(1)
        self._device: device | None = values[0] if values else None
        self._qos = QoS()
        for value in values[1:]:
            if isinstance(value, _AccessMode):
                self._mode = value
            elif isinstance(value, dict):
                self._qos = QoS(**{_QOS[key]: int(number) for key, number in value.items() if key in _QOS})
        file = values[1] if values else None
        if self._device is None or isinstance(file, dict):
            return
        if isinstance(file, elf):
            self.add_config(file)
            return
        if isinstance(file, uuid):
            found = self._device.registered(file)
        else:
            found = xclbin(file) if isinstance(file, str) else file
            self._device.register_xclbin(found)
        self._xclbin, read = found, found.read
        with translated():
            self._context = self._device.opened.context(read, self._qos, cus=found.metadata.units(read))

    @property
    def context(self) -> HwContext:
        """The binding's context. Raises RuntimeError where there is none yet."""
        if self._context is None:
            refuse(
                "Hardware Context Handle is not yet created, so cannot determine flow type."
                if self._device is not None
                else "this hw_context object is empty: it has no xclbin"
            )
        return self._context

    @property
    def file(self) -> xclbin:
        """The xclbin. Raises RuntimeError for a context without one."""
        if self._context is not None and self._xclbin is None:
            refuse(
                "Invalid API called for xrt::kernel creation, xrt::hw_context passed is not created using "
                "XCLBIN"
            )
        if self._xclbin is None:
            refuse("this hw_context object is empty: it has no xclbin")
        return self._xclbin

    def add_config(self, *args: Any, **keywords: Any) -> None:
        """Adds the kernels of a full ELF file; the first one decides how wide the context is.

        Raises RuntimeError for another width, and for a kernel of a name that there is already.
        """
        _, values = select("add_config", args, keywords, (_ELF,))
        added: elf = values[0]
        columns = added.columns
        if self._context is not None and self._context.columns != columns:
            refuse("can not add config to ctx with different configuration\n")
        if self._context is None:
            with translated():
                self._context = self.get_device().opened.context(None, self._qos, columns=columns)
        for name in added.read.kernels:
            if name in self._elfs:
                refuse("kernel already exists, cannot use this ELF with this hw ctx\n")
            self._elfs[name] = added

    def control_code(self, kernel: str) -> tuple[elf, str]:
        """The ELF file with a kernel, and its ``KERNEL:INSTANCE``. Raises RuntimeError for none."""
        _ = self.context
        if self._xclbin is not None:
            refuse(
                "Invalid API called for xrt::kernel creation, xrt::hw_context passed is not created using "
                "full ELF"
            )
        base, colon, instance = kernel.partition(":")
        found = self._elfs.get(base)
        if found is None:
            refuse("no ELF found with given kernel name in ctx")
        instances = found.read.kernels[base].instances
        if not colon:
            if len(instances) != 1:
                refuse("Multiple sub kernels present for given kernel, cannot choose sub kernel\n")
            instance = instances[0]
        elif instance not in instances:
            refuse(f"Unable to find group idx for given kernel: {kernel}")
        return found, f"{base}:{instance}"

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
