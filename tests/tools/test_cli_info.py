"""info, power, sensors, telemetry and errors: values, reasons where there are none, JSON, exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from struct import pack

import pytest

from amdxdna import query
from amdxdna.cli import main
from amdxdna.cli.device import sensor_value
from amdxdna.cli.errors import decode
from amdxdna.device_info import AsyncError, Sensor, Telemetry

LOCK_ERROR = AsyncError(10 | 4 << 16 | 3 << 24 | 3 << 32 | 2 << 40, 1_700_000_000_000_000, 5 << 8 | 2)


def run(capsys, *words):
    status = main(list(words))
    return status, capsys.readouterr().out


def document(capsys, name, *words):
    """The one JSON document of a command, and its exit status."""
    status, out = run(capsys, name, *words, "--json")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert (found["schema"], found["version"]) == (f"amdxdna.{name}", 1)
    return status, found


def test_info(capsys):
    status, found = document(capsys, "info", "--device", "emu:quiet,columns=4,slots=5,address=iova")
    assert status == 0 and found["unavailable"] == {} and found["npu"] is None and found["emulated"]
    assert found["driver"] == {"name": "amdxdna_accel_driver", "version": "0.10"}
    assert (found["array"]["cols"], found["resources"]["npu_task_max"]) == (4, 5)
    assert (
        found["address_mode"] == "iova" and found["power_mode"] == "default" and found["contexts_open"] == 0
    )
    assert found["firmware"].count(".") == 3


@pytest.mark.parametrize(
    ("driver", "contexts", "heap", "tdr"),
    [("7.3", "0 of 16 in use", 512, "2 s"), ("oot-legacy", "0 of 32 in use", 64, "6 s")],
)
def test_info_of_other_drivers(driver, contexts, heap, tdr, capsys):
    words = ("info", "--device", f"emu:quiet,driver={driver}")
    status, out = run(capsys, *words)
    assert status == 0
    assert contexts in out and f"up to {heap} MiB" in out and f"end after {tdr}" in out
    _, found = document(capsys, *words)
    assert found["profile"]["heap_max"] == heap << 20 and not found["profile"]["careful"]


def test_info_on_a_screen(capsys):
    status, out = run(capsys, "info", "--device", "emu:quiet")
    rows = dict(line.split("  ", 1) for line in out.splitlines() if not line.startswith(" "))
    assert status == 0
    assert rows["device"].strip() == "emu (the emulated NPU)"
    assert "8 columns, 6 rows" in rows["array"] and "0 of 16 in use" in rows["contexts"]
    assert "PASID" in rows["addresses"]


@pytest.mark.parametrize(
    ("minor", "missing"), [(0, {"resources", "preemption"}), (5, {"preemption"}), (6, set())]
)
def test_info_on_old_drivers(minor, missing, capsys):
    status, found = document(capsys, "info", "--device", f"emu:quiet,minor={minor}")
    assert status == 0 and set(found["unavailable"]) == missing
    _, out = run(capsys, "info", "--device", f"emu:quiet,minor={minor}")
    assert (
        f"n/a: the preemption state needs amdxdna driver version 0.6 or newer; this one is 0.{minor}"
        in " ".join(out.split())
    ) == ("preemption" in missing)


@pytest.mark.parametrize(
    "name", ["info", "contexts", "power", "sensors", "telemetry", "errors", "selftest", "bench"]
)
def test_a_device_that_cannot_be_opened(name, capsys):
    status, out = run(capsys, name, "--device", "emu:open=*:EACCES", "--json")
    assert status == 1
    found = json.loads(out)
    assert (found["schema"], found["errno"]) == ("amdxdna.error", "EACCES") and found["remedy"]


def test_the_emulated_device_is_told_on_stderr_when_nobody_asked_for_it(capsys, monkeypatch):
    monkeypatch.setenv("AMDXDNA_EMU", "quiet")
    monkeypatch.setattr("amdxdna.device.resolve", lambda *_: "emu")
    assert main(["power"]) == 0
    assert "emulated" in capsys.readouterr().err
    assert main(["power", "--device", "emu"]) == 0
    assert capsys.readouterr().err == ""


def test_power(capsys):
    status, found = document(capsys, "power", "--device", "emu:quiet,privileged=1")
    assert status == 0 and (found["mode"], found["before"]) == ("default", None)
    assert [clock["name"] for clock in found["clocks"]] == ["MP-NPU Clock", "H Clock"]


@pytest.mark.parametrize("mode", ["low", "medium", "high", "turbo", "default"])
def test_power_is_set(mode, open_emu, capsys):
    device = open_emu("privileged=1")
    status, out = run(capsys, "power", mode, "--device", "emu:threads=1,quiet,privileged=1")
    assert status == 0
    assert device.power_mode.name.lower() == mode
    assert out.splitlines()[0].split()[2] == mode
    assert ("(was default)" in out) == (mode != "default")


def test_power_refused(capsys):
    status, out = run(capsys, "power", "low", "--device", "emu:quiet,privileged=0", "--json")
    assert status == 1 and "root" in json.loads(out)["meaning"]


def test_power_with_an_unknown_mode(capsys):
    assert main(["power", "warp"]) == 2
    assert "default, low, medium, high, turbo" in capsys.readouterr().err


def test_sensors(capsys):
    status, found = document(capsys, "sensors", "--device", "emu:quiet,sensors,columns=2")
    assert status == 0
    assert [(s["label"], s["unit"], s["type"]) for s in found["sensors"]] == [
        ("Total Power", "W", "power"),
        ("Column 0 Utilization", "%", "utilization"),
        ("Column 1 Utilization", "%", "utilization"),
    ]
    assert found["sensors"][0]["value"] == found["sensors"][0]["raw"] / 1000


@pytest.mark.parametrize(("options", "says"), [("minor=6", "0.7 or newer"), ("sensors=0", "amd_pmf")])
def test_no_sensors(options, says, capsys):
    status, out = run(capsys, "sensors", "--device", f"emu:quiet,{options}")
    assert status == 1 and "n/a" in out and says in " ".join(out.split())
    status, found = document(capsys, "sensors", "--device", f"emu:quiet,{options}")
    assert status == 1 and found["sensors"] is None and says in found["unavailable"]["sensors"]


def sensor(value, units, unitm):
    return Sensor("label", value, 0, 0, 0, "", units, unitm, 0)


@pytest.mark.parametrize(
    ("value", "units", "unitm", "expected"),
    [
        (2500, "mW", -3, (2.5, "W")),
        (2500, "W", -3, (2.5, "W")),
        (40, "%", 0, (40, "%")),
        (3, "m", 0, (3, "m")),
        (3, "m", -3, (0.003, "m")),
    ],
)
def test_units_of_sensors(value, units, unitm, expected):
    number, unit = sensor_value(sensor(value, units, unitm))
    assert number == pytest.approx(expected[0]) and unit == expected[1]


def test_telemetry(open_emu, capsys, monkeypatch, tmp_path):
    data = pack("<3I", 0x11223344, 0, 7) + bytes(1 << 16)
    monkeypatch.setattr(query, "telemetry", lambda client, kind: Telemetry(1, 2, kind, (0, 9, 0), data))
    status, found = document(capsys, "telemetry", "--device", "emu:quiet", "--type", "3")
    assert status == 0 and (found["type"], found["major"], found["minor"]) == (3, 1, 2)
    assert found["contexts"] == [0, 9, 0] and found["data"] == data[:12].hex() and found["bytes"] == 12
    status, out = run(capsys, "telemetry", "--device", "emu:quiet", "-o", str(tmp_path / "block"))
    words = " ".join(out.split())
    assert "000000  11223344 00000000 00000007" in out
    assert "1 of 3 firmware contexts" in words and "1 = 9" in words
    assert (tmp_path / "block").read_bytes() == data


def test_no_telemetry(capsys):
    status, found = document(capsys, "telemetry", "--device", "emu:quiet,minor=4")
    assert status == 1 and found["data"] is None and "0.5" in found["unavailable"]["telemetry"]
    assert "empty" in run(capsys, "telemetry", "--device", "emu:quiet")[1]
    assert main(["telemetry", "--type", "-1"]) == 2


def test_no_error_yet(capsys):
    assert run(capsys, "errors", "--device", "emu:quiet") == (
        0,
        "last error  none since the driver was loaded\n",
    )
    status, found = document(capsys, "errors", "--device", "emu:quiet")
    assert status == 0 and found["error"] is None and found["unavailable"] == {}


def test_errors_need_a_newer_driver(capsys):
    status, found = document(capsys, "errors", "--device", "emu:quiet,minor=1")
    assert status == 1 and "0.2 or newer" in found["unavailable"]["error"]


def test_an_error_is_decoded(capsys, monkeypatch):
    monkeypatch.setattr(query, "last_async_error", lambda client: LOCK_ERROR)
    status, out = run(capsys, "errors", "--device", "emu:quiet")
    assert status == 0
    text = " ".join(out.split())
    assert "lock error in a core at row 5, column 2" in text and "2023-11-14 22:13:20 UTC" in text
    assert "driver AIE (4), severity critical (3), module core, class AIE (2)" in text


@pytest.mark.parametrize(
    ("code", "kind", "module"),
    [
        (3, "saturation", "unknown (0)"),
        (11 | 5 << 32, "DMA", "shim"),
        (12 | 4 << 32, "memory parity", "memory tile"),
        (15 | 8 << 32, "unknown (15)", "unknown (8)"),
    ],
)
def test_fields_of_a_code(code, kind, module):
    found = decode(AsyncError(code, 1, 0x0301))
    assert (found["kind"], found["module"], found["row"], found["column"]) == (kind, module, 3, 1)
    assert (found["number"], found["module_number"]) == (code & 0xFFFF, code >> 32)


def test_commands_do_not_import_numpy():
    names = "doctor info contexts power sensors telemetry errors snapshot selftest bench"
    modules = ", ".join(f"amdxdna.cli.{name}" for name in names.split())
    code = f"import sys, {modules}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
