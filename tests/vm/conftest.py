"""The guest, booted once a session, and a fresh probe of its driver for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amdxdna.emu.pci.firmware import FirmwareOptions

from . import debs, guest, image
from .python_root import APP, HOME

CHECKOUT = Path(__file__).resolve().parents[2]
SETTING = "AMDXDNA_VM"
IMAGE_AGENT = f"""export PYTHONHOME={HOME}
PYTHONPATH=/{APP} OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python3 -B -s -m {guest.AGENT}"""
IMAGE_MODULES = ("tests.vm.token_ids", "tests.vm.binding_side", "tests.vm.doctor_side", "tests.recovery_side")
IMAGE_MEMORY = "2G"


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
                lambda attempt: guest.Machine(self._rig, folder / attempt, self._initrd))
        return self._machine

    def lose(self) -> None:
        """Ends the machine."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None


@pytest.fixture(scope="session")
def guests(rig: debs.Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guests]:
    """The session's guest."""
    archive = guest.test_archive(rig, CHECKOUT, ["tests.vm.guest_side"])
    # Unix socket paths are limited to 107 characters, and pytest's folders can be long.
    folder = tmp_path_factory.mktemp("vm")
    guests = Guests(rig, folder, archive)
    yield guests
    guests.lose()


@pytest.fixture(scope="session")
def image_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic bundle."""
    pytest.importorskip("numpy")
    from tests.synthetic import SHAPES
    from tests.synthetic_bundle import write_bundle

    return write_bundle(tmp_path_factory.mktemp("bundle"), SHAPES["tied"])


@pytest.fixture(scope="session")
def image_guest(rig: debs.Rig, image_bundle: Path,
                tmp_path_factory: pytest.TempPathFactory) -> Iterator[guest.Machine]:
    """A guest of the minimal image, with the bundle, the test agent and the binding's tests in it."""
    folder = tmp_path_factory.mktemp("image")
    archive, sizes = image.build(rig, IMAGE_AGENT, image_bundle, [guest.AGENT, *IMAGE_MODULES])
    (folder / "sizes").write_text("\n".join(sizes.lines()))
    initrd = folder / "initrd"
    initrd.write_bytes(archive)
    machine = guest.boot(lambda attempt: guest.Machine(rig, folder / attempt, initrd, IMAGE_MEMORY))
    yield machine
    machine.close()


Probe = Callable[..., guest.Machine]


@pytest.fixture
def probe(guests: Guests) -> Iterator[Probe]:
    """Gives the function options, probes it anew and returns the machine; loses the machine if it hangs."""
    machine = guests.get()

    def fresh(**options: object) -> guest.Machine:
        answer = machine.rebind(FirmwareOptions(**options))  # type: ignore[arg-type]
        assert answer.value.get("errno") == 0, f"the driver did not probe: {answer.value}\n{answer.log}"
        guest.check_log(answer.log)
        return machine

    try:
        yield fresh
    except guest.GuestLost:
        guests.lose()
        raise
