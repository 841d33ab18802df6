"""Options of the emulated device and the faults they inject."""

from __future__ import annotations

import errno
import re
from dataclasses import fields

import pytest

from amdxdna.cli import main
from amdxdna.emu.faults import KINDS, Fault, Faults
from amdxdna.emu.options import OPTIONS, EmuOptions
from amdxdna.emu.personality import PERSONALITIES
from amdxdna.errors import BadArgument


def parse(text: str, environment: str | None = None) -> EmuOptions:
    return EmuOptions.parse(text, {} if environment is None else {"AMDXDNA_EMU": environment})


def test_every_option_fault_and_driver_is_listed_once_where_help_shows_them(capsys) -> None:
    lines = [line.split()[0] for line in OPTIONS.splitlines() if line.startswith("  ") and line[2] != " "]
    listed = [re.split("=", word)[0] for word in lines]
    assert sorted(listed) == sorted([*({f.name for f in fields(EmuOptions)} - {"faults"}), *KINDS])
    for word, name in zip(lines, listed, strict=True):
        example = word.replace("N", "1").replace(":STATUS", ":3").replace(":BYTE", ":9")
        parse(example.replace(":US", ":5").replace(":ERR1O", ":EACCES").replace("BYTES", "4096"))
        assert word.startswith("memlock") or "=" in word or name in ("instant", "sensors", "quiet")
    assert set(PERSONALITIES) <= set(re.findall(r"[\w.-]+", OPTIONS))
    assert main(["emulate", "--help"]) == 0
    assert OPTIONS.strip() in capsys.readouterr().out


def test_defaults() -> None:
    assert parse("") == EmuOptions()
    options = EmuOptions()
    assert (options.slots, options.columns, options.personality.minor) == (16, 8, 10)
    assert (options.address, options.personality.tdr) == ("pasid", 2)


def test_every_kind_of_value() -> None:
    options = parse(
        " slots=1, address=iova,instant,quiet=0,tdr=0.5,minor=0x8,threads=2,memlock=65536,privileged=0"
    )
    assert options == EmuOptions(
        slots=1,
        address="iova",
        instant=True,
        quiet=False,
        tdr=0.5,
        minor=8,
        threads=2,
        memlock=65536,
        privileged=False,
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang=3", Fault("hang", 3, 3)),
        ("hang=2-4", Fault("hang", 2, 4)),
        ("hang=2-", Fault("hang", 2, None)),
        ("hang=*", Fault("hang", 1, None)),
        ("fail=5:0x3000002", Fault("fail", 5, 5, 0x3000002)),
        ("slow=*:1500", Fault("slow", 1, None, 1500)),
        ("skip=600-", Fault("skip", 600, None)),
        ("refuse=2", Fault("refuse", 2, 2)),
        ("refuse_config=1", Fault("refuse_config", 1, 1)),
        ("open=1:ENOENT", Fault("open", 1, 1, errno.ENOENT)),
        ("open=1:13", Fault("open", 1, 1, 13)),
        ("lose=2", Fault("lose", 2, 2)),
    ],
)
def test_faults(text: str, fault: Fault) -> None:
    assert parse(text).faults == (fault,)


@pytest.mark.parametrize(
    "text",
    [
        *("tdr=0", "tdr=3600", "slots=4,held_slots=4", "memlock=0", "memlock=1", "hang=3-3", "columns=1"),
        *("columns=8", "minor=0", "minor=16", "slots=1024", "fail=1:1", "fail=1:0xffffffff", "corrupt=1:0"),
    ],
)
def test_the_least_and_the_most_that_an_option_takes(text: str) -> None:
    """And of a fault's value, which for a byte's number may be 0."""
    for item in text.split(","):
        key, _, value = item.partition("=")
        number, _, of_fault = value.partition(":")
        found = parse(text)
        if key in KINDS:
            (fault,) = found.faults
            assert (fault.first, fault.value) == (int(number[0]), int(of_fault or "0", 0))
        else:
            assert getattr(found, key) == int(value)


def test_faults_add_up() -> None:
    assert parse("hang=1,hang=3,slots=2").faults == (Fault("hang", 1, 1), Fault("hang", 3, 3))


def test_the_environment_gives_defaults() -> None:
    options = parse("slots=2,hang=2", "slots=1,address=iova,hang=1")
    assert (options.slots, options.address) == (2, "iova")
    assert options.faults == (Fault("hang", 1, 1), Fault("hang", 2, 2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("colour=red", "unknown; there are address,"),
        ("slots=many", "'many' is not a number"),
        ("slots=-1", "it must be 0 to 1024"),
        ("slots=4,held_slots=5", "there are 4 slots"),
        ("columns=9", "it must be 1 to 8"),
        ("minor=17", "it must be 0 to 16"),
        ("address=physical", "it is pasid or iova"),
        ("tdr=-1", "it is 0 (off) to 3600 seconds"),
        ("tdr=nan", "it is 0 (off) to 3600 seconds"),
        ("tdr=3601", "it is 0 (off) to 3600 seconds"),
        ("slots=1025", "it must be 0 to 1024"),
        ("columns=0", "it must be 1 to 8"),
        ("memlock=-1", "it is a number of bytes"),
        ("fail=1:0", "out of range"),
        ("instant=yes", "its value is 0 or 1"),
        ("timed=fast", "there is hx370 (0: not timed)"),
        ("timed=", "there is hx370"),
        ("memlock=-2", "it is a number of bytes"),
        ("hang=0", "names no event"),
        ("hang=5-2", "names no event"),
        ("hang", "is not N, N-M, N- or *"),
        ("hang=1:5", "a hang takes no value"),
        ("skip=1:5", "a skip takes no value"),
        ("lose=1:5", "a lose takes no value"),
        ("fail=1:xyz", "'xyz' is not a number"),
        ("fail=1:0x100000000", "out of range"),
        ("slow=1", "slow=N:US"),
        ("=1", "unknown"),
    ],
)
def test_mistakes_name_the_option(text: str, says: str) -> None:
    with pytest.raises(BadArgument) as caught:
        parse(text)
    assert says in str(caught.value)
    assert f"emu:{text}" in str(caught.value)


def test_timed_names_a_model() -> None:
    assert parse("timed").timed == parse("timed=hx370,instant").timed == "hx370"
    assert parse("").timed is None
    assert parse("timed=0", "timed").timed is None


def test_mistakes_in_the_environment_say_so() -> None:
    with pytest.raises(BadArgument, match="AMDXDNA_EMU=slots=x"):
        parse("", "slots=x")


def test_counting() -> None:
    faults = Faults((Fault("fail", 2, 3, 7), Fault("slow", 3, None, 9), Fault("refuse", 2, 2)))
    kinds = [[fault.kind for fault in faults.command()] for _ in range(4)]
    assert kinds == [[], ["fail"], ["fail", "slow"], ["slow"]]
    assert [faults.event("refuse", 5) for _ in range(3)] == [0, 5, 0]
    assert faults.commands == 4


def test_next_counts_from_now() -> None:
    faults = Faults()
    assert not faults.active
    faults.next("hang", count=2)
    assert [len(faults.command()) for _ in range(3)] == [1, 1, 0]
    faults.next("open", errno.EBUSY)
    assert [faults.event("open", 1) for _ in range(2)] == [errno.EBUSY, 0]
    faults.clear()
    assert not faults.active
    with pytest.raises(ValueError, match="unknown fault"):
        faults.add(Fault("explode"))
