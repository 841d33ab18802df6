"""qwen35.structured: whatever the logits, the answer is a JSON document that fits the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35.errors import ModelError, UsageError
from qwen35.sampling import GREEDY, Sampling
from qwen35.structured import JsonGrammars, read_schema
from qwen35.tokenizer import Tokenizer
from tests.support import synthetic
from tests.support.mock_model import HashModel, fake

pytestmark = pytest.mark.peer

CASES: list[tuple[Any, Callable[[Any], bool]]] = [
    (
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        },
        lambda v: set(v) == {"name", "age"} and len(v["name"]) <= 12 and 0 <= v["age"] <= 150,
    ),
    (
        {"type": "array", "items": {"enum": ["red", "grün"]}, "minItems": 2, "maxItems": 3},
        lambda v: 2 <= len(v) <= 3 and set(v) <= {"red", "grün"},
    ),
    ({"type": "boolean"}, lambda v: isinstance(v, bool)),
    (
        {
            "oneOf": [
                {"const": 7},
                {
                    "type": "object",
                    "properties": {"x": {"type": "null"}},
                    "required": ["x"],
                    "additionalProperties": False,
                },
            ]
        },
        lambda v: v in (7, {"x": None}),
    ),
]


def grammars(model: Any) -> JsonGrammars:
    """Constraints for the model's tokens."""
    return JsonGrammars(model.tokenizer, model.tokenizer.vocab_size, model.stop)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("llguidance")
    return fake(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("schema", "fits"), CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("seed", range(6))
def test_every_answer_fits(model: Any, schema: Any, fits: Callable[[Any], bool], seed: int) -> None:
    sampling = Sampling(temperature=0.7, presence_penalty=1, seed=seed)
    reply = model.chat(f"q{seed}", json_schema=schema, sampling=sampling, max_new=2000, loops=False).result()
    assert reply.finish == "stop" and fits(json.loads(reply.text)) and reply.note == "" and reply.complete


def test_without_a_schema_the_same_model_says_no_json(model: Any) -> None:
    with pytest.raises(ValueError, match="line 1"):
        json.loads(model.chat("q0", max_new=40).result().text)


def test_reasoning_is_free_and_the_answer_is_not(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    model = fake(tmp_path, lambda question: "let me see {[\n</think>\n\nno json at all")
    reply = model.chat("q", thinking=True, json_schema={"type": "boolean"}, max_new=200).result()
    assert reply.reasoning == "let me see {[" and json.loads(reply.text) in (True, False)


def test_an_answer_cut_short_says_so(model: Any) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 400}
    reply = model.chat("q", json_schema=schema, max_new=20).result()
    assert reply.finish == "length" and reply.note == "the JSON is not complete"


@pytest.mark.parametrize("beyond", [False, True])
def test_a_bundle_without_an_end_of_answer(model: Any, beyond: bool) -> None:
    vocab = model.tokenizer.vocab_size
    with pytest.raises(UsageError, match="param stop names no token"):
        JsonGrammars(model.tokenizer, vocab, [vocab] if beyond else [])


def test_a_tokenizer_without_an_end_of_reasoning(tmp_path: Path) -> None:
    """A schema alone will do; behind reasoning nobody could tell where it begins."""
    pytest.importorskip("llguidance")
    table = json.loads(synthetic.tokenizer_json())
    table["added_tokens"] = [one for one in table["added_tokens"] if one["content"] != "</think>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    words = Tokenizer(tmp_path / "tokenizer.json")
    made = JsonGrammars(words, words.vocab_size, [words.added["<|im_end|>"]])
    assert not made.constraint({"const": 1}).complete
    with pytest.raises(UsageError, match="the tokenizer has no </think>"):
        made.constraint({"const": 1}, thinking=True)


def test_logits_of_fewer_tokens_than_the_tokenizer_has(model: Any) -> None:
    """Those beyond are no part of the grammar; a stop token that is not among them ends nothing."""
    vocab = model.tokenizer.added["<|im_end|>"]
    constraint = JsonGrammars(model.tokenizer, vocab, [vocab - 1, vocab]).constraint({"const": 1})
    one = model.tokenizer.encode("1")[0]
    scores = np.zeros(vocab, np.float32)
    assert np.flatnonzero(np.isfinite(constraint.mask(scores))).tolist() == [one] and not scores.any()
    assert not (constraint.complete or constraint.closed)
    constraint.accept(one)
    assert constraint.complete and constraint.closed
    for _ in range(2):  # and nothing follows
        assert np.flatnonzero(np.isfinite(constraint.mask(scores))).tolist() == [vocab - 1]
        constraint.accept(vocab - 1)


def test_a_document_that_cannot_go_on_is_told(model: Any, capfd: pytest.CaptureFixture[str]) -> None:
    constraint = grammars(model).constraint({"const": 1}, thinking=True)
    scores = np.zeros(model.tokenizer.vocab_size, np.float32)
    wrong = model.tokenizer.encode("x")[0]
    constraint.accept(wrong)  # reasoning
    assert constraint.mask(scores) is scores and not constraint.complete
    constraint.accept(model.tokenizer.added["</think>"])
    assert np.isinf(constraint.mask(scores)[wrong])
    constraint.accept(wrong)
    with pytest.raises(ModelError, match=r"the document cannot go on: .*use a simpler schema"):
        constraint.mask(scores)
    assert not (constraint.complete or constraint.closed) and capfd.readouterr() == ("", "")


def nested(depth: int, shell: Callable[[Any], Any]) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = shell(schema)
    return schema


LINK = {"$ref": "#"}
UNUSABLE: list[tuple[Any, str]] = [
    ({"type": "strin"}, r"cannot be used: .*strin"),
    (False, "no document fits"),
    (None, "a schema is"),
    (3, "a schema is"),
    ([], "a schema is"),
    ("{}", "a schema is"),
    ({"const": float("nan")}, "not JSON"),
    ({"type": "number", "maximum": float("inf")}, "not JSON"),
    ({"const": b"bytes"}, "not JSON"),
    ({"const": 10**400}, "cannot be used: number out of range"),
    ({"type": "array", "items": {"type": "null"}, "minItems": 10**400}, "cannot be used"),
    ({"const": "\ud800"}, "surrogate"),
    ({"type": "object", "properties": {"\udfff": {}}}, "surrogate"),
    (LINK, "refers to itself"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "itself"),
    ({"type": "object", "properties": {"a": LINK}, "required": ["a"]}, "refers to itself"),
    ({"type": "array", "items": LINK, "minItems": 1}, "refers to itself"),
    ({"anyOf": [LINK, {"allOf": [{"type": "null"}, LINK]}]}, "refers to itself"),
    ({"$ref": "http://example.org/schema"}, "cannot be used"),
    ({"enum": []}, "cannot be used"),
    ({"type": "string", "pattern": "("}, "cannot be used"),
    *(
        (nested(depth, lambda below: {"type": "array", "items": below}), "cannot be used|too deeply|has more")
        for depth in (200, 900, 5000)
    ),
    (nested(900, lambda b: {"type": "object", "properties": {"a": b}}), "cannot be used|too deeply|has more"),
    (nested(900, lambda b: {"anyOf": [b, {"type": "null"}]}), "cannot be used|too deeply"),
]


LARGE = [
    ({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(5000)}}, "2,500 keywords"),
    ({"anyOf": [{"const": i} for i in range(2600)]}, "2,500 keywords"),
    ({"const": "x" * 10**7}, "131,072 bytes"),
    ({"enum": ["\N{PENGUIN}" * 100] * 1000}, "131,072 bytes"),
]
"""Each of these took the library seconds, or what there was of memory."""


@pytest.mark.parametrize(("schema", "message"), LARGE, ids=range(len(LARGE)))
def test_large_schemas_do_not_reach_the_library(
    model: Any, schema: Any, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=message):
        model.chat("q", json_schema=schema)
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    with pytest.raises(UsageError, match=message):
        read_schema(file)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("schema", "message"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_schemas_that_cannot_be_used(model: Any, schema: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        if schema is None:
            grammars(model).constraint(None)
        else:
            model.chat("q", json_schema=schema)
    assert len(str(caught.value)) < 500
    assert str(model.chat("q", json_schema={"const": 1}, max_new=9)) == "1"


def test_references_that_end(model: Any) -> None:
    schema = {"type": "object", "properties": {"a": LINK, "b": {"type": "boolean"}}, "required": ["b"]}
    for seed in range(6):
        sampling = Sampling(temperature=1, presence_penalty=1, seed=seed)
        reply = model.chat("q", json_schema=schema, sampling=sampling, max_new=3000, loops=False).result()
        assert not reply.complete or isinstance(json.loads(reply.text)["b"], bool)
        if reply.complete:
            return
    raise AssertionError("no answer came to its end")


def test_schema_files(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    with pytest.raises(UsageError, match="No such file"):
        read_schema(file)
    for text, message in [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON: arrays and objects lie too deep"),
        ("[]", "a schema is"),
        ("3", "a schema is"),
        ('{"const": NaN}', "NaN is no JSON"),
        ('{"const": -Infinity}', "no JSON"),
        ("false", "no document"),
        ('{"const": "\\ud800"}', "surrogate"),
        ('{"const": 1e999}', "not JSON"),
        ("null", "a schema is"),
        ('{"const": ' + "9" * 5000 + "}", "not JSON: a number has too many digits"),
        ('{"$ref": "#"}', "refers to itself"),
        ("", "not JSON"),
    ]:
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_schema(file)
    whole = '{"type": "null"}'
    file.write_text(whole + " " * ((16 << 20) - len(whole)))
    assert read_schema(file) == {"type": "null"}
    file.write_text(whole + " " * ((16 << 20) - len(whole) + 1))
    with pytest.raises(UsageError, match="cannot read the schema"):
        read_schema(file)
    file.write_text("true")
    assert read_schema(file) is True


def test_the_schema_true_fits_any_document(model: Any) -> None:
    seen = set()
    for seed in range(12):
        sampling = Sampling(temperature=2, seed=seed)
        reply = model.chat("q", json_schema=True, sampling=sampling, max_new=400, loops=False).result()
        if reply.complete:
            seen.add(type(json.loads(reply.text)))
    assert len(seen) >= 2


class Stubborn(HashModel):
    """Likes one token best, and the rest the less the higher their number."""

    def __init__(self, vocab: int, best: int) -> None:
        super().__init__(vocab)
        self.best = best

    def logits(self) -> np.ndarray:
        out = -np.arange(self.vocab, dtype=np.float32)
        out[self.best] = 10
        return out


@pytest.mark.parametrize("character", [" ", "\n", "\t", "\r"])
def test_white_space_has_an_end(tmp_path: Path, character: str) -> None:
    """Whatever a model likes best, a document of bounded parts ends."""
    pytest.importorskip("llguidance")
    model = fake(tmp_path)
    model.model = model.session.model = Stubborn(
        model.tokenizer.vocab_size, model.tokenizer.encode(character)[0]
    )
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["a", "b"]}, "n": {"type": "null"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }
    reply = model.chat("q", json_schema=schema, sampling=GREEDY, max_new=400).result()
    assert reply.finish == "stop" and reply.complete and not reply.note
    assert json.loads(reply.text) == {"name": "a", "n": None}


def test_usual_ways_to_write_a_document_are_allowed(model: Any) -> None:
    document = {"a": [1, 2, {"b": []}], "c": {"d": {"e": [["x"]]}}, "f": None}
    grammar = grammars(model)
    for layout in ({}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}, {"separators": (",", ":")}):
        text = json.dumps(document, **layout)
        constraint = grammar.constraint({"type": "object"})
        for token in model.tokenizer.encode(text):
            scores = constraint.mask(np.zeros(model.tokenizer.vocab_size, np.float32))
            assert scores[token] == 0, (layout, text)
            constraint.accept(token)
        assert constraint.complete and constraint.closed


@pytest.mark.parametrize("how", ["length", "loop", "stop-string", "cancel", "context"])
def test_a_document_that_was_cut_is_told(tmp_path: Path, how: str) -> None:
    pytest.importorskip("llguidance")
    model = fake(tmp_path, max_ctx=300 if how == "context" else 4096)
    model.model = model.session.model = Stubborn(model.tokenizer.vocab_size, model.tokenizer.encode("a")[0])
    model.model.max_ctx = 300 if how == "context" else 4096
    drawn: list[int] = []
    options: dict[str, Any] = {
        "length": {"max_new": 30},
        "loop": {"max_new": 3000},
        "stop-string": {"stop": ["aaa"]},
        "cancel": {"cancel": lambda: drawn.append(1) or len(drawn) > 9},
        "context": {"max_new": 3000},
    }[how]
    reply = model.chat("q", json_schema={"type": "string"}, sampling=GREEDY, **options).result()
    assert reply.finish == how and not reply.complete and reply.note.endswith("the JSON is not complete")
    assert ("repeats" in reply.note) == (how == "loop")


def test_a_whole_document_is_complete_however_it_ended(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    model = fake(tmp_path)
    model.model = model.session.model = Stubborn(model.tokenizer.vocab_size, 0)
    ask = {"json_schema": {"const": {"a": 1}}, "sampling": GREEDY}
    whole = model.chat("q", **ask).result()
    tokens = len(whole.tokens)
    assert whole.finish == "stop" and whole.complete
    cut = model.chat("q", max_new=tokens, **ask).result()
    assert cut.finish == "length" and cut.complete and json.loads(cut.text) == {"a": 1}
    stopped = model.chat("q", stop=["}"], **ask).result()
    assert stopped.finish == "stop-string" and not stopped.complete
    # A number that was cut may be another number.
    cut = model.chat("q", max_new=1, json_schema={"type": "integer"}, sampling=GREEDY).result()
    assert cut.finish == "length" and not cut.complete
    assert model.chat("q", max_new=1).result().complete


def test_on_the_command_line_over_the_real_path(tmp_path: Path) -> None:
    """A seeded model says nothing sensible; what it says is JSON that fits all the same."""
    pytest.importorskip("llguidance")
    from tests.support.models import export
    from tests.support.program import python

    schema, fits = CASES[0]
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    bundle = export(tmp_path, "tied")
    words = [bundle, "--prompt", "Who?", "--json-schema", tmp_path / "schema.json", "--max-new", "400"]
    for seed in range(3):
        done = python("-m", "qwen35", *words, "--seed", seed, "--device", "emu:threads=1,quiet")
        whole = "error: the JSON is not complete" not in done.stderr
        assert done.returncode == (0 if whole else 1), done.stderr
        if whole:
            assert fits(json.loads(done.stdout))
            return
    raise AssertionError("no answer came to its end")
