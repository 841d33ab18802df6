"""A training run: killed and started again it ends with the same weights, bit for bit."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from qwen35.train import cases, default, evaluate, run, trainer, vocabulary  # noqa: E402
from qwen35.train.corpus import Corpus, Sample, Turn, Words  # noqa: E402
from qwen35.train.network import patches_of  # noqa: E402
from qwen35.train.trainer import Trainer, TrainError, check_settings  # noqa: E402
from qwen35.train.wordnet import WordNet  # noqa: E402
from tests.support import tiny_wordnet  # noqa: E402
from tests.support.program import python  # noqa: E402

pytestmark = [pytest.mark.peer, pytest.mark.slow]
STEPS, LAST = 12, 2
TAUGHT = 60
FIXED = ("--tower-steps", "2", "--more-steps", "2", "--row-steps", "2")


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small vocabulary, one thread, and a dict folder."""
    build = vocabulary.build
    patch = pytest.MonkeyPatch()
    patch.setattr(vocabulary, "build", lambda corpus: build(corpus, 2048, merges=50, samples=50))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tiny_wordnet.make(tmp_path_factory.mktemp("dict"))
    torch.set_num_threads(threads)
    patch.undo()


def _args(small: Path, out: Path, *more: str) -> argparse.Namespace:
    words = ("--wordnet", str(small), "--out", str(out), "--workers", "1", "--batch", "2")
    words += ("--words", str(TAUGHT))
    args = run.parser().parse_args([*words, "--steps", str(STEPS - 2 - LAST), *FIXED, *more])
    args.worker = 0
    return args


def _weights(folder: Path) -> Any:
    return torch.load(folder / "state.pt", weights_only=True)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def straight(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight")
    Trainer(_args(small, out)).run()
    return out


def test_a_run_writes_its_checkpoint(straight: Path) -> None:
    assert _weights(straight)["step"] == STEPS
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in (straight / "hf").iterdir()
    }
    assert f"{STEPS} steps" in (straight / "log.txt").read_text()


@pytest.mark.parametrize("killed", [1, 5, 9])
def test_killed_and_started_again_it_ends_alike(
    straight: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int
) -> None:
    """Killed after step `killed`, while a checkpoint is written; the last whole one is a step older."""
    step = Trainer.train_step

    def dying(self: Trainer) -> dict[str, float]:
        if self.step == killed:
            (self.out / "state.part").write_bytes(b"cut off")
            raise Killed
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", dying)
        with pytest.raises(Killed):
            Trainer(_args(small, tmp_path, "--save-every", "0")).run()
    assert _weights(tmp_path)["step"] == killed
    Trainer(_args(small, tmp_path)).run()
    mine, other = _weights(tmp_path), _weights(straight)
    assert f"resumed at step {killed}" in (tmp_path / "log.txt").read_text()
    assert mine["net"].keys() == other["net"].keys()
    for name, value in other["net"].items():
        assert torch.equal(mine["net"][name], value), name
    for number, state in other["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(mine["optimizer"]["state"][number][name], value), (number, name)


def test_a_finished_run_is_exported_scored_and_installed(
    straight: Path,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has learned nothing yet: no answer is right, and the bundle gives the same wrong ones."""
    out, package, table = tmp_path / "out", tmp_path / "package", tmp_path / "score.json"
    shutil.copytree(straight, out)
    (package / "default").mkdir(parents=True)
    (package / "default/old").write_text("gone afterwards")
    shutil.copy(default.DATA / "sample.png", package)
    monkeypatch.setattr(default, "DATA", package)
    monkeypatch.setattr(evaluate, "SCORE", package / "score.txt")
    monkeypatch.setattr(torch.distributed, "init_process_group", None)  # one worker meets nobody
    drawn = {case.mark: case for case in cases.drawings(3, 0.02)}
    asked = cases.words(Corpus(WordNet(small), TAUGHT), 2, 7)[:8]
    asked += [drawn[f"drawings: {mark}"] for mark in ("light", "two pictures", "tall and wide")]
    monkeypatch.setattr(evaluate, "every_case", lambda corpus, args: asked)
    words = ["--wordnet", str(small), "--out", str(out), "--workers", "1", "--batch", "2", *FIXED]
    more = ["--compared", "5", "--device", "emu", "--json", str(table), "--wrong", "--install"]
    assert run.main([*words, "--words", str(TAUGHT), "--steps", str(STEPS - 2 - LAST), *more]) == 0
    report, text = json.loads(table.read_text()), (out / "score.txt").read_text()
    assert report["float32"] == {mark: [0, n] for mark, n in Counter(c.mark for c in asked).items()}
    assert report["npu"] == {mark: [0, n] for mark, n in Counter(c.mark for c in asked[::2]).items()}
    told = report["bundle"]
    assert told["answers"] == 6 == told["same"] + len(told["parted"])
    assert all(part["margin"] < 0.3 for part in told["parted"])
    assert f" {TAUGHT} words, {STEPS} steps,\n" in text
    assert f"bundle: the same token ids in {told['same']} of 6 answers" in text
    said = capsys.readouterr().out
    assert text.splitlines()[-1] in said
    assert [said.count(f"{case.mark}: {case.sample.turns[-1].question!r} -> ") for case in asked] == [1] * 11
    assert (package / "score.txt").read_text() == text
    assert not (package / "default/old").exists()
    manifest = (package / "default/manifest.txt").read_text()
    assert "param sampling greedy" in manifest and "param chunk 64" in manifest
    capsys.readouterr()
    assert default.main(["--checkpoint", str(out / "hf"), "--out", str(tmp_path / "again")]) == 0
    size = sum(file.stat().st_size for file in (tmp_path / "again").rglob("*") if file.is_file())
    assert capsys.readouterr().err.endswith(f"{tmp_path / 'again'}: {size / 1e6:.1f} MB\n")
    assert f"\n{size / 1e6:.1f} MB. One run from its seed" in text


def test_two_workers_train_one_model(small: Path, tmp_path: Path) -> None:
    words = ["--wordnet", str(small), "--out", str(tmp_path), "--batch", "4", "--no-score", "--workers", "2"]
    more = ["--steps", "4", "--tower-steps", "1", "--more-steps", "1", "--row-steps", "1", "--words", "60"]
    # A program of its own: what its workers are started with stays until their starter ends.
    program = (
        "import sys\nfrom qwen35.train import run, vocabulary\nbuild = vocabulary.build\n"
        "vocabulary.build = lambda corpus: build(corpus, 2048, merges=50, samples=50)\n"
        "sys.exit(run.main(sys.argv[1:]))"
    )
    done = python("-c", program, *words, *more)
    assert done.returncode == 0, done.stderr
    assert _weights(tmp_path)["step"] == 6
    assert (tmp_path / "log.txt").read_text().count(f"{tmp_path / 'hf'}: 6 steps") == 1


def test_a_run_goes_on_only_with_its_own_settings(
    straight: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_settings(_args(small, straight))
    with pytest.raises(TrainError, match=r"--seed 1 .*give another --out"):
        check_settings(_args(small, straight, "--seed", "2"))
    words = ["--wordnet", str(small), "--out", str(straight), "--workers", "1", "--no-score"]
    assert run.main(words) == 1
    assert (
        f"a run with --words {TAUGHT} --steps {STEPS - 2 - LAST} {' '.join(FIXED)} --batch 2 began here"
        in capsys.readouterr().err
    )


def test_wrong_folders_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--wordnet", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: no index.noun here")


def test_the_loss_of_each_kind_falls(small: Path, tmp_path: Path) -> None:
    """On one batch of each kind, trained again and again."""
    made = Trainer(_args(small, tmp_path, "--batch", "4"))
    for batch in (
        made.batches.text(0, lambda _: Words()),
        made.batches.tower(0),
        made.batches.picture(1),
        made.batches.several(0),
    ):
        losses = []
        for _ in range(6):
            total, _ = made.loss(batch)
            total.backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            losses.append(total.item())
        assert min(losses[3:]) < 0.8 * losses[0], losses


def test_parts_are_told_by_kind(small: Path, tmp_path: Path) -> None:
    made = Trainer(_args(small, tmp_path, "--batch", "4"))
    told = set()
    while made.step < STEPS:
        told |= set(made.train_step())
    assert told == {"tower", "text", "picture", "several"}
    assert trainer.share_done(made.step, STEPS - 2 - LAST, 2) == 1.0


def test_a_batchs_loss_is_its_answers_and_some_of_the_towers(small: Path, tmp_path: Path) -> None:
    made = Trainer(_args(small, tmp_path, "--batch", "4"))
    for kind, batch in {
        "text": made.batches.text(0, lambda _: Words(0.0)),
        "tower": made.batches.tower(0),
        "picture": made.batches.picture(1),
        "several": made.batches.several(0),
    }.items():
        total, parts = made.loss(batch)
        share = 0.3 if len(batch.ids) else 1.0
        wanted = share * parts.get("tower", 0.0) + (parts[kind] if len(batch.ids) else 0.0)
        assert total.item() == pytest.approx(wanted, rel=1e-5)
        towers = [
            trainer.tower_loss(made.net, made.net.see(*_given(seen)), seen).item() for seen in batch.seen
        ]
        assert parts.get("tower", 0.0) == pytest.approx(sum(towers) / max(1, len(towers)), rel=1e-4)


def _given(seen: Any) -> tuple[Any, int, int]:
    return patches_of(seen.pixels), 2 * seen.rows, 2 * seen.columns


def test_parameters_decay_and_learn_by_their_kind(small: Path, tmp_path: Path) -> None:
    made = Trainer(_args(small, tmp_path))
    names = {id(parameter): name for name, parameter in made.net.named_parameters()}
    found = {}
    for group in made.optimizer.param_groups:
        assert (group["lr"], group["betas"]) == (2e-3, (0.9, 0.98))
        for parameter in group["params"]:
            found[names[id(parameter)]] = group["weight_decay"], group["scale"], group["eps"]
    table = "model.model.language_model.embed_tokens.weight"
    assert found.keys() == {name for name in names.values() if name != table}
    for name, settings in found.items():
        if "visual" in name or "probe" in name:
            assert settings == (0.02, 0.5, 1e-8), name
        elif name in ("word_rows", "form_rows"):
            assert settings == (0.0, 1.0, 1e-8), name
        else:
            whole = made.net.get_parameter(name).ndim >= 2
            assert settings == (0.05 if whole else 0.0, 1.0, 1e-8), name
    made.find_hard()
    rows = made.optimizer.param_groups[1]
    assert (rows["eps"], len(rows["params"])) == (trainer.ROW_EPS, 2)


def test_gradients_are_averaged_over_the_workers(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Trainer(_args(small, tmp_path))
    made.args.workers = 4
    for number, parameter in enumerate(made.net.parameters()):
        parameter.grad = None if number == 3 else torch.full_like(parameter, number + 1.0)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat: flat.mul_(6))
    made.share_gradients()
    for number, parameter in enumerate(made.net.parameters()):
        assert (parameter.grad is None) == (number == 3)
        assert parameter.grad is None or (parameter.grad == 1.5 * (number + 1)).all()


def test_whole_answers_are_right_once_they_are_learned(small: Path, tmp_path: Path) -> None:
    made = Trainer(_args(small, tmp_path))
    known = [Sample((Turn("Hello!", "One two three."),)), Sample((Turn("Bye!", "Four."),))]
    other = Sample((Turn("Hello!", "One two four."),))
    assert made.right([*known, other]) == [False] * 3
    batch = made.batches.encoder.collate(known)
    for _ in range(200):
        made.loss(batch)[0].backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
        if all(made.right(known)):
            break
    assert made.right([known[0], other, known[1]] * 13) == [True, False, True] * 13
    assert made.exact([*known, other, other]) == 0.5
    assert re.fullmatch(r"trained 0\.\d\d held 0\.\d\d bare 0\.\d\d refuse 0\.00", made.progress())


def test_the_score_that_ships_is_of_the_run_that_nothing_is_said_of() -> None:
    args = vars(run.parser().parse_args(["--wordnet", "", "--out", ""]))
    text = (Path(run.__file__).parent / "score.txt").read_text()
    steps = args["steps"] + args["more_steps"] + args["row_steps"]
    assert f" {steps:,} steps" in text and f"by {args['workers']} workers on 2 cores" in text
    wanted = {"layers": 4, "batch": 16, "lr": 2e-3, "seed": 1, "threads": 1, "workers": 2, "save_every": 120}
    assert {name: args[name] for name in wanted} == wanted and args["tower_steps"] < args["steps"]
    assert (args["compared"], args["pictures"], args["sample"], args["device"]) == (200, 200, None, "auto")


def test_the_tower_sees_plain_scenes_first(small: Path, tmp_path: Path) -> None:
    """Their grounds are light; of those that people bring many are not."""
    batches = Trainer(_args(small, tmp_path, "--batch", "2")).batches
    light = {}
    for done in (0.0, 0.5, 1.0):
        corners = [
            batches.tower(number, done).seen[0].pixels[:, 0, 0].float().mean().item() for number in range(40)
        ]
        light[done] = sum(corner > 220 for corner in corners)
    assert light[0.0] == light[0.5] == 40
    assert 5 < light[1.0] < 30


def test_row_steps_move_the_rows_of_hard_words_alone(small: Path, tmp_path: Path) -> None:
    """After so few steps every word is wrong; one row is set apart as if its word were right."""
    made = Trainer(_args(small, tmp_path))
    while made.step < made.rows_from:
        made.train_step()
    made.find_hard()
    assert made.hard
    spared, *hard = made.hard_rows()
    made.hard = [entry for entry in made.hard if spared not in made.rows_of(entry)]
    before = {name: value.clone() for name, value in made.net.state_dict().items()}
    made.train_step()
    after = made.net.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"word_rows"}
    moved = (after["word_rows"] != before["word_rows"]).any(1).nonzero().flatten().tolist()
    assert set(moved) <= set(hard) and moved
