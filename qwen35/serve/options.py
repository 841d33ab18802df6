"""What every endpoint's body says of an answer: sampling, length, stops, reasoning, format, tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qwen35.arguments import stop_fault
from qwen35.options import AnswerOptions
from qwen35.schema import size_fault
from qwen35.serve.errors import ApiError
from qwen35.serve.fields import Fields

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.sampling import Sampling

__all__ = [
    "Options",
    "Served",
    "Tools",
    "read_effort",
    "read_format",
    "read_logprobs",
    "read_options",
    "read_tools",
]

#: Fields of OpenAI's API and of other servers that would change the answer here, with values that would not.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "suffix": ("",),
    "echo": (False,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "grammar": ("",),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "json_schema": (),
    "mirostat": (0,),
    "typical_p": (1, 1.0),
    "xtc_probability": (0, 0.0),
    "dry_multiplier": (0, 0.0),
    "tfs_z": (1, 1.0),
    "top_a": (0, 0.0),
    "truncate_prompt_tokens": (),
    "n_probs": (0,),
    "logits_processors": ([],),
}
_NO_REASONING = ("none", "minimal")
_EFFORTS = (*_NO_REASONING, "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True)
class Served:
    """What the server's own options say: model names (the first is the model's own), limits, defaults."""

    model: Qwen35
    names: tuple[str, ...]
    thinking: bool = False
    max_new: int = 0
    """Most tokens of an answer, 0: what the context has room for."""
    max_images: int = 16
    draft: bool = False


@dataclass(frozen=True)
class Tools:
    """Declared tools as the template takes them; `forced` is the text that the answer has to begin with."""

    declared: list[dict[str, Any]] = field(default_factory=list)
    forced: str = ""
    parallel: bool = True


@dataclass(frozen=True)
class Options:
    """What of a request does not depend on the endpoint; `sampling` changes the model's own values."""

    answer: AnswerOptions
    sampling: Mapping[str, Any]
    stream: bool
    include_usage: bool

    def chosen(self, base: Sampling) -> Sampling:
        """The sampling asked for, over the model's defaults."""
        return base.updated(**self.sampling)


def read_options(
    body: Fields, served: Served, *, lengths: Sequence[str], logprobs: int | None = None
) -> Options:
    """Reads what all endpoints share; `lengths` are the names of the answer's limit, the first one first."""
    name = body.text("model")
    if name is not None and name not in served.names:
        raise ApiError(
            404,
            f"there is no model {name!r:.100}; this server has {served.names[0]!r}",
            param="model",
            code="model_not_found",
        )
    for refused, harmless in _REFUSED.items():
        body.refuse(refused, *harmless)
    limit = served.max_new or served.model.model.max_ctx
    for length in reversed(lengths):
        limit = body.whole(length, 1, 2**31) or limit
    if served.max_new:
        limit = min(limit, served.max_new)
    seed = body.whole("seed", -(2**63), 2**64 - 1)
    top_k = body.whole("top_k", -1, 2**31)
    repetition = "repeat_penalty" if "repeat_penalty" in body else "repetition_penalty"
    sampling = {
        "temperature": body.number("temperature", 0, 100),
        "top_k": None if top_k is None else max(top_k, 0),
        "top_p": _above_0(body, "top_p"),
        "min_p": body.number("min_p", 0, 1),
        "repetition_penalty": body.number(repetition, 0.01, 100),
        "presence_penalty": body.number("presence_penalty", -100, 100),
        "frequency_penalty": body.number("frequency_penalty", -100, 100),
        "seed": None if seed is None else seed % 2**64,
        "logprobs": logprobs,
    }
    stream = body.flag("stream")
    about = body.inner("stream_options")
    usage = about is not None and about.flag("include_usage")
    answer = AnswerOptions(max_new=limit, stop=_stops(body), draft=body.flag("draft", served.draft))
    return Options(answer, sampling, stream, usage)


def _above_0(body: Fields, name: str) -> float | None:
    value = body.number(name, 0, 1)
    return max(value, 1e-9) if value is not None else None  # 0, as OpenAI allows it: the best token alone


def _stops(body: Fields) -> list[str]:
    value = body.data.get("stop")
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise body.wrong("stop", "must be a string or an array of strings")
    if fault := stop_fault(stops):
        raise body.wrong("stop", fault)
    return stops


def read_logprobs(body: Fields, *, asked: bool, most: int = 20) -> int | None:
    """Alternatives a token that are to be reported, None for no report."""
    number = body.whole("top_logprobs", 0, most) or 0
    return number if asked else None


def read_effort(
    body: Fields, served: Served, inner: Fields | None = None, name: str = "reasoning_effort"
) -> bool:
    """Whether the model reasons first; the template's own switch goes before an effort.

    `inner` is the object that has the field `name`, where that is not the body itself.
    """
    effort = (inner or body).choice(name, _EFFORTS)
    template = body.inner("chat_template_kwargs")
    if template is not None and "enable_thinking" in template:
        return template.flag("enable_thinking")
    return served.thinking if effort is None else effort not in _NO_REASONING


def read_format(form: Fields | None) -> Any:
    """The JSON schema that an answer has to fit, None for text. `form` is response_format or text.format."""
    if form is None:
        return None
    kind = form.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise form.wrong("type", "is missing")
    if kind == "text":
        return None
    if kind == "json_object":
        # Beyond OpenAI's: llama.cpp's server takes a `schema` here, Hugging Face a `value`, which its client
        # makes of json_schema (InferenceClient, hf-inference).
        name = next((name for name in ("schema", "value") if name in form), None)
        return {"type": "object"} if name is None else _schema(form, name)
    return _schema(form.inner("json_schema") or form, "schema")


def _schema(form: Fields, name: str) -> Any:
    schema = form.data.get(name)
    if schema is None:
        raise form.wrong(name, "is missing")
    if not isinstance(schema, (dict, bool)):
        raise form.wrong(name, "must be an object")
    if fault := size_fault(schema):
        raise form.wrong(name, fault)
    return schema


def read_tools(body: Fields, *, flat: bool = False) -> Tools:
    """The declared tools and which of them must be called; `flat` is the Responses API's form."""
    declared = [_tool(one, flat) for one in body.each("tools")]
    names = [tool["function"]["name"] for tool in declared]
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise body.wrong(f"tools[{index}]", f"declares {name!r:.60} a second time")
        seen.add(name)
    choice = body.data.get("tool_choice")
    parallel = body.flag("parallel_tool_calls", True)
    if choice is None or choice == "auto":
        return Tools(declared, parallel=parallel)
    if choice == "none":
        return Tools()
    if choice == "required":
        if not declared:
            raise body.wrong("tool_choice", "is required, and there are no tools")
        named = names[0] if len(names) == 1 else ""
    elif isinstance(choice, dict):
        inner = Fields(choice, "tool_choice.")
        if inner.choice("type", ("function",)) is None:
            raise inner.wrong("type", "is missing")
        function = inner if flat else inner.inner("function")
        if function is None:
            raise inner.wrong("function", "is missing")
        named = function.text("name") or ""
        if named not in names:
            raise function.wrong("name", f"is {named!r:.60}, which is no declared tool")
    else:
        raise body.wrong("tool_choice", "must be none, auto, required or name a function")
    return Tools(declared, "<tool_call>\n<function=" + (f"{named}>\n" if named else ""), parallel)


_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def _tool(one: Fields, flat: bool) -> dict[str, Any]:
    kind = one.text("type") or "function"
    if kind != "function":
        raise one.wrong("type", f"is {kind!r:.60}, and only functions are supported", "unsupported_parameter")
    function = one if flat else one.inner("function")
    if function is None:
        raise one.wrong("function", "is missing")
    name = function.text("name") or ""
    if not name or len(name) > 128 or not set(name) <= _NAME:
        raise function.wrong("name", "must be 1 to 128 letters, digits, _, - or .")
    made: dict[str, Any] = {"name": name}
    description = function.text("description")
    if description is not None:
        made["description"] = description
    parameters = function.inner("parameters")
    if parameters is not None:
        made["parameters"] = dict(parameters.data)
    return {"type": "function", "function": made}
