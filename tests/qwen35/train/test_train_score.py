"""The score: the independent drawings, the hand-written phrasings' file, judges and the table."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from qwen35.train import cases, datafile, sdf
from qwen35.train.cases import MARKS, drawings, hand_written, says, unseen
from qwen35.train.corpus import Corpus
from qwen35.train.datafile import DataError
from qwen35.train.evaluate import before, score, table
from qwen35.train.scenes import CELL, MAX_PIXELS, MIN_PIXELS
from qwen35.train.wordnet import WordNet
from tests.support import tiny_wordnet

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(WordNet(tiny_wordnet.make(tmp_path_factory.mktemp("dict"))))


def test_the_drawings_share_no_code_with_the_training() -> None:
    tree = ast.parse(Path(sdf.__file__).read_text())
    names = [n.module or "." for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    assert set(names) <= {
        "__future__",
        "io",
        "collections.abc",
        "dataclasses",
        "numpy",
        "numpy.typing",
        "PIL",
    }


def test_there_are_enough_drawings_of_every_group() -> None:
    assert sum(count for _, count in sdf.GROUPS) >= 600
    found = list(sdf.tests(7, 0.02))
    assert {drawn.mark for drawn in found} == {m.name for m in MARKS if m.name.startswith("drawings: ")}
    again = list(sdf.tests(7, 0.02))
    assert [d.question for d in found] == [d.question for d in again]
    assert all(
        np.array_equal(a, b)
        for d, e in zip(found, again, strict=True)
        for a, b in zip(d.pictures, e.pictures, strict=True)
    )
    assert [d.says for d in sdf.tests(8, 0.02)] != [d.says for d in found]


def test_questions_about_pictures_are_right_when_answered_as_taught() -> None:
    found = cases.looks(6, 3)
    again = cases.looks(6, 3)
    assert [case.sample.turns[0].question for case in found] == [c.sample.turns[0].question for c in again]
    count = Counter(case.mark for case in found)
    assert set(count) <= {mark.name for mark in MARKS} and set(count.values()) >= {6}
    for case in found:
        *_, turn = case.sample.turns
        assert case.right(turn.answer) and not case.right("no such thing"), turn
        assert case.images and all(image.dtype == np.uint8 and image.ndim == 3 for image in case.images)


@pytest.mark.parametrize("form", sdf.FORMS)
def test_a_drawn_form_covers_its_area_and_its_outline_less(form: str) -> None:
    area = {}
    for line in (0.0, 6.0):
        image = np.full((200, 200, 3), 255.0)
        sdf.stamp(image, form, np.zeros(3), (100.0, 100.0), 60.0, 0.0, line)
        area[line] = (255 - image[..., 0]).sum() / 255 / 60**2
    shares = {"circle": 3.14, "square": 2.89, "triangle": 1.43, "star": 1.23, "cross": 2.04, "heart": 2.75}
    assert area[0.0] == pytest.approx(shares[form], rel=0.06)
    assert 0.1 < area[6.0] < 0.55 * area[0.0]


def test_drawings_come_as_the_processor_gives_them_and_a_right_answer_is_judged_right() -> None:
    for case in drawings(3, 0.03):
        for image in case.images:
            height, width = image.shape[:2]
            assert height % CELL == width % CELL == 0
            assert MIN_PIXELS <= height * width <= MAX_PIXELS
        answer = case.sample.turns[0].answer
        assert case.right(answer), answer
        assert not case.right("There is a teapot."), answer


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("The first picture shows a red star. The second picture shows a blue heart.", True),
        ("The first picture shows a blue heart. The second picture shows a red star.", False),
        ("The second picture shows a blue heart.", False),
        ("A red star. A blue heart. A red star.", False),
    ],
)
def test_two_pictures_are_judged_in_order(answer: str, right: bool) -> None:
    assert says((("red star",), ("blue heart",)))(answer) is right


def test_hand_written_phrasings_are_asked_of_taught_words(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sections(name: str) -> list[datafile.Section]:
        return datafile.sections(name, tmp_path)

    monkeypatch.setattr(cases, "sections", sections)
    file = tmp_path / "unseen.txt"
    file.write_text("# none yet\n")
    assert unseen() == ((), ())
    assert hand_written(corpus, 1) == []
    file.write_text("[words]\nThat {w} there?\n{aw}, is it?\n[pictures]\nHuh?\n")
    made = hand_written(corpus, 1, each=4)
    asked = [case.sample.turns[0].question for case in made if case.mark == "hand-written phrasings"]
    assert len(asked) == 8 and len(set(asked)) == 8
    assert all(case.right(case.sample.turns[0].answer) for case in made)
    assert [c.sample.turns[0].question for c in made if c.images] == ["Huh?"]
    for text, said in (
        ("[words]\nWhat?\n", r"unseen\.txt:2: no \{w\}"),
        ("[talk]\nx\n", r"unseen\.txt:1: \[talk\] is neither"),
        ("[words]\n{w}!\n{w}!\n", "twice"),
        ("[words]\n{x}!\n", r"unseen\.txt:2: "),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=said):
            unseen()


def test_the_shipped_file_of_hand_written_phrasings_is_read() -> None:
    assert unseen()[0] == () or len(unseen()[0]) >= 20


def test_the_table_tells_what_was_and_what_fell(tmp_path: Path) -> None:
    old = tmp_path / "score.txt"
    old.write_text(
        table({"count": (95, 100), "position": (100, 100), "talk": (1, 1)})
        + "\n\nThe bundle\n"
        + table({"count": (1, 2)})
    )
    was = before(old)
    assert was == {"count": 0.95, "position": 1.0, "talk": 1.0}
    found = {"count": (94, 100), "position": (98, 100), "drawings: dark": (1, 2), "drawings: light": (2, 2)}
    lines = {line[:32].strip(): line for line in table(found, was).splitlines()}
    assert "was  95.0% " in lines["count"] and "WORSE" not in lines["count"]
    assert "was 100.0% WORSE" in lines["position"]
    assert "new" in lines["drawings: dark"] and "MISSED" in lines["drawings: dark"]
    assert lines["drawings"].split()[1:3] == ["75.0%", "3/4"]
    assert "not scored; was 100.0%" in lines["talk"]
    assert before(tmp_path / "none.txt") == {}


def test_score_counts_by_mark() -> None:
    some = drawings(3, 0.02)[:3]
    texts = [some[0].sample.turns[0].answer, "no", "no"]
    assert sum(right for right, _ in score(some, texts).values()) == 1
    assert sum(asked for _, asked in score(some, texts).values()) == 3
