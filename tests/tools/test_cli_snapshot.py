"""snapshot: everything a report needs, and nothing about persons or machines."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from amdxdna.cli import main
from amdxdna.cli.snapshot import gather
from amdxdna.doctor.scrub import Scrubber, private_names, words_starting
from tests.support.binding import copy_xclbin
from tests.support.fake_machine import PCI, FakeMachine

UUID = "6e1c1d0a-3f1b-4c55-9f6e-0123456789ab"


@pytest.fixture
def fake(tmp_path):
    (tmp_path / "root").mkdir()
    return FakeMachine(tmp_path / "root")


def test_all_of_a_machine(fake):
    fake.good().file("sys/module/amdxdna/parameters/force_iova", "N\n").file(
        "sys/module/amdxdna/taint", "OE\n"
    )
    fake.file("proc/cmdline", f"root=UUID={UUID} amd_iommu=on quiet amdxdna.tdr_timeout_ms=0 ip=10.0.0.1")
    fake.file("etc/os-release", 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 13"\n')
    fake.log(f"amdxdna {PCI}: [drm] Load firmware amdnpu/17f0_10/npu.sbin", "usb 1-1: SerialNumber: 42")
    found = gather("auto", fake.machine())
    assert (found["schema"], found["version"]) == ("amdxdna.snapshot", 1)
    assert found["npus"] == [
        {"address": PCI, "device": "17f0", "revision": "10", "name": "npu4", "driver": "amdxdna"}
    ]
    assert found["module"]["parameters"] == {"force_iova": "N"} and found["module"]["taint"] == "OE"
    assert found["system"]["command_line"] == ["amd_iommu=on", "amdxdna.tdr_timeout_ms=0"]
    assert (
        found["system"]["distribution"] == "Debian GNU/Linux 13" and found["system"]["kernel"] == "7.3.4-test"
    )
    (firmware,) = found["firmware_files"]
    assert firmware == {
        "path": "/lib/firmware/amdnpu/17f0_10/npu.sbin",
        "target": "npu.sbin.1.1.2.64",
        "bytes": 8,
        "sha256": hashlib.sha256(b"firmware").hexdigest(),
    }
    assert {check["check"]: check["status"] for check in found["doctor"]}["answer"] == "ok"
    assert (
        found["info"]["array"]["cols"] == 8
        and found["contexts"]["limit"] == 16
        and found["last_error"] is None
    )
    assert found["kernel_log"] == [f"amdxdna {PCI}: [drm] Load firmware amdnpu/17f0_10/npu.sbin"]
    assert set(found["errors"]) == {"sensors"}


def test_a_firmware_file_that_is_none(fake):
    """What is longer than an image can be is not read; the longest is."""
    path = fake.good().root / "lib/firmware/amdnpu/17f0_10/npu.sbin"
    for more in (0, 1):
        path.unlink()
        with open(path, "wb") as file:
            file.truncate((64 << 20) + more)
        (found,) = gather("auto", fake.machine())["firmware_files"]
        expected = {"error": "longer than 67,108,864 bytes"} if more else {"bytes": 64 << 20}
        assert {key: found[key] for key in expected} == expected and ("sha256" in found) != more


def test_nothing_private(fake, monkeypatch):
    fake.good().file("proc/sys/kernel/hostname", "janes-laptop.example.org\n")
    fake.environ["LOGNAME"] = "jd"
    monkeypatch.setenv("AMDXDNA_EMU", "quiet")
    monkeypatch.setenv("AMDXDNA_NOTE", "/home/jane/models and jane@example.org")
    fake.file("sys/class/dmi/id/product_name", "Laptop of Jane Doe").file(
        "sys/class/dmi/id/product_serial", "SN12345"
    )
    fake.log(
        f"amdxdna {PCI}: loaded by jd on janes-laptop from /home/jane/build/amdxdna.ko",
        f"amdxdna {PCI}: serial number: XYZ987 at 00:11:22:33:44:55, {UUID}",
    )
    text = json.dumps(gather("auto", fake.machine()))
    for secret in (
        "jane",
        "Jane",
        "jd ",
        "laptop.example",
        "janes-laptop",
        "SN12345",
        "XYZ987",
        "/home/",
        "00:11:22:33:44:55",
        UUID,
    ):
        assert secret not in text, secret
    assert "loaded by <user> on <host> from ~/build/amdxdna.ko" in text
    assert "~/models and <address>" in text


@pytest.mark.parametrize(
    ("uid", "asked", "named"),
    [(1000, False, True), (1001, False, False), (None, False, False), (1001, True, True)],
    ids=["own", "another's", "unknown", "asked for"],
)
def test_names_of_other_users_processes(uid, asked, named, fake, open_emu):
    fake.good().file(f"proc/{os.getpid()}/comm", "secretproject\n")
    if uid is not None:
        fake.file(f"proc/{os.getpid()}/status", f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\n")
    machine = fake.machine()
    machine.name_others = asked
    with open_emu().context(copy_xclbin()):
        found = gather("auto", machine)
    assert found["process_names"] == ("all" if asked else "own")
    (context,) = found["contexts"]["contexts"]
    assert context["pid"] == os.getpid()
    assert context["process"] == ("secretproject" if named else None)
    assert json.dumps(found).count("secretproject") == (2 if named else 0)  # the finding names it too


def test_a_machine_without_an_npu(fake):
    (fake.root / "dev/kmsg").unlink()
    found = gather("auto", fake.machine())
    assert found["npus"] == [] and found["info"] is None and found["contexts"] is None
    assert set(found["errors"]) == {"device", "kernel_log"}
    assert {check["check"]: check["status"] for check in found["doctor"]}["npu"] == "fail"


def test_the_command(tmp_path, capsys):
    path = tmp_path / "report.json"
    assert main(["snapshot", str(path), "--device", "emu:quiet"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "look it through" in said and "other users' processes" in said
    first = json.loads(path.read_text())
    assert first["schema"] == "amdxdna.snapshot" and first["doctor"]
    assert main(["snapshot", str(path), "--device", "emu:quiet"]) == 1
    assert "there already" in capsys.readouterr().err
    assert main(["snapshot", str(path), "--force", "--json", "--device", "emu:quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "schema": "amdxdna.snapshot_file",
        "version": 1,
        "path": str(path),
        "bytes": path.stat().st_size,
        "ok": True,
    }
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]
    assert main(["snapshot", str(path), "--force", "--process-names", "--device", "emu:quiet"]) == 0
    assert "other users" not in " ".join(capsys.readouterr().out.split())
    assert json.loads(path.read_text())["process_names"] == "all"
    assert main(["snapshot", "-", "--device", "emu:quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "amdxdna.snapshot"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/jane/x.bin", "~/x.bin"),
        ("in /root/a", "in ~/a"),
        ("/rooted", "/rooted"),
        ("jane's", "<user>'s"),
        ("Jane Doe", "<user>"),
        ("janet", "janet"),
        ("JANE", "<user>"),
        ("host1.lan: x", "<host>: x"),
        ("firmware 1.1.2.64 at 0000:c5:00.1", "firmware 1.1.2.64 at 0000:c5:00.1"),
        ("s/n ABC-1", "s/n <removed>"),
        ("a.b+c@d.example", "<address>"),
        ("sha 0123456789abcdef0123", "sha 0123456789abcdef0123"),
    ],
)
def test_scrubbing(text, expected):
    scrubber = Scrubber({"jane": "<user>", "Jane Doe": "<user>", "host1": "<host>", "host1.lan": "<host>"})
    assert scrubber.text(text) == expected
    assert scrubber.value({text: [text, 3, None, True]}) == {expected: [expected, 3, None, True]}


def test_without_names_nothing_but_patterns_goes():
    assert Scrubber({}).text("jane in /home/jane") == "jane in ~"
    for text, wanted in [
        ("/tmp/b/home/jane/x", "/tmp/b/home/<user>/x"),
        ("/mnt/old/home/jane", "/mnt/old/home/<user>"),
        ("path=/home/jane/x", "path=~/x"),
        ("'/Users/jane/x'", "'~/x'"),
        ("file:///home/jane/x", "file://~/x"),
        ("/root/x", "~/x"),
        ("/srv/root/x", "/srv/root/x"),
        ("/var/home/jane/x", "~/x"),
    ]:
        assert Scrubber({}).text(text) == wanted


def test_names_of_system_users_and_common_words_stay(fake):
    fake.file(
        "etc/passwd", "root:x:0:0::/root:\n_apt:x:42:1::/:\nnpu:x:1001:1::/home/npu:\nbob:x:1002:1:Bob:/:\n"
    )
    names = private_names(fake.machine())
    assert names.get("bob") == "<user>"
    assert not {"root", "_apt", "npu", ""} & set(names)


def test_words_of_the_command_line():
    assert words_starting(["iommu=pt", "quiet", "root=/dev/x"], ("iommu",)) == ["iommu=pt"]


@pytest.mark.parametrize("words", [["doctor"], ["snapshot", "-"]])
def test_a_root_that_is_no_folder(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for root, what in ((tmp_path / "none", "no such folder"), (Path(__file__), "not a folder")):
        assert main([*words, "--device", "emu:quiet", "--root", str(root)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and f"{root}: {what}" in err and "Traceback" not in err
