"""qwen35.serve's parts without a server: the line, its counts, fields that are refused, errors' forms."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qwen35 import Qwen35
from qwen35.stats import Stats
from tests.support.mock_model import fake

for _name in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(_name)

from qwen35.serve import queue as queue_module  # noqa: E402
from qwen35.serve.answering import Limits  # noqa: E402
from qwen35.serve.errors import ApiError  # noqa: E402
from qwen35.serve.fields import Fields  # noqa: E402
from qwen35.serve.metrics import Metrics  # noqa: E402
from qwen35.serve.options import (  # noqa: E402
    Options,
    Served,
    Tools,
    read_effort,
    read_format,
    read_options,
    read_tools,
)
from qwen35.serve.queue import FairQueue  # noqa: E402
from qwen35.serve.store import Store, Stored  # noqa: E402


@pytest.fixture
def model(tmp_path: Path) -> Qwen35:
    return fake(tmp_path, lambda q: q)


@pytest.mark.parametrize("kind", [Options, Served, Stored, Tools])
def test_what_is_never_changed(kind: type) -> None:
    with pytest.raises(FrozenInstanceError):
        kind.__new__(kind).draft = True


def test_bounds_that_no_option_sets() -> None:
    limits = Limits(1, 2, 3, 4)
    assert (limits.reading, limits.stored) == (60, 64 << 20)
    assert Store(1).most == 4096 and FairQueue(1).most_bytes == 1 << 62


HARMLESS: dict[str, list[Any]] = {
    "n": [1], "best_of": [1], "logit_bias": [{}], "functions": [[]], "function_call": ["none"],
    "modalities": [["text"]], "suffix": [""], "echo": [False], "min_tokens": [0], "ignore_eos": [False],
    "use_beam_search": [False], "length_penalty": [1, 1.0], "stop_token_ids": [[]], "bad_words": [[]],
    "grammar": [""], "mirostat": [0], "typical_p": [1, 1.0], "xtc_probability": [0, 0.0],
    "dry_multiplier": [0, 0.0], "tfs_z": [1, 1.0], "top_a": [0, 0.0], "n_probs": [0],
    "logits_processors": [[]], "audio": [], "web_search_options": [], "guided_json": [], "guided_regex": [],
    "guided_choice": [], "guided_grammar": [], "structured_outputs": [], "json_schema": [],
    "truncate_prompt_tokens": [],
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_fields_that_would_change_the_answer(name: str, model: Qwen35) -> None:
    """Values that would not are taken, as others' clients send them; of the same kind and no other."""
    served = Served(model, ("mock",))
    for value in [None, *HARMLESS[name]]:
        read_options(Fields({name: value}), served, lengths=())
    for value in (2, 1.5, True, "x", ["x"], {"x": 1}):
        with pytest.raises(ApiError, match=f"{name} is not supported") as caught:
            read_options(Fields({name: value}), served, lengths=())
        assert (caught.value.status, caught.value.code) == (400, "unsupported_parameter")


def test_what_a_request_leaves_to_the_server(model: Qwen35) -> None:
    plain, own = Served(model, ("mock",)), Served(model, ("mock",), thinking=True, draft=True)
    assert (plain.max_images, plain.max_new, plain.thinking, plain.draft) == (16, 0, False, False)
    for served, want in ((plain, False), (own, True)):
        made = read_options(Fields({}), served, lengths=())
        assert (made.answer.draft, made.stream, made.include_usage) == (want, False, False)
        assert set(made.sampling.values()) == {None} and made.answer.stop == ()
        assert read_effort(Fields({}), served) is want
        assert read_options(Fields({"draft": not want}), served, lengths=()).answer.draft is not want
    for effort, reasons in (("none", False), ("minimal", False), ("low", True), ("max", True)):
        assert read_effort(Fields({"reasoning_effort": effort}), plain) is reasons
        for switch in (False, True):
            kwargs = {"enable_thinking": switch}
            body = Fields({"reasoning_effort": effort, "chat_template_kwargs": kwargs})
            assert read_effort(body, own) is switch
    body = Fields({"chat_template_kwargs": {"other": 1}, "stream_options": {"include_usage": True}})
    assert read_effort(body, own) and read_options(body, own, lengths=()).include_usage
    for name in ("repeat_penalty", "repetition_penalty"):  # llama.cpp's, and vLLM's
        assert read_options(Fields({name: 1.5}), own, lengths=()).sampling["repetition_penalty"] == 1.5


SCHEMA = {"type": "null"}


@pytest.mark.parametrize(
    ("form", "want"),
    [
        (None, None), ({"type": "text"}, None), ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
        ({"type": "json_object", "value": SCHEMA}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, SCHEMA),
        ({"type": "json_schema", "schema": SCHEMA}, SCHEMA), ({"type": "json_schema", "schema": True}, True),
    ],
)  # fmt: skip
def test_formats_of_every_client(form: Any, want: Any) -> None:
    assert read_format(None if form is None else Fields(form)) == want


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({}, "type is missing"), ({"type": "json_schema"}, "schema is missing"),
        ({"type": "json_schema", "schema": "x"}, "schema must be an object"),
    ],
)  # fmt: skip
def test_formats_that_are_none(form: Any, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        read_format(Fields(form))


def declared(*names: str, flat: bool = False, **more: Any) -> list[dict[str, Any]]:
    return [
        {"name": n, **more} if flat else {"type": "function", "function": {"name": n, **more}} for n in names
    ]


@pytest.mark.parametrize("flat", [False, True])
def test_tools_and_which_must_be_called(flat: bool) -> None:
    def read(choice: Any = None, names: Any = ("f", "g"), **more: Any) -> Tools:
        return read_tools(
            Fields({"tools": declared(*names, flat=flat), "tool_choice": choice, **more}), flat=flat
        )

    both = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    named = {"type": "function", "name": "g"} if flat else {"type": "function", "function": {"name": "g"}}
    call = "<tool_call>\n<function="
    assert read() == read("auto") == Tools(both, "", True) and read("none") == Tools()
    assert read("required") == Tools(both, call, True) and read("required", ["f"]) == Tools(
        both[:1], call + "f>\n"
    )
    assert read(named) == Tools(both, call + "g>\n") and not read(parallel_tool_calls=False).parallel
    described = declared("a" * 128, flat=flat, description="d", parameters={"type": "object"})
    (made,) = read_tools(Fields({"tools": described}), flat=flat).declared
    assert made["function"] == {"name": "a" * 128, "description": "d", "parameters": {"type": "object"}}
    every = "abcxyzABCXYZ0189_-."
    assert read(names=[every]).declared[0]["function"]["name"] == every
    for wrong in (None, "", "a" * 129, "a b", "é"):
        with pytest.raises(ApiError, match="name must be 1 to 128"):
            read(names=[wrong])
    for choice, message in (
        ("any", "must be none, auto, required or name a function"),
        ({"type": "function"}, "is no declared tool" if flat else "function is missing"),
        ({"name": "f"}, "type is missing"),
        ({**named, **({"name": "h"} if flat else {"function": {"name": "h"}})}, "is no declared tool"),
        (3, "must be none"),
    ):
        with pytest.raises(ApiError, match=message):
            read(choice)
    with pytest.raises(ApiError, match="there are no tools"):
        read("required", [])


def test_what_is_counted(model: Qwen35) -> None:
    """Of an answer its tokens and times; of the line who is in it; of the cache what it holds."""
    line = SimpleNamespace(waiting=3, running=1)
    made = Metrics(model, line)  # type: ignore[arg-type]

    def told(name: str) -> dict[str, float]:
        lines = made.text().decode().splitlines()
        rows = (one.rpartition(" ") for one in lines if one.startswith(f"qwen35_{name}"))
        return {
            row[0].removeprefix(f"qwen35_{name}"): float(row[2]) for row in rows if "_created" not in row[0]
        }

    made.answered(Stats(10, 4, new_tokens=3, first_token_s=0.5, decode_s=2.0, swaps=2, loads=1), 0.25)
    made.answered(Stats(5, 0, new_tokens=1, first_token_s=0.5, swaps=-2, loads=-1), 2.0)
    made.answered(Stats(), 0.0)  # cut before it began
    for name, want in (
        ("prompt_tokens", 15), ("cached_tokens", 4), ("generated_tokens", 4), ("context_swaps", 2),
        ("context_loads", 1), ("device_recoveries", 0),
    ):  # fmt: skip
        assert told(name) == {"_total": want}
    assert told("prefix_cache_total") == {'{found="yes"}': 1, '{found="no"}': 1}
    bounds = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, float("inf")]
    for name, values in (
        ("queue_seconds", [0.25, 2.0, 0.0]), ("time_to_first_token_seconds", [0.75, 2.5]),
        ("token_seconds", [1.0]), ("request_seconds", []),
    ):  # fmt: skip
        found = told(name)
        assert (found["_count"], found["_sum"]) == (len(values), sum(values))
        buckets = {float(key[12:-2]): n for key, n in found.items() if "_bucket" in key}
        assert buckets == {bound: sum(value <= bound for value in values) for bound in bounds}
    assert (told("queue_waiting"), told("queue_running"), told("contexts_resident")) == (
        {"": 3},
        {"": 1},
        {"": 0},
    )
    assert told("prefix_cache_states") == told("prefix_cache_bytes") == {"": 0}
    model.chat("x").result()
    assert told("prefix_cache_states") == {"": 1} and told("prefix_cache_bytes") == {"": 1000}
    model.session.cache = None
    assert told("prefix_cache_states") == told("prefix_cache_bytes") == {"": 0}


def test_when_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what those inside will take, from a second to a minute; an answer's time is a moving mean."""
    now = [0.0]
    monkeypatch.setattr(queue_module, "monotonic", lambda: now[0])
    line = FairQueue(200)

    def after(inside: int) -> int:
        line.inside, before = inside, line.inside
        line.bound = inside - 1
        with pytest.raises(ApiError, match=f"{inside} requests are under way") as caught:
            line.check()
        line.inside, line.bound = before, 200
        assert (caught.value.status, caught.value.code) == (429, "queue_full")
        return int(caught.value.headers["Retry-After"])

    async def answer(wait: float, seconds: float) -> float:
        with line.enter("a") as place, line.enter("a") as behind:
            task = asyncio.ensure_future(behind.turn())
            await place.turn()
            await asyncio.sleep(0)
            now[0] += wait
            place.done()
            await task
            now[0] += seconds
            return behind.waited

    assert [after(n) for n in (1, 2, 3, 7, 119, 120, 121, 200)] == [1, 1, 2, 4, 60, 60, 60, 60]
    assert asyncio.run(answer(1.0, 11.0)) == 1  # the mean of 1 and 1, then of 1 and 11
    assert [after(n) for n in (2, 10)] == [3, 15]
    assert (line.inside, line.running, line.waiting) == (0, 0, 0)


def test_who_left_the_line_takes_nobodys_turn() -> None:
    async def run() -> list[str]:
        line, order = FairQueue(10), list[str]()

        async def one(name: str, leaves: asyncio.Event | None = None) -> None:
            with line.enter(name[0]) as place:
                turn = asyncio.ensure_future(place.turn())
                if leaves is not None:
                    await leaves.wait()
                    place.give_up(ApiError(499, "left"))
                try:
                    await turn
                except ApiError:
                    return
                order.append(name)
                await asyncio.sleep(0.01)

        leaves = asyncio.Event()
        with line.enter("a") as first:
            await first.turn()
            tasks = [asyncio.ensure_future(one(*each)) for each in (("b1", leaves), ("b2",), ("c1",))]
            while line.waiting < 3:
                await asyncio.sleep(0)
            leaves.set()
            await tasks[0]
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == ["b2", "c1"]


def test_bodies_together_have_a_bound() -> None:
    line = FairQueue(4, most_bytes=100)
    with line.body() as take:
        take(60), take(40)
        with line.body() as other:
            with pytest.raises(ApiError, match="too large together") as caught:
                other(1)
            assert caught.value.status == 429 and line.nbytes == 101
        assert line.nbytes == 100
    assert line.nbytes == 0


def test_what_is_kept_goes_by_its_last_use() -> None:
    store = Store(1 << 20, most=2)
    kept = {name: Stored({"id": name}, [{"content": "shared"}], []) for name in "abc"}
    store.add("a", kept["a"]), store.add("b", kept["b"])
    assert store.get("a") is kept["a"]
    store.add("c", kept["c"])
    assert (store.get("b"), len(store)) == (None, 2) and store.get("a") and store.get("c")
    assert store.remove("a") is True and store.remove("a") is False and len(store) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (429, "rate_limit_error"), (499, "invalid_request_error"), (500, "server_error"),
        (503, "server_error"),
    ],
)  # fmt: skip
def test_kinds_of_errors(status: int, kind: str) -> None:
    error = ApiError(status, "one\nline", param="p", code="c")
    assert str(error) == error.message and "\n" not in error.message
    assert error.body() == {"error": {"message": error.message, "type": kind, "param": "p", "code": "c"}}
