"""Rows of what doctor finds: a machine, and words of the finding that a check must make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from amdxdna.doctor import Finding, Status
from amdxdna.doctor.checks import CHECKS
from amdxdna.doctor.machine import Identity, NodeStat
from amdxdna.doctor.subject import Subject
from tests.support.doctor_states import ERR, FAILED, Build, unbound
from tests.support.fake_machine import FakeMachine

OK, WARN, FAIL, SKIP = Status.OK, Status.WARN, Status.FAIL, Status.SKIP
DMESG = "sudo dmesg | grep amdxdna"
RELOAD = "sudo modprobe -r amdxdna; sudo modprobe amdxdna"
REFUSED = ERR + "aie2_check_protocol: Incompatible firmware protocol major 7 minor 2"
PASID = ERR + "aie2_init: Enable PASID failed, ret -19"
NO_FILE = ERR + "aie2_init: failed to request_firmware amdnpu/17f0_10/npu.sbin, ret -2"
NOT_ALIVE = ERR + "aie2_hw_start: firmware is not alive"
NO_IOMMU = ERR + "amdxdna_iommu_init: Running without IOMMU not supported"
NO_DOMAIN = ERR + "amdxdna_iommu_init: Failed to alloc iommu domain"


@dataclass(frozen=True)
class Row:
    """All of `says` are in the meaning; there are as many remedies as words in `do`, each in its own.

    Words are names, numbers, paths and commands, not sentences. `spec`: "NODE x" is the path of node x.
    """

    build: Build
    status: Status
    says: tuple[str, ...] = ()
    do: tuple[str, ...] = ()
    facts: dict[str, Any] | None = None
    spec: str = "auto"
    symptom: bool = False

    def check(self, check: str, fake: FakeMachine) -> None:
        """Asserts it."""
        self.build(fake)
        found = finding(fake, check, self.spec)
        assert (found.check, found.status, found.symptom) == (check, self.status, self.symptom), found
        assert all(part in found.meaning for part in self.says), found.meaning
        assert len(found.remedy) == len(self.do), found.remedy
        assert all(word in step for word, step in zip(self.do, found.remedy, strict=True)), found.remedy
        assert self.facts is None or found.facts == self.facts


def cases(rows: Mapping[str, list[Row]]) -> list[Any]:
    """(check, row) for pytest."""
    return [
        pytest.param(check, row, id=f"{check} {n}")
        for check, found in rows.items()
        for n, row in enumerate(found)
    ]


def finding(fake: FakeMachine, check: str, spec: str = "auto") -> Finding:
    subject = Subject(fake.machine(), spec.replace("NODE ", f"{fake.root}/dev/accel/"))
    try:
        return CHECKS[check](subject)
    finally:
        subject.close()


def good(fake: FakeMachine) -> FakeMachine:
    return fake.good()


def off(fake: FakeMachine) -> FakeMachine:
    """An NPU without a driver, the module not loaded."""
    return fake.npu(driver="").iommu().firmware()


def failed(*lines: str, release: str = "7.3.4-test") -> Build:
    return unbound(*lines, FAILED + "-22", release=release)


def opens(options: str) -> Build:
    def build(fake: FakeMachine) -> FakeMachine:
        fake.emu += f",{options}"
        return fake.good()

    return build


def node(mode: int, uid: int, gid: int, who: int = 1001, *gids: int, errors: str = "EACCES") -> Build:
    def build(fake: FakeMachine) -> FakeMachine:
        fake.node_stat, fake.identity = NodeStat(mode, uid, gid), Identity(who, frozenset(gids or (who,)))
        fake.emu += f",open=*:{errors}" if errors else ""
        return fake.good()

    return build


def unreadable(build: Build) -> Build:
    def without(fake: FakeMachine) -> None:
        build(fake)
        (fake.root / "dev/kmsg").unlink()

    return without
