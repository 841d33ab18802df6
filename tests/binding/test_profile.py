"""The driver profile: which driver is told from what a node shows, and what is then relied on."""

from __future__ import annotations

from pathlib import Path

import pytest

from amdxdna import profile
from amdxdna.device import Device
from amdxdna.emu.personality import PERSONALITIES
from amdxdna.node import KernelNode
from tests.support.emulation import emulate_python

MIB = 1 << 20


def told(version: str, release: str, tree: bool | None = True, **parameters: str) -> profile.DriverProfile:
    major, minor = map(int, version.split("."))
    return profile.match(profile.Facts(major, minor, release, tree, parameters.get))


@pytest.mark.parametrize(
    ("release", "trusted"),
    [
        ("6.18.5+deb14-amd64", False),
        ("6.18.12", False),
        ("6.18.15+deb14-amd64", True),
        ("6.18.22", True),
        ("6.18.0-9-generic", False),
        ("7.0.1", False),
    ],
)
def test_chains_on_6_18_are_trusted_from_the_release_that_mended_them(release: str, trusted: bool) -> None:
    found = told("0.1", release)
    assert (found.chains_trusted, found.singles_trusted) == (trusted, True)
    assert (found.tdr_seconds, found.heap_max, found.loses_contexts) == (60.0, 64 * MIB, True)


def test_a_forced_list_makes_singles_as_doubtful_as_chains() -> None:
    assert not told("0.1", "6.18.5", force_cmdlist="Y").singles_trusted
    assert told("0.1", "6.18.5", force_cmdlist="N").singles_trusted
    assert told("0.1", "6.18.15", force_cmdlist="Y").singles_trusted


@pytest.mark.parametrize(
    ("tree", "release", "text", "seconds"),
    [
        (True, "7.3.4", "2000", 2.0),
        (True, "7.3.4", "", 2.0),
        (True, "7.3.4", "0", None),
        (True, "7.3.4", "10000", 10.0),
        (False, "6.18.1", "2000", 2.0),
        (False, "6.16.1", "2000", 6.0),
        (False, "6.16.1", "0", None),
    ],
)
def test_the_time_out_is_the_parameters(tree: bool, release: str, text: str, seconds: float | None) -> None:
    assert told("0.10", release, tree, tdr_timeout_ms=text).tdr_seconds == seconds


def test_the_legacy_drivers_are_told_by_their_parameters() -> None:
    now = told("1.0", "6.18.1", False, timeout_in_sec="4", force_iova="", fw_log_level="0", context_limit="6")
    assert (now.chains_trusted, now.tdr_seconds, now.context_limit) == (True, 12.0, 6)
    assert (now.user_pointers, now.names_hung_member) == ("unsafe", True)
    before = told("1.0", "6.12.1", False, timeout_in_sec="0")
    assert (before.chains_trusted, before.singles_trusted, before.tdr_seconds) == (False, False, None)
    assert before.context_limit == 32
    between = told("1.0", "6.12.1", False, timeout_in_sec="", fw_log_level="", context_limit="65535")
    assert (between.tdr_seconds, between.context_limit) == (6.0, 65535)
    assert not between.names_hung_member and told("1.0", "6.12.1", False).tdr_seconds is None
    for text in ("0", "65536", "many", ""):
        assert told("1.0", "6.12.1", False, context_limit=text).context_limit == 32
    assert told("0.10", "7.3.4", context_limit="6").context_limit is None


LINUX, AMD = "Linux's driver", "AMD's out-of-tree driver"


@pytest.mark.parametrize(
    ("version", "release", "tree", "name", "ways"),
    [
        ("0.99", "9.1.0", True, f"{LINUX}, newer than this package knows", "cstm?"),
        ("0.11", "7.4.0", True, f"{LINUX}, newer than this package knows", "cstm?"),
        ("0.10", "7.2.12", True, LINUX, "cstm"),
        ("0.9", "7.1.0", True, "Linux 7.0's or 7.1's driver", "cst"),
        ("0.6", "7.0.0", True, "Linux 7.0's or 7.1's driver", "cst"),
        ("0.5", "7.0.0", True, "Linux 6.19's driver", "l"),
        ("0.9", "6.19.9", True, "Linux 6.19's driver", "l"),
        ("0.2", "6.19.0", True, "Linux 6.19's driver", "l"),
        ("0.1", "6.19.0", True, "Linux 6.18's driver", "sl"),
        ("0.1", "6.18.99", True, "Linux 6.18's driver", "csl"),
        ("0.1", "6.18.15", True, "Linux 6.18's driver", "csl"),
        ("0.1", "6.18.14", True, "Linux 6.18's driver", "sl"),
        ("0.0", "6.18.1", True, "Linux 6.17's driver", "sl"),
        ("0.0", "6.17.0", True, "Linux 6.17's driver", "sl"),
        ("0.0", "6.16.99", True, "Linux 6.14's to 6.16's driver", "sl"),
        ("0.0", "6.14.0", True, "Linux 6.14's to 6.16's driver", "sl"),
        ("0.0", "6.13.99", True, "an unknown driver", "l?"),
        ("0.0", "of nobody", True, "an unknown driver", "l?"),
        ("1.0", "7.3.4", True, "an unknown driver", "l?"),
        ("0.99", "9.1.0", False, f"{AMD}, newer than this package knows", "cstm?"),
        ("0.17", "7.3.4", False, f"{AMD}, newer than this package knows", "cstm?"),
        ("0.16", "7.3.4", False, AMD, "cstm"),
        ("0.15", "7.3.4", False, f"{AMD} of April to July 2026", "cstm"),
        ("0.10", "7.3.4", False, f"{AMD} of April to July 2026", "cstm"),
        ("0.9", "7.3.4", False, f"{AMD} of March and April 2026", "cstm"),
        ("0.8", "7.3.4", False, f"{AMD} of March and April 2026", "cstm"),
        ("0.7", "7.3.4", False, f"{AMD} of early 2026", "cst"),
        ("0.6", "7.3.4", False, f"{AMD} of early 2026", "cst"),
        ("0.5", "7.3.4", False, "an unknown driver", "l?"),
        ("1.0", "7.3.4", False, "AMD's legacy out-of-tree driver, before September 2025", "t"),
        ("2.0", "7.3.4", False, "an unknown driver", "l?"),
    ],
)
def test_each_row_begins_and_ends_where_its_driver_does(
    version: str, release: str, tree: bool, name: str, ways: str
) -> None:
    found = told(version, release, tree)
    assert found.name == name
    flags = (
        ("c", found.chains_trusted),
        ("s", found.singles_trusted),
        ("t", found.tells_timeouts),
        ("m", found.names_hung_member),
        ("l", found.loses_contexts),
        ("?", found.careful),
    )
    assert "".join(letter for letter, holds in flags if holds) == ways


@pytest.mark.parametrize(
    ("release", "kernel"),
    [("6.18.15+deb14-amd64", (6, 18, 15)), ("6.18-rc3", (6, 18, 0)), ("of nobody", (0, 0, 0))],
)
def test_the_kernels_version_by_its_release(release: str, kernel: tuple[int, int, int]) -> None:
    assert profile.Facts(0, 10, release, True, {}.get).kernel == kernel


def test_how_many_buffers_a_single_command_may_have() -> None:
    """Drivers up to 6.18 copy 19 argument words of one: five, and two a buffer."""
    assert [told(*driver).single_buffers for driver in (("0.1", "6.18.15"), ("0.1", "6.18.5"))] == [7, 7]
    assert [told(*driver).single_buffers for driver in (("0.10", "7.3.4"), ("2.7", "9.1"))] == [10, -1]


@pytest.mark.parametrize(("minor", "seconds"), [(8, 60.0), (9, None)])
def test_a_driver_without_the_parameter_has_the_old_time_out_or_none(
    minor: int, seconds: float | None
) -> None:
    assert told(f"0.{minor}", "7.1.0").tdr_seconds == seconds
    assert told(f"0.{minor}", "7.1.0", None).tdr_seconds is None
    assert told("0.10", "6.17.0", False, tdr_timeout_ms="2000").tdr_seconds == 2.0
    assert told("0.10", "6.17.0", False, tdr_timeout_ms="soon").tdr_seconds is None


@pytest.mark.parametrize(
    ("minor", "pointers", "heap"),
    [(6, "rw", 64), (9, "unsafe", 64), (12, "unsafe", 512), (16, "ro", 512), (40, "rw", 512)],
)
def test_the_out_of_tree_drivers_are_told_by_their_minor(minor: int, pointers: str, heap: int) -> None:
    found = told(f"0.{minor}", "6.18.1", False, tdr_timeout_ms="")
    assert (found.user_pointers, found.heap_max, found.chains_trusted) == (pointers, heap * MIB, True)
    assert found.careful is (minor == 40)


@pytest.mark.parametrize("tree", [None, False, True])
def test_a_driver_that_nobody_knows_gets_the_careful_column(tree: bool | None) -> None:
    found = told("2.7", "9.1", tree)
    assert found.careful
    assert (found.chains_trusted, found.singles_trusted, found.user_pointers) == (False, False, "none")
    assert (found.tdr_seconds, found.loses_contexts) == (None, True)
    assert found.as_json()["version"] == "2.7"


@pytest.mark.parametrize("name", PERSONALITIES)
def test_the_profile_agrees_with_what_the_emulated_driver_does(name: str) -> None:
    kind = PERSONALITIES[name]
    with Device.open(f"emu:quiet,privileged=1,driver={name}") as device:
        found = device.profile
        assert device.profile is found
    assert not found.careful
    assert (found.in_tree, found.release) == (not kind.out_of_tree, kind.release)
    assert found.chains_trusted is not kind.raw_status
    assert found.singles_trusted is not (kind.raw_status and kind.lists_singles)
    assert found.tdr_seconds == kind.tdr
    assert (found.heap_max, found.heap_grows) == (kind.heap_max, kind.heap_grows)
    assert {"unsafe": "ro"}.get(found.user_pointers, found.user_pointers) == kind.user_pointers
    assert found.refused_pointer == kind.refused_pointer
    assert found.loses_contexts is kind.flush_destroys
    assert (found.context_limit or 0, found.packet_words or 0) == (kind.context_limit, kind.packet_words)


def test_a_node_reads_its_machine(tmp_path: Path) -> None:
    module = tmp_path / "module" / "amdxdna"
    (module / "parameters").mkdir(parents=True)
    (module / "taint").write_text("OE\n")
    (module / "parameters" / "timeout_in_sec").write_text("2\n")
    node = KernelNode("/dev/null", tmp_path)
    try:
        assert node.text("sys/module/amdxdna/taint") == "OE"
        assert node.text("sys/module/amdxdna/version") is None
        assert node.text("sys/module/amdxdna/parameters") == ""
        found = profile.match(profile.facts_of(node, 1, 0))
    finally:
        node.close()
    assert (found.in_tree, found.tdr_seconds) == (False, 6.0)


def test_a_module_that_may_not_be_looked_at_is_neither_the_kernels_nor_anothers(tmp_path: Path) -> None:
    module = tmp_path / "module" / "amdxdna"
    module.parent.mkdir()
    module.symlink_to(module)  # no error of permission, which would not bind root
    node = KernelNode("/dev/null", tmp_path)
    try:
        assert profile.facts_of(node, 0, 8).in_tree is None
    finally:
        node.close()


@pytest.mark.parametrize("driver", ["7.3", "6.18.5", "oot-legacy"])
def test_a_program_on_an_emulated_node_sees_that_drivers_module(driver: str) -> None:
    program = (
        "from amdxdna.device import Device\n"
        "with Device.open('auto') as device:\n"
        "    assert device.emulated\n"
        "    p = device.profile\n"
        "    print(p.name, p.in_tree, p.chains_trusted, p.tdr_seconds, p.context_limit, sep='|')\n"
    )
    ended = emulate_python(program, options=f"quiet,driver={driver}")
    with Device.open(f"emu:quiet,privileged=1,driver={driver}") as device:
        p = device.profile
    assert ended.stdout.strip() == "|".join(
        map(str, (p.name, p.in_tree, p.chains_trusted, p.tdr_seconds, p.context_limit))
    ), ended.stderr
