"""info, power, sensors, telemetry and errors: values, reasons where there are none, JSON, exit status."""

from __future__ import annotations

import json
from struct import pack

import pytest

from amdxdna import query
from amdxdna.cli import main
from amdxdna.cli.device import sensor_value
from amdxdna.cli.errors import decode
from amdxdna.device_info import AsyncError, Sensor, Telemetry
from tests.support.program import python

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


SCREENS = {
    "info": """\
device             emu (the emulated NPU)
driver             amdxdna_accel_driver 0.10, Linux 7.3.4
  driver is        Linux's driver
  hung commands    end after 2 s
  chains           their state can be trusted
  single commands  their state can be trusted
  user pointers    writable memory only
  device heap      up to 512 MiB
  child processes  cost nothing
firmware           1.1.2.58597
array              AIE 2.0, 2 columns, 6 rows, 8192 bytes of status a column
  core tiles       4 a column from row 2: 2 DMA channels, 16 locks each
  memory tiles     1 a column from row 1: 6 DMA channels, 64 locks each
  shim tiles       1 a column from row 0: 2 DMA channels, 16 locks each
clocks             MP-NPU Clock 1267 MHz, H Clock 1800 MHz
power mode         default
addresses          the program's own (PASID)
contexts           0 of 16 in use
TOPS               14 of 14
preemption         by default
""",
    "power": """\
power mode    default
MP-NPU Clock  1267 MHz
H Clock       1800 MHz
""",
    "sensors": """\
SENSOR                VALUE  UNIT
Total Power             0.1  W
Column 0 Utilization      0  %
Column 1 Utilization      0  %
""",
}


@pytest.mark.parametrize("name", SCREENS)
def test_screens(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert run(capsys, name, "--device", "emu:quiet,sensors,columns=2") == (0, SCREENS[name])


@pytest.mark.parametrize(
    ("states", "said"),
    [((True, True), "forced, at frame boundaries"), ((False, True), "at frame boundaries")],
)
def test_preemption_and_addresses_on_the_screen(states, said, capsys, monkeypatch):
    monkeypatch.setattr(query, "preemption", lambda client: states)
    _, out = run(capsys, "info", "--device", "emu:quiet,address=iova,minor=6")
    rows = dict(line.split("  ", 1) for line in out.splitlines() if not line.startswith(" "))
    assert (rows["preemption"].strip(), rows["addresses"].strip()) == (said, "given by the driver (IOVA)")


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


@pytest.mark.parametrize(("words", "columns", "a_line"), [(128, 44, 4), (129, 44, 4), (20, 43, 3)])
def test_telemetry_on_a_screen(words, columns, a_line, capsys, monkeypatch):
    """Words up to the last that is not 0, in rows that fit; no more than 128."""
    monkeypatch.setenv("COLUMNS", str(columns))
    data = pack(f"<{words}I", *range(1, words), 0x100) + bytes(10)
    monkeypatch.setattr(query, "telemetry", lambda client, kind: Telemetry(1, 2, kind, (0, 9, 0, 3), data))
    _, out = run(capsys, "telemetry", "--device", "emu:quiet")
    shown = [*range(1, words), 0x100][:128]
    rows = [shown[at : at + a_line] for at in range(0, len(shown), a_line)]
    listed = [f"{4 * a_line * n:06x}  {' '.join(f'{w:08x}' for w in row)}" for n, row in enumerate(rows)]
    head, rest = out.split("\n000000", 1)
    assert "type      0, version 1.2\n" in head and head.endswith(f"data      {4 * words} bytes")
    assert "2 of 4 firmware contexts are in use (firmware's = driver's number: 1 = 9, 3 = 3)" in " ".join(
        head.split()
    )
    more = ["4 bytes more: write them to a file with -o,", "or use --json"] if words > 128 else []
    assert ("000000" + rest).splitlines() == [*listed, *more]


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
    assert "means a lock was released or acquired out of order" in text
    assert f"code {LOCK_ERROR.code:#x}: " in text and "extra 0x502: row 5, column 2" in text
    strange = AsyncError(99 | 5 << 16 | 2 << 24 | 1 << 40, 1 << 62, 0)
    monkeypatch.setattr(query, "last_async_error", lambda client: strange)
    status, out = run(capsys, "errors", "--device", "emu:quiet")
    text = " ".join(out.split())
    assert "driver unknown (5), severity unknown (2), module unknown (0), class unknown (1)" in text
    assert "means not known to this package" in text and f"time {1 << 62} us" in text
    _, found = document(capsys, "errors", "--device", "emu:quiet")
    assert (found["error"]["driver"], found["error"]["severity"], found["error"]["class"]) == (5, 2, 1)


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
    assert python("-c", code).returncode == 0
