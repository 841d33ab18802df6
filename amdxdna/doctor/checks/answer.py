"""Does the NPU answer: queries, memory, a context, and a command where one can be run?"""

from __future__ import annotations

import contextlib

from amdxdna import query
from amdxdna.doctor.case import Case
from amdxdna.doctor.finding import Finding, Status
from amdxdna.doctor.trial import PAGE, check_copy, copy_kernel, keeps_data, make_context, modelled
from amdxdna.errors import DeviceLost, NoFreeContext, XdnaError


def answer(case: Case) -> Finding:
    """Asks for the firmware's version, fills the heap's first page, makes a context, runs a copy."""
    device = case.device
    if device is None:
        error = case.error
        if case.path is None or error is None:
            return case.not_open("answer")
        # The causes of these have a check of their own.
        return Finding(
            "answer",
            Status.FAIL,
            f"the node cannot be opened: {error.meaning}",
            (error.remedy,),
            symptom=True,
            facts={"errno": error.errno},
        )
    done: list[str] = []
    try:
        device.metadata()
        done.append(f"firmware {query.firmware_version(device.client)} answers")
        for kind in ("dev", "share", "cmd"):
            keeps_data(device, kind)
        done.append("heap and buffers work")
        make_context(device)
        done.append("a context can be made")
        ran = modelled(device)
        if ran:
            with contextlib.closing(copy_kernel(device, PAGE)) as kernel:
                check_copy(device, kernel, PAGE)
    except NoFreeContext as error:
        return Finding(
            "answer",
            Status.FAIL,
            f"{', '.join(done)}, but {error.meaning}",
            (error.remedy,),
            symptom=True,
            facts={"done": done},
        )
    except XdnaError as error:
        so_far = f"{', '.join(done)}, but then: " if done else ""
        remedy = (
            (error.remedy,)
            if not isinstance(error, DeviceLost)
            else (error.remedy, "If it happens again, switch the machine off and on")
        )
        return Finding(
            "answer",
            Status.FAIL,
            f"{so_far}{error.call} failed: {error.meaning}",
            remedy,
            facts={"done": done, "errno": error.errno},
        )
    done.append(
        "a copy was run and its data checked"
        if ran
        else "no command was run: that takes an xclbin compiled for this NPU (selftest --xclbin)"
    )
    return Finding("answer", Status.OK, "; ".join(done), facts={"done": done, "ran": ran})
