"""qwen35.serve: asked by a client of another make, Hugging Face's InferenceClient."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from qwen35 import GREEDY, Qwen35

hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from tests.support.mock_model import fake  # noqa: E402
from tests.support.serve_tools import ADD, BIRD, WEATHER, answer, sample_picture  # noqa: E402
from tests.support.serving import WAIT, serving  # noqa: E402


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with fake(tmp_path_factory.mktemp("serve"), answer) as model, serving(model, api_key="key") as running:
        yield hub.InferenceClient(base_url=running.url, api_key="key", timeout=WAIT)


def test_a_conversation_whole_and_streamed(client: Any) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Zürich 🐧"}]
    got = client.chat_completion(messages, model="mock", max_tokens=50, seed=1, temperature=0.5, stop=["!"])
    assert got.choices[0].message.content == "You said: Zürich 🐧" and got.choices[0].finish_reason == "stop"
    assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens
    chunks = list(
        client.chat_completion(messages, model="mock", stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "You said: Zürich 🐧" and chunks[-1].usage.completion_tokens > 3


def test_tools_in_a_loop(client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "two"}]
    first = client.chat_completion(messages, model="mock", tools=[WEATHER, ADD], tool_choice="auto")
    message = first.choices[0].message
    functions = {"weather": lambda city, days: f"sun in {city}", "add": lambda a, b: str(a + b)}
    messages.append(message)
    for call in message.tool_calls:
        result = functions[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    last = client.chat_completion(messages, model="mock", tools=[WEATHER, ADD]).choices[0].message.content
    assert last.index("sun in Rome") < last.index("42")


def test_errors(client: Any) -> None:
    with pytest.raises(hub.errors.HfHubHTTPError, match="is not supported"):
        client.chat_completion([{"role": "user", "content": "Hi"}], model="mock", n=2)
    other = hub.InferenceClient(base_url=client.model, api_key="wrong", timeout=WAIT)
    with pytest.raises(hub.errors.HfHubHTTPError, match="401"):
        other.chat_completion([{"role": "user", "content": "Hi"}])


def test_the_built_in_model(builtin: tuple[Any, Qwen35]) -> None:
    """A picture, and JSON that fits a schema."""
    other, model = builtin
    made = hub.InferenceClient(base_url=str(other.base_url).rstrip("/"), api_key="x", timeout=WAIT)
    sample, url = sample_picture()
    question = "What is in this picture?"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    settings = {"model": model.info.name, "temperature": 0}
    got = made.chat_completion([{"role": "user", "content": content}], **settings)
    want = str(model.chat(question, images=[sample], sampling=GREEDY))
    assert got.choices[0].message.content == want != ""
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": BIRD}}
    asked = [{"role": "user", "content": "What is a penguin?"}]
    got = made.chat_completion(asked, response_format=form, **settings)
    # The client sends json_object with a `value`.
    assert set(json.loads(got.choices[0].message.content)) == {"bird"}
