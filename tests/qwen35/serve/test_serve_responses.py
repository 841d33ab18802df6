"""qwen35.serve: /v1/responses, asked by the public openai client, whose types every event is held to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qwen35 import GREEDY, Qwen35
from tests.support.mock_model import fake
from tests.support.serve_tools import BIRD, sample_picture

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from tests.support.serving import WAIT, Running, called, late_in_the_middle, scripted, serving  # noqa: E402

WEATHER, ADD = (
    {
        "type": "function",
        "name": name,
        "strict": True,
        "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in values.items()}},
    }
    for name, values in (("weather", {"city": "string"}), ("add", {"a": "integer", "b": "integer"}))
)


SCRIPT = {
    "two": "Both at once. \n\n" + called("weather", city="Rome") + "\n" + called("add", a=2, b=40),
    "think": "I wonder.\n</think>\n\nSo it is.",
    "think and call": "Hm.\n</think>\n\n" + called("add", a=1, b=2),
    "named": "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call> and more",
}


answer = scripted(SCRIPT)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qwen35]:
    with fake(tmp_path_factory.mktemp("responses"), answer) as made:
        yield made


@pytest.fixture(scope="module")
def server(model: Qwen35) -> Iterator[Running]:
    with serving(model) as running:
        yield running


def ask(client: Any, text: Any, **options: Any) -> Any:
    return client.responses.create(model="mock", input=text, **options)


def test_an_answer_is_what_the_engine_says(client: Any, model: Qwen35) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("Hello ", "you")]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
        {"type": "message", "role": "user", "content": "Again"},
    ]
    got = ask(client, items, instructions="Be kind.", metadata={"a": "b"})
    want = model.reply(
        [
            {"role": "system", "content": "Be kind.\n\nBe brief."},
            {"role": "user", "content": "Hello you"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Again"},
        ]
    ).result()
    assert got.output_text == want.text == "You said: Again" and got.status == "completed"
    assert got.usage.input_tokens == want.stats.prompt_tokens
    assert got.usage.output_tokens == want.stats.new_tokens
    assert got.usage.total_tokens == got.usage.input_tokens + got.usage.output_tokens
    cost = got.usage.model_dump()["input_tokens_details"]
    assert cost["cached_tokens"] + cost["cache_write_tokens"] == got.usage.input_tokens
    again = ask(client, items, instructions="Be kind.").usage.model_dump()["input_tokens_details"]
    assert 0 < again["cache_write_tokens"] < 12 < again["cached_tokens"]
    assert (got.instructions, got.metadata, got.error) == ("Be kind.", {"a": "b"}, None)


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each valid by the client's own strict type, numbered in turn."""
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter(ResponseStreamEvent)
    answer = httpx.post(f"{server.url}/responses", json={"stream": True, **body}, timeout=WAIT)
    assert answer.status_code == 200, answer.text
    made = []
    for event in answer.text.strip().split("\n\n"):
        name, data = event.split("\n")
        made.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {made[-1]['type']}"
        adapter.validate_python(made[-1], strict=True)
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    return made


@pytest.mark.parametrize(
    ("question", "more"),
    [
        ("Zürich 日本 🐧", {}),
        ("think", {"reasoning": {"effort": "low"}}),
        ("two", {"tools": [WEATHER, ADD]}),
        ("think and call", {"tools": [ADD], "reasoning": {"effort": "high"}}),
        ("Hi", {"tools": [ADD]}),
        ("one two three four", {"max_output_tokens": 3}),
        ("think", {"reasoning": {"effort": "low"}, "max_output_tokens": 3}),
        ("one two three", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ("named", {"tools": [ADD], "tool_choice": {"type": "function", "name": "add"}}),
    ],
)
def test_a_stream_is_the_whole(server: Running, question: str, more: dict[str, Any]) -> None:
    whole = httpx.post(f"{server.url}/responses", json={"input": question, **more}, timeout=WAIT).json()
    events = events_of(server, input=question, **more)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == f"response.{whole['status']}"

    def plain(item: dict[str, Any]) -> dict[str, Any]:
        """An item without its random names, its reasoning without the white space around it."""
        made = {key: value for key, value in item.items() if key not in ("id", "call_id")}
        if item["type"] == "reasoning":
            made["content"] = item["content"][0]["text"].strip()
        return made

    output = last["response"]["output"]
    assert list(map(plain, output)) == list(map(plain, whole["output"]))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["item"]["id"] for event in added] == [item["id"] for item in output]
    for index, item in enumerate(output):
        deltas = "".join(
            event["delta"]
            for event in events
            if event["type"].endswith(".delta") and event["output_index"] == index
        )
        call = item["type"] == "function_call"
        assert deltas == (item["arguments"] if call else item["content"][0]["text"])
    assert whole["usage"]["output_tokens"] == last["response"]["usage"]["output_tokens"] > 0
    if "max_output_tokens" in more:
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    if question == "named":
        assert [item["arguments"] for item in output] == ['{"a": 1}']
    if "include" in more:
        (part,) = output[0]["content"]
        assert "".join(one["token"] for one in part["logprobs"]) == part["text"]


def test_the_clients_own_stream(client: Any) -> None:
    with client.responses.stream(model="mock", input="two", tools=[WEATHER, ADD]) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "Both at once."
    assert [(c.name, c.parsed_arguments) for c in final.output[1:]] == [
        ("weather", {"city": "Rome"}),
        ("add", {"a": 2, "b": 40}),
    ]


@pytest.mark.parametrize("stored", [True, False])
def test_tools_in_a_loop(client: Any, stored: bool) -> None:
    """Results in the wrong order, behind the id of the answer, or with its items sent again."""
    first = ask(client, "two", tools=[WEATHER, ADD], store=stored)
    functions = {"weather": lambda city: f"sun in {city}", "add": lambda a, b: str(a + b)}
    results = [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": functions[call.name](**json.loads(call.arguments)),
        }
        for call in reversed(first.output)
        if call.type == "function_call"
    ]
    if stored:
        last = ask(client, results, tools=[WEATHER, ADD], previous_response_id=first.id)
    else:
        items = [{"role": "user", "content": "two"}, *(item.model_dump() for item in first.output), *results]
        last = ask(client, items, tools=[WEATHER, ADD])
        with pytest.raises(openai.BadRequestError):
            ask(client, results, previous_response_id=first.id)
    assert 0 < last.output_text.index("sun in Rome") < last.output_text.index("42")
    assert last.usage.input_tokens_details.cached_tokens > first.usage.input_tokens * 0.9


def test_a_conversation_goes_on_from_any_answer(client: Any, model: Qwen35) -> None:
    first = ask(client, "think", reasoning={"effort": "low"}, instructions="Be kind.")
    assert [item.type for item in first.output] == ["reasoning", "message"]
    for question in ("left", "right"):
        got = ask(client, question, previous_response_id=first.id)
        messages = [("user", "think"), ("assistant", "So it is."), ("user", question)]
        want = model.reply([{"role": role, "content": text} for role, text in messages]).result()
        assert got.output_text == want.text and got.previous_response_id == first.id
        assert got.usage.input_tokens == want.stats.prompt_tokens  # the instructions were the first one's
    assert client.responses.retrieve(first.id).output_text == "So it is."
    gone = httpx.delete(f"{client.base_url}responses/{first.id}", timeout=WAIT).json()
    assert gone == {"id": first.id, "object": "response", "deleted": True}
    for call in (client.responses.retrieve, lambda name: ask(client, "x", previous_response_id=name)):
        with pytest.raises(openai.APIStatusError) as caught:
            call(first.id)
        assert caught.value.status_code in (400, 404) and first.id in caught.value.message


def test_what_is_kept_has_a_bound(tmp_path: Path) -> None:
    """The oldest go; a conversation's messages count once; nothing is left when all are gone."""
    limits = {"stored": 80_000}
    with fake(tmp_path, lambda q: "ok", max_ctx=100_000) as model, serving(model, limits=limits) as running:
        client = openai.OpenAI(base_url=running.url, api_key="x", max_retries=0, timeout=WAIT)
        store, names = running.service.store, []
        for _ in range(6):
            names.append(ask(client, "a" * 5000, previous_response_id=names[-1] if names else None).id)
            assert store.nbytes <= 80_000
        assert len(store) == 6  # were shared messages counted each time, over 80,000 bytes
        for _ in range(12):
            names.append(ask(client, "b" * 5000).id)
            assert store.nbytes <= 80_000
        with pytest.raises(openai.BadRequestError, match="send the whole conversation"):
            ask(client, "c", previous_response_id=names[0])
        again = ask(client, "c", previous_response_id=names[-1])
        assert again.output_text == "ok"
        for name in [*names, again.id]:
            store.remove(name)
        assert len(store) == 0 and store.nbytes == 0


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": []}, "input"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[0].type"),
        (
            {
                "input": [
                    {"role": "user", "content": "q"},
                    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "b", "output": "y"},
                ]
            },
            "input[2].call_id",
        ),
        *(
            ({"input": [{"role": "user", "content": "q"}, {"type": f"function_call{kind}", **item}]}, param)
            for kind, item, param in (
                ("", {"name": "f", "arguments": "{}"}, "input[1].call_id"),
                ("", {"call_id": "a", "arguments": "{}"}, "input[1].name"),
                ("_output", {"output": "y"}, "input[1].call_id"),
            )
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
        ),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]}
                ]
            },
            "input[0].content[0].image_url",
        ),
        ({"reasoning": {"effort": "heroic"}}, "reasoning.effort"),
        ({"tools": [ADD], "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"tools": [ADD], "include": ["message.output_text.logprobs"]}, "include"),
        ({"text": {"format": {"type": "x"}}}, "text.format.type"),
        ({"include": "all"}, "include"),
        ({"n": 2}, "n"),
        ({"store": "yes"}, "store"),
        ({"input": 3}, "input"),
        ({"metadata": 3}, "metadata"),
        ({"metadata": {"a": "b", "c": 3}}, "metadata.c"),
        ({"text": 3}, "text"),
        ({"reasoning": 3}, "reasoning"),
        ({"tools": 3}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"instructions": 3}, "instructions"),
    ],
)
def test_what_would_change_the_answer_is_named(server: Running, options: dict[str, Any], param: str) -> None:
    got = httpx.post(f"{server.url}/responses", json={"input": "Hi", **options}, timeout=WAIT)
    error = got.json()["error"]
    assert got.status_code == 400 and error["param"] == param and param in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_fails(tmp_path: Path, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        fake(tmp_path, lambda q: "word " * 200, delay=0.01) as model,
        serving(model, limits={"timeout": 0.5}) as running,
    ):
        if stream:
            late_in_the_middle(monkeypatch)
            last = events_of(running, input="Hi")[-1]
            assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
            assert last["response"]["error"]["type"] == "timeout" and not len(running.service.store)
        else:
            got = httpx.post(f"{running.url}/responses", json={"input": "Hi"}, timeout=WAIT)
            assert got.status_code == 504 and got.json()["error"]["code"] == "timeout"


def test_pictures_and_a_schema(builtin: tuple[Any, Qwen35]) -> None:
    client, model = builtin
    sample, url = sample_picture()
    question = "What is in this picture?"
    content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": question}]
    got = client.responses.create(
        model=model.info.name, temperature=0, input=[{"role": "user", "content": content}]
    )
    want = model.chat(question, images=[sample], sampling=GREEDY).result()
    assert got.output_text == want.text != "" and got.usage.input_tokens == want.stats.prompt_tokens
    again = client.responses.create(
        model=model.info.name, temperature=0, input="And what is a penguin?", previous_response_id=got.id
    )
    assert again.usage.input_tokens > got.usage.input_tokens
    pytest.importorskip("llguidance")
    form = {"format": {"type": "json_schema", "name": "animal", "schema": BIRD}}
    made = client.responses.create(
        model=model.info.name, input="What is a penguin?", text=form, temperature=0
    )
    assert set(json.loads(made.output_text)) == {"bird"}
