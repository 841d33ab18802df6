"""The acceptance run: what it says of a good device, and the verdict on each injected fault."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qwen35.accept import Acceptance, Item, Verdict
from qwen35.accept.report import options, passed, summary
from qwen35.find import DEFAULT_BUNDLE
from tests.support.model_bundle import bundle_path

EMU = "emu:threads=1,quiet"  # whose driver ends a hung command after two seconds


def go(
    spec: str = "",
    at: str = "",
    kind: str = "",
    value: int = 0,
    count: int = 1,
    path: Path | None = None,
    **more,
) -> tuple[Acceptance, dict[str, Item]]:
    """Runs over an emulated device; a fault is injected once the item `at` is over."""
    run = Acceptance(path or bundle_path("tied"), f"{EMU},{spec}" if spec else EMU, max_ctx=400, **more)
    found: dict[str, Item] = {}
    for item in run.items():
        found[item.name] = item
        if item.name == at:
            assert run.model is not None
            faults = run.model.device.node.driver.npu.faults
            faults.next(kind, value, count)
    run.close()
    return run, found


def test_a_good_device(quick: None) -> None:
    run, found = go(hang=True)
    assert [name for name, item in found.items() if item.verdict is Verdict.FAIL] == []
    for name in (
        *("doctor", "xclbin gemm", "bundle", "load", "driver", "gemv lin", "gemm gu x1", "gemv head"),
        *("chains", "contexts", "hang", "check: tokenizer", "prompts"),
    ):
        assert found[name].verdict is Verdict.OK, found[name].line
    assert found["user-pointer"].verdict is Verdict.OFF and found["speed"].verdict is Verdict.NOTE
    assert options(run, [*found.values()]) == {"QWEN35_CHAINS": "auto", "QWEN35_WEIGHTS": "copy"}
    assert passed(list(found.values()))
    assert "made no progress" in found["hang"].text
    commands = found["commands"]
    assert commands.values["compared"] > 500 and commands.values["not_compared"] == 0, commands.line
    assert [len(ids) for ids in found["prompts"].values["ids"]] == [4, 4]


FAULTS = {
    # name: (emulator options), (fault injected after an item: kind, value, count), item, verdict, its words
    "the device cannot be opened": ("open=*", None, "load", Verdict.FAIL, "may not open the node"),
    "doctor's command hangs": ("hang=1", None, "doctor", Verdict.FAIL, "answer"),
    "no context": ("refuse=2-", None, "load", Verdict.FAIL, "context"),
    "a first command is refused": ("", ("driver", "fail", 0, 1), "gemv lin", Verdict.FAIL, "refused"),
    "a kernel hangs": ("", ("gemv lin", "hang", 0, 1), "gemm lin x1", Verdict.FAIL, "no progress"),
    "a bit of one result": ("", ("driver", "corrupt", 1, 1), "gemv lin", Verdict.FAIL, "two runs differ"),
    "a bit of every result": (
        "",
        ("gemv o", "corrupt", 1, 2),
        "gemm o x1",
        Verdict.FAIL,
        "differs from host",
    ),
    "a bit of one command of an answer": (
        "",
        ("kernels again", "corrupt", 0, 1),
        "speed: commands",
        Verdict.FAIL,
        "gave different bits",
    ),
    "a bit of some commands of an answer": (
        "",
        ("kernels again", "corrupt", 1, 20),
        "speed: commands",
        Verdict.FAIL,
        "gave different bits",
    ),
    "a chain that fails": ("", ("gemv head", "chain_fail", 0, 1), "chains", Verdict.OFF, "refused"),
    "a chain that hangs": ("", ("gemv head", "chain_hang", 0, 1), "chains", Verdict.OFF, "no progress"),
    "a chain that lies about its end": (
        "",
        ("gemv head", "chain_skip", 0, 1),
        "chains",
        Verdict.OFF,
        "differs from single commands",
    ),
    "a wrong bit of a chain": (
        "",
        ("gemv head", "chain_corrupt", 9, 1),
        "chains",
        Verdict.OFF,
        "differs from single commands",
    ),
    "a chain that fails in an answer": (
        "",
        ("kernels after speed", "chain_fail", 0, 1),
        "prompts in chains",
        Verdict.OFF,
        "a chain failed",
    ),
    "a chain's end that means nothing": ("driver=6.18.5", None, "chains", Verdict.OFF, "cannot be trusted"),
    "a driver whose failures read as success": (
        "driver=oot-2025-06",
        None,
        "driver",
        Verdict.NOTE,
        "they go as chains of one",
    ),
    "user memory the driver does not keep": (
        "driver=oot-legacy",
        None,
        "user-pointer",
        Verdict.OFF,
        "not known to keep",
    ),
    "a wrong token after a reload": (
        "",
        ("user-pointer", "corrupt", 1, 1),
        "contexts",
        Verdict.FAIL,
        "logits differ",
    ),
    "a context that is refused after a reload": (
        "",
        ("user-pointer", "refuse", 0x2000001, 9),
        "contexts",
        Verdict.FAIL,
        "refused",
    ),
    "a command that fails in an answer": (
        "",
        ("kernels after speed", "fail", 0, 1),
        "prompts",
        Verdict.FAIL,
        "refused",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_verdict_on_a_fault(quick: None, name: str) -> None:
    spec, fault, item, verdict, words = FAULTS[name]
    at, kind, value, count = fault or ("", "", 0, 1)
    run, found = go(spec, at, kind, value, count)
    assert found[item].verdict is verdict and words in found[item].text, found[item].line
    others = {n for n, i in found.items() if i.verdict is Verdict.FAIL} - {item}
    if verdict is Verdict.OFF:
        assert not others
    if item == "load":
        assert all(
            i.verdict is Verdict.SKIP
            for n, i in found.items()
            if n in ("kernels", "chains", "contexts", "prompts")
        )
    lines = summary(run, list(found.values()), True)
    assert lines[0].startswith("FAIL" if verdict is Verdict.FAIL or others else "PASS")
    if item in ("chains", "load") or "chain" in name or verdict is Verdict.FAIL:
        assert options(run, [*found.values()])["QWEN35_CHAINS"] == "off"
        assert "QWEN35_CHAINS=off" in lines[-1]
    assert lines[-1].startswith("do not rely on answers here") is lines[0].startswith("FAIL")


@pytest.mark.parametrize(
    ("before", "byte", "member"),
    [
        (0, 0, "gemv down, member 3 of 3"),
        (3, 3, "gemv head, member 2 of 2"),
        (4, 3, "gemm down, member 3 of 3"),
    ],
)
def test_one_wrong_member_of_a_chain_reads_as_chains_not_to_be_used(
    quick: None, loaded: Acceptance, before: int, byte: int, member: str
) -> None:
    """`before` chains are right. PASS is that of single commands, and cannot be taken for the chains'."""
    assert loaded.model is not None
    faults = loaded.model.device.node.driver.npu.faults
    run = OnOneLoad(loaded)
    faults.next("chain_corrupt", byte, None, before)
    try:
        items = [*run.items()]
    finally:
        faults.clear()
    lines = summary(run, items, True)
    assert lines[0].startswith("PASS, with single commands only: ")
    told = {line.partition(": ")[0]: line.partition(": ")[2].strip() for line in lines[1:]}
    assert told["single commands"].startswith("PROVED: ")
    assert told["command chains"].startswith(
        f"DO NOT USE: a chain's result differs from single commands' ({member})"
    )
    assert told["use"] == "QWEN35_CHAINS=off QWEN35_WEIGHTS=copy"


class OnOneLoad(Acceptance):
    """A run over a model that is loaded already and stays so; the doctor has been."""

    def __init__(self, loaded: Acceptance) -> None:
        super().__init__(loaded.path, loaded.device, max_ctx=400)
        self._loaded = loaded.model

    def _doctor(self):
        yield Item("doctor", Verdict.SKIP, "")

    def _load(self):
        self.model = self._loaded
        self._text.reset()
        self._text.npu.redone = 0
        yield Item("load", Verdict.OK, "")

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def loaded() -> Iterator[Acceptance]:
    run = Acceptance(bundle_path("tied"), EMU, max_ctx=400)
    items = run.items()
    while next(items).name != "load":
        pass
    yield run
    run.close()


ONSETS = {
    # fault, commands (chains) that are well before it, how many then: verdicts of items (all others are well)
    ("corrupt", 0, 1, None): {"gemv lin": "FAIL"},
    ("corrupt", 99, 1, None): {"kernels again": "FAIL"},
    ("corrupt", 599, 1, None): {"kernels at the end": "FAIL"},
    ("corrupt", 99, 0, 1): {"": "FAIL", "kernels at the end": "ok", "speed: commands": "-"},
    ("corrupt", 699, 1, 1): {"": "FAIL", "kernels at the end": "ok"},
    ("corrupt", 599, 0, None): {"kernels at the end": "FAIL"},
    ("corrupt", 1199, 0, None): {"kernels at the end": "FAIL"},
    ("skip", 0, 0, None): {"gemv lin": "FAIL", "kernels again": "skip"},
    ("skip", 99, 0, 1): {"completion": "FAIL", "kernels at the end": "ok"},
    ("skip", 599, 0, 1): {"completion": "FAIL", "kernels at the end": "ok"},
    ("skip", 599, 0, None): {"kernels at the end": "FAIL"},
    ("fail", 99, 0, 1): {"kernels at the end": "ok", "": "FAIL"},
    ("fail", 599, 0, None): {"kernels at the end": "FAIL"},
    ("chain_corrupt", 0, 0, None): {"chains": "off", "prompts": "ok", "prompts in chains": "-"},
    ("chain_corrupt", 29, 0, None): {"prompts": "ok", "": "off"},
    ("chain_corrupt", 59, 0, 1): {"prompts in chains": "off", "prompts": "ok"},
    # a bit that vanishes on its way to the logits, of a token's chains and of an answer's
    ("chain_corrupt", 33, 0, 1): {"chains": "off", "prompts": "ok", "prompts in chains": "-"},
    ("chain_corrupt", 37, 0, 1): {"chains": "off", "prompts": "ok", "prompts in chains": "-"},
    ("chain_corrupt", 53, 0, 1): {"chains": "ok", "prompts": "ok", "prompts in chains": "off"},
    ("chain_skip", 29, 0, None): {"prompts": "ok", "": "off"},
    ("chain_skip", 59, 0, None): {"prompts in chains": "off", "prompts": "ok"},
    ("chain_fail", 59, 0, 1): {"prompts in chains": "off", "prompts": "ok"},
}


@pytest.mark.parametrize("fault", ONSETS, ids=lambda fault: f"{fault[0]} after {fault[1]}")
def test_the_verdict_on_a_fault_that_begins_later(
    quick: None, loaded: Acceptance, fault: tuple[str, int, int, int | None]
) -> None:
    kind, after, value, count = fault
    assert loaded.model is not None
    faults = loaded.model.device.node.driver.npu.faults
    run, found = OnOneLoad(loaded), {}
    try:
        faults.next(kind, value, count, after)
        found = {item.name: item for item in run.items()}
    finally:
        faults.clear()
    verdicts = {name: item.verdict.value for name, item in found.items()}
    for name, verdict in ONSETS[fault].items():
        assert verdicts.get(name, "-") == verdict if name else verdict in verdicts.values(), verdicts
    lines = summary(run, [*found.values()], True)
    broken = not kind.startswith("chain")
    assert lines[0].startswith("FAIL" if broken else "PASS"), [*map(str, found.values())]
    assert options(run, [*found.values()])["QWEN35_CHAINS"] == "off"
    assert broken is ("FAIL" in verdicts.values())


def test_a_byte_of_the_weights(quick: None, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEFAULT_BUNDLE, tmp_path / "b"))
    with open(folder / "tensors.bin", "r+b") as file:
        file.seek(100_000)
        byte = file.read(1)[0]
        file.seek(100_000)
        file.write(bytes([byte ^ 1]))
    run, found = go(path=folder)
    assert found["check: checksums"].verdict is Verdict.FAIL
    assert "the bundle is at fault (check: checksums)" in summary(run, [*found.values()], True)[-1]


def test_a_broken_bundle_proves_nothing_about_the_device(quick: None, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle_path("tied"), tmp_path / "b"))
    for name in ("tensors.bin", "tokenizer.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
        run, found = go(path=folder)
        (folder / name).write_bytes(whole)
        lines = summary(run, [*found.values()], True)
        assert lines[0].startswith("FAIL") and found["load"].verdict is Verdict.FAIL
        assert lines[-1].startswith("the bundle is at fault (")
        assert "nothing is proved about the device" in lines[-1]
        assert any(line.startswith("single commands:") and "the bundle is at fault" in line for line in lines)
        assert not any("do not rely" in line for line in lines)
        assert any(line.startswith("command chains:         NOT TRIED") for line in lines)


def test_user_memory_that_a_driver_keeps(quick: None) -> None:
    run, found = go("driver=oot-2026-08")
    assert found["user-pointer"].verdict is Verdict.OK, found["user-pointer"].line
    assert options(run, [*found.values()])["QWEN35_WEIGHTS"] == "auto"


def test_kernels_whose_weights_only_they_can_read(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a compiled bundle: the head is held against the host, the others' GEMM against their GEMV."""
    from qwen35.accept.kernels import text_kernels
    from qwen35.formats import bfp16

    run = Acceptance(bundle_path("tied"), EMU, max_ctx=64)
    items = run.items()
    while next(items).name != "driver":
        pass
    assert run.model is not None
    text = run.model.model
    monkeypatch.setitem(vars(text.bundle), "emulated", False)
    decode = bfp16.decode_rows

    def other(self, stream, dim, rows, *, out=None):
        """Layer streams in an order of the compiler's own: what the host makes of them is something else."""
        found = decode(stream, dim, rows, out=out)
        return found if stream.nbytes == text.bundle.tensors.info("head0").nbytes else -found

    monkeypatch.setattr(type(bfp16), "decode_rows", other)
    found = {item.name: item for item in text_kernels(text)}
    assert [item.line for item in found.values() if item.verdict is not Verdict.OK] == []
    assert "only its kernel knows" in found["gemv lin"].text and "from host" in found["gemv head"].text
    assert "differs from the GEMV" in found["gemm gu x1"].text
    text.device.node.driver.npu.faults.next("corrupt", 1, 2)
    broken = {item.name: item for item in text_kernels(text)}
    assert any(item.verdict is Verdict.FAIL for item in broken.values())
    run.close()


def test_kernels_of_the_tower(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with a result is said of that result alone."""
    from qwen35.accept import kernels

    run = Acceptance(DEFAULT_BUNDLE, EMU, max_ctx=64)
    items = run.items()
    while next(items).name != "driver":
        pass
    assert run.model is not None
    text = run.model.model
    found = list(kernels.vision_kernels(text, kernels.Kept()))
    assert [item.name for item in found] == [
        f"gemm v_{part} x1" for part in ("patch", "qkv", "proj", "fc1", "fc2", "m1", "m2")
    ]
    for item in found:
        assert item.verdict is Verdict.OK and re.fullmatch(r"\d+\.\d\d ms", item.text), item.line
    text.device.node.driver.npu.faults.next("corrupt", 1, 1)
    broken = list(kernels.vision_kernels(text, kernels.Kept()))
    assert [item.verdict is Verdict.FAIL for item in broken] == [True] + [False] * 6
    assert broken[0].text.endswith(" ms; two runs differ") and broken[0].values["repeatable"] is False
    tensors = text.bundle.tensors
    weights = tensors.bytes
    monkeypatch.setattr(tensors, "bytes", lambda name: np.full_like(weights(name), 0xFF))  # no finite block's
    for item in kernels.vision_kernels(text, kernels.Kept()):
        assert item.verdict is Verdict.FAIL and item.text.endswith(" ms; results are no numbers"), item.line
    run.close()


def test_through_the_ioctls_of_a_node(tmp_path: Path) -> None:
    """As a program that opens /dev/accel/accel0; its driver is one that no table knows."""
    from tests.support.emulation import NODE, emulate

    report = tmp_path / "r.json"
    done = emulate(
        sys.executable,
        "-m",
        "qwen35",
        "accept",
        str(bundle_path("tied")),
        "--device",
        NODE,
        "--out",
        str(report),
        "--quiet",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {item["item"]: item["verdict"] for item in json.loads(report.read_text())["items"]}
    assert found["gemm gu x1"] == found["contexts"] == found["prompts"] == "ok"
    assert "fail" not in found.values()
