"""The enumerations of `pyxrt`, which are no IntEnum: numbers without a name are members too.

Names, numbers and semantics as measured on XRT 2.25's module.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any, ClassVar


class _Meta(type):
    _names: dict[str, int]

    @property
    def __members__(cls) -> dict[str, Any]:
        return {name: cls(number) for name, number in cls._names.items()}


class Enumeration(metaclass=_Meta):
    """A number with a name; "???" for one without. Equal to another of its own type only."""

    __slots__ = ("_number",)
    _names: ClassVar[dict[str, int]] = {}

    def __init__(self, value: Any) -> None:
        self._number = index(value)

    def __int__(self) -> int:
        return self._number

    __index__ = __int__

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._number == self._number

    @property
    def value(self) -> int:
        """The number."""
        return self._number

    @property
    def name(self) -> str:
        """The name."""
        return _name(self)

    def __str__(self) -> str:
        return f"{type(self).__name__}.{_name(self)}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{_name(self)}: {self._number}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._number,)


def _name(member: Enumeration) -> str:
    return next((name for name, number in member._names.items() if number == member._number), "???")


class PlainEnumeration(Enumeration):
    """One of C's plain enums: equal to its number."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PlainEnumeration):
            return other._number == self._number
        return other is not None and bool(self._number == other)

    __hash__ = Enumeration.__hash__


def enumeration(module: str = "pyxrt", /, **names: int) -> Callable[[type[Enumeration]], Any]:
    """Gives an Enumeration its members."""

    def made(cls: type[Enumeration]) -> type[Enumeration]:
        cls._names = names
        cls.__module__ = module
        for name, number in names.items():
            # Also where a member is called `name`: XRT's own loses its property too.
            setattr(cls, name, cls(number))
        return cls

    return made


@enumeration(
    XCL_BO_SYNC_BO_TO_DEVICE=0,
    XCL_BO_SYNC_BO_FROM_DEVICE=1,
    XCL_BO_SYNC_BO_GMIO_TO_AIE=2,
    XCL_BO_SYNC_BO_AIE_TO_GMIO=3,
)
class xclBOSyncDirection(PlainEnumeration):
    """Which way a buffer's bytes go."""

    __slots__ = ()


@enumeration(
    **{
        f"ERT_CMD_STATE_{name}": number
        for name, number in (
            ("NEW", 1),
            ("QUEUED", 2),
            ("COMPLETED", 4),
            ("ERROR", 5),
            ("ABORT", 6),
            ("SUBMITTED", 7),
            ("TIMEOUT", 8),
            ("NORESPONSE", 9),
            ("SKERROR", 10),
            ("SKCRASHED", 11),
        )
    }
)
class ert_cmd_state(PlainEnumeration):
    """The state of a run."""

    __slots__ = ()


@enumeration(
    bdf=0,
    interface_uuid=1,
    kdma=2,
    max_clock_frequency_mhz=3,
    m2m=4,
    name=5,
    nodma=6,
    offline=7,
    electrical=8,
    thermal=9,
    mechanical=10,
    memory=11,
    platform=12,
    pcie_info=13,
    host=14,
    dynamic_regions=17,
    vmr=18,
)
class xrt_info_device(Enumeration):
    """What a device can be asked."""

    __slots__ = ()


@enumeration(emergency=0, alert=1, critical=2, error=3, warning=4, notice=5, info=6, debug=7)
class xrt_msg_level(Enumeration):
    """How grave a message is."""

    __slots__ = ()
