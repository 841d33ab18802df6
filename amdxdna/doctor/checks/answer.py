"""Does the NPU answer: queries, memory, a context, and a command where one can be run?"""

from __future__ import annotations

from amdxdna.doctor.case import Case
from amdxdna.doctor.finding import Finding, Status
from amdxdna.doctor.trial import Trial
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
    trial: Trial | None = None
    try:
        trial = Trial(device)
        firmware = trial.queries()
        done.append(f"firmware {firmware} answers")
        trial.memory()
        done.append("heap and buffers work")
        trial.context()
        done.append("a context can be made")
        ran = trial.copy()
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
    finally:
        if trial is not None:
            trial.close()
    done.append(
        "a copy was run and its data checked"
        if ran
        else "no command was run: that takes an xclbin compiled for this NPU (selftest --xclbin)"
    )
    return Finding("answer", Status.OK, "; ".join(done), facts={"done": done, "ran": ran})
