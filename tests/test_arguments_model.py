"""Every public call of qwen35 x wrong kinds of argument, and objects that are copied or read twice."""

from __future__ import annotations

import dataclasses
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qwen35
from amdxdna.errors import XdnaError
from qwen35 import GREEDY, AnswerOptions, Conversation, Qwen35, Sampling
from qwen35.errors import Closed, QwenError, TemplateError, UsageError
from tests.support.argument_values import COPIES, INTS, STRS, VALUES, all_but_are_uncopied, refuses
from tests.support.mock_model import fake
from tests.support.threads import in_threads

USER = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qwen35]:
    with fake(tmp_path_factory.mktemp("model"), lambda q: f"You said: {q}") as made:
        yield made


def load(**options: Any) -> None:
    Qwen35.load(**{"path": "/nonexistent", **options}).close()  # never opens a device


Call = Callable[[Qwen35, Any], Any]
NUMBERS = {"float", "nan", "infinity", *INTS}
ROWS: dict[str, tuple[Call, set[str]]] = {
    "Qwen35.load path": (lambda m, v: load(path=v, max_ctx=1 if v is not None else 0), {*STRS, "none"}),
    "Qwen35.load max_ctx": (lambda m, v: load(max_ctx=v), set()),
    "Qwen35.load cache_bytes": (lambda m, v: load(cache_bytes=v), INTS),
    "Qwen35.load progress": (lambda m, v: load(progress=v), {"none", "class"}),
    "Qwen35.load note": (lambda m, v: load(note=v), {"none", "class"}),
    "Qwen35.chat message": (lambda m, v: m.chat(v).result(), STRS),
    "Qwen35.chat system": (lambda m, v: m.chat("x", v).result(), {*STRS, "none"}),
    "Qwen35.chat max_new": (lambda m, v: m.chat("x", max_new=v), INTS),
    "Qwen35.chat images": (lambda m, v: m.chat("x", images=v), {"none", "empty"}),
    "Qwen35.chat stream": (lambda m, v: m.chat("x", stream=v), {"none", "class"}),
    "Qwen35.conversation system": (lambda m, v: m.conversation(v), {*STRS, "none"}),
    "Qwen35.conversation tools": (lambda m, v: m.conversation(tools=v).ask("x"), {"none", "empty"}),
    "Qwen35.reply messages": (lambda m, v: m.reply(v), set()),
    "Qwen35.reply max_new": (lambda m, v: m.reply(USER, max_new=v), INTS),
    "Qwen35.reply sampling": (lambda m, v: m.reply(USER, sampling=v), {"none"}),
    "Qwen35.reply stop": (lambda m, v: m.reply(USER, stop=v).result(), {*STRS, "empty"}),
    "Qwen35.reply tools": (lambda m, v: m.reply(USER, tools=v), {"none", "empty"}),
    "Qwen35.reply loops": (lambda m, v: m.reply(USER, loops=v), INTS),
    "Qwen35.reply begin": (lambda m, v: m.reply(USER, begin=v).result(), STRS),
    "Qwen35.reply cancel": (lambda m, v: m.reply(USER, cancel=v), {"none", "class"}),
    "Qwen35.reply progress": (lambda m, v: m.reply(USER, progress=v), {"none", "class"}),
    "Qwen35.reply done": (lambda m, v: m.reply(USER, done=v), {"none", "class"}),
    "Qwen35.reply options": (lambda m, v: m.reply(USER, v), {"none"}),
    "Qwen35.complete prompt": (lambda m, v: m.complete(v).result(), STRS),
    "Qwen35.generate ids": (lambda m, v: list(m.generate(v, 2)), set()),
    "Qwen35.generate max_new": (lambda m, v: m.generate([1], v), INTS),
    "Qwen35.generate sampling": (lambda m, v: m.generate([1], sampling=v), set()),
    "Qwen35.prefill ids": (lambda m, v: m.prefill(v), set()),
    "Qwen35.decode token": (lambda m, v: (m.prefill([1]), m.decode(v)), set()),
    "Qwen35.check_image image": (lambda m, v: m.check_image(v), set()),
    "Conversation.ask text": (lambda m, v: m.conversation().ask(v).result(), STRS),
    "Conversation.ask images": (lambda m, v: m.conversation().ask("x", images=v), {"none", "empty"}),
    "Conversation.answer_tools results": (lambda m, v: m.conversation().answer_tools(v), set()),
    "Conversation.save path": (lambda m, v: m.conversation().save(v), {"str", "digits"}),
    "Conversation.load path": (lambda m, v: m.conversation().load(v), STRS),
    "Conversation.system system": (lambda m, v: setattr(m.conversation(), "system", v), {*STRS, "none"}),
    **{
        f"Sampling {field.name}": (
            lambda m, v, name=field.name: Sampling(**{name: v}),
            {"none", *NUMBERS} if field.default is None else NUMBERS,
        )
        for field in dataclasses.fields(Sampling)
    },
}
VALUE_ERRORS = {"Qwen35.reply messages", "Qwen35.reply tools", "Qwen35.conversation tools"}
"""What is in them is the template's to judge, in its own words."""
FLAGS = {"thinking", "images", "keep", "draft", "allow_special", "options", "stop"}
ELSEWHERE = {"device", "chains", "weights", "wait", "steps", "json_schema"}
"""Held by the tests of what takes them."""


def test_every_parameter_has_a_row() -> None:
    missing = []
    for kind in (Qwen35, Conversation):
        for name, value in inspect.getmembers(kind):
            if name.startswith("_") or not callable(value):
                continue
            for parameter in inspect.signature(value).parameters:
                row = f"{kind.__name__}.{name} {parameter}"
                if parameter not in {"self", "changes", *FLAGS, *ELSEWHERE} and row not in ROWS:
                    missing.append(row)
    for field in dataclasses.fields(AnswerOptions):
        if field.name not in {*FLAGS, *ELSEWHERE} and f"Qwen35.reply {field.name}" not in ROWS:
            missing.append(f"AnswerOptions {field.name}")
    assert missing == []


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_argument(name: str, model: Qwen35, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, fitting = ROWS[name]
    monkeypatch.chdir(tmp_path)
    wrong = []
    for kind, value in VALUES.items():
        try:
            call(model, value)
        except (QwenError, XdnaError) as error:
            told = str(error)
            if (
                kind not in fitting
                and name not in VALUE_ERRORS
                and isinstance(error, UsageError)
                and name.split()[-1] not in told
            ):
                wrong.append(f"{kind}: does not name it: {told}")
            if "\n" in told or len(told) > 400:
                wrong.append(f"{kind}: {told}")
        except Exception as error:
            wrong.append(f"{kind}: {error!r}")
        else:
            if kind not in fitting:
                wrong.append(f"{kind}: taken")
    assert wrong == []
    assert str(model.chat("two")) == "You said: two"


def test_token_ids_that_are_none(model: Qwen35) -> None:
    """An id below 0 was a row from the embedding's end."""
    vocab = model.tokenizer.vocab_size
    for ids in ([-1], [vocab], [1, 2.0], [], "12", [None]):
        for use in (model.prefill, model.generate):
            with pytest.raises(UsageError, match="ids"):
                use(ids)  # type: ignore[operator]
    model.prefill(np.array([1, 2]))
    with pytest.raises(UsageError, match="token is -1"):
        model.decode(-1)
    assert model.decode(np.int64(3)) is not None  # type: ignore[arg-type]


HANDS: list[Callable[[Qwen35], Any]] = [
    lambda m: m,
    lambda m: m.conversation(),
    lambda m: m.chat("x"),
    lambda m: iter(m.chat("x").events()),
    lambda m: m.generate([1]),
]


@COPIES
def test_nothing_of_a_model_is_copied(copied: Callable[[Any], Any], model: Qwen35) -> None:
    for hand in HANDS:
        refuses(hand(model), copied)
    assert copied(GREEDY) is not None and copied(model.info) is not None


def test_what_holds_a_model_is_not_copied() -> None:
    all_but_are_uncopied(qwen35, {"AnswerOptions", "Info", "QwenError", "Sampling", "Stats"})


def test_one_iterator_in_several_threads(model: Qwen35) -> None:
    """Each piece comes to one of them; who comes while another draws is told so."""
    reply = model.chat("one two three four five six")
    pieces, got, errors = iter(reply), [], []
    lock, go = threading.Lock(), threading.Barrier(3)

    def read(number: int) -> None:
        go.wait(60)
        while True:
            try:
                piece = next(pieces)
            except StopIteration:
                return
            except Exception as error:
                errors.append(error)
            else:
                with lock:
                    got.append(piece)

    in_threads(3, read)
    assert "".join(sorted("".join(got))) == "".join(sorted("You said: one two three four five six"))
    assert all(isinstance(e, UsageError) and "one place at a time" in str(e) for e in errors), errors


def test_a_piece_that_is_drawn_elsewhere_is_told(model: Qwen35) -> None:
    inside, go = threading.Event(), threading.Event()

    def hold() -> bool:
        inside.set()
        return not go.wait(60)

    pieces = iter(model.reply(USER, cancel=hold))
    drawn: list[str] = []
    thread = threading.Thread(target=lambda: drawn.extend(pieces))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(UsageError, match="read an answer in one place at a time"):
        next(pieces)
    go.set()
    thread.join(60)
    assert "".join(drawn) == "You said: x"


def test_what_failed_fails_each_time(tmp_path: Path) -> None:
    """A part of an answer never passes for the whole."""
    model = fake(tmp_path, lambda q: f"You said: {q}")
    reply, ids = model.chat("one two three"), model.generate([1, 2, 3], 20)
    pieces = iter(reply)
    next(pieces), next(ids)
    model.close()
    for _ in range(2):
        for use in (
            lambda: next(pieces),
            lambda: str(reply),
            reply.result,
            lambda: list(reply.events()),
            lambda: "".join(reply),
            lambda: next(ids),
        ):
            with pytest.raises(Closed, match="closed"):
                use()
    assert reply.finish == "error" and "You said: one two three".startswith(reply.text)


def test_an_answer_of_the_parents_is_none_of_the_childs(model: Qwen35) -> None:
    reply = model.chat("one two three")
    next(iter(reply))
    child = os.fork()
    if child == 0:
        told = 0
        for _ in range(3):
            try:
                str(reply)
            except Closed:
                told += 1
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert str(reply) == "You said: one two three"


def test_a_with_block_of_a_closed_model(tmp_path: Path) -> None:
    model = fake(tmp_path, str)
    model.close()
    with pytest.raises(Closed), model:
        pytest.fail("entered")


def test_messages_are_the_templates_to_judge(model: Qwen35) -> None:
    with pytest.raises(TemplateError, match="messages must be a list"):
        model.reply(1.5)  # type: ignore[arg-type]
