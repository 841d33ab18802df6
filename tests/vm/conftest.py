"""The guest, booted once a session, and a fresh probe of its driver for each test."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from amdxdna.emu.pci.firmware import FirmwareOptions
from qwen35.rootfs.python import APP, HOME
from tests.conformance.differences import COLUMNS, Difference

from . import debs, guest, image, kernels

CHECKOUT = Path(__file__).resolve().parents[2]
SETTING = "AMDXDNA_VM"
IMAGE_AGENT = f"""export PYTHONHOME={HOME}
PYTHONPATH=/{APP} OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python3 -B -s -m {guest.AGENT}"""
IMAGE_MODULES = (
    "tests.vm.token_ids",
    "tests.vm.binding_side",
    "tests.vm.failures_side",
    "tests.vm.doctor_side",
    "tests.support.recovery_side",
)
DRIVER_MODULES = (
    "tests.vm.token_ids",
    "tests.vm.binding_side",
    "tests.vm.failures_side",
    "tests.vm.guest_side",
)
IMAGE_MEMORY = "2G"
RAN = pytest.StashKey[list[str]]()
"""Lines for the summary."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vm)


def cannot(reason: str) -> None:
    """Skips the test, or fails it where the suite is required."""
    text = f"no virtual machine: {reason}"
    if os.environ.get(SETTING) == "require":
        pytest.fail(f"{text} ({SETTING}=require)", pytrace=False)
    pytest.skip(text)


@pytest.fixture(scope="session")
def rig() -> debs.Rig:
    """The unpacked packages; skips where this machine cannot have them."""
    if os.environ.get(SETTING) == "off":
        cannot(f"{SETTING}=off")
    try:
        return debs.prepare()
    except debs.Unavailable as reason:
        cannot(str(reason))
        raise


class Guests:
    """The session's machine: booted when first asked for, and again after it was lost."""

    def __init__(self, rig: debs.Rig, folder: Path, archive: bytes) -> None:
        self._rig = rig
        self._folder = folder
        self._initrd = folder / "initrd"
        self._initrd.write_bytes(archive)
        self._machine: guest.Machine | None = None
        self._count = 0

    def get(self) -> guest.Machine:
        """A machine that answers."""
        if self._machine is None:
            self._count += 1
            folder = self._folder / str(self._count)
            self._machine = guest.boot(
                lambda attempt: guest.Machine(self._rig, folder / attempt, self._initrd)
            )
        return self._machine

    def lose(self) -> None:
        """Ends the machine."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None


@contextlib.contextmanager
def noted(config: pytest.Config, what: str, rig: debs.Rig) -> Iterator[None]:
    """Has pytest's summary say which kernel a guest had, and how long it was there."""
    began = time.monotonic()
    try:
        yield
    finally:
        config.stash.setdefault(RAN, []).append(
            f"{what}: Linux {rig.kernel_release}, {time.monotonic() - began:.0f} s"
        )


@pytest.fixture(scope="session")
def guests(
    rig: debs.Rig, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Guests]:
    """The session's guest."""
    archive = guest.test_archive(rig, CHECKOUT, ["tests.vm.guest_side"])
    # Unix socket paths are limited to 107 characters, and pytest's folders can be long.
    folder = tmp_path_factory.mktemp("vm")
    guests = Guests(rig, folder, archive)
    with noted(pytestconfig, "conformance and firmware faults, IOVA", rig):
        yield guests
    guests.lose()


@pytest.fixture(scope="session")
def image_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic bundle."""
    pytest.importorskip("numpy")
    from tests.support.synthetic import SHAPES
    from tests.support.synthetic_bundle import write_bundle

    return write_bundle(tmp_path_factory.mktemp("bundle"), SHAPES["tied"])


@pytest.fixture(scope="session")
def image_guest(
    rig: debs.Rig, image_bundle: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[guest.Machine]:
    """A guest of the minimal image, with the bundle, the test agent and the binding's tests in it."""
    folder = tmp_path_factory.mktemp("image")
    archive = image.build(rig, IMAGE_AGENT, image_bundle, [guest.AGENT, *IMAGE_MODULES])
    initrd = folder / "initrd"
    initrd.write_bytes(archive)
    machine = guest.boot(lambda attempt: guest.Machine(rig, folder / attempt, initrd, IMAGE_MEMORY))
    with noted(pytestconfig, "binding, main job and doctor, IOVA", rig):
        yield machine
    machine.close()


@dataclass(frozen=True)
class Driver:
    """A booted guest with a driver other than the pinned kernel's in IOVA mode.

    `older`: whether it is that of 6.18, which leaves no health report. `differences`: what it does otherwise
    than the conformance suite says.
    """

    name: str
    machine: guest.Machine
    older: bool
    differences: dict[str, Difference]

    def probe(self, **options: Any) -> None:
        """Probes the NPU anew, with a firmware that the driver speaks to and `options` of it."""
        answer = self.machine.rebind(dataclasses.replace(self.machine.options, **options))
        assert answer.value.get("errno") == 0, f"the driver did not probe: {answer.value}\n{answer.log}"
        guest.check_log(answer.log)


def _other_kernel(rig: debs.Rig, series: str, which: int) -> tuple[debs.Rig, str]:
    """The newest (-1) or oldest (0) of a series that can be had, and its version; skips where there is none.

    Also where a guest is required: old kernels leave the archive by and by.
    """
    try:
        versions = kernels.reachable(rig, series)
        if not versions or (which == 0 and len(versions) == 1):
            raise debs.Unavailable(f"the archive has {'no other' if versions else 'no'} {series}")
        return kernels.take(rig, versions[which]), versions[which]
    except debs.Unavailable as reason:
        pytest.skip(f"no kernel to try: {reason}")


# The guests of `driver`: the pinned kernel and, where there are any, others; AMDXDNA_VM_SERIES="7.2" names
# series more, which behave as the pinned kernel does.
DRIVERS = {
    "7.3.4": None,
    "6.18-newest": ("6.18", -1),
    "6.18-oldest": ("6.18", 0),
    **{f"{series}-newest": (series, -1) for series in os.environ.get("AMDXDNA_VM_SERIES", "").split()},
}
_LAST_WITHOUT_CHAIN_STATUS = 12


@pytest.fixture(scope="session", params=DRIVERS)
def driver(
    request: pytest.FixtureRequest,
    rig: debs.Rig,
    image_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[Driver]:
    """One guest a driver, all in PASID mode, one after the other; pytest's summary says what they were."""
    name, which, version = request.param, DRIVERS[request.param], ""
    firmware, column = FirmwareOptions(), "7.3.4"
    if which is not None:
        rig, version = _other_kernel(rig, *which)
    older = which is not None and which[0] == "6.18"
    if older:
        column = "6.18.15" if int(version.split(".")[2]) > _LAST_WITHOUT_CHAIN_STATUS else "6.18.5 to 6.18.12"
        # That driver takes protocol 6 alone (npu4_regs.c of Linux 6.18).
        firmware = FirmwareOptions(protocol=(6, 12))
    folder = tmp_path_factory.mktemp("driver")
    archive = image.build(rig, IMAGE_AGENT, image_bundle, [guest.AGENT, *DRIVER_MODULES])
    initrd = folder / "initrd"
    initrd.write_bytes(archive)
    machine = guest.boot(
        lambda attempt: guest.Machine(
            rig, folder / attempt, initrd, IMAGE_MEMORY, options=firmware, pasid=True
        )
    )
    protocol = ".".join(map(str, firmware.protocol))
    try:
        with noted(pytestconfig, f"{name}, PASID, firmware protocol {protocol}", rig):
            yield Driver(name, machine, older, COLUMNS[column])
    finally:
        machine.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(RAN, []):
        terminalreporter.write_line(f"vm: {line}")


Probe = Callable[..., guest.Machine]


@pytest.fixture
def probe(guests: Guests) -> Probe:
    """Gives the function options, probes it anew and returns the machine; loses the machine if it hangs."""
    machine = guests.get()

    def fresh(**options: object) -> guest.Machine:
        try:
            answer = machine.rebind(FirmwareOptions(**options))  # type: ignore[arg-type]
        except guest.GuestLost:
            guests.lose()
            raise
        assert answer.value.get("errno") == 0, f"the driver did not probe: {answer.value}\n{answer.log}"
        guest.check_log(answer.log)
        return machine

    return fresh
