"""What XRT's own module answered to the probes, recorded: the standard where that module cannot be had.

tests/pyxrt/test_pyxrt_oracle.py asks the real one, and writes the file anew with PYXRT_RECORD set.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_suffix(".json")
_FOLDER = re.compile(r"/[^ \"']*/(?=[\w.]+\.(?:elf|xclbin|bin)\b)")
"""Of the probes' files, which lie elsewhere each time."""

SAME_BUT_FOR_OUR_WORDS = {
    "log_message_int": "the TypeError lists no overloads",
}
"""Probes that end in the same exception, whose whole text is ours."""

DIFFERENT = {
    "names": "the vectors of kernels are plain lists; install, installed and implementation are ours",
    "load_xclbin": "registers the file; XRT's fails on every NPU",
    "xclbin_bad": "one text for every damaged file: XRT's differs by what it meets first",
    "info_host": "XRT's version is not claimed",
    "bo_huge_heap": "the heap's numbers and ENOSPC; XRT passes a bad size on to the driver",
    "bo_sub_of_sub": "the address has both offsets",
    "bo_write_strided": "the elements of a strided array are copied, not its base memory",
    "call_time_out": "TIMEOUT, as documented; XRT's shim drops the wait's result",
    "call_dropped": "a run dropped in flight is left to its context; XRT aborts the process",
    "run_of_empty": "an error; XRT crashes",
    "part_set_past": "an error; XRT crashes",
    "list_other_context": "an error; XRT takes a run of another context and would start it in this one",
}
"""Probe -> why the two are meant to differ."""

BY_CHANCE = {"part_set_past"}
"""Of these: what XRT does with what lies behind an array of its own; mostly it crashes, now and then it sees
a size that is too small and raises the same error."""

NOT_RECORDED = {
    "device_bdf": "its answer is in /sys, where an emulated device within the process has nothing",
    **dict.fromkeys(
        ("run_twice", "run_new_state", "list_busy", "full_set_busy", "full_twice", "call_wait_ms"),
        "it asks while a run of 0.3 s is on its way, or waits for one at most a second",
    ),
}
"""Probe -> why its answer may be another where the machine is busy, or the device is in the process."""


def first_lines(answer: Any) -> Any:
    """Errors' texts without what our module puts behind them: cause and remedy in further lines."""
    if isinstance(answer, list):
        if len(answer) == 2 and answer[0] == "str" and isinstance(answer[1], str) and answer[1][:1] != "{":
            return ["str", answer[1].split("\n")[0]]
        return [first_lines(each) for each in answer]
    return answer


def comparable(name: str, answer: Any) -> Any:
    """What of an answer must be XRT's: first lines, without the folder of the probes' files."""
    if name in SAME_BUT_FOR_OUR_WORDS:
        answer = answer[:2]
    return json.loads(_FOLDER.sub("", json.dumps(first_lines(answer))))


def record(answers: dict[str, Any]) -> None:
    """Writes XRT's answers, a line a probe, but for those that ours is meant to differ in."""
    rows = (
        f"{json.dumps(name)}: {json.dumps(comparable(name, answer))}"
        for name, answer in answers.items()
        if name not in DIFFERENT and name not in NOT_RECORDED
    )
    _FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def recorded() -> dict[str, Any]:
    """XRT's answers (2.25.0 of Debian's archive) by probe."""
    return dict(json.loads(_FILE.read_text()))
