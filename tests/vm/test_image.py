"""`python -m qwen35 image` as a user boots it: in little memory, on Linux's own driver, and by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import debs, guest, image

MEMORY = 384
UNPACKED, WRITTEN = 64 << 20, 30 << 20
QUESTION = "What is a penguin?"
PICTURE_QUESTION = "What is in the picture?"
PICTURE = f"/usr/lib/python3.{sys.version_info.minor}/site-packages/qwen35/data/sample.png"
RUN = f"""python3 -m qwen35 --quiet --prompt '{QUESTION}' --greedy &&
python3 -m qwen35 --quiet --prompt '{PICTURE_QUESTION}' --greedy --image {PICTURE}
dmesg -r | grep '^<[0-3]>'; dd if=/dev/zero bs=20 count=1 2>/dev/null; echo >&2 'errors come here'; exit 7"""


Booted = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def booted(rig: debs.Rig, tmp_path_factory: pytest.TempPathFactory) -> Booted:
    """An image with the built-in model, and what its boot said."""
    out = tmp_path_factory.mktemp("image") / "image"
    command = [
        *(sys.executable, "-m", "qwen35", "image", str(out), "--run", RUN, "--boot", "--json", "--memory"),
        str(MEMORY),
    ]
    return out, subprocess.run(
        command,
        cwd=image.CHECKOUT,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_answers_in_little_memory(booted: Booted) -> None:
    """A text and a picture on Linux's own driver in 384 MiB: the host's answers, and the guest's status."""
    _, done = booted
    options = ["--quiet", "--greedy", "--device", "emu", "--prompt"]
    host = [
        subprocess.run(
            [sys.executable, "-m", "qwen35", *options, *words],
            cwd=image.CHECKOUT,
            text=True,
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
        for words in ([QUESTION], [PICTURE_QUESTION, "--image", "qwen35/data/sample.png"])
    ]
    assert done.stdout == "".join(host) + "\0" * 20, done.stderr
    assert done.returncode == 7
    # Nothing of the kernel's is in the way, and nothing of it is an error.
    assert done.stderr.splitlines()[1:] == ["errors come here"]


def test_sizes(booted: Booted) -> None:
    """What the image holds, unpacked and as written."""
    out, done = booted
    sizes = json.loads(done.stderr.splitlines()[0])
    assert sizes["unpacked"] == sum(sizes["parts"].values()) <= UNPACKED
    assert sizes["bytes"] == out.stat().st_size <= WRITTEN
    assert {"python", "numpy", "pillow", "tokenizers", "ours", "model", "modules"} <= set(sizes["parts"])


def test_by_hand_and_cut_off(rig: debs.Rig, booted: Booted, tmp_path: Path) -> None:
    """The printed lines boot the image from any folder, and a root that memory was too short for says so."""
    from qwen35.rootfs.boot import Machine, by_hand

    lines = by_hand(Machine(rig.qemu_command, rig.vmlinuz), booted[0], 160)
    done = subprocess.run(
        ["sh", "-c", lines],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    told = re.search(
        r"image: memory was short and the root was cut off: the machine has (\d+) MiB, "
        rf"{MEMORY} or more are needed",
        done.stdout,
    )
    assert told is not None, done.stdout + done.stderr
    assert int(told[1]) < 160
    assert "not found" not in done.stdout + done.stderr


def test_a_guest_that_does_not_answer(rig: debs.Rig, tmp_path: Path) -> None:
    """A guest that ends or hangs is one line, and no process of it is left."""
    (tmp_path / "nothing").write_bytes(b"no image")
    from qwen35.errors import QwenError
    from qwen35.rootfs.boot import Machine, boot

    machine, broken = rig.qemu_command, [*rig.qemu_command, "-no-such-option"]
    with pytest.raises(QwenError, match=r"ended before it answered: .*unpacking failed: invalid magic"):
        boot(Machine(machine, rig.vmlinuz), tmp_path / "nothing", 128, guest.BOOT_SECONDS)
    with pytest.raises(QwenError, match=r"the guest ended before it answered.*no-such-option"):
        boot(Machine(broken, rig.vmlinuz), tmp_path / "nothing", 128, guest.BOOT_SECONDS)
