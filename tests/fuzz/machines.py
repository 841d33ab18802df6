"""What a machine tells: options, kernel logs, the files of /sys and /proc."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from amdxdna import sysfs
from amdxdna.cli import snapshot
from amdxdna.doctor import diagnosis, events
from amdxdna.doctor.scrub import Scrubber
from amdxdna.emu.options import EmuOptions
from amdxdna.errors import BadArgument
from amdxdna.selftest import program
from tests.fuzz import mutate
from tests.fuzz.run import Ready
from tests.support.doctor_states import STATES
from tests.support.fake_machine import FakeMachine


def options(folder: Path) -> Ready:
    """`emu:` options and AMDXDNA_EMU."""
    keys = [
        *("slots", "columns", "driver", "minor", "address", "threads", "instant", "held_slots", "tdr"),
        *("sensors", "privileged", "memlock", "quiet", "hang", "fail", "slow", "refuse", "refuse_config"),
        *("open", "x", ""),
    ]
    values = [
        *("1", "0", "8", "3-5", "3-", "*", "2:EACCES", "1:5", "7.3", "iova", "inf", "nan", "1e300"),
        *mutate.WORDS,
    ]

    def make(rng: random.Random) -> tuple[str, str]:
        def text() -> str:
            parts = [
                rng.choice(keys) + rng.choice(["=", "=", "=", ""]) + rng.choice(values) for _ in range(3)
            ]
            return ",".join(parts[: rng.randrange(4)])

        return text(), text() if rng.random() < 0.3 else ""

    def parse(given: tuple[str, str]) -> None:
        _ = EmuOptions.parse(given[0], {"AMDXDNA_EMU": given[1]}).personality

    return Ready(parse, make, (BadArgument,), one_line=False)


def numbers(folder: Path) -> Ready:
    """Sizes of buffers on the command line."""
    parts = ["1", "0", "4k", "16M", "1G", "1e9", " ", ",", "-1", "0x10", "9" * 30, "9" * 6000, *mutate.WORDS]

    def parse(text: str) -> None:
        size = program.byte_count(text)
        assert size is None or size >= 0
        assert all(one > 0 for one in program.sizes(text))

    return Ready(
        parse,
        lambda rng: "".join(rng.choices(parts, k=rng.randrange(5))),
        (BadArgument,),
        one_line=False,
    )


def _log() -> list[str]:
    """Messages of every state that doctor knows, and of the events after a start."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for number, state in enumerate(STATES):
            root = Path(folder) / str(number)
            root.mkdir()
            state.build(FakeMachine(root))
            kmsg = root / "dev/kmsg"
            found += kmsg.read_text(errors="replace").splitlines() if kmsg.is_file() else []
    return list(dict.fromkeys(line.partition(";")[2] for line in found))


def kernel_log(folder: Path) -> Ready:
    """The kernel's messages, as doctor reads them."""
    fake = FakeMachine(folder).good()
    original = "".join(f"3,{i},{i}000,-;{line}\n" for i, line in enumerate(_log())).encode()

    def parse(data: bytes) -> None:
        (folder / "dev/kmsg").write_bytes(data)
        lines, why, _ = fake.machine().kernel_log()
        found = diagnosis.diagnose(lines, why)
        _ = found.first, found.protocol
        events.heaviest(events.events(lines))

    return Ready(
        parse,
        lambda rng: mutate.text(rng, original),
        (),
        (lambda: original * 2000, lambda: b"amdxdna " * 100_000, lambda: b"Oops" * 100_000 + b"amdxdna"),
        one_line=False,
    )


def machine(folder: Path) -> Ready:
    """The files of a machine, as doctor, snapshot and the search for nodes read them."""
    fake = FakeMachine(folder).good().file("etc/os-release", 'PRETTY_NAME="A system"\n')
    fake.file("proc/meminfo", "MemTotal: 1 kB\n").file("sys/module/amdxdna/parameters/x", "1\n")
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    originals = {path: path.read_bytes() for path in files}

    def make(rng: random.Random) -> dict[Path, bytes]:
        return {path: mutate.text(rng, originals[path]) for path in rng.sample(files, rng.randrange(1, 4))}

    def parse(given: dict[Path, bytes]) -> None:
        for path, data in given.items():
            path.write_bytes(data)
        try:
            look()
        finally:
            for path in given:
                path.write_bytes(originals[path])

    def look() -> None:
        found = fake.machine()
        lines, why, _ = found.kernel_log()
        told = [npu.model.name for npu in found.npus()], found.kernel, found.container(), found.virtual(), why
        parts = [snapshot.system(found), snapshot.module(found), told, lines, found.user_name()]
        parts += [[str(node) for node in sysfs.find_nodes(found.sys, found.dev)], sysfs.why_none(found.sys)]
        parts += [str(file) for npu in found.npus() for file in found.firmware_files(npu.model)]
        json.dumps(Scrubber.of(found).value(parts))

    release = folder / "proc/sys/kernel/osrelease"
    return Ready(parse, make, (), (lambda: {release: b"x" * 5000},))
