"""How answers are taken from a model and compared, with a model that spells."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from qwen35.train.cases import Case, same  # noqa: E402
from qwen35.train.corpus import Sample, Turn, prompt  # noqa: E402
from qwen35.train.evaluate import Answer, Reference, batches, compare  # noqa: E402

pytestmark = pytest.mark.peer

END, IMAGE = 2, 3
MARGIN = 2.0


class Letters:
    """A tokenizer of one token a letter."""

    def encode(self, text: str) -> Any:
        marks = {"<|im_end|>": chr(END), "<|image_pad|>": chr(IMAGE)}
        for name, letter in marks.items():
            text = text.replace(name, letter)
        return SimpleNamespace(ids=[ord(letter) for letter in text])

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(map(chr, ids))


class Speller:
    """Says abc, whatever it is asked: the first choice of a token's successor is 2 above the second."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, input_ids: Any, **more: Any) -> Any:
        self.asked.append(tuple(input_ids.shape))
        following = input_ids + 1
        following[input_ids == ord("\n")] = ord("a")
        following[input_ids == ord("c")] = END
        logits = torch.zeros(*input_ids.shape, 200)
        logits[..., 150] = 1.0
        return SimpleNamespace(logits=logits.scatter_(2, following[..., None], 1.0 + MARGIN))

    def generate(self, input_ids: Any, attention_mask: Any, max_new_tokens: int, **more: Any) -> Any:
        assert attention_mask.all() and not more["do_sample"] and max_new_tokens == 64
        found = []
        for _ in range(6):
            found.append(self(input_ids).logits[:, -1])
            input_ids = torch.cat((input_ids, found[-1].argmax(-1, keepdim=True)), 1)
        return SimpleNamespace(logits=found, sequences=input_ids)


@pytest.fixture
def reference() -> Any:
    made: Any = Reference.__new__(Reference)
    made.tokenizer, made.model, made.stop, made.image = Letters(), Speller(), frozenset([END]), IMAGE
    return made


def _case(answer: str, question: str = "?", **more: Any) -> Case:
    return Case(
        "talk", Sample((Turn(question, answer),), images=len(more.get("images", ()))), same(answer), **more
    )


def test_answers_are_greedy_whether_they_were_wanted_or_not(reference: Any) -> None:
    """What is wanted and likeliest all along is not generated."""
    said = Answer([ord("a"), ord("b"), ord("c")], [MARGIN] * 4)
    for wanted, generated in (("abc", 0), ("abd", 6), ("abcd", 6)):
        reference.model.asked.clear()
        assert reference.answers([_case(wanted)]) == [said]
        assert len(reference.model.asked) == 1 + generated
    reference.model.asked.clear()
    assert reference.answers([_case("b"), _case("abc"), _case("xyzxyz")]) == [said] * 3
    length = len(reference.prompt_ids(_case("")))
    assert reference.model.asked[0] == (3, length + 7) and reference.model.asked[1] == (2, length)


def test_an_answer_is_judged_without_its_thought_unless_that_is_asked_for(reference: Any) -> None:
    ids = [ord(letter) for letter in "hm\n</think>\n\n abc "]
    assert reference.text(_case("abc"), ids) == "abc"
    assert reference.text(_case("abc", whole=True), ids) == "hm\n</think>\n\n abc "
    assert reference.text(_case("abc"), ids[-4:]) == "abc"


def test_cases_of_one_length_and_size_run_together(reference: Any) -> None:
    """A picture's tokens are its cells of 16 by 16 pixels."""
    small, wide = (np.zeros((32, width, 3), np.uint8) for width in (32, 64))
    cases = [_case("a", "?" * (1 + n % 2)) for n in range(5)]
    cases += [_case("a", images=(small,)), _case("a", images=(wide,)), _case("b", images=(small,))]
    assert batches(reference, cases, 2) == [[0, 2], [4], [1, 3], [5, 7], [6]]
    assert reference.prompt_ids(cases[6]).count(IMAGE) == 8
    wanted = prompt(Sample((Turn("?", "a"),), images=1), [4])[0]
    assert reference.prompt_ids(cases[5]) == Letters().encode(wanted).ids


def test_two_runs_are_compared_where_they_part() -> None:
    cases = [_case("abc", question) for question in ("one", "two", "three", "four")]
    wanted = [Answer([1, 2, 3], [0.1, 0.2, 0.3, 0.4])] * 4
    assert compare(cases, wanted, [[1, 2, 3], [1, 5, 3], [1, 2], [1, 2, 3, 4]]) == {
        "answers": 4,
        "same": 1,
        "parted": [
            {"question": "two", "token": 1, "margin": 0.2},
            {"question": "three", "token": 2, "margin": 0.3},
            {"question": "four", "token": 3, "margin": 0.4},
        ],
    }
