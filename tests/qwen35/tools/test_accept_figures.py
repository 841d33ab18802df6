"""The acceptance run's figures: what they follow from, and what is told of each way to use the device."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwen35.accept import Acceptance, Item, Verdict, answers, kernels, ways
from qwen35.accept.ledger import Ledger
from qwen35.accept.report import summary
from tests.support.model_bundle import bundle_path


@pytest.fixture(scope="module")
def loaded() -> Iterator[Acceptance]:
    """A run whose model is there."""
    run = Acceptance(bundle_path("tied"), "emu:threads=1,quiet", max_ctx=400)
    items = run.items()
    while next(items).name != "load":
        pass
    yield run
    run.close()


def test_figures_of_the_kernels_and_their_buffers(loaded: Acceptance) -> None:
    """Rates follow from the time told, the weights' bytes and the products' operations; nothing is kept."""
    assert loaded.model is not None
    text = loaded.model.model
    held = text.device.bo_usage()
    items = {item.name: item for item in kernels.text_kernels(text)}
    used = text.device.bo_usage()
    assert used.total - used.internal == held.total - held.internal
    for name, item in items.items():
        values, key = item.values, name.split()[1]
        assert values["kernel"] == name and values["repeatable"] is True
        assert 0 <= values["largest_difference"] < kernels.TOLERANCE
        spec, seconds = text.npu.gemv_spec(key), values["ms"] / 1e3
        if name.startswith("gemv"):
            weights = text.weights["head0" if key == "head" else f"l{3 * (key == 'att')}.g.in"].nbytes
            if key in ("lin", "att", "head"):
                assert values["gb_s"] * seconds * 1e9 == pytest.approx(weights)
            rate = f"{values['gb_s']:.1f} GB/s"
        else:
            gemm = text.npu.gemm_spec(key)
            rows = gemm.m * int(name.rpartition("x")[2])
            assert values["gflop_s"] * seconds * 1e9 == pytest.approx(2 * rows * gemm.k * spec.m)
            rate = f"{values['gflop_s']:,.0f} GFLOP/s"
        assert item.text == (
            f"differs from host by {values['largest_difference']:.2%} at most, {values['ms']:.2f} ms, {rate}"
        )
    parts = [f"{key} x{n}" for key in ("lin", "att", "o", "gu", "down") for n in (1, 4)]
    assert {*items} == {f"gemm {part}" for part in parts} | {
        f"gemv {key}" for key in ("lin", "att", "o", "gu", "down", "head")
    }


def test_figures_of_the_ways_and_of_speed(loaded: Acceptance, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever it is asked; `spent` takes none of it away, or half."""
    assert loaded.model is not None
    text, now = loaded.model.model, [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(ways, "TRIALS", 2)
    monkeypatch.setattr("qwen35.model.probe.GRACE", 60.0)  # what else runs decides nothing
    for name in ("ways", "answers"):
        monkeypatch.setattr(f"qwen35.accept.{name}.time", SimpleNamespace(perf_counter=clock))
    for spent, second in ((lambda: 0.0, 1.0), (lambda: now[0] / 2, 0.5)):
        item = ways.chains(text, spent)
        assert item.verdict is Verdict.OK
        assert item.values == {"token_ms": second * 1e3, "token_singly_ms": second * 1e3}
        assert item.text.endswith(f"a token takes {second * 1e3:.2f} ms, singly {second * 1e3:.2f} ms")
        assert item.text.startswith("2 times 3 groups gave what single commands give")
        item = answers.speed(loaded.model, spent)
        assert item.values == {"prompt_tokens": 256, "prompt_s": second, "token_ms": second / 32 * 1e3}
        told = f"a prompt of 256 tokens {second:.2f} s, a token {second / 32 * 1e3:.1f} ms"
        assert (item.verdict, item.text) == (Verdict.NOTE, told)
    monkeypatch.setattr(ways, "RELOADS", 3)
    item = ways.contexts(text)
    contexts = len({id(text.npu.kernel(key, n).shared) for key, n in (("lin", 0), ("lin", 1))})
    assert item.values["loads"] == 3 * (1 + contexts) and item.text.startswith(
        f"{item.values['loads']} loads"
    )
    assert not text.npu.chains
    item = ways.hang(text)
    assert item.values == {"seconds_to_error": 1.0} and item.text.startswith("told after 1.0 s, the next ")


def _items(**verdicts: str) -> list[Item]:
    found = {name.replace("_", " "): Verdict(verdict) for name, verdict in verdicts.items()}
    return [
        Item(
            name.replace("pointer", "user-pointer"),
            verdict,
            f"why {name}",
            {"kernel": name} if "gem" in name else {},
        )
        for name, verdict in found.items()
    ]


@pytest.mark.parametrize(
    ("verdicts", "fit", "finished", "told"),
    [
        (
            {"gemv": "ok", "gemm": "ok"},
            False,
            True,
            ("PROVED: 2 kernels gave right results", *["NOT TRIED: the run is not over"] * 2),
        ),
        (
            {"gemv": "ok"},
            False,
            False,
            ("NOT PROVED: the run is not over", *["NOT TRIED: the run is not over"] * 2),
        ),
        (
            {"load": "ok"},
            False,
            True,
            ("NOT PROVED: the run is not over", *["NOT TRIED: the run is not over"] * 2),
        ),
        (
            {"gemv": "ok", "chains": "ok", "pointer": "ok"},
            True,
            True,
            ("PROVED: 1 kernels gave right results", "PROVED: why chains", "PROVED: why pointer"),
        ),
        (
            {"gemv": "ok", "chains": "ok", "pointer": "ok"},
            True,
            False,
            ("NOT PROVED: the run is not over",) * 3,
        ),
        (
            {"gemv": "FAIL", "chains": "ok", "pointer": "skip"},
            True,
            True,
            (
                "NOT PROVED: 1 item failed",
                "DO NOT USE: single commands are not proved",
                "PROVED: why pointer",
            ),
        ),
        (
            {"gemv": "FAIL", "gemm": "FAIL", "chains": "ok", "prompts in chains": "off", "pointer": "FAIL"},
            False,
            True,
            ("NOT PROVED: 3 items failed", "DO NOT USE: why prompts in chains", "DO NOT USE: why pointer"),
        ),
        (
            {"gemv": "ok", "chains": "skip", "pointer": "off"},
            False,
            True,
            ("PROVED: 1 kernels gave right results", "NOT TRIED: why chains", "DO NOT USE: why pointer"),
        ),
    ],
)
def test_what_is_told_of_each_way(
    verdicts: dict[str, str], fit: bool, finished: bool, told: tuple[str, ...]
) -> None:
    run: Any = SimpleNamespace(chains=fit, mapped=fit, emulated=False)
    found = summary(run, _items(**verdicts), finished)
    names = ("single commands:", "command chains:", "weights in user memory:")
    for name, text in zip(names, told, strict=True):
        assert f"{name:<24}{text}" in found
    failed = [name for name, verdict in verdicts.items() if verdict == "FAIL"]
    assert ("interrupted: what is not listed was not tried" in found) is not finished
    assert any(line.startswith("failed: ") for line in found) is bool(failed)
    use = "auto" if fit and not failed else "off"
    assert found[-1].endswith(f"use: QWEN35_CHAINS={use} QWEN35_WEIGHTS={'copy' if use == 'off' else use}")


class _Bits:
    """A buffer of bf16 bits."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def read(self) -> bytes:
        return np.array(self.values, np.uint16).tobytes()


def test_the_ledger_compares_the_bits_that_mean_something() -> None:
    """Of two rows of three columns with a gap: of A the first two columns, of C the first."""
    gemm = SimpleNamespace(m=1, k=2, lda=4, c_stride=3)
    npu: Any = SimpleNamespace(
        name_of=lambda kernel: kernel,
        gemv_spec=lambda key: SimpleNamespace(k=2, m=1),
        gemm_spec=lambda key: gemm,
        columns=lambda key: 1,
    )
    ledger, weights, others = Ledger(npu), object(), object()

    def ran(kernel: tuple[str, int], a: _Bits, c: _Bits, b: object = weights, chained: bool = False) -> None:
        ledger(iter([(kernel, (a, b, c))]), chained)  # type: ignore[list-item]

    def state() -> tuple[int, int, str]:
        return ledger.compared, ledger.alone, ledger.differing()

    two = ("lin", 2)
    assert not ledger.told()
    ran(two, _Bits(1, 2, 0, 0, 3, 4, 0, 0), _Bits(5, 0, 0, 6, 0, 0))
    assert ledger.told() and not ledger.told() and state() == (0, 1, "")
    ran(two, _Bits(1, 2, 9, 9, 3, 4, 9, 9), _Bits(5, 9, 9, 6, 9, 9))  # what lies between is nobody's
    assert state() == (1, 0, "")
    for c in (_Bits(5, 0, 0, 7, 0, 0), _Bits(4, 0, 0, 6, 0, 0)):
        ran(two, _Bits(1, 2, 0, 0, 3, 4, 0, 0), c)
    assert state() == (3, 0, "gemm lin x2 (2)") and state() == (3, 0, "")
    ran(two, _Bits(1, 2, 0, 0, 3, 5, 0, 0), _Bits(8, 0, 0, 6, 0, 0))  # other activations, weights, kernels
    ran(two, _Bits(1, 2, 0, 0, 3, 4, 0, 0), _Bits(8, 0, 0, 6, 0, 0), others)
    ran(("lin", 0), _Bits(1, 2), _Bits(5))
    ran(("att", 0), _Bits(1, 2), _Bits(6))
    assert state() == (3, 4, "")
    ran(("lin", 0), _Bits(1, 2), _Bits(6))
    ran(("att", 0), _Bits(1, 2), _Bits(7))
    assert state() == (5, 2, "gemv lin (1), gemv att (1)")
    ran(("lin", 0), _Bits(1, 2), _Bits(5), chained=True)
    assert ledger.chains_wrong() == ""
    ran(("lin", 0), _Bits(1, 3), _Bits(5), chained=True)
    ran(("lin", 0), _Bits(1, 4), _Bits(5), chained=True)
    alone = "members of chains had operands that no single command had: gemv lin (2)"
    assert ledger.chains_wrong() == alone and ledger.chains_wrong() == ""
    for value in (7, 8):
        ran(("lin", 0), _Bits(1, 2), _Bits(value), chained=True)
    ran(("lin", 0), _Bits(1, 3), _Bits(5), chained=True)
    assert ledger.chains_wrong() == "members of chains gave other bits than single commands: gemv lin (2)"
    assert ledger.chains_wrong() == "" and state() == (5, 2, "") and ledger.seconds > 0


def test_the_only_kernel_of_a_file_may_be_called_otherwise(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle_path("tied"), tmp_path / "b"))
    manifest = (folder / "manifest.txt").read_text()
    (folder / "manifest.txt").write_text(manifest.replace("gemv.xclbin MLIR_AIE", "gemv.xclbin MAIN"))
    run = Acceptance(folder, "emu:threads=1,quiet")
    found = {}
    for item in run.items():
        found[item.name] = item
        if item.name == "bundle":
            break
    assert found["xclbin gemv"].verdict is found["bundle"].verdict is Verdict.OK, found["bundle"].line
    assert found["xclbin gemv"].text == "1 PDI, 8 columns, kernel MAIN"
    sizes = found["bundle"].values["streams"]
    assert found["bundle"].text == f"{len(sizes)} instruction streams, {sum(sizes.values()):,} bytes"
    assert sizes == {
        f"kernels/{file.name}": file.stat().st_size for file in sorted((folder / "kernels").glob("*.bin"))
    }
    run.close()
