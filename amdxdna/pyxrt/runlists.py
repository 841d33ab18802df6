"""`pyxrt.runlist`: runs submitted as chains."""

from __future__ import annotations

import errno
import math
from typing import Any

from amdxdna import packet
from amdxdna.errors import CommandFailed
from amdxdna.packet import State, argument_words
from amdxdna.pyxrt.calls import incompatible, refuse, translated
from amdxdna.pyxrt.contexts import hw_context
from amdxdna.pyxrt.enums import ert_cmd_state
from amdxdna.pyxrt.kernels import failure, run
from amdxdna.restart import RestartableChain

_MOST = 24
"""Runs of one chain, as XRT's runlist has them (core/common/api/xrt_kernel.cpp)."""


class runlist:
    """Runs of one context that are executed in order, until one fails."""

    __module__ = "pyxrt"

    def __init__(self, *args: Any) -> None:
        if args and (len(args) > 1 or not isinstance(args[0], hw_context)):
            incompatible("__init__", *args)
        self._context = args[0].context if args else None
        self._runs: list[run] = []
        self._chains: list[tuple[int, RestartableChain]] = []
        """Index of the first run of each, while they are in flight."""
        self._failed: str | None = None

    def _idle(self, doing: str) -> None:
        if self._context is None:
            refuse("this runlist object is empty: make it with an hw_context")
        if self._chains:
            refuse(f"runlist must be idle before {doing}, current state: running", errno.EINVAL)

    def add(self, member: run) -> None:
        """Adds a run, the same one perhaps again. Raises RuntimeError while the list runs."""
        if not isinstance(member, run):
            incompatible("add", self, member)
        self._idle("adding run objects")
        if member.job.context is not self._context:
            refuse("Run object has a different hardware context than the runlist", errno.EINVAL)
        member._lists.add(self)
        self._runs.append(member)

    def execute(self) -> None:
        """Submits all."""
        self._idle("submitting for execution")
        self._failed = None
        for member in self._runs:
            member._marked = None
            if member.job.in_flight:
                refuse("bad command state, can't launch")
        words = max(
            (argument_words(int.from_bytes(each.job.packet[:4], "little")) for each in self._runs), default=0
        )
        step = min(_MOST, packet.chain_limit(words))
        with translated():
            for member in self._runs:
                member.prepare()
            for first in range(0, len(self._runs), step):
                members = self._runs[first : first + step]
                chain = RestartableChain([each.job for each in members])
                chain.start(dict.fromkeys(buffer for each in members for buffer in each.buffers()))
                self._chains.append((first, chain))

    def wait(self, *timeout: Any) -> None:
        """Waits until all are over. Raises RuntimeError when one failed: its state is then told, and those
        behind it are ABORT."""
        if timeout:
            incompatible("wait", self, *timeout)
        if self._context is None:
            refuse("this runlist object is empty: make it with an hw_context")
        chains = self._chains
        failed: tuple[int, CommandFailed] | None = None
        with translated():
            for first, chain in chains:
                if chain.run is None:
                    continue
                try:
                    chain.run.wait(math.inf)
                except CommandFailed as error:
                    if failed is None:
                        failed = first + (error.index or 0), error
        self._chains = []
        if failed is not None:
            place, cause = failed
            state = ert_cmd_state(int(cause.state))
            for number in range(len(self._runs) - 1, place - 1, -1):
                self._runs[number]._marked = state if number == place else ert_cmd_state(State.ABORT)
            self._failed = failure("runlist failed execution", state, cause)
            raise RuntimeError(self._failed) from cause
