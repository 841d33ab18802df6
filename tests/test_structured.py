"""qwen35.structured: whatever the logits, the answer is a JSON document that fits the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwen35.errors import UsageError
from qwen35.sampling import Sampling
from qwen35.structured import JsonGrammars, read_schema
from tests.mock_model import fake

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
        {"oneOf": [{"const": 7}, {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"],
                                  "additionalProperties": False}]},
        lambda v: v in (7, {"x": None}),
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("llguidance")
    return fake(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("schema", "fits"), CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("seed", range(6))
def test_every_answer_fits(model: Any, schema: Any, fits: Callable[[Any], bool], seed: int) -> None:
    sampling = Sampling(temperature=0.7, presence_penalty=1, seed=seed)
    reply = model.chat(f"q{seed}", json_schema=schema, sampling=sampling, max_new=2000, loops=False).result()
    assert reply.finish == "stop" and fits(json.loads(reply.text)) and reply.note == ""


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


def test_schemas_that_cannot_be_used(model: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be used: .*strin"):
        model.chat("q", json_schema={"type": "strin"})
    file = tmp_path / "schema.json"
    with pytest.raises(UsageError, match="No such file"):
        read_schema(file)
    for text, message in [("{", "not JSON"), ("[" * 100_000, "not JSON"), ("[]", "JSON object")]:
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_schema(file)
    file.write_text('{"type": "null"}')
    assert read_schema(file) == {"type": "null"}


def test_on_the_command_line_over_the_real_path(tmp_path: Path) -> None:
    """A seeded model says nothing sensible; what it says is JSON that fits all the same."""
    pytest.importorskip("llguidance")
    import subprocess
    import sys

    from tests.test_api import export
    from tests.test_cli import ENV, ROOT

    schema, fits = CASES[0]
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    bundle = export(tmp_path, "tied")
    for seed in range(3):
        done = subprocess.run(
            [sys.executable, "-m", "qwen35", str(bundle), "--prompt", "Who?", "--json-schema",
             str(tmp_path / "schema.json"), "--seed", str(seed), "--max-new", "400", "--device",
             "emu:threads=1,quiet"],
            capture_output=True, cwd=ROOT, env=ENV, timeout=120,
        )
        assert done.returncode == 0, done.stderr
        if b"the JSON is not complete" not in done.stderr:
            assert fits(json.loads(done.stdout))
            return
    raise AssertionError("no answer came to its end")
