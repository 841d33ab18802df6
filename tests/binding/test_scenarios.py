"""What a peer does with a model, eleven ways: the same tokens with the states kept and with none kept.

Passes are of 2,048 tokens here, as the published bundles have them, so that a prompt of 2,600 takes two.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35 import GREEDY, Qwen35, Sampling
from qwen35.conversation import Conversation
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.exporter import export_checkpoint
from qwen35.export.plan import Options
from qwen35.find import DEFAULT_BUNDLE
from tests.support.synthetic import SHAPES, VisionShape, smaller, write_checkpoint

MODELS = {
    **{name: (SHAPES[name], "bfp16") for name in ("tied", "grouped", "untied", "vision")},
    "bfp6s": (smaller(SHAPES["untied"], layers=4, tied=True, vision=VisionShape()), "bfp6s"),
}
MODELS_KEPT = [*MODELS, "built-in"]
SYSTEM = "You are a small model that answers in few words."
QUESTIONS = ("What is a penguin?", "And where does it live?", "What does it eat?", "Can it fly?")

Answer = tuple[list[int], str, str, str]


class Peer:
    """One loaded model; `ask` answers a turn and notes what was said and how many tokens were computed."""

    def __init__(self, model: Qwen35) -> None:
        self.model = model
        self.said: list[Answer] = []
        self.computed: list[int] = []

    def talk(self, system: str | None = SYSTEM) -> Conversation:
        return self.model.conversation(system)

    def ask(self, talk: Conversation, text: str, **options: Any) -> None:
        reply = talk.ask(text, **{"max_new": 8, "sampling": GREEDY, "loops": False, **options}).result()
        self.said.append((reply.tokens, reply.text, reply.reasoning, reply.finish))
        self.computed.append(reply.stats.prompt_tokens - reply.stats.cached_tokens)

    def long(self, tokens: int) -> str:
        """A text that makes a prompt of `tokens` tokens or a few more."""
        unit, text = "The sea is cold and blue. ", ""
        size = len(self.model.tokenizer.encode(unit * 100)) / 100
        for repeats in count(int(tokens / size)):
            text = unit * repeats
            if len(self.model.tokenizer.encode(text)) >= tokens:
                return text
        raise AssertionError


def picture(seed: int, rows: int = 48, columns: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), np.uint8)


def thinking_off(peer: Peer) -> None:
    peer.ask(peer.talk(), QUESTIONS[0])


def thinking_on(peer: Peer) -> None:
    peer.ask(peer.talk(), QUESTIONS[0], thinking=True)


def the_same_request_again(peer: Peer) -> None:
    for _ in range(3):
        peer.ask(peer.talk(), QUESTIONS[1])


def four_turns_growing(peer: Peer) -> None:
    talk = peer.talk()
    for text in QUESTIONS:
        peer.ask(talk, text)


def thinking_in_some_turns(peer: Peer) -> None:
    talk = peer.talk(None)
    for index, text in enumerate(QUESTIONS):
        peer.ask(talk, text, thinking=index % 2 == 0)


def a_prompt_of_two_passes(peer: Peer) -> None:
    peer.ask(peer.talk(None), peer.long(2600))


def turns_after_a_prompt_of_two_passes(peer: Peer) -> None:
    talk = peer.talk()
    peer.ask(talk, peer.long(2600))
    peer.ask(talk, QUESTIONS[2])
    peer.ask(talk, peer.long(500), thinking=True)
    peer.ask(talk, QUESTIONS[3])


def an_image_and_its_repeat(peer: Peer) -> None:
    for seed in (1, 1, 2):
        talk = peer.talk()
        peer.ask(talk, "What is in the picture?", images=[picture(seed)])
        peer.ask(talk, "And its colour?")


def images_among_long_turns(peer: Peer) -> None:
    talk = peer.talk()
    peer.ask(talk, "Two of them?", images=[picture(3), picture(4, 40, 24)])
    peer.ask(talk, peer.long(1990))
    peer.ask(talk, "And this?", images=[picture(5)], thinking=True)
    talk.undo()
    peer.ask(talk, "And that?", images=[picture(3)])


def a_cancel_then_a_normal_request(peer: Peer) -> None:
    talk = peer.talk()
    peer.ask(talk, QUESTIONS[0])
    stopped = talk.ask(peer.long(2600), max_new=8, sampling=GREEDY, cancel=lambda: True).result()
    peer.said.append((stopped.tokens, "", "", stopped.finish))
    peer.ask(talk, QUESTIONS[1])
    cut = talk.ask(QUESTIONS[2], max_new=8, sampling=GREEDY, loops=False)
    next(cut.events(), None)
    cut.close()
    peer.ask(talk, QUESTIONS[3])


def talks_that_branch(peer: Peer) -> None:
    one, two = peer.talk(), peer.talk()
    for talk in (one, two):
        peer.ask(talk, QUESTIONS[0])
    peer.ask(one, QUESTIONS[1])
    peer.ask(two, QUESTIONS[2], sampling=Sampling(temperature=0.8, top_k=10, presence_penalty=1, seed=3))
    one.undo()
    peer.ask(one, QUESTIONS[3])
    peer.ask(two, QUESTIONS[3], stop=["e"])
    one.clear()
    peer.ask(one, QUESTIONS[0])


PICTURED = (an_image_and_its_repeat, images_among_long_turns)
SCENARIOS: tuple[Callable[[Peer], None], ...] = (
    thinking_off,
    thinking_on,
    the_same_request_again,
    four_turns_growing,
    thinking_in_some_turns,
    a_prompt_of_two_passes,
    turns_after_a_prompt_of_two_passes,
    an_image_and_its_repeat,
    images_among_long_turns,
    a_cancel_then_a_normal_request,
    talks_that_branch,
)


@pytest.fixture(scope="module", params=MODELS_KEPT)
def peers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model with the states kept, and with none kept; whether it takes pictures."""
    if request.param == "built-in":
        if not (DEFAULT_BUNDLE / "manifest.txt").is_file():
            pytest.skip("this tree has no built-in bundle")
        path: Path = DEFAULT_BUNDLE
    else:
        shape, weights = MODELS[request.param]
        folder = tmp_path_factory.mktemp(request.param)
        write_checkpoint(folder / "hf", shape, 4)
        options = Options(gemv_format=weights, vision_chunk=64)
        path = export_checkpoint(Checkpoint(folder / "hf"), folder / "bundle", options, quiet=True)
    device = "emu:threads=1,quiet"
    with Qwen35.load(path, 8192, device) as kept, Qwen35.load(path, 8192, device, cache_bytes=0) as bare:
        yield kept, bare


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_kept_states_change_nothing(peers: tuple[Qwen35, Qwen35], scenario: Callable[[Peer], None]) -> None:
    if scenario in PICTURED and peers[0].vision is None:
        for model in peers:
            with pytest.raises(Exception, match="no vision tower"):
                scenario(Peer(model))
        return
    with_states, without = Peer(peers[0]), Peer(peers[1])
    scenario(with_states)
    scenario(without)
    assert with_states.said == without.said
    assert all(tokens for tokens, _, _, finish in without.said if finish != "cancel")
    if len(with_states.computed) > 1:
        assert sum(with_states.computed) < sum(without.computed)


def test_the_fourth_turn_computes_its_own_tokens_only(peers: tuple[Qwen35, Qwen35]) -> None:
    """Turn 4 of a conversation with a long first turn: its question and the answer before, no more."""
    counts = []
    for model in peers:
        peer = Peer(model)
        talk = peer.talk()
        peer.ask(talk, peer.long(2600))
        for text in QUESTIONS[1:]:
            peer.ask(talk, text)
        counts.append(peer.computed)
    assert counts[1][3] > 2600 and counts[0][3] < 80
