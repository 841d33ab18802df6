"""Pictures in prompts: read once, through the tower once, told apart by content, on the command line too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen35 import GREEDY, Qwen35
from qwen35.engine import Input
from qwen35.errors import ImageError
from qwen35.images.embed import Images
from tests.support.models import DEVICE, export
from tests.support.program import python


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("vision"), "vision")


@pytest.fixture
def model(bundle: Path) -> Iterator[Qwen35]:
    with Qwen35.load(bundle, 4096, DEVICE) as loaded:
        yield loaded


def picture(path: Path, seed: int, size: tuple[int, int] = (48, 32)) -> Path:
    """A PNG of noise, width x height."""
    from PIL import Image

    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)).save(path)
    return path


class CountingTower:
    """A tower whose rows are the digest of the patches, and that counts."""

    def __init__(self, width: int) -> None:
        self.width, self.seen, self.closed = width, 0, False
        self.together: list[int] = []

    def encode(self, patches: np.ndarray, grid: tuple[int, int], progress: Any = None) -> np.ndarray:
        self.seen += 1
        if progress is not None:
            progress(1, 1)
        return np.full((grid[0] * grid[1] // 4, self.width), patches.mean(), np.float32)

    def encode_all(
        self, pictures: Sequence[tuple[np.ndarray, tuple[int, int]]], progress: Any = None
    ) -> list[np.ndarray]:
        self.together.append(len(pictures))
        return [self.encode(*picture, progress) for picture in pictures]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def tower(model: Qwen35) -> CountingTower:
    counting = CountingTower(model.info.hidden)
    model.vision = Images(model.model, lambda: counting)  # type: ignore[arg-type]
    return counting


def test_the_pictures_of_a_prompt_go_through_the_tower_together(
    model: Qwen35, tower: CountingTower, tmp_path: Path
) -> None:
    """Each picture once, a repeated one too, and everybody gets its own rows."""
    paths = [picture(tmp_path / f"{seed}.png", seed) for seed in (1, 2, 1, 3, 4, 5, 6)]
    images = model.vision
    assert images is not None
    seen = [images.read(path) for path in paths]
    rows = images.all_embeddings(seen)
    assert tower.seen == 6 and tower.together == [4, 2], "what a few are is kept when the next are stopped"
    for one, own in zip(seen, rows, strict=True):
        np.testing.assert_array_equal(own, np.full_like(own, one.patches.mean()))
    assert images.all_embeddings([]) == []
    images.all_embeddings(seen[::-1])
    assert tower.seen == 6


def test_a_picture_goes_through_the_tower_once_for_all_its_turns(
    model: Qwen35, tower: CountingTower, tmp_path: Path
) -> None:
    one, two = picture(tmp_path / "one.png", 1), picture(tmp_path / "two.png", 2)
    same = tmp_path / "same.png"
    same.write_bytes(one.read_bytes())
    talk = model.conversation()
    first = talk.ask("what?", images=[one], max_new=3, sampling=GREEDY).result().stats
    assert tower.seen == 1 and first.image_tokens > 0 and first.vision_s > 0
    again = talk.ask("and now?", max_new=3, sampling=GREEDY).result().stats
    assert tower.seen == 1 and again.cached_tokens > first.image_tokens
    model.chat("what?", images=[same], max_new=3, sampling=GREEDY).result()
    assert tower.seen == 1
    talk.ask("and this?", images=[two], max_new=3, sampling=GREEDY).result()
    assert tower.seen == 2


def test_pictures_from_files_are_kept_within_the_budget(
    model: Qwen35, tower: CountingTower, tmp_path: Path
) -> None:
    pictures = model.vision
    assert pictures is not None
    paths = [picture(tmp_path / f"{seed}.png", seed) for seed in range(4)]
    pictures.budget = 3 * pictures.read(paths[0]).patches.nbytes
    first, second = pictures.read(paths[0]), pictures.read(paths[1])
    pictures.read(paths[2])
    assert pictures.read(paths[0]) is first
    pictures.read(paths[3])
    assert pictures.read(paths[0]) is first and pictures.read(paths[1]) is not second
    pictures.budget = 0
    assert pictures.read(paths[2]) is pictures.read(paths[2])


@pytest.mark.parametrize("size", [(96, 32), (32, 96)])
def test_a_picture_of_more_patches_than_the_tower_takes_is_refused(
    model: Qwen35, tmp_path: Path, size: tuple[int, int]
) -> None:
    images = model.vision
    assert images is not None
    path = picture(tmp_path / "x.png", 1, size)
    patches = int(np.prod(images.read(path).grid))
    data = path.read_bytes()
    for most in (patches, patches - 1):
        images.config = replace(images.config, max_patches=most)
        if most == patches:
            assert images.read(data).grid == images.read(path).grid
            continue
        message = f"the picture has {patches} patches and the tower takes {most} .a picture.: make it smaller"
        with pytest.raises(ImageError, match=message):
            images.read(data + b" ")


def test_states_of_different_pictures_are_not_mixed_up(model: Qwen35, bundle: Path, tmp_path: Path) -> None:
    """The prompts' ids are the same; the answers must be those of a fresh model."""
    shots = [picture(tmp_path / f"{seed}.png", seed) for seed in (1, 2)]
    logits, fresh = [], []
    for shot in [*shots, *shots]:
        talk = model.conversation("same")
        talk.ask("what?", images=[shot], max_new=2, sampling=GREEDY).result()
        talk.ask("sure?", max_new=2, sampling=GREEDY).result()
        logits.append(model.model.decode(5).copy())
    for shot in shots:
        with Qwen35.load(bundle, 4096, DEVICE, cache_bytes=0) as other:
            talk = other.conversation("same")
            talk.ask("what?", images=[shot], max_new=2, sampling=GREEDY).result()
            talk.ask("sure?", max_new=2, sampling=GREEDY).result()
            fresh.append(other.model.decode(5).copy())
    assert not np.array_equal(fresh[0], fresh[1])
    for got, want in zip(logits, [*fresh, *fresh], strict=True):
        np.testing.assert_array_equal(got, want)


def test_many_pictures_of_two_conversations_are_not_mixed_up(
    model: Qwen35, bundle: Path, tmp_path: Path
) -> None:
    """Keys that are out of step with the tokens, by one a picture, leave the question's last words out."""
    shots = [picture(tmp_path / f"{seed}.png", seed) for seed in range(20)]

    def logits(asked: Qwen35, text: str) -> np.ndarray:
        asked.conversation().ask(text, images=shots, max_new=2, sampling=GREEDY).result()
        return asked.model.decode(5).copy()

    questions = ("Is it a", "Is it b")
    together = [logits(model, text) for text in questions]
    with Qwen35.load(bundle, 4096, DEVICE, cache_bytes=0) as alone:
        for got, text in zip(together, questions, strict=True):
            np.testing.assert_array_equal(got, logits(alone, text))
    assert not np.array_equal(*together)


def test_keys_that_do_not_fit_the_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="3 keys for 2 tokens"):
        Input([1, 2], keys=[1, 2, 3])


def test_a_changed_file_is_read_again_and_a_lost_one_is_remembered(
    model: Qwen35, tower: CountingTower, tmp_path: Path
) -> None:
    path = picture(tmp_path / "x.png", 1)
    talk = model.conversation()
    talk.ask("what?", images=[path], max_new=2, sampling=GREEDY).result()
    path.unlink()
    talk.ask("still?", max_new=2, sampling=GREEDY).result()
    assert tower.seen == 1
    picture(path, 2)
    model.chat("what?", images=[path], max_new=2, sampling=GREEDY).result()
    assert tower.seen == 2
    with pytest.raises(ImageError):
        talk.ask("and?", images=[tmp_path / "never.png"])


def test_progress_tells_of_every_block_and_every_pass(model: Qwen35, tmp_path: Path) -> None:
    shots = [picture(tmp_path / f"{seed}.png", seed, (64, 64)) for seed in (1, 2)]
    told: list[tuple[str, int, int]] = []
    reply = model.chat(
        "what? " * 30, images=shots, max_new=1, sampling=GREEDY, progress=lambda *step: told.append(step)
    ).result()
    assert [step for step in told if step[0] == "picture"] == [("picture", 1, 2), ("picture", 2, 2)] * 2
    total = reply.stats.prompt_tokens
    passes = [*range(0, total, 64), total]
    assert total > 128 and [step for step in told if step[0] == "prompt"] == [
        ("prompt", done, total) for done in passes
    ]


def test_kept_embeddings_are_bounded(model: Qwen35, tmp_path: Path) -> None:
    counting = CountingTower(model.info.hidden)
    model.vision = Images(model.model, lambda: counting, budget=1)  # type: ignore[arg-type]
    shots = [picture(tmp_path / f"{seed}.png", seed) for seed in (1, 2)]
    for shot in (shots[0], shots[0], shots[1], shots[0]):
        model.chat("x", images=[shot], max_new=1, sampling=GREEDY, keep=False).result()
    assert counting.seen == 3


def test_the_tower_is_given_back(model: Qwen35, tower: CountingTower, tmp_path: Path) -> None:
    model.chat("x", images=[picture(tmp_path / "x.png", 1)], max_new=1, sampling=GREEDY).result()
    model.close()
    assert tower.closed


def test_a_picture_may_cross_passes(model: Qwen35, bundle: Path, tmp_path: Path) -> None:
    """Passes are 64 tokens here: with the text moved along, the picture lies across a border of passes."""
    shot = picture(tmp_path / "x.png", 3, (64, 64))
    for words in range(0, 60, 7):
        message = {"role": "user", "content": [{"text": "a " * words}, {"image": shot}, {"text": "what?"}]}
        whole = model.reply([message], max_new=3, sampling=GREEDY).result()
        with Qwen35.load(bundle, 4096, DEVICE) as other:
            other.session.pass_tokens = 0
            assert other.reply([message], max_new=3, sampling=GREEDY).result().tokens == whole.tokens


def run(*words: str, stdin: str = "") -> tuple[int, str, str]:
    done = python("-m", "qwen35", *words, "--greedy", "--max-new", "3", "--device", DEVICE, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def test_pictures_on_the_command_line(bundle: Path, tmp_path: Path) -> None:
    small, large = picture(tmp_path / "s.png", 1), picture(tmp_path / "l.png", 2, (1600, 1200))
    status, out, err = run(str(bundle), "--prompt", "what?", "--image", str(small), "--image", str(large))
    assert status == 0 and out and "vision" in err
    assert f"{large} is 1600x1200, shrunk to " in err
    status, out, err = run(str(bundle), "--prompt", "what?", "--image", str(tmp_path / "none.png"), "-q")
    assert status == 1 and out == "" and err.count("\n") == 1 and "none.png" in err


def test_a_bad_picture_ends_the_turn_and_not_the_session(bundle: Path, tmp_path: Path) -> None:
    good, bad = picture(tmp_path / "good.png", 1), tmp_path / "bad.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\nno more")
    talk = f"/image {bad}\n/image {good}\nwhat?\n/image {good} {good}\n/image\nand now?\n"
    status, out, err = run(str(bundle), "--chat", "--stats", "none", stdin=talk)
    assert status == 1 and err.count("error: ") == 1 and "bad.png" in err and "Traceback" not in err
    assert "1 picture before" in err and "2 pictures before" in err and "0 pictures before" in err
    assert out.count("\n") >= 2


def test_a_picture_as_path_bytes_or_part(model: Qwen35, tmp_path: Path) -> None:
    import base64

    shot = picture(tmp_path / "a.png", 1)
    data = Path(shot).read_bytes()
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    want = model.chat("x", images=[shot], max_new=3, sampling=GREEDY).result()
    for images in (str(shot), Path(shot), data, [data]):
        assert model.chat("x", images=images, max_new=3, sampling=GREEDY).result().tokens == want.tokens
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "x"}]
    got = model.reply([{"role": "user", "content": parts}], max_new=3, sampling=GREEDY).result()
    assert got.tokens == want.tokens and got.stats.image_tokens == want.stats.image_tokens > 0
