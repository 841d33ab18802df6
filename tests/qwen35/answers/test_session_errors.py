"""What goes wrong on the device inside a session ends the turn; session, history and answers go on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amdxdna._native import lib
from amdxdna.device import Device
from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from amdxdna.emu.xclbins import xclbin_bytes
from amdxdna.errors import CommandFailed, CommandTimeout, DeviceLost, NoFreeContext
from amdxdna.xclbin import Xclbin
from qwen35 import GREEDY, Qwen35
from qwen35.conversation import Reply
from qwen35.errors import ImageError, PromptTooLong, explain
from tests.support.models import export

QUESTIONS = ("What is a penguin?", "And where does it live?", "Does it fly?")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("vision"), "vision")


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 256, (32, 48, 3), np.uint8)


@pytest.fixture(scope="module")
def wanted(bundle: Path, picture: np.ndarray) -> list[dict[str, Any]]:
    """The messages of a session in which nothing goes wrong."""
    with Qwen35.load(bundle, 2048, "emu:threads=1,quiet") as model:
        talk = model.conversation()
        for text in QUESTIONS:
            images = [picture] if text == QUESTIONS[1] else []
            talk.ask(text, images=images, max_new=8, sampling=GREEDY).result()
        return list(talk.messages)


class Unplugged:
    """Every call through a node of the emulated device fails with ENODEV once `after` commands were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after, self.lost, self.opens = -1, set[int](), 0
        original, made = EmuNode.ioctl, EmuNode.__init__

        def ioctl(node: EmuNode, request: int, address: int) -> int:
            if request == lib.DRM_IOCTL_AMDXDNA_EXEC_CMD and id(node) not in self.lost:
                self.after -= 1
                if self.after == 0:
                    self.lost.add(id(node))
            if id(node) in self.lost:
                raise OSError(errno.ENODEV, "gone")
            return original(node, request, address)

        def init(node: EmuNode, *arguments: Any) -> None:
            self.opens += 1
            if self.refuse:
                self.refuse -= 1
                raise DeviceLost("still gone", call="open", errno=errno.ENODEV)
            made(node, *arguments)
            self.lost.discard(id(node))

        self.refuse = 0
        monkeypatch.setattr(EmuNode, "ioctl", ioctl)
        monkeypatch.setattr(EmuNode, "__init__", init)


@pytest.fixture
def unplugged(monkeypatch: pytest.MonkeyPatch) -> Unplugged:
    return Unplugged(monkeypatch)


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("after", [1, 30])
def test_a_lost_device_is_opened_again(
    bundle: Path,
    picture: np.ndarray,
    wanted: list[dict[str, Any]],
    unplugged: Unplugged,
    turn: int,
    after: int,
) -> None:
    notes: list[str] = []
    with Qwen35.load(bundle, 2048, "emu:threads=1,quiet", note=notes.append) as model:
        talk = model.conversation()
        for index, text in enumerate(QUESTIONS):
            options: dict[str, Any] = {
                "images": [picture] if index == 1 else [],
                "max_new": 8,
                "sampling": GREEDY,
            }
            if index == turn:
                unplugged.after, unplugged.refuse = after, 0
                before = list(talk.messages)
                with pytest.raises(DeviceLost):
                    talk.ask(text, **options).result()
                assert talk.messages == before
                unplugged.refuse = 1  # it is still away when it is asked for again
                with pytest.raises(DeviceLost):
                    talk.ask(text, **options).result()
            talk.ask(text, **options).result()
        assert talk.messages == wanted
        assert unplugged.opens == 3 and notes == ["the device was lost; it is open again"]


@pytest.mark.parametrize("asked_again", [True, False])
def test_a_half_read_answer_outlives_the_device(
    bundle: Path, picture: np.ndarray, unplugged: Unplugged, asked_again: bool
) -> None:
    """Its state is host memory: it goes on with the model that is loaded anew."""

    def ask(model: Qwen35, index: int) -> Reply:
        images = [picture] if index else []
        return model.chat(QUESTIONS[index], max_new=12, sampling=GREEDY, images=images)

    with Qwen35.load(bundle, 2048, "emu:threads=1,quiet") as model:
        want = [ask(model, index).result().tokens for index in (0, 1, 2)]
        first, second = ask(model, 0), ask(model, 1)
        next(first.events()), next(second.events())
        logits = model.prefill([3, 50, 7]), model.decode(9)
        model.prefill([3, 50, 7])
        unplugged.after = 5
        with pytest.raises(DeviceLost):
            ask(model, 2).result()
        if asked_again:
            assert ask(model, 2).result().tokens == want[2]
        assert [first.result().tokens, second.result().tokens] == want[:2]
        assert np.array_equal(model.decode(9), logits[1]) and unplugged.opens == 2


def test_tools_go_on_after_a_lost_device(bundle: Path, unplugged: Unplugged) -> None:
    ids = [3, 50, 7, 200, 9]
    with Qwen35.load(bundle, 256, "emu:threads=1,quiet") as model:
        want = model.prefill(ids).copy(), model.decode(5).copy()
        uses: list[Callable[[], Any]] = [
            lambda: model.prefill(ids),
            lambda: model.decode(5),
            lambda: list(model.generate(ids, 4)),
        ]
        for use in uses:
            unplugged.after = 2
            with pytest.raises(DeviceLost):
                use()
            assert np.array_equal(model.prefill(ids), want[0])
            assert np.array_equal(model.decode(5), want[1])


def test_contexts_that_another_program_takes(
    bundle: Path, wanted: list[dict[str, Any]], picture: np.ndarray
) -> None:
    """Three contexts are wanted: with two left they take turns; with none the turn ends, and works later."""
    spec = "threads=1,quiet,slots=3"
    with (
        Qwen35.load(bundle, 2048, f"emu:{spec}") as model,
        Device.open(EmuNode(EmuOptions.parse(spec))) as program,
    ):
        talk, xclbin = model.conversation(), Xclbin.read(xclbin_bytes("copy"))

        def ask(text: str) -> Reply:
            images = [picture] if text == QUESTIONS[1] else []
            return talk.ask(text, images=images, max_new=8, sampling=GREEDY).result()

        assert ask(QUESTIONS[0]).stats.swaps == 0
        taken = [program.context(xclbin)]
        assert ask(QUESTIONS[1]).stats.swaps > 0
        before = list(talk.messages)
        model.device.pool.unload()  # as after a reset: the session's contexts are gone
        taken += [program.context(xclbin) for _ in range(2)]
        with pytest.raises(NoFreeContext) as caught:
            ask(QUESTIONS[2])
        assert "\n" not in explain(caught.value) and "this process holds 3" in explain(caught.value)
        assert talk.messages == before
        for context in taken:
            context.close()
        ask(QUESTIONS[2])
        assert talk.messages == wanted


@pytest.mark.parametrize("fault", ["hang", "fail"])
@pytest.mark.parametrize("command", [3, 60])
def test_a_command_that_fails_in_the_tower_or_the_model(
    bundle: Path, wanted: list[dict[str, Any]], picture: np.ndarray, fault: str, command: int
) -> None:
    with Qwen35.load(bundle, 2048, "emu:threads=1,quiet,tdr=0.3") as model:
        talk = model.conversation()
        talk.ask(QUESTIONS[0], max_new=8, sampling=GREEDY).result()
        question: dict[str, Any] = {"images": [picture], "max_new": 8, "sampling": GREEDY}
        before = list(talk.messages)
        model.device.node.driver.faults.next(fault, command)
        with pytest.raises(CommandFailed) as caught:
            talk.ask(QUESTIONS[1], **question).result()
        assert isinstance(caught.value, CommandTimeout) == (fault == "hang")
        assert talk.messages == before
        talk.ask(QUESTIONS[1], **question).result()
        talk.ask(QUESTIONS[2], max_new=8, sampling=GREEDY).result()
        assert talk.messages == wanted


def test_a_bad_picture_or_a_full_context_leaves_the_conversation_usable(
    bundle: Path, wanted: list[dict[str, Any]], picture: np.ndarray, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\nno more")
    with Qwen35.load(bundle, 400, "emu:threads=1,quiet") as model:
        talk = model.conversation()
        for index, text in enumerate(QUESTIONS):
            images = [picture] if index == 1 else []
            with pytest.raises(ImageError, match=r"bad\.png"):
                talk.ask(text, images=[*images, bad])
            with pytest.raises(PromptTooLong, match="the context holds 400"):
                talk.ask("word " * 500, images=images)
            talk.ask(text, images=images, max_new=8, sampling=GREEDY).result()
        assert talk.messages == wanted
