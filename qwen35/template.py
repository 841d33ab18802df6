"""The chat format of Qwen3.5: messages to text pieces, pieces to token ids.

`render` gives pieces instead of one string, so that text which came from a person or a tool can never turn
into a control token: `Control` text is the format's own and its markers become tokens, `Data` is encoded as
plain text. Joined, the pieces are exactly what the checkpoint's own chat template renders, and for data that
spells no marker the ids are those of that string.

Messages are mappings in the Hugging Face form: `role` (system, user, assistant, tool), `content` (a string,
or a list of `{"text": ...}` and `{"image": ...}` items, or of OpenAI's parts
with data: URLs), and for an assistant `reasoning_content` and `tool_calls` (`{"function":
{"name", "arguments"}}`, arguments a mapping or its JSON).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amdxdna.text import brief
from qwen35.dataurl import decode, is_data_url
from qwen35.errors import PromptTooLong, TemplateError, UsageError, why_no_json
from qwen35.tokenizer import Tokenizer
from qwen35.toolcalls import parse_tool_calls

__all__ = [
    "Control",
    "Data",
    "ImageSlot",
    "ImageSpan",
    "Piece",
    "Prompt",
    "Tokens",
    "encode",
    "parse_tool_calls",
    "render",
    "to_text",
]

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Control:
    """Text of the format itself: its markers are tokens."""

    text: str


@dataclass(frozen=True)
class Data:
    """Text of a person, a tool or the model: its markers are text."""

    text: str


@dataclass(frozen=True)
class Tokens:
    """Token ids as they are."""

    ids: Sequence[int]


@dataclass(frozen=True)
class ImageSlot:
    """The place of one image's tokens; `image` is whatever the message's item held."""

    image: Any


@dataclass(frozen=True)
class Start:
    """Marks where an assistant's answer starts; no text. A state kept here serves the next turn."""


@dataclass(frozen=True)
class Shared:
    """Marks the end of system message and tools; no text. A state kept here serves other conversations."""


Piece = Control | Data | Tokens | ImageSlot | Start | Shared


@dataclass(frozen=True)
class ImageSpan:
    """Tokens `start` to `start + count` of a prompt are image number `index`."""

    index: int
    start: int
    count: int


@dataclass(frozen=True)
class Prompt:
    """A prompt ready for the model.

    `borders` are the token counts at which an assistant's answer starts (after `<|im_start|>assistant\\n`),
    ascending; a prompt for the next turn has the same tokens up to there. The first border may be `shared`
    instead, where the system message and the tools end (0: there are none). `images` go with the image
    tokens.
    """

    ids: list[int]
    images: tuple[ImageSpan, ...] = ()
    borders: tuple[int, ...] = ()
    shared: int = 0


# What the model was trained to read before and after the list of tools; any other wording changes the tokens.
_TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
_TOOLS_TAIL = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple "
    "lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be "
    "nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function "
    "call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge "
    "and do not tell the user about function calls\n</IMPORTANT>"
)


def render(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = False,
    answer: bool = True,
) -> list[Piece]:
    """The pieces of a conversation; with `answer`, up to where the assistant's next answer starts.

    `thinking` opens a reasoning block for that answer, otherwise an empty one is written. The reasoning of
    answers before the last question is left out. Raises TemplateError for messages the format does not allow.
    """
    _require_list("messages", messages)
    if not messages:
        raise TemplateError("there are no messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TemplateError(f"a message is a mapping, not {brief(message)}", f"message {index + 1}")
    tools = () if tools is None else tools
    _require_list("tools", tools)
    out: list[Piece] = []
    system = messages[0] if messages[0].get("role") == "system" else None
    _render_system(out, system, tools)
    if out:
        out.append(Shared())
    last_question = _last_question(messages)
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "system":
            if index:
                raise TemplateError("a system message must be the first", f"message {index + 1}")
        elif role == "user":
            out += [Control("<|im_start|>user\n"), *_content(message), Control("<|im_end|>\n")]
        elif role == "assistant":
            _render_assistant(out, message, index > last_question, f"message {index + 1}")
        elif role == "tool":
            before = messages[index - 1].get("role") if index else "tool"
            after = messages[index + 1].get("role") if index + 1 < len(messages) else None
            if before != "tool":
                out.append(Control("<|im_start|>user"))
            out += [Control("\n<tool_response>\n"), *_content(message), Control("\n</tool_response>")]
            if after != "tool":
                out.append(Control("<|im_end|>\n"))
        else:
            raise TemplateError(
                f"unknown role {brief(role)}", f"message {index + 1}", "use system, user, assistant or tool"
            )
    if answer:
        out += [Control("<|im_start|>assistant\n"), Start()]
        out.append(Control("<think>\n" if thinking else "<think>\n\n</think>\n\n"))
    return out


def _require_list(name: str, value: Any, where: str = "") -> None:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise TemplateError(f"{name} must be a list, not {type(value).__name__}", where)


def _render_system(out: list[Piece], system: Message | None, tools: Sequence[Mapping[str, Any]]) -> None:
    content = _content(system, images=False) if system is not None else []
    if tools:
        out.append(Control("<|im_start|>system\n" + _TOOLS_HEAD))
        for tool in tools:
            if not isinstance(tool, Mapping):
                raise TemplateError(f"a tool is a mapping, not {brief(tool)}")
            # A tool's description is the caller's text, but its markers are no more part of the format.
            out += [Control("\n"), Data(_json(tool))]
        out.append(Control(_TOOLS_TAIL))
        if content:
            out += [Control("\n\n"), *content]
        out.append(Control("<|im_end|>\n"))
    elif system is not None:
        out += [Control("<|im_start|>system\n"), *content, Control("<|im_end|>\n")]


def _render_assistant(out: list[Piece], message: Message, current: bool, where: str) -> None:
    content = _content(message)
    reasoning = message.get("reasoning_content")
    if not isinstance(reasoning, str):
        reasoning = ""
        text = to_text(content)
        if "</think>" in text:
            if any(isinstance(piece, ImageSlot) for piece in content):
                raise TemplateError("an answer with reasoning in its text cannot hold images", where)
            reasoning = text.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
            content = _data(text.split("</think>")[-1].lstrip("\n"))
    out += [Control("<|im_start|>assistant\n"), Start()]
    if current:
        out += [Control("<think>\n"), *_data(reasoning.strip()), Control("\n</think>\n\n")]
    out += content
    calls = message.get("tool_calls") or ()
    _require_list("tool_calls", calls, where)
    for index, call in enumerate(calls):
        lead = "\n" if index else ("\n\n" if to_text(content).strip() else "")
        _render_call(out, lead, call, where)
    out.append(Control("<|im_end|>\n"))


def _render_call(out: list[Piece], lead: str, call: Mapping[str, Any], where: str) -> None:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(function, Mapping):
        raise TemplateError("a tool call needs a function name", where)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_number) if arguments.strip() else {}
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise TemplateError(f"the arguments of {name:.60} are not a JSON object", where)
    out += [Control(lead + "<tool_call>\n<function="), Data(name), Control(">\n")]
    for key, value in arguments.items():
        structured = isinstance(value, (Mapping, Sequence)) and not isinstance(value, str)
        _json({key: None})
        plain = _json(value)  # checked, whatever of it is written
        out += [Control("<parameter="), Data(str(key)), Control(">\n")]
        out += [*_data(plain if structured else str(value)), Control("\n</parameter>\n")]
    out.append(Control("</function>\n</tool_call>"))


def _last_question(messages: Sequence[Message]) -> int:
    """Index of the last user message that is not a tool's answer in disguise."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user":
            text = to_text(_content(messages[index]))
            if not (text.startswith("<tool_response>") and text.endswith("</tool_response>")):
                return index
    raise TemplateError("there is no user message to answer")


def _content(message: Message, *, images: bool = True) -> list[Piece]:
    """A message's content as pieces, white space trimmed at both ends of the whole."""
    content, role = message.get("content"), str(message.get("role"))
    if content is None:
        return []
    if isinstance(content, str):
        return _data(content.strip())
    if not isinstance(content, Sequence):  # what gives its items once cannot be looked at twice
        raise TemplateError(f"content must be text or a list, not {type(content).__name__}", role)
    pieces: list[Piece] = []
    for item in content:
        if not isinstance(item, Mapping):
            raise TemplateError(f"unknown content item {brief(item)}", role)
        if "image" in item or "image_url" in item or item.get("type") == "image":
            if not images:
                raise TemplateError("a system message cannot hold images")
            image = item.get("image", item.get("image_url"))
            if isinstance(image, Mapping):  # OpenAI's form
                image = image.get("url")
            if isinstance(image, str) and is_data_url(image):
                image = decode(image)
            pieces += [Control("<|vision_start|>"), ImageSlot(image), Control("<|vision_end|>")]
        elif "video" in item or item.get("type") == "video":
            raise TemplateError("videos are not supported", role, "pass single frames as images")
        elif "text" in item:
            if not isinstance(item["text"], str):
                raise TemplateError(f"a content item's text is {brief(item['text'])}", role)
            pieces.append(Data(item["text"]))
        else:
            raise TemplateError(f"unknown content item {brief(item)}", role)
    return _trim(pieces)


def _trim(pieces: list[Piece]) -> list[Piece]:
    while pieces and isinstance(pieces[0], Data):
        text = pieces[0].text.lstrip()
        pieces[:1] = _data(text)
        if text:
            break
    while pieces and isinstance(pieces[-1], Data):
        text = pieces[-1].text.rstrip()
        pieces[-1:] = _data(text)
        if text:
            break
    return pieces


def _data(text: str) -> list[Piece]:
    return [Data(text)] if text else []


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"a tool's description or argument is not JSON: {why_no_json(error)}") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def to_text(pieces: Iterable[Piece]) -> str:
    """The pieces as the one string that the checkpoint's template renders (one `<|image_pad|>` an image)."""
    text = ""
    for piece in pieces:
        if isinstance(piece, (Control, Data)):
            text += piece.text
        elif isinstance(piece, ImageSlot):
            text += "<|image_pad|>"
    return text


def encode(
    pieces: Iterable[Piece],
    tokenizer: Tokenizer,
    *,
    image_tokens: Sequence[int] = (),
    allow_special: bool = False,
    limit: int | None = None,
) -> Prompt:
    """Token ids of `pieces`; image number i takes `image_tokens[i]` tokens.

    A text that is far beyond `limit` tokens is not encoded to its end: PromptTooLong.

    With `allow_special` markers inside data become tokens too. Raises UsageError when the counts and the
    images do not match, or when the tokenizer has no image token.
    """
    ids: list[int] = []
    images: list[ImageSpan] = []
    borders: list[int] = []
    shared = 0
    text: list[str] = []  # plain text since the last control token: the reference encodes it as one string

    def close() -> None:
        if text:
            whole = "".join(text)
            text.clear()
            if limit is not None:
                more = tokenizer.least(whole, max(limit - len(ids), 0))
                if more or len(ids) > 4 * limit:
                    raise PromptTooLong(len(ids) + more, limit, least=True)
            ids.extend(tokenizer.encode(whole))

    for piece in pieces:
        if isinstance(piece, (Start, Shared)):
            # The text before it ends in a newline, which the pre-tokeniser never joins to what follows.
            close()
            borders.append(len(ids))
            shared = len(ids) if isinstance(piece, Shared) else shared
        elif isinstance(piece, ImageSlot):
            close()
            pad = tokenizer.token_id("<|image_pad|>")
            if pad is None:
                raise UsageError("the bundle's tokenizer has no image token", str(tokenizer.path))
            if len(images) >= len(image_tokens):
                raise UsageError(f"{len(image_tokens)} token counts for more images")
            count = image_tokens[len(images)]
            images.append(ImageSpan(len(images), len(ids), count))
            ids.extend([pad] * count)
        elif isinstance(piece, Tokens):
            close()
            ids.extend(piece.ids)
        elif isinstance(piece, Control) or allow_special:
            start = 0
            for match, token in tokenizer.find_added(piece.text):
                text.append(piece.text[start : match.start()])
                close()
                ids.append(token)
                start = match.end()
            text.append(piece.text[start:])
        else:
            text.append(piece.text)
    close()
    if len(images) != len(image_tokens):
        raise UsageError(f"{len(image_tokens)} token counts for {len(images)} images")
    return Prompt(ids, tuple(images), tuple(borders), shared)
