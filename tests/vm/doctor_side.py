"""Runs the device commands in the guest, for the agent's `call` operation."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

import amdxdna.cli.bench
import amdxdna.cli.contexts
import amdxdna.cli.doctor
import amdxdna.cli.info
import amdxdna.cli.selftest
import amdxdna.cli.snapshot
import amdxdna.emu.xclbins
from amdxdna.cli import main
from amdxdna.doctor import examine

COMMANDS = (
    amdxdna.cli.bench,
    amdxdna.cli.contexts,
    amdxdna.cli.doctor,
    amdxdna.cli.info,
    amdxdna.cli.selftest,
    amdxdna.cli.snapshot,
)


def doctor(uid: int = 0) -> dict[str, Any]:
    """Examines the machine, as another user when `uid` says so: cause, and findings by check."""
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    report = examine("auto")
    cause = report.cause
    return {
        "cause": None if cause is None else cause.check,
        "findings": {finding.check: finding.as_json() for finding in report.findings},
    }


def command(words: list[str]) -> dict[str, Any]:
    """Runs `amdxdna WORDS`: exit status and stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(words)
    return {"status": status, "out": out.getvalue()}


def files(texts: dict[str, str | None]) -> None:
    """Writes files; those without a text are taken away."""
    for path, text in texts.items():
        if text is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        else:
            with open(path, "w") as file:
                file.write(text)
