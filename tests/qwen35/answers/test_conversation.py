"""qwen35.conversation: replies as they stream, and conversations that remember."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35.api import Qwen35
from qwen35.cli.args import parse
from qwen35.cli.chat import Chat
from qwen35.errors import Closed, PromptTooLong, TemplateError, UsageError
from qwen35.sampling import GREEDY, Sampling
from tests.support.mock_model import HashModel, fake


def echo(question: str) -> str:
    return f"You said: {question}"


@pytest.fixture
def model(tmp_path: Path) -> Qwen35:
    return fake(tmp_path, echo)


def test_a_reply_streams(model: Qwen35) -> None:
    reply = model.chat("höre 🐧")
    pieces = list(reply)
    assert "".join(pieces) == reply.text == "You said: höre 🐧" and len(pieces) > 5
    assert all("\ufffd" not in piece for piece in pieces)
    assert reply.finish == "stop" and reply.note == "" and list(reply) == []
    assert reply.stats.new_tokens == len(reply.tokens)


def test_str_runs_it(model: Qwen35) -> None:
    reply = model.chat("x")
    assert reply.finish == "" and str(reply) == "You said: x" == str(reply)


def test_a_stream_callback_gets_every_piece(model: Qwen35) -> None:
    got: list[str] = []
    reply = model.chat("x", stream=got.append)
    assert reply.finish == "stop" and "".join(got) == "You said: x"


def test_reasoning_is_apart(tmp_path: Path) -> None:
    model = fake(tmp_path, lambda q: f"Let me see.\n</think>\n\nIt is {q}.")
    reply = model.chat("so", thinking=True)
    events = list(reply.events())
    assert reply.reasoning == "Let me see." and reply.text == "It is so."
    kinds = [kind for kind, _ in events]
    assert kinds == sorted(kinds) and set(kinds) == {"reasoning", "text"}
    want = model.tokenizer.encode("Let me see.\n")
    assert reply.stats.reasoning_tokens == len(want) and reply.stats.new_tokens > len(want)


def test_a_stop_string_ends_the_text_and_not_the_reasoning(tmp_path: Path) -> None:
    model = fake(tmp_path, lambda q: "one. two.\n</think>\n\nA one. And two. And three.")
    reply = model.chat("x", thinking=True, stop=[". And t", "two"])
    assert "".join(reply) == "A one" and reply.finish == "stop-string" and reply.reasoning == "one. two."
    late = model.chat("x", thinking=True, stop=["three. And"])
    assert str(late) == "A one. And two. And three." and late.finish == "stop"


def test_reasoning_that_never_ends_is_no_answer(tmp_path: Path) -> None:
    """It is said, and how to give it room where the answer was cut."""
    why = "the answer is reasoning alone, and ended before any text"
    model = fake(tmp_path, lambda q: "so it goes on")
    whole = model.chat("x", thinking=True).result()
    assert (whole.text, whole.reasoning, whole.note, whole.finish) == ("", "so it goes on", why, "stop")
    assert whole.stats.reasoning_tokens == whole.stats.new_tokens
    cut = model.chat("x", thinking=True, max_new=3).result()
    assert (cut.note, cut.finish) == (f"{why}: allow it more tokens (--max-new)", "length")
    small = fake(tmp_path, lambda q: "so it goes on", max_ctx=whole.stats.prompt_tokens + 2)
    full = small.chat("x", thinking=True).result()
    assert (full.note, full.finish) == (why, "context")
    asked = iter([False] * 3)
    ended = model.chat("x", thinking=True, cancel=lambda: next(asked, True)).result()
    assert (ended.finish, ended.text, ended.note) == ("cancel", "", "")
    for text in ("a\n</think>\n\nb", "\n</think>\n\n", " "):
        assert fake(tmp_path, lambda q, text=text: text).chat("x", thinking=True).result().note == ""


def test_a_loop_of_one_token_or_several_is_told(tmp_path: Path) -> None:
    for word, told in (("a", "1 token "), ("ab", "2 tokens ")):
        looped = fake(tmp_path, lambda q, word=word: word * 200).chat("x", loops=50).result()
        assert looped.note == f"stopped: the answer repeats the same {told}over and over"
        assert repr(looped) == f"<Reply loop: {looped.text!r:.60}>"


def test_who_asks_to_be_told_is_told_once(model: Qwen35) -> None:
    told: list[tuple[str, str]] = []

    def done(reply: Any) -> None:
        told.append((reply.finish, str(reply)))

    model.chat("x", done=done).result()
    talk = model.conversation()
    talk.ask("y", done=done).result()
    with pytest.raises(UsageError, match=r"tools are the conversation's"):
        talk.ask("y", tools=[])
    half = talk.ask("z", done=done)
    assert repr(half) == "<Reply running: ''>"
    half.close(), half.close()
    other = model.conversation()
    unread = other.ask("x")
    model.close()
    with pytest.raises(Closed, match="closed"):  # whatever else there is to say
        other.ask("y")
    assert unread.finish == ""
    assert told == [("stop", "You said: x"), ("stop", "You said: y"), ("cancel", "")]


def test_max_new_and_a_loop_are_said(tmp_path: Path) -> None:
    model = fake(tmp_path, lambda q: "no " * 600)
    short = model.chat("x", max_new=7).result()
    assert short.finish == "length" and short.stats.new_tokens == 7
    looped = model.chat("x", max_new=2000, loops=90).result()
    assert looped.finish == "loop" and "repeats" in looped.note and looped.stats.new_tokens == 90
    assert model.chat("x", max_new=400, loops=True).result().finish == "length"
    assert model.chat("x", max_new=400, loops=False).result().finish == "length"
    for wrong in (0, -1, 2.5, "yes"):
        with pytest.raises(UsageError, match="number of tokens"):
            model.chat("x", loops=wrong)


def test_closing_a_reply_keeps_what_came(model: Qwen35) -> None:
    reply = model.chat("something long enough")
    first = next(iter(reply))
    reply.close()
    assert reply.text == first and reply.finish == "cancel" and list(reply) == []


def test_logprobs_and_seed_are_reported(tmp_path: Path) -> None:
    model = fake(tmp_path)
    reply = model.chat("x", sampling=Sampling(seed=7, logprobs=2), max_new=5).result()
    assert reply.stats.seed == 7 and [e.token for e in reply.logprobs][: len(reply.tokens)] == reply.tokens
    assert all(len(entry.top) == 2 for entry in reply.logprobs)
    assert model.chat("x", sampling=GREEDY, max_new=5).result().logprobs == []


# Conversations.


def test_turns_are_remembered_and_reasoning_is_not_shown_again(tmp_path: Path) -> None:
    model = fake(tmp_path, lambda q: f"thinking of {q}\n</think>\n\nanswer to {q}")
    talk = model.conversation("Be kind.")
    assert str(talk.ask("one", thinking=True)) == "answer to one"
    assert talk.messages[-1]["reasoning_content"] == "thinking of one"
    talk.ask("two", thinking=True).result()
    seen = model.tokenizer.decode([t for part in model.model.history for t in part], skip_special=False)  # type: ignore[attr-defined]
    assert seen.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n")
    assert "<|im_start|>assistant\nanswer to one<|im_end|>\n<|im_start|>user\ntwo" in seen
    assert "thinking of one" not in seen and talk.turns == 2


def scenario(model: Qwen35, keep: list[Any]) -> None:
    """What people do with a conversation, thinking on and off, in one long session."""
    talk = model.conversation("A system message that is long enough to matter.")

    def ask(text: str, **options: Any) -> None:
        reply = talk.ask(text, max_new=12, **options)
        keep.append((reply.result().tokens, reply.text, reply.reasoning, reply.finish))

    ask("first question")
    ask("second question", thinking=True)
    ask("word " * 600)
    ask("third", sampling=Sampling(temperature=0.8, top_k=10, presence_penalty=1.0, seed=3))
    talk.undo()
    ask("third, otherwise")
    stopped = talk.ask("to be stopped", max_new=12, cancel=lambda: True)
    keep.append((stopped.result().tokens, stopped.finish))
    ask("after the stop")
    reply = talk.ask("cut short", max_new=12)
    next(reply.events(), None)
    reply.close()
    ask("after the cut")
    talk.clear()
    ask("first question")
    talk.system = None
    ask("without a system message", thinking=True)
    keep.append(list(talk.messages))


@pytest.mark.parametrize("budget", [1 << 30, 3_000])
def test_every_scenario_is_the_same_without_kept_states(tmp_path: Path, budget: int) -> None:
    kept, bare = fake(tmp_path, cache_bytes=budget), fake(tmp_path, cache_bytes=0)
    with_cache: list[Any] = []
    without: list[Any] = []
    scenario(kept, with_cache)
    scenario(bare, without)
    assert with_cache == without
    calls = [sum(n for kind, n in m.model.calls if kind == "prefill") for m in (kept, bare)]  # type: ignore[attr-defined]
    assert calls[0] < calls[1]


def test_cached_tokens_grow_with_the_turns(model: Qwen35) -> None:
    talk = model.conversation("system")
    stats = [talk.ask(f"question {i}").result().stats for i in range(4)]
    assert stats[0].cached_tokens == 0
    # All but the empty reasoning block that every prompt ends with.
    block = len(model.tokenizer.encode("<think>\n\n</think>\n\n", allow_special=True))
    assert all(before.prompt_tokens - after.cached_tokens == block for before, after in pairwise(stats))


def test_a_stopped_answer_stays_and_an_unbegun_one_leaves_no_trace(model: Qwen35) -> None:
    talk = model.conversation()
    seen = 0

    def three() -> bool:
        return seen >= 3

    reply = talk.ask("a question", cancel=three)
    for _ in reply:
        seen += 1
    assert reply.finish == "cancel" and talk.messages[-1]["content"] == reply.text != ""
    before = list(talk.messages)
    assert talk.ask("another", cancel=lambda: True).result().finish == "cancel"
    assert talk.messages == before
    assert str(talk.ask("and on")) == "You said: and on"


def test_a_failing_turn_leaves_no_trace(tmp_path: Path) -> None:
    model = fake(tmp_path, echo)
    talk = model.conversation()
    talk.ask("fine").result()
    before = list(talk.messages)
    decode, model.model.decode = model.model.decode, lambda token: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        talk.ask("broken").result()
    assert talk.messages == before
    model.model.decode = decode  # type: ignore[method-assign]
    assert str(talk.ask("mended")) == "You said: mended"


def test_a_question_that_does_not_fit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    model = fake(tmp_path, echo, max_ctx=60)
    talk = model.conversation()
    talk.ask("hi").result()
    before = list(talk.messages)
    with pytest.raises(PromptTooLong, match=r"\d+ tokens and the context holds 60"):
        talk.ask("word " * 100)
    assert talk.messages == before and str(talk.ask("yo")).startswith("You")


def test_a_half_read_answer_is_not_cut_by_what_comes_next(model: Qwen35, tmp_path: Path) -> None:
    talk = model.conversation("sys")
    talk.ask("before").result()
    talk.save(tmp_path / "saved")
    before = list(talk.messages)
    first = talk.ask("first")
    uses: list[Callable[[], Any]] = [
        lambda: talk.ask("second"),
        lambda: talk.answer_tools(["4"]),
        talk.undo,
        talk.clear,
        lambda: talk.load(tmp_path / "saved"),
        lambda: setattr(talk, "system", "other"),
    ]
    for _ in range(2):  # unread, and half read
        for use in uses:
            with pytest.raises(UsageError, match=r"not read to its end.*close it"):
                use()
        assert talk.messages == before
        next(first.events())
    assert str(first) == "You said: first" and talk.turns == 2
    assert str(talk.ask("second")) == "You said: second" and talk.undo() == "second"


def test_an_answer_that_is_dropped_ends_where_it_was(model: Qwen35) -> None:
    """Without a garbage collection: what comes next does not depend on when there is one."""
    gc.disable()
    try:
        talk = model.conversation()
        for piece in talk.ask("first"):
            assert piece == "Y"
            break
        talk.ask("never read")
        assert [m["content"] for m in talk.messages] == ["first", "Y"]
        reply = talk.ask("second")
        events = reply.events()
        del reply
        next(events)
        with pytest.raises(UsageError, match="not read to its end"):
            talk.ask("third")
        del events
        assert str(talk.ask("fourth")) == "You said: fourth"
        assert [m["content"] for m in talk.messages if m["role"] == "user"] == ["first", "second", "fourth"]
    finally:
        gc.enable()


def test_undo_and_clear(model: Qwen35) -> None:
    talk = model.conversation("sys")
    assert talk.undo() is None
    talk.ask("one").result()
    talk.ask("two").result()
    assert talk.undo() == "two" and talk.turns == 1
    assert talk.undo() == "one" and talk.messages == [{"role": "system", "content": "sys"}]
    talk.ask("three").result()
    talk.clear()
    assert talk.system == "sys" and talk.turns == 0
    talk.system = "new"
    assert talk.messages == [{"role": "system", "content": "new"}]
    talk.system = " "
    assert talk.messages == [] and talk.system is None


def test_a_question_with_pictures_is_taken_back_with_its_text(model: Qwen35) -> None:
    talk = model.conversation()
    items = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "what "}, {"text": "is it?"}]
    for last in ({"role": "assistant", "content": "a whale"}, {"role": "tool", "content": "x"}):
        talk.messages = [{"role": "user", "content": "kept"}, {"role": "user", "content": items}, last]
        assert talk.undo() == "what is it?" and [m["content"] for m in talk.messages] == ["kept"]


def test_tools(tmp_path: Path) -> None:
    call = "<tool_call>\n<function=add>\n<parameter=a>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
    model = fake(tmp_path, lambda q: call if "sum" in q else f"It is {q.split()[1]}.")
    talk = model.conversation(tools=[{"type": "function", "function": {"name": "add"}}])
    reply = talk.ask("the sum?").result()
    assert reply.tool_calls == [{"type": "function", "function": {"name": "add", "arguments": {"a": [1, 2]}}}]
    assert talk.messages[-1]["content"] == ""
    assert str(talk.answer_tools(["3"])) == "It is 3."
    assert [m["role"] for m in talk.messages] == ["user", "assistant", "tool", "assistant"]


def test_calls_of_tools_that_nobody_declared_are_text(tmp_path: Path) -> None:
    call = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    model = fake(tmp_path, lambda q: call)
    number = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": number}}
    want = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    assert model.chat("x").result().tool_calls == []
    assert model.chat("x", tools=[tool]).result().tool_calls == want
    other = {"type": "function", "function": {"name": "sub"}}
    assert model.chat("x", tools=[other]).result().tool_calls == []
    for tools, kept in (None, None), ([other], None), ([tool], want):
        talk = model.conversation(tools=tools)
        reply = talk.ask("x")
        assert "".join(reply) == call == reply.text
        assert talk.messages[-1].get("tool_calls") == kept
        assert talk.messages[-1]["content"] == ("" if kept else call)


def test_a_second_block_of_reasoning_is_no_answer(tmp_path: Path) -> None:
    model = fake(tmp_path, lambda q: "one\n</think>\n\nFirst.\n<think>\ntwo\n</think>\n\nSecond.<think>three")
    talk = model.conversation()
    reply = talk.ask("x", thinking=True)
    assert "".join(reply) == "First.\nSecond." == reply.text
    assert reply.reasoning == "one\n\ntwo\nthree"
    assert talk.messages[-1]["content"] == "First.\nSecond."
    assert reply.stats.reasoning_tokens < reply.stats.new_tokens
    assert str(model.chat("x", thinking=True)) == "First.\nSecond."


def test_text_that_waits_for_the_end_is_not_lost(tmp_path: Path) -> None:
    """The reasoning names the marker, so only the end shows that what follows is the answer."""
    model = fake(tmp_path, lambda q: "the <think> mark\n</think>\n\nAnswer, and more of it")
    assert str(model.chat("x", thinking=True)) == "Answer, and more of it"
    tokens = len(model.tokenizer.encode("the <think> mark\n</think>\n\nAnswer,", allow_special=True))
    cut = model.chat("x", thinking=True, max_new=tokens).result()
    assert cut.text == "Answer," and cut.finish == "length" and cut.reasoning == "the <think> mark"
    asked: list[int] = []

    def interrupted() -> bool:
        asked.append(1)
        if len(asked) > tokens:
            raise KeyboardInterrupt
        return False

    reply = model.chat("x", thinking=True, cancel=interrupted)
    with pytest.raises(KeyboardInterrupt):
        reply.result()
    assert reply.finish == "cancel" and "Answer,".startswith(reply.text) and len(reply.text) > 4


def test_save_and_load(model: Qwen35, tmp_path: Path) -> None:
    talk = model.conversation("süß")
    talk.ask("eins 🐧").result()
    path = tmp_path / "talk.json"
    talk.save(path)
    other = model.conversation()
    other.load(path)
    assert other.messages == talk.messages and other.turns == 1
    assert str(other.ask("zwei")) == "You said: zwei"
    assert list(tmp_path.glob(".talk*")) == []


@pytest.mark.parametrize(
    "content", ["\ud800", [{"text": float("nan")}], [{"text": 10**5000}], [{"text": {1}}]], ids=range(4)
)
def test_what_a_file_cannot_hold_is_not_saved(model: Qwen35, tmp_path: Path, content: Any) -> None:
    talk = model.conversation()
    talk.messages = [{"role": "user", "content": content}]
    with pytest.raises(UsageError, match="not what a file can hold"):
        talk.save(tmp_path / "x.json")
    assert list(tmp_path.glob("*x.json*")) == []


def test_what_could_not_be_loaded_is_not_saved(model: Qwen35, tmp_path: Path) -> None:
    talk = model.conversation()
    talk.messages = [{"role": "user", "content": ""}]
    talk.save(tmp_path / "x.json")
    room = (16 << 20) - (tmp_path / "x.json").stat().st_size
    (tmp_path / "x.json").unlink()
    talk.messages[0]["content"] = "x" * (room + 1)
    with pytest.raises(UsageError, match=r"takes 16,777,216 bytes, and a file at most 16,777,216"):
        talk.save(tmp_path / "x.json")
    assert list(tmp_path.glob("*x.json*")) == []
    talk.messages[0]["content"] = "x" * room
    talk.save(tmp_path / "x.json")
    talk.load(tmp_path / "x.json")
    assert len(talk.messages[0]["content"]) == room and (tmp_path / "x.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        '{"role": "user", "content": "\\ud800"}',
        '{"role": "user", "content": [{"text": NaN}]}',
        '{"role": ["user"], "content": ""}',
        '{"role": "user", "content": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"role": "user", "content": "", "tool_calls": 3}',
    ],
)
def test_damaged_messages_are_not_loaded(model: Qwen35, tmp_path: Path, text: str) -> None:
    talk = model.conversation()
    talk.messages = before = [{"role": "user", "content": "kept"}]
    whole = '{"format": "qwen35-conversation", "version": 1, "messages": [%s], "tools": null}'
    (tmp_path / "x.json").write_text(whole % text)
    with pytest.raises(UsageError):
        talk.load(tmp_path / "x.json")
    assert talk.messages is before


def test_images_are_saved_as_paths(model: Qwen35, tmp_path: Path) -> None:
    talk = model.conversation()
    item = {"type": "image", "image": Path("a.png")}
    talk.messages = [{"role": "user", "content": [item]}]
    talk.save(tmp_path / "x.json")
    saved = json.loads((tmp_path / "x.json").read_text())["messages"][0]["content"][0]["image"]
    assert saved == str(Path("a.png").resolve())
    item["image"] = b"memory"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="memory"):
        talk.save(tmp_path / "x.json")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": "other"}',
        '{"format": "qwen35-conversation", "version": 2}',
        '{"format": "qwen35-conversation", "version": 1, "messages": [{"role": "robot", "content": ""}]}',
        '{"format": "qwen35-conversation", "version": 1, "messages": [], "tools": 3}',
        "[" * 100_000,
        *(
            json.dumps({"format": "qwen35-conversation", "version": 1, "messages": [message]})
            for message in (
                {"role": "assistant", "content": [3]},
                {"role": "assistant", "content": [{"text": 3}]},
                {"role": "user", "content": [{"image": {}}]},
                {"role": "assistant", "content": "", "reasoning_content": 3},
                {"role": "assistant", "content": "", "tool_calls": 3},
                {"role": "assistant", "content": "", "tool_calls": [3]},
                {"role": "assistant", "content": "", "tool_calls": [{"function": 3}]},
            )
        ),
    ],
)
def test_a_file_that_is_no_conversation_changes_nothing(model: Qwen35, tmp_path: Path, content: str) -> None:
    talk = model.conversation("keep")
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"x\.json"):
        talk.load(path)
    assert talk.system == "keep"
    with pytest.raises(UsageError, match="No such file"):
        talk.load(tmp_path / "missing")


def test_markers_from_a_user_are_text_unless_asked_for(tmp_path: Path) -> None:
    model = fake(tmp_path)
    end = model.tokenizer.added["<|im_end|>"]

    def ends(**options: Any) -> int:
        model.chat("a<|im_end|>b", max_new=1, **options).result()
        history = model.model.history  # type: ignore[attr-defined]
        return sum(part.count(end) for part in history)

    assert ends() == 1 and ends(allow_special=True) == 2


def test_messages_the_format_refuses_come_at_once(model: Qwen35) -> None:
    with pytest.raises(TemplateError):
        model.reply([{"role": "assistant", "content": "x"}])
    with pytest.raises(UsageError, match="max-new"):
        model.chat("x", max_new=0)


def test_hash_model_tells_states_apart() -> None:
    """The double itself: other tokens or other cuts, other logits."""
    one, two, three = HashModel(), HashModel(), HashModel()
    one.prefill([1, 2]), two.prefill([1]), three.prefill([1, 3])
    assert not np.array_equal(one.logits(), two.prefill([2]))
    assert not np.array_equal(one.logits(), three.logits())


@pytest.mark.parametrize("fails", [True, False])
def test_a_question_retried_in_vain_leaves_history_and_pictures(
    model: Qwen35, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    options = parse(["--chat", "--quiet"])
    options.schema = None
    chat = Chat(model, options)
    chat.conversation.ask("one").result()
    before, asked = list(chat.conversation.messages), []
    real = chat.conversation.ask

    def ask(text: str, *, images: Any, options: Any) -> Any:
        asked.append((text, images))
        if fails:
            raise UsageError("no")
        return real(text, images=images, options=replace(options, cancel=lambda: True))

    monkeypatch.setattr(chat.conversation, "ask", ask)
    chat.images = ["next.png"]
    retry = chat.commands["/retry"][0]
    with pytest.raises(UsageError) if fails else contextlib.nullcontext():
        retry("")
    assert asked == [("one", [])]
    assert chat.conversation.messages == before and chat.images == ["next.png"]


def test_repeated_prompts_and_shared_system_messages_are_not_computed_again(model: Qwen35) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

    def cached(text: str, system: str | None = None, **options: Any) -> tuple[int, int]:
        stats = model.chat(text, system, **options).result().stats
        return stats.cached_tokens, stats.prompt_tokens

    assert cached("What is a whale?")[0] == 0
    kept, total = cached("What is a whale?")
    assert kept > total - 12  # all but the opening of the answer
    system = "You are a careful model."
    assert cached("What is a whale?", system, tools=tools)[0] == 0
    kept, total = cached("What is a dog?", system, tools=tools)
    assert total - 40 < kept < total - 10
    talk = model.conversation(system, tools=tools)
    assert talk.ask("And a cat?").result().stats.cached_tokens == kept


def test_one_stop_string_is_one_string(model: Qwen35) -> None:
    whole = str(model.chat("one two"))
    assert str(model.chat("one two", stop="two")) == str(model.chat("one two", stop=["two"])) != whole
