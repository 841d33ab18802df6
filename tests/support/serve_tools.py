"""Tools and answers for the server's tests."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support.serving import called, scripted

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
BIRD = {
    "type": "object",
    "properties": {"bird": {"type": "boolean"}},
    "required": ["bird"],
    "additionalProperties": False,
}
SCRIPT = {
    "two": "Both at once. \n\n" + called("weather", city="Rome", days=2) + "\n" + called("add", a=2, b=40),
    "forced": "weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
    "named": "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call> and more that nobody asked for",
    "weather": called("weather", city="Oslo"),
    "undeclared": "Look: " + called("rm", path="/"),
    "think": "I wonder.\n</think>\n\nSo it is.",
    "marker": "a < b and <tool is no call",
}
answer = scripted(SCRIPT)


def sample_picture() -> tuple[Path, str]:
    """The sample picture, and its data: URL."""
    sample = Path(__file__).parents[2] / "qwen35" / "data" / "sample.png"
    return sample, "data:image/png;base64," + base64.b64encode(sample.read_bytes()).decode()
