"""qwen35.api on the real path: an exported bundle, the binding, the emulated NPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amdxdna.errors import XdnaError
from qwen35 import GREEDY, Qwen35, Sampling
from qwen35.errors import ImageError, ModelError, PromptTooLong, UsageError
from qwen35.find import DEFAULT_BUNDLE, find_bundle
from tests.support.models import DEVICE, export
from tests.support.program import python


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("tied"), "tied")


@pytest.fixture(scope="module", params=["tied", "grouped", "untied", "vision"])
def any_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def model(bundle: Path) -> Any:
    with Qwen35.load(bundle, 4096, DEVICE) as loaded:
        yield loaded


def test_greedy_ids_are_argmax_of_the_models_logits(model: Qwen35) -> None:
    ids = [3, 50, 7, 200, 9]
    logits, want = model.prefill(ids), []
    for _ in range(12):
        want.append(int(np.argmax(logits)))
        logits = model.decode(want[-1])
    assert list(model.generate(ids, 12, stop=False)) == want


def test_a_chat_streams_and_counts(model: Qwen35) -> None:
    reply = model.chat("What is a penguin?", max_new=20, sampling=GREEDY)
    text = "".join(reply)
    stats = reply.stats
    assert text == reply.text == model.tokenizer.decode(reply.tokens)
    assert stats.prompt_tokens > 15 and stats.new_tokens <= 20 and stats.loads >= 0 and stats.swaps == 0
    assert str(model.chat("What is a penguin?", max_new=20, sampling=GREEDY)) == text


def test_what_is_running_in_one_line(model: Qwen35, bundle: Path) -> None:
    line = model.info.line()
    assert "\n" not in line and str(bundle) in line
    assert "emulated NPU" in line and "2 hardware contexts" in line
    assert model.default_sampling() == Sampling(temperature=1.0, top_k=20, presence_penalty=2.0)


def scenario(model: Qwen35, images: list[Any], counts: list[tuple[int, int]]) -> list[Any]:
    """What a peer does in one session: all that an answer is made of; prompt and cached tokens aside."""
    talk, kept = model.conversation("You are a small model that answers in few words."), []

    def ask(text: str, **options: Any) -> None:
        reply = talk.ask(text, **{"max_new": 10, "sampling": GREEDY, **options}).result()
        kept.append((reply.tokens, reply.text, reply.reasoning, reply.finish))
        counts.append((reply.stats.prompt_tokens, reply.stats.cached_tokens))

    ask("What is a penguin?")
    ask("And where does it live?", thinking=True)
    ask("Draw one.", sampling=Sampling(temperature=0.9, top_k=20, presence_penalty=1.5, seed=5))
    ask("A long one. " + "The sea is cold and blue. " * 45)
    stopped = talk.ask("This is stopped", cancel=lambda: True).result()
    kept.append((stopped.tokens, stopped.finish))
    ask("After the stop.")
    talk.undo()
    ask("After the stop, otherwise.")
    cut = talk.ask("Cut short.", max_new=10, sampling=GREEDY)
    next(cut.events(), None)
    cut.close()
    ask("After the cut.")
    for image in images:
        ask("What is in the picture?", images=[image])
        ask("And its colour?")
    talk.clear()
    ask("What is a penguin?")
    talk.clear()
    ask("What else shares the system message?")
    for _ in range(2):
        reply = model.chat("What is a penguin?", "Another one.", max_new=10, sampling=GREEDY).result()
        kept.append((reply.tokens, reply.text))
    return kept


def test_a_session_is_token_identical_with_and_without_kept_states(any_bundle: Path) -> None:
    """Across passes, chunks, stops and pictures; `few` keeps so little that states are lost on the way."""
    rng = np.random.default_rng(0)
    images: list[Any] = []
    if json.loads((any_bundle.parent / "checkpoint" / "config.json").read_text()).get("vision_config"):
        images = [rng.integers(0, 256, shape, np.uint8) for shape in ((40, 60, 3), (64, 32, 3))]
        images.append(images[0])
    results, computed = [], []
    for cache in (512 << 20, 100_000, 0):
        with Qwen35.load(any_bundle, 4096, DEVICE, cache_bytes=cache) as model:
            counts: list[tuple[int, int]] = []
            results.append(scenario(model, images, counts))
            computed.append(sum(entry[0] - entry[1] for entry in counts))
    assert results[0] == results[2]
    assert results[1] == results[2]
    assert computed[0] < computed[1] <= computed[2]


@pytest.mark.parametrize("device", ["emu:threads=2", "emu:address=iova,threads=1", "emu:slots=1,threads=1"])
def test_the_same_ids_on_every_kind_of_device(model: Qwen35, bundle: Path, device: str) -> None:
    want = model.chat("What is a penguin?", max_new=24, sampling=GREEDY).result().tokens
    with Qwen35.load(bundle, 4096, device) as other:
        reply = other.chat("What is a penguin?", max_new=24, sampling=GREEDY).result()
        assert reply.tokens == want
        assert (reply.stats.swaps > 0) == ("slots=1" in device)


@pytest.mark.parametrize("fault", ["fail=150", "hang=150", "fail=40", "fail=290-291"])
def test_a_failing_command_ends_the_turn_and_not_the_session(model: Qwen35, bundle: Path, fault: str) -> None:
    want = model.conversation()
    for text in ("one", "two"):
        want.ask(text, max_new=8, sampling=GREEDY).result()
    failures = 0
    with Qwen35.load(bundle, 4096, f"{DEVICE},{fault},tdr=0.3,quiet", chains="off") as faulty:
        talk = faulty.conversation()
        for text in ("one", "two"):
            for _ in range(3):
                try:
                    talk.ask(text, max_new=8, sampling=GREEDY).result()
                    break
                except XdnaError:
                    failures += 1
        assert 1 <= failures <= 2 and talk.messages == want.messages


def test_limits_are_told_with_numbers(bundle: Path) -> None:
    with Qwen35.load(bundle, 64, DEVICE) as model:
        with pytest.raises(PromptTooLong, match=r"\d+ tokens and the context holds 64"):
            model.chat("word " * 100)
        reply = model.chat("hi", max_new=500, sampling=GREEDY, loops=False).result()
        assert reply.finish in ("context", "stop")
        model.prefill(range(64))
        with pytest.raises(PromptTooLong):
            model.decode(1)
    for wrong in (0, 1 << 20):
        with pytest.raises(UsageError, match="max-ctx"):
            Qwen35.load(bundle, wrong, DEVICE)


def test_a_closed_model_says_so(bundle: Path) -> None:
    model = Qwen35.load(bundle, 64, DEVICE)
    model.close()
    model.close()
    for use in (lambda: model.chat("x"), lambda: model.prefill([1]), lambda: model.generate([1])):
        with pytest.raises(UsageError, match="closed"):
            use()


def test_pictures_need_a_tower(model: Qwen35) -> None:
    with pytest.raises(ImageError, match="no vision tower") as caught:
        model.chat("x", images=["a.png"])
    assert str(model.info.bundle) in str(caught.value)


def test_where_the_bundle_comes_from(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QWEN35_BUNDLE", raising=False)
    assert find_bundle(bundle) == bundle
    monkeypatch.setattr("qwen35.find.DEFAULT_BUNDLE", bundle)
    assert find_bundle() == bundle
    monkeypatch.setattr("qwen35.find.DEFAULT_BUNDLE", tmp_path / "none")
    with pytest.raises(ModelError, match="no built-in one"):
        find_bundle()
    monkeypatch.setenv("QWEN35_BUNDLE", str(bundle))
    assert find_bundle() == bundle and DEFAULT_BUNDLE.name == "default"


def test_the_bundles_own_sampling_and_name(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    copy.mkdir()
    for file in bundle.iterdir():
        (copy / file.name).symlink_to(file)
    (copy / "manifest.txt").unlink()
    manifest = (bundle / "manifest.txt").read_text()
    (copy / "manifest.txt").write_text(manifest + "param sampling greedy\nparam name A small one\n")
    with Qwen35.load(copy, 64, DEVICE) as model:
        assert model.default_sampling() == GREEDY and model.info.line().startswith("A small one (")


# The command line over the real path.


def run(*words: str, stdin: str = "") -> tuple[int, str, str]:
    done = python("-m", "qwen35", *words, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def test_a_prompt_on_the_command_line(model: Qwen35, bundle: Path) -> None:
    words = [str(bundle), "--prompt", "What is a penguin?", "--greedy", "--max-new", "16"]
    status, out, err = run(*words, "--device", DEVICE, "--timing")
    want = model.chat("What is a penguin?", max_new=16, sampling=GREEDY).result().text
    assert status == 0 and out == want + "\n" * (not want.endswith("\n"))
    assert "emulated NPU" in err and "timing: gemm.lin" in err and "timing: contexts: 2 loaded" in err
    assert run(*words, "--device", "emu:threads=2", "--seed", "3")[1] == out


def test_a_wrong_device_is_one_line(bundle: Path) -> None:
    for device in ("/dev/null", "emu:colour=1", "7"):
        status, out, err = run(str(bundle), "--prompt", "x", "--device", device)
        assert (status, out, err.count("\n")) == (1, "", 1) and err.startswith("qwen35: error: "), err


def test_a_conversation_on_the_command_line(bundle: Path) -> None:
    words = [str(bundle), "--chat", "--greedy", "--max-new", "8", "--device", DEVICE, "--stats", "json"]
    with_cache = run(*words, stdin="one\ntwo\nthree\nfour\n")
    without = run(*words, "--cache-mb", "0", stdin="one\ntwo\nthree\nfour\n")
    assert with_cache[0] == without[0] == 0 and with_cache[1] == without[1]
    stats = [json.loads(line) for line in with_cache[2].splitlines() if line.startswith("{")]
    assert [s["cached_tokens"] > 0 for s in stats] == [False, True, True, True]


@pytest.mark.parametrize("prompt", ["", []])
def test_nothing_is_not_gone_on_with(model: Qwen35, prompt: Any) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        model.complete(prompt)
