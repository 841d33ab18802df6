"""Seeded conversations for the chat template's tests, and how the checkpoint's own template renders them.

`python -m tests.support.chat_cases chat_template.jinja` runs a checkpoint's template over them with Jinja,
set up as transformers does, and writes tests/data/chat_template.json:
the digest of every rendering, and a few in full.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "data" / "chat_template.json"
WORDS = [
    *(
        "penguin",
        "What",
        "is",
        "the",
        "a",
        "sea?",
        "Zürich",
        "日本語",
        "naïve",
        "  ",
        "\n",
        "\t",
        "1+1",
        "🐧",
    ),
    *("'ll", "<b>", "&amp;", '"quoted"', "{x}", "end.", "\n\n", "e\u0301", "…"),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city, in °C <now>",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}},
]


def conversation(seed: int) -> dict[str, Any]:
    """Keyword arguments of one rendering: messages, tools, enable_thinking, add_generation_prompt."""
    rng = random.Random(seed)

    def text(most: int = 8) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(most)))

    def user_content() -> Any:
        if rng.random() < 0.6:
            return text()
        items: list[dict[str, Any]] = []
        for _ in range(rng.randrange(1, 4)):
            picture = rng.random() < 0.4
            items.append({"type": "image", "image": "x.png"} if picture else {"type": "text", "text": text()})
        return items

    def value() -> Any:
        return rng.choice([text(), 3, 2.5, True, None, [1, "ü"], {"a": [text(3)]}, "", "two\nlines"])

    def call() -> dict[str, Any]:
        name = rng.choice(["weather", "add"])
        inner = {"name": name, "arguments": {f"p{i}": value() for i in range(rng.randrange(3))}}
        return {"type": "function", "function": inner} if rng.random() < 0.7 else inner

    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": text()})
    for _ in range(rng.randrange(1, 5)):
        if rng.random() < 0.08:
            messages.append({"role": "user", "content": f"<tool_response>\n{text()}\n</tool_response>"})
        else:
            messages.append({"role": "user", "content": user_content()})
        for _ in range(rng.randrange(3)):
            answer: dict[str, Any] = {"role": "assistant", "content": rng.choice([text(), text(), None, ""])}
            kind = rng.random()
            if kind < 0.3:
                answer["reasoning_content"] = text()
            elif kind < 0.5:
                answer["content"] = f"<think>\n{text()}\n</think>\n\n{text()}"
            if rng.random() < 0.4:
                answer["tool_calls"] = [call() for _ in range(rng.randrange(1, 3))]
            messages.append(answer)
            if "tool_calls" in answer:
                messages += [{"role": "tool", "content": text()} for _ in answer["tool_calls"]]
    if all(m["role"] != "user" or str(m["content"]).startswith("<tool_response>") for m in messages):
        messages.append({"role": "user", "content": "Hi"})
    return {
        "messages": messages,
        "tools": TOOLS if rng.random() < 0.3 else None,
        "enable_thinking": rng.random() < 0.5,
        "add_generation_prompt": rng.random() < 0.8,
    }


def digest(text: str) -> str:
    """What the golden file keeps of a rendering."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def jinja(template: str) -> Any:
    """A function of `conversation`'s keyword arguments that renders them as transformers would."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def stop(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = stop
    return environment.from_string(template).render


def main() -> None:
    """Writes the golden file from the template named on the command line."""
    render = jinja(Path(sys.argv[1]).read_text(encoding="utf-8"))
    texts = [render(**conversation(seed)) for seed in range(400)]
    full = [i for i, text in enumerate(texts) if len(text) < 700][:8]
    golden = {"digests": [digest(text) for text in texts], "texts": {str(i): texts[i] for i in full}}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
