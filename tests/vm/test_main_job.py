"""The main job in a minimal image: the model on /dev/accel/accel0, through Linux's own driver."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from qwen35.rootfs.python import APP, HOME
from tests.conformance import kit

from . import guest, image

PROMPT = "Once upon a time"
QUESTION = "What is a penguin?"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def in_guest(image_guest: guest.Machine, command: list[str], timeout: float = 400) -> tuple[str, str]:
    """Runs a program in the guest, on a freshly probed device; its standard output and error."""
    guest.check_log(image_guest.rebind().log)
    settings = " ".join(f"{key}={value}" for key, value in ENVIRONMENT.items())
    answer = image_guest.request(
        "shell", timeout=timeout, command=f"cd /root; {settings} {shlex.join(command)} 2>/tmp/errors"
    )
    assert "error" not in answer.value, answer.value
    errors = image_guest.request("shell", command="cat /tmp/errors").value["output"]
    assert answer.value["status"] == 0, answer.value["output"] + errors
    guest.check_log(answer.log)
    return answer.value["output"], errors


def on_host(command: list[str]) -> str:
    """Runs a program of the checkout here; its standard output."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=image.CHECKOUT,
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        check=True,
    )
    return done.stdout


def test_same_token_ids(image_guest: guest.Machine, image_bundle: Path) -> None:
    """Through the kernel's driver the model gives the token ids that the emulated device in process gives."""
    program = f"/{APP}/tests/vm/token_ids.py"
    out, _ = in_guest(image_guest, ["python3", program, f"/{image.BUNDLE}", "auto", PROMPT, "16"])
    kernel = json.loads(out)
    here = json.loads(on_host(["-m", "tests.vm.token_ids", str(image_bundle), "emu", PROMPT, "16"]))
    assert (here["device"], kernel["device"]) == ("emu", "/dev/accel/accel0")
    assert here["emulated"] and kernel["emulated"]
    assert len(kernel["ids"]) == 16
    assert kernel["ids"] == here["ids"]


@pytest.fixture
def built_in() -> None:
    """Skips where the installation has no built-in model."""
    from qwen35.errors import ModelError
    from qwen35.find import find_bundle

    try:
        find_bundle()
    except ModelError as reason:
        pytest.skip(str(reason))


def test_built_in_model(built_in: None, image_guest: guest.Machine) -> None:
    """The built-in model, with nothing but a question: the same answer, token for token."""
    program = f"/{APP}/tests/vm/token_ids.py"
    out, _ = in_guest(image_guest, ["python3", program, "", "auto", QUESTION, "12"])
    kernel = json.loads(out)
    here = json.loads(on_host(["-m", "tests.vm.token_ids", "", "emu", QUESTION, "12"]))
    assert (here["device"], kernel["device"]) == ("emu", "/dev/accel/accel0")
    assert here["emulated"] and kernel["emulated"]
    assert kernel["ids"] == here["ids"]
    options = ["--prompt", QUESTION, "--greedy", "--max-new", "16", "--quiet"]
    out, _ = in_guest(image_guest, ["python3", "-m", "qwen35", *options])
    assert out == on_host(["-m", "qwen35", *options, "--device", "emu"])
    assert out.strip()


def test_picture(built_in: None, image_guest: guest.Machine) -> None:
    """A question about a picture, which runs the vision tower too."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    options = ["--prompt", "What is in the picture?", "--greedy", "--max-new", "10", "--quiet"]
    picture = "qwen35/data/sample.png"
    out, _ = in_guest(
        image_guest,
        ["python3", "-m", "qwen35", *options, "--image", f"{HOME}/lib/{version}/site-packages/{picture}"],
    )
    assert out == on_host(["-m", "qwen35", *options, "--image", picture, "--device", "emu"])
    assert out.strip()


def test_command_line(image_guest: guest.Machine, image_bundle: Path) -> None:
    """`python3 -m qwen35 --prompt` answers, on the kernel's node, as it does on the emulated device."""
    options = ["--prompt", PROMPT, "--greedy", "--max-new", "12", "--no-loop-check"]
    out, errors = in_guest(image_guest, ["python3", "-m", "qwen35", f"/{image.BUNDLE}", *options])
    assert out == on_host(["-m", "qwen35", str(image_bundle), *options, "--device", "emu", "--quiet"])
    assert "an emulated NPU, /dev/accel/accel0" in errors
    kit.until(
        lambda: image_guest.function.firmware.contexts == 0, kit.LIMIT, "the firmware losing every context"
    )


def test_acceptance(built_in: None, image_guest: guest.Machine) -> None:
    """The acceptance run passes through the kernel's driver, and names it; the report names no machine."""
    command = ["python3", "-m", "qwen35", "accept", "--json", "--quiet"]
    out, errors = in_guest(image_guest, command, timeout=900)
    report = json.loads(out)
    assert report["finished"] and report["passed"], (report, errors)
    verdicts = {item["item"]: item["verdict"] for item in report["items"]}
    assert "failed" not in verdicts.values(), verdicts
    kernels = [name for name in verdicts if name.startswith(("gemm ", "gemv "))]
    assert verdicts["doctor"] == verdicts["chains"] == "ok" and len(kernels) > 10, verdicts
    assert "emulated NPU of this package" not in out


def test_nothing_else_is_needed(image_guest: guest.Machine) -> None:
    """The image holds no XRT and no compiler."""
    answer = image_guest.request("call", target="tests.vm.agent:names", arguments={})
    assert "error" not in answer.value, answer.value["error"]
    found = answer.value["result"]
    assert any(name.startswith("tokenizers") for name in found)
    # pyxrt is this package's own module of that name.
    others = [name for name in found if not name.startswith("pyxrt")]
    assert not [name for name in others if "xrt" in name.lower() or name in ("gcc", "pip", "apt-get")]
