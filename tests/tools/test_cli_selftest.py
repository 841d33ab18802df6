"""selftest and bench: what is checked, what is left out on a real NPU, faults that must be found."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest

from amdxdna.buffer import Buffer
from amdxdna.cli import main
from amdxdna.emu.kernels import stream
from amdxdna.emu.xclbins import xclbin_bytes
from amdxdna.errors import BadArgument
from amdxdna.packet import MAX_BUFFERS
from amdxdna.selftest import measure, program
from amdxdna.selftest.steps import STEPS, Bench, Skipped

EMU = "emu:threads=1,quiet"


def run(capsys, *words):
    status = main(list(words))
    return status, capsys.readouterr().out


def selftest(capsys, *words):
    status, out = run(capsys, "selftest", *words, "--json")
    found = json.loads(out)
    assert (found["schema"], found["version"]) == ("amdxdna.selftest", 1)
    assert found["ok"] == (status == 0)
    return found, {step["name"]: step["status"] for step in found["steps"]}


@pytest.fixture
def real(monkeypatch):
    """The NPU reports a released firmware, so none of this package's programs may be run on it."""
    monkeypatch.setattr("amdxdna.device_info.EMULATED_BUILD", 64)


@pytest.fixture
def files(tmp_path):
    """A user's program: copies 4096 bytes."""
    (tmp_path / "a.xclbin").write_bytes(xclbin_bytes("copy"))
    (tmp_path / "a.bin").write_bytes(stream.copy(4096, 0))
    return [
        "--xclbin",
        str(tmp_path / "a.xclbin"),
        "--insts",
        str(tmp_path / "a.bin"),
        "--buffers",
        "4k,4096",
    ]


@pytest.mark.parametrize("options", ["address=pasid", "address=iova", "minor=0", "slots=1"])
def test_all_steps(options, capsys):
    found, steps = selftest(capsys, "--device", f"{EMU},{options}")
    assert found["ok"] and list(steps) == list(STEPS)
    assert [name for name, status in steps.items() if status != "ok"] == ["program"]


def test_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    assert run(capsys, "selftest", "--device", EMU) == (
        0,
        """\
ok    queries    firmware 1.1.2.58597, 8 columns, 6 rows
ok    buffers    dev, share and cmd buffers keep their data; the heap is 64 MiB
ok    dma-buf    a buffer exported as a dma-buf and imported is the same memory
ok    wrap       the program's own memory can be used as a buffer
ok    contexts   3 made and destroyed, none left over
ok    copy       copies of 4, 4096, 1048576 bytes, every byte compared
ok    in flight  four at once, every byte compared
ok    chain      8 commands in order, the result compared
skip  program    no --xclbin was given

8 ok, 0 failed, 1 skipped
""",
    )


def test_a_failure_on_the_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    status, out = run(capsys, "selftest", "--device", f"{EMU},fail=2")
    row = out.splitlines().index(next(line for line in out.splitlines() if line.startswith("fail")))
    assert out.splitlines()[row].startswith("fail  copy       EXEC_CMD: ")
    assert f"\n{'':17}- " in out and out.endswith("7 ok, 1 failed, 1 skipped\n") and status == 1


def test_a_real_npu_is_tested_as_far_as_it_goes(real, capsys):
    found, steps = selftest(capsys, "--device", EMU)
    assert found["ok"]
    assert {name for name, status in steps.items() if status == "ok"} == {
        "queries",
        "buffers",
        "dma-buf",
        "wrap",
        "contexts",
    }
    detail = {step["name"]: step["detail"] for step in found["steps"]}
    assert "--xclbin" in detail["copy"]


def test_a_program_that_writes_behind_its_buffers_fails(real, files, capsys):
    """Buffers lie in whole pages: without a guard, 64 bytes for a kernel that writes 4,096 would pass."""
    files[-1] = "4k,64"
    found, steps = selftest(capsys, "--device", EMU, *files)
    assert not found["ok"] and steps["program"] == "fail"
    assert "wrote 4032 bytes and more behind the 64 of buffer 1" in found["steps"][-1]["detail"]


def test_a_program_of_the_users_own(real, files, capsys, monkeypatch):
    ticks = itertools.count(7)
    monkeypatch.setattr(program, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 4))
    found, steps = selftest(capsys, "--device", EMU, *files)
    assert steps["program"] == "ok"
    assert found["steps"][-1]["detail"].startswith("MLIR_AIE completed in 250.00 ms (with its context)")


@pytest.mark.parametrize(
    ("options", "failing"),
    [
        ("fail=2", ["copy"]),
        ("hang=1,tdr=0.1", ["copy"]),
        ("fail=4-7", ["in flight"]),
        ("refuse=*:0x4000003", ["contexts", "copy", "in flight", "chain"]),
        ("slots=2,held_slots=2", ["contexts", "copy", "in flight", "chain"]),
    ],
)
def test_faults_are_found(options, failing, capsys):
    found, steps = selftest(capsys, "--device", f"{EMU},{options}")
    assert not found["ok"] and [name for name, status in steps.items() if status == "fail"] == failing
    for step in found["steps"]:
        assert (step["status"] == "fail") == bool(step["remedy"])


def test_wrong_data_is_found(capsys):
    """An NPU that says it copied, and did not."""
    found, steps = selftest(capsys, "--device", f"{EMU},instant")
    assert [name for name, status in steps.items() if status == "fail"] == ["copy", "in flight", "chain"]
    assert "wrong data" in next(step["detail"] for step in found["steps"] if step["name"] == "copy")


@pytest.mark.parametrize("kind", ["dev", "share", "cmd"])
def test_memory_that_forgets_is_found(kind, open_emu, monkeypatch):
    device, write = open_emu(), Buffer.write
    monkeypatch.setattr(Buffer, "write", lambda self, *given: self.kind == kind or write(self, *given))
    with pytest.raises(OSError, match=f"a {kind} buffer does not keep"):
        STEPS["buffers"](Bench(device))


def test_an_import_of_other_memory_is_found(open_emu, monkeypatch):
    device = open_emu()
    monkeypatch.setattr(device, "import_fd", lambda fd: device.alloc(4096))
    with pytest.raises(OSError, match="is not the same memory"):
        STEPS["dma-buf"](Bench(device))


def test_leaked_contexts_are_found(open_emu, monkeypatch):
    device = open_emu()
    left = iter([("other",), ("other", "one")])
    monkeypatch.setattr(type(device), "contexts", lambda self: next(left))
    with pytest.raises(OSError, match="still there"):
        STEPS["contexts"](Bench(device))


def test_wrap_is_skipped_where_memory_may_not_be_locked(open_emu):
    with pytest.raises(Skipped, match="copy instead"):
        STEPS["wrap"](Bench(open_emu("memlock=4096,privileged=0")))


def test_loop(capsys):
    status, out = run(capsys, "selftest", "--device", EMU, "--loop", "2")
    lines = out.splitlines()
    assert status == 0 and [line.split(",")[0] for line in lines[:2]] == ["pass 1: ok", "pass 2: ok"]
    assert lines[-1].endswith("(2 passes)")


def test_loop_ends_with_the_first_failure(capsys):
    """A pass is 15 commands: the fault comes in the second."""
    status, out = run(capsys, "selftest", "--device", f"{EMU},fail=16", "--loop")
    assert status == 1 and "pass 1: ok" in out and "pass 2: failed" in out


@pytest.mark.parametrize(
    "words",
    [
        ["--xclbin", "x"],
        ["--xclbin", "x", "--insts", "y"],
        ["--loop", "-1"],
        ["--seconds", "0"],
        ["--seconds", "601"],
        ["--seconds", "600", "--loop", "-1"],
    ],
)
def test_wrong_usage(words, capsys):
    name = "bench" if "--seconds" in words else "selftest"
    assert main([name, *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and ("--loop" in err) == ("--loop" in words)


@pytest.mark.parametrize("text", ["", "0", "4x", "1,,2", "-1", "k", "5g", ",".join("9" * 11)])
def test_wrong_sizes(text, files, capsys):
    with pytest.raises(BadArgument):
        program.sizes(text)
    status, out = run(capsys, "selftest", "--device", EMU, *files[:-1], text or ",", "--json")
    assert status == 1 and json.loads(out)["call"] == "--buffers"


def test_sizes():
    assert program.sizes("4096, 64k,1M,4g") == (4096, 65536, 1 << 20, 4 << 30)
    assert program.sizes(",".join("1" * MAX_BUFFERS)) == (1,) * MAX_BUFFERS
    with pytest.raises(BadArgument):
        program.sizes(f"{(4 << 30) + 1}")


def test_a_file_that_is_no_xclbin(files, tmp_path, capsys):
    (tmp_path / "a.xclbin").write_bytes(b"nothing")
    assert main(["selftest", "--device", EMU, *files]) == 1
    assert "a.xclbin" in capsys.readouterr().err


# bench


def bench(capsys, *words):
    status, out = run(capsys, "bench", "--seconds", "0.01", *words, "--json")
    found = json.loads(out)
    assert status == 0 and (found["schema"], found["version"]) == ("amdxdna.bench", 1)
    return found, {m["name"]: m for m in found["measures"]}


NAMES = [
    "query",
    "buffer of 4 KiB, made and closed",
    "buffer of 16 MiB, made and closed",
    "context, made and destroyed",
    "cache flush",
    "command, one at a time",
    "command, 4 in flight",
    "command, in chains of 16",
    "copy of 16 MiB",
]


def test_bench(capsys):
    found, measures = bench(capsys, "--device", EMU)
    assert found["emulated"] and found["skipped"] == [] and list(measures) == NAMES
    for m in measures.values():
        assert m["value"] > 0 and m["count"] >= 5
        assert m["p99"] is None or m["p99"] >= m["value"]
    assert (
        measures["command, one at a time"]["unit"] == "us" and measures["copy of 16 MiB"]["unit"] == "GiB/s"
    )
    assert measures["command, in chains of 16"]["count"] % 16 == 0


def test_bench_of_a_real_npu(real, files, capsys):
    found, measures = bench(capsys, "--device", EMU)
    assert list(measures) == NAMES[:5] and "--xclbin" in found["skipped"][0]
    found, measures = bench(capsys, "--device", EMU, *files)
    assert (
        list(measures)[5:] == ["MLIR_AIE, one at a time", "MLIR_AIE, 4 in flight"] and found["skipped"] == []
    )


def test_bench_compares_the_data(capsys):
    words = ["bench", "--seconds", "0.01", "--device", f"{EMU},instant"]
    assert main(words) == 1
    assert "wrong data" in capsys.readouterr().err
    assert main([*words, "--no-check"]) == 0


def test_bench_on_a_screen(capsys):
    status, out = run(capsys, "bench", "--seconds", "0.01", "--device", EMU, "--loop", "2")
    header = ["WHAT", "MEDIAN", "P99", "UNIT", "TIMES"]
    rows = [line.split() for line in out.splitlines()]
    assert status == 0 and rows[0] == header and rows.count(header) == 2
    assert "no NPU's" in out


def test_bench_by_a_clock(capsys, monkeypatch):
    """Which goes on by 1/1024 s whenever somebody looks at it."""
    ticks = itertools.count()
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 1024))
    monkeypatch.setenv("COLUMNS", "110")
    rows = """\
WHAT                               MEDIAN  P99  UNIT   TIMES
query                                 977  977  us         8
buffer of 4 KiB, made and closed      977  977  us         8
buffer of 16 MiB, made and closed     977  977  us         8
context, made and destroyed           977  977  us         8
cache flush                         16.00       GiB/s      8
command, one at a time                977  977  us         8
command, 4 in flight                  926       1/s       19
command, in chains of 16           14,824       1/s      304
copy of 16 MiB                      16.00       GiB/s      8
"""
    status, out = run(capsys, "bench", "--device", EMU, "--seconds", str(20 / 1024))
    assert status == 0 and out.startswith(rows)
    assert out[len(rows) :] == (
        "\nthe NPU is emulated: commands show this package's and the host's speed, no NPU's\n"
    )
    _, out = run(capsys, "bench", "--device", EMU, "--seconds", str(1 / 1024), "--json")
    assert [m["count"] for m in json.loads(out)["measures"]] == [5] * 7 + [5 * 16, 5]


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [
        (1, 0.5, 0),
        (2, 0.5, 0),
        (3, 0.5, 1),
        (100, 0.5, 49),
        (100, 0.99, 98),
        (1000, 0.99, 989),
        (10, 0.99, 9),
    ],
)
def test_percentiles(count, fraction, expected):
    assert measure.percentile(list(range(count))[::-1], fraction) == expected
