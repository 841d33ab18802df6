"""The emulator's kernels stay away from firmware that is not the model's."""

from __future__ import annotations

import pytest

from amdxdna import query
from amdxdna.emu import identity
from amdxdna.emu.npu import Npu
from amdxdna.errors import Unsupported
from qwen35.bundle import Bundle
from qwen35.device import open_device
from qwen35.errors import ModelError
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from tests.support.synthetic import SHAPES, write_checkpoint


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("device")
    write_checkpoint(folder / "hf", SHAPES["tied"])
    options = Options(chunk=32, max_prompt=64)
    export_checkpoint(Checkpoint(folder / "hf"), folder / "bundle", options, quiet=True)
    return Bundle.open(folder / "bundle")


@pytest.fixture
def real_firmware(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose firmware is a released one (1.1.2.64)."""
    monkeypatch.setattr(Npu, "FIRMWARE_VERSION", (1, 1, 2, 64))


def test_the_model_is_accepted(bundle: Bundle) -> None:
    with open_device(bundle, "emu:slots=3") as device:
        assert device.node.path == "emu"


def test_a_named_real_device_is_refused_untouched(bundle: Bundle, real_firmware: None) -> None:
    with pytest.raises(ModelError) as caught:
        open_device(bundle, "emu:slots=4")
    assert "--device emu" in str(caught.value)


def test_auto_falls_back_and_says_so(
    bundle: Bundle, real_firmware: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amdxdna import Device

    opened = []
    real = Device.open.__func__  # type: ignore[attr-defined]

    def spy(cls: type[Device], spec: object = None) -> Device:
        opened.append(spec)
        return real(cls, "emu" if spec == "auto" else spec)

    monkeypatch.setattr(Device, "open", classmethod(spy))
    notes: list[str] = []
    open_device(bundle, "auto", notes.append).close()
    assert opened == ["auto", "emu"]
    assert len(notes) == 1
    assert "left alone" in notes[0]


@pytest.fixture
def compiled(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setattr(Bundle, "emulated", property(lambda self: False))
    return bundle


def test_compiled_kernels_go_to_any_real_device(compiled: Bundle, real_firmware: None) -> None:
    open_device(compiled, "emu:slots=5").close()


@pytest.mark.parametrize("spec", ["emu", "emu:slots=6"])
def test_compiled_kernels_are_refused_before_their_weights_are_read(compiled: Bundle, spec: str) -> None:
    with pytest.raises(ModelError, match=r"compiled for an NPU and .*emulated"):
        open_device(compiled, spec)


def test_a_driver_that_does_not_tell_its_firmware(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(client: object) -> object:
        raise Unsupported("no such query", call="GET_INFO")

    monkeypatch.setattr(query, "firmware_version", refuses)
    with pytest.raises(Unsupported):
        open_device(bundle, "emu:slots=7")
    monkeypatch.setattr(Bundle, "emulated", property(lambda self: False))
    open_device(bundle, "emu:slots=7").close()


def test_released_builds_are_not_the_models() -> None:
    assert identity.FIRMWARE_VERSION[3] > 9999
