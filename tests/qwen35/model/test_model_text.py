"""The text model on the emulated NPU, from bundle to logits.

Reference: the forward written out in numpy (tests/support/numpy_model.py), exact and with the NPU's rounding,
and transformers in float32 on the same bfp16-rounded weights.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from amdxdna.device import Device
from qwen35 import host
from qwen35._host import ffi, lib
from qwen35.bundle import Bundle
from qwen35.errors import ModelError, PromptTooLong
from qwen35.model import cache, decode
from qwen35.model.text import TextModel
from tests.support import synthetic
from tests.support.margins import margins
from tests.support.model_bundle import bundle_path, forward, model, rounded, run, tokens
from tests.support.npu_watch import GemmRows, memory, submits

SHAPES = ("tied", "grouped", "untied")
HABIT = {"tied": "plain", "grouped": "strides", "untied": "tight"}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("prompt", [1, 23, 150])
def test_logits_are_the_models_up_to_bf16_activations(name, prompt):
    ids = tokens(name, prompt + 16, seed=prompt)
    exact = forward(name, False)(ids)[prompt - 1 :]
    npu = forward(name, True)(ids, decode_from=prompt)[prompt - 1 :]
    with model(name, HABIT[name]) as text:
        got = run(text, ids, prompt)
    ulp = 2.0**-8 * np.abs(npu).max()
    # with every rounding modelled only float32 sums differ, which now and then round the other way
    assert np.abs(got - npu).max() < 6 * ulp
    assert np.median(np.abs(got - npu)) < ulp
    activation = np.abs(npu - exact).max()
    error = np.abs(got - exact).max()
    assert error < 1.5 * activation + ulp
    sure = margins(exact) > 2 * activation
    assert sure.any() and (got.argmax(-1) == exact.argmax(-1))[sure].all()


@pytest.mark.parametrize("prompt", [1, 16])
def test_a_short_prompt_is_reproduced_to_the_bit(prompt):
    ids = tokens("tied", prompt, seed=7)
    with model("tied") as text:
        got = text.prefill(ids)
    want = forward("tied", True)(ids, decode_from=prompt)[-1]
    assert (got == want).mean() > 0.9 and np.abs(got - want).max() < 0.05


@pytest.mark.parametrize("name", SHAPES)
def test_decoding_is_the_prompt_in_other_portions(name):
    ids = tokens(name, 90)
    with model(name) as text:
        whole = text.prefill(ids)
        for prompt in (1, 30, 64, 89):
            got = run(text, ids, prompt)[-1]
            assert text.length == text.position == 90
            # the MLP rounds gate and up before their product in decode, after it in prefill
            assert np.abs(got - whole).max() < 0.35
            assert np.median(np.abs(got - whole)) < 0.06


def test_decoding_from_an_empty_state():
    ids = tokens("tied", 3)
    with model("tied") as text:
        first = [text.decode(token) for token in ids]
        text.prefill(tokens("tied", 40, seed=3))
        text.reset()
        assert all(np.array_equal(text.decode(token), row) for token, row in zip(ids, first, strict=True))
        assert np.abs(first[-1] - forward("tied", False)(ids)[-1]).max() < 0.3


@pytest.mark.parametrize(
    "changes",
    [
        {"max_prompt": 64},
        {"max_prompt": 128},
        {"chunk": 32},
        {"chunks": 1},
        {"chunks": 3},
        {"spare": 8},
        {"tight_gu": True},
        {"head_rows": 24},
        {"contexts": True},
    ],
)
def test_passes_chunks_and_strides_change_nothing(changes):
    # passes are whole multiples of a DeltaNet chunk here, so even the order of sums is the same
    ids = tokens("tied", 200)
    with model("tied", max_prompt=256) as text:
        want = run(text, ids, 197)
    with model("tied", **{"max_prompt": 256, **changes}) as text:
        assert np.array_equal(run(text, ids, 197), want)


def test_a_prompt_in_several_calls():
    ids = tokens("grouped", 150)
    with model("grouped", max_prompt=64) as text:
        want = text.prefill(ids)
        text.reset()
        text.prefill(ids[:64])
        assert np.array_equal(text.prefill(ids[64:]), want)
        text.reset()
        for start in range(0, 150, 37):
            got = text.prefill(ids[start : start + 37])
        assert np.abs(got - want).max() < 0.1
        assert text.length == 150


@pytest.mark.parametrize(
    "device",
    [
        "threads=2,quiet",
        "threads=1,quiet,address=iova",
        "threads=1,quiet,slots=1",
    ],
)
def test_device_options_change_nothing(device):
    ids = tokens("tied", 80)
    with model("tied") as text:
        want = run(text, ids, 70)
    with model("tied", device=device) as text:
        assert np.array_equal(run(text, ids, 70), want)
        swaps = text.device.pool.swaps
    assert (swaps > 0) == ("slots=1" in device)


def test_host_threads_change_nothing():
    ids, results, before = tokens("grouped", 120), set(), host.threads()
    try:
        for count in (1, 2, 4):
            host.set_threads(count)
            with model("grouped") as text:
                results.add(run(text, ids, 110).tobytes())
    finally:
        host.set_threads(before)
    assert len(results) == 1


def test_positions_of_images():
    ids, n = tokens("tied", 60), 60
    where = np.broadcast_to(np.arange(n), (3, n)).copy()
    where[0, 10:22] = 10
    where[1, 10:22], where[2, 10:22] = 10 + np.repeat(range(3), 4), 10 + np.tile(range(4), 3)
    where[:, 22:] = np.arange(14, 14 + n - 22)
    want = forward("tied", False)(ids, positions=where)[49:]
    with model("tied") as text:
        rows = [text.prefill(ids[:30], positions=where[:, :30])]
        assert (text.length, text.position) == (30, 22)
        rows = [text.prefill(ids[30:50])]  # counts on from there
        rows += [text.decode(token) for token in ids[50:]]
        assert (text.length, text.position) == (60, 52)
    assert np.abs(np.stack(rows) - want).max() < 0.3
    plain = forward("tied", False)(ids)[49:]
    assert np.abs(np.stack(rows) - plain).max() > 0.3


def test_snapshots_bring_the_very_state_back():
    ids = tokens("grouped", 120)
    with model("grouped") as text:
        text.prefill(ids[:40])
        early = text.snapshot()
        text.prefill(ids[40:80])
        later = text.snapshot()
        want = text.prefill(ids[80:100]), text.decode(ids[100])
        assert text.length == 101
        for state, rest in ((later, ()), (early, ids[40:80]), (later, ())):
            text.restore(state)
            assert text.length == text.position == (80 if state is later else 40)
            if rest:
                text.decode(5)  # another way from there
                text.restore(state)
                text.prefill(rest)
            assert np.array_equal(text.prefill(ids[80:100]), want[0])
            assert np.array_equal(text.decode(ids[100]), want[1])
        text.reset()
        text.prefill(tokens("grouped", 90, seed=5))  # other rows over all of them
        text.restore(later)
        assert np.array_equal(text.prefill(ids[80:100]), want[0])
        assert np.array_equal(text.decode(ids[100]), want[1])


def test_a_border_is_as_good_as_two_calls():
    ids = tokens("grouped", 150)
    with model("grouped", max_prompt=256) as text:
        text.prefill(ids[:40])
        text.prefill(ids[40:90])
        at = text.snapshot()
        want = text.prefill(ids[90:])
        text.reset()
        assert np.array_equal(text.prefill(ids, borders=[40, 90], marks=[90]), want)
        state = text.border_snapshot(90)
        assert (state.length, state.position) == (90, 90)
        assert np.array_equal(state.matrices, at.matrices) and np.array_equal(state.conv, at.conv)
        text.restore(state)
        assert np.array_equal(text.prefill(ids[90:]), want)
        with pytest.raises(ModelError, match="no prefill with 90"):
            text.border_snapshot(90)


def test_rows_that_fill_a_chunk_are_zero():
    # the kernels may skip rows of zeros, and no old row can turn into a NaN
    filled = set()

    def watch(runs, chained):
        for kernel, (a, _, _) in runs:
            key, chunks = text.npu.name_of(kernel)
            if chunks and key != "down":
                spec = text.npu.gemm_spec(key)
                rows = np.frombuffer(a.read(), np.uint16)[: chunks * spec.m * spec.lda]
                filled.add(tuple(rows.reshape(-1, spec.lda).any(axis=1)))

    with model("tied") as text:
        text.prefill(tokens("tied", 64))
        text.npu.watcher = watch
        text.prefill(tokens("tied", 19))
    assert filled == {(True,) * 16, (True,) * 3 + (False,) * 13}


def test_the_context_has_an_end():
    ids = tokens("tied", 20)
    with model("tied", max_ctx=18) as text:
        with pytest.raises(PromptTooLong, match="20 tokens and the context holds 18"):
            text.prefill(ids)
        assert text.length == 0
        text.prefill(ids[:10])
        with pytest.raises(PromptTooLong) as caught:
            text.prefill(ids[:9])
        assert (caught.value.tokens, caught.value.limit) == (19, 18)
        want = text.prefill(ids[10:18])
        with pytest.raises(PromptTooLong):
            text.decode(1)
        assert text.length == 18
        text.reset()
        text.prefill(ids[:10])
        assert np.array_equal(text.prefill(ids[10:18]), want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "at least one token"),
        (([5, 340],), "token id 340 is outside the vocabulary of 340"),
        (([5, -1],), "token id -1 is outside"),
    ],
)
def test_prompts_that_are_refused(arguments, message):
    with model("tied") as text:
        with pytest.raises(ModelError, match=message):
            text.prefill(*arguments)
        with pytest.raises(ModelError, match="positions"):
            text.prefill([1, 2], positions=np.zeros((2, 2), np.int64))
        with pytest.raises(ModelError, match="no vision tower"):
            text.prefill([1, 2], embeddings=np.zeros((1, 64), np.float32))
        with pytest.raises(ModelError, match="outside the vocabulary"):
            text.decode(340)
        assert text.length == 0


def test_timing_names_every_stage():
    with model("tied") as text:
        text.prefill(tokens("tied", 40))
        text.decode(3)
        calls = {name: count for name, count, _ in text.timing.items()}
        total = text.timing.seconds()
        text.timing.reset()
        assert not text.timing.items() and total > 0
    layers, linear, parts = 4, 3, 2
    assert calls["gemm.lin"] == parts * linear and calls["gemm.att"] == parts
    assert calls["gemm.gu"] == calls["gemm.down"] == calls["gemm.o"] == parts * (layers - 1)
    assert calls["gemv.o"] == calls["gemv.gu"] == calls["gemv.down"] == layers + 1
    assert calls["gemv.lin"] == linear and calls["gemv.head"] == 2
    assert calls["host.deltanet"] == (parts + 1) * linear and calls["host.attention"] == parts + 1
    assert {"host.norm", "host.gates", "host.swiglu", "host.embed", "host.rope", "host.logits"} <= set(calls)


def test_laps_are_taken_in_the_order_of_the_work():
    """From the call's beginning on without a gap, so that no stage counts another's time."""
    rest = ["host.submit", "beside.deltanet", "beside.ready", "gemv.o", "host.norm", "host.submit"]
    rest += ["beside.ready", "gemv.gu", "host.swiglu", "host.submit", "beside.ready", "gemv.down"]
    last = ["host.norm", "host.submit", "beside.logits", "gemv.head", "host.logits"]
    prompt, step = ["host.embed", "host.rope"], ["host.embed"]
    for kind in ("lin", "lin", "lin", "att"):
        mixer = {"lin": "host.deltanet", "att": "host.attention"}[kind]
        begun = ["host.norm", f"gemm.{kind}", "host.gates", f"gemm.{kind}", mixer]
        prompt += [name for name in begun if name != "host.gates" or kind == "lin"]
        if kind == "lin":
            prompt += ["gemm.o", "gemm.o", "host.norm", "gemm.gu", "gemm.down", "gemm.gu", "gemm.down"]
        begun = ["host.norm", "host.submit", "beside.gates", "beside.ready", f"gemv.{kind}", mixer]
        step += [*begun, *rest]
    prompt += [name for name in rest if name != "beside.deltanet"] + last
    laps = []
    with model("tied") as text:
        text.timing.observer = lambda *lap: laps.append(lap)
        for call, wanted in (
            (lambda: text.prefill(tokens("tied", 9)), prompt),
            (lambda: text.decode(3), step + last),
        ):
            laps.clear()
            began = perf_counter()
            call()
            assert [name for name, *_ in laps if name != "beside.fetch"] == wanted
            assert began <= laps[0][1] and laps[-1][2] <= perf_counter()
            assert all(before[2] == after[1] for before, after in pairwise(laps))


def test_dims_the_host_cannot_do():
    from qwen35.model.layers import check_dims

    with model("tied") as text:
        check_dims(text.config)
        for change in (
            {"head_dim": 24},
            {"linear_key_head_dim": 8},
            {"linear_value_head_dim": 1024},
            {"linear_conv_kernel_dim": 9},
        ):
            with pytest.raises(ModelError, match=next(iter(change))):
                check_dims(replace(text.config, **change))


@pytest.mark.slow
def test_results_of_a_step_have_room_for_padded_rows():
    """A kernel may give more rows than the model has: here it does, and nothing else is hit."""
    with model("tied") as text:
        want = [text.decode(token) for token in (3, 4)]
    bundle = Bundle.open(bundle_path("tied"))
    programs = {}
    for key, spec in bundle.gemvs.items():
        if key != "head":
            programs[bundle.insts(spec.insts)] = key
            bundle.gemvs[key] = replace(spec, m=spec.m + 64)
    padded = set()
    with Device.open("emu:threads=1,quiet") as device, TextModel(bundle, device) as text:
        npu = device.node.driver.npu
        execute = npu.run

        def wider(context, slot, program, prepared):
            status = execute(context, slot, program, prepared)
            if key := programs.get(program):
                more = memory(device, context, slot.buffers()[2], 2 * bundle.gemvs[key].m)[-64:]
                more[:] = 0x4000 if key == "gu" else 0x7FC0  # 2.0, which weights of 0 follow; NaN
                padded.add(key)
            return status

        npu.run = wider
        got = [text.decode(token) for token in (3, 4)]
    assert padded == {"lin", "att", "o", "gu", "down"}
    assert all(np.array_equal(*pair) for pair in zip(got, want, strict=True))


def test_a_prompt_beyond_32k_tokens_in_passes():
    ids = tokens("tied", 33_000)
    rows = []
    for passes in (2048, 8192):
        with model("tied", max_ctx=33_100, chunk=256, max_prompt=passes) as text:
            rows.append([text.prefill(ids), text.decode(7), text.decode(9)])
            assert text.length == text.position == 33_002
    assert np.array_equal(rows[0], rows[1])
    with model("tied", max_ctx=33_100, chunk=256, max_prompt=2048) as text:
        text.prefill(ids[-900:])
        assert np.abs(text.decode(7) - rows[0][1]).max() > 0.05  # what is far back still counts


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_transformers_agrees(name, record_property):
    from tests.support import model_reference

    reference = model_reference.causal_lm(synthetic.SHAPES[name], rounded(name))
    for prompt in (1, 23, 300, 778):
        ids = tokens(name, prompt + 64, seed=prompt)
        want = model_reference.logits(reference, ids)[prompt - 1 :]
        with model_reference.bf16_activations(reference):
            rough = model_reference.logits(reference, ids)[prompt - 1 :]
        with model(name, HABIT[name], max_ctx=1024) as text:
            got = run(text, ids, prompt)
        activation, error = np.abs(rough - want).max(), np.abs(got - want).max()
        record_property(f"largest logit error, prompt of {prompt}", float(error))
        record_property(f"bf16 activation error, prompt of {prompt}", float(activation))
        assert error < 1.5 * activation + 2.0**-8 * np.abs(want).max()
        sure = margins(want) > activation
        assert sure.sum() > 20 and (got.argmax(-1) == want.argmax(-1))[sure].all()


@pytest.mark.peer
@pytest.mark.parametrize("name", SHAPES)
def test_the_numpy_reference_is_transformers(name):
    from tests.support import model_reference

    ids = tokens(name, 100)
    where = np.stack([np.arange(100), np.arange(100) // 2 + 3, np.arange(100)[::-1] % 7])
    rows = {5: np.random.default_rng(0).standard_normal(synthetic.SHAPES[name].hidden).astype(np.float32)}
    reference = model_reference.causal_lm(synthetic.SHAPES[name], rounded(name))
    want = model_reference.logits(reference, ids, where, rows)
    got = forward(name, False)(ids, positions=where, embeddings=rows)
    assert np.abs(got - want).max() < 2e-4


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    """An exported bundle with a vision tower, and its tensors as the bundle holds them."""
    from qwen35.export.checkpoint import Checkpoint
    from qwen35.export.exporter import export_checkpoint
    from qwen35.export.plan import Options

    folder = tmp_path_factory.mktemp("pictured")
    original = synthetic.write_checkpoint(folder / "checkpoint", synthetic.SHAPES["vision"])
    options = Options(chunk=16, max_prompt=64)
    path = export_checkpoint(Checkpoint(folder / "checkpoint"), folder / "bundle", options, quiet=True)
    return path, synthetic.round_matrices(original)


def test_rows_of_pictures_replace_the_image_tokens(pictured):
    from amdxdna.device import Device
    from qwen35.bundle import Bundle
    from qwen35.model.rope import prompt_positions
    from qwen35.model.text import TextModel
    from tests.support.numpy_model import Forward

    path, packed = pictured
    shape = synthetic.SHAPES["vision"]
    image = shape.image_token
    ids = [*tokens("tied", 7), *[image] * 6, *tokens("tied", 70, seed=1), *[image] * 2, 9, 11]
    grids = [(4, 6), (4, 2)]
    rows = np.random.default_rng(5).standard_normal((8, shape.hidden)).astype(np.float32)
    where = prompt_positions(ids, image, grids, 2)
    at = np.flatnonzero(np.array(ids) == image)
    replaced = dict(zip(at.tolist(), rows, strict=True))
    exact = Forward(shape, packed).logits(ids, positions=where, embeddings=replaced)
    with Device.open("emu:threads=1,quiet") as device, TextModel(Bundle.open(path), device, 256) as text:
        got = text.prefill(ids, positions=where, embeddings=rows)  # the second picture is in the second pass
        assert text.position == where.max() + 1 < text.length == len(ids)
        assert np.abs(got - exact[-1]).max() < 0.3
        for wrong in (rows[:7], np.concatenate([rows, rows[:1]]), rows[:, :10]):
            text.reset()
            with pytest.raises(ModelError, match="8 image tokens take"):
                text.prefill(ids, positions=where, embeddings=wrong)
        # without rows the tokens are their own embedding, which is another prompt
        assert np.abs(text.prefill(ids, positions=where) - got).max() > 0.3


def test_bfp6s_weights_of_another_encoder(tmp_path):
    """A bundle written from the format page, its head too: strides, spans and chunks of its own."""
    from amdxdna.device import Device
    from qwen35.bundle import Bundle
    from qwen35.formats import bfp6s
    from qwen35.model.text import TextModel
    from tests.support.numpy_model import Forward
    from tests.support.synthetic_bundle import Habits, bfp6s_round, bfp6s_stream, write_bundle

    shape = synthetic.smaller(synthetic.SHAPES["untied"], layers=4, tied=True)
    original = synthetic.weights(shape, 2)
    packed = dict(original)
    for name, value in original.items():
        if name.endswith(("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight", "embed_tokens.weight")):
            packed[name] = bfp6s_round(value)
            stream = np.frombuffer(bfp6s_stream(value), np.uint8)
            assert np.array_equal(bfp6s.decode(stream, *value.shape), packed[name])
    ids = tokens("tied", 40)
    npu = Forward(shape, packed, npu=True).logits(ids, decode_from=30)[29:]
    habits = Habits(weights="bfp6s", spare=8, least=True, chunks=1, head_rows=40, contexts=True)
    path = write_bundle(tmp_path / "b", shape, original, habits)
    with Device.open("emu:threads=1,quiet") as device, TextModel(Bundle.open(path), device, 64) as text:
        got = run(text, ids, 30)
    assert np.abs(got - npu).max() < 6 * 2.0**-8 * np.abs(npu).max()
    assert np.abs(got - Forward(shape, original).logits(ids)[29:]).max() > 0.5  # and the format shows


def test_bfp6s_weights(tmp_path):
    from amdxdna.device import Device
    from qwen35.bundle import Bundle
    from qwen35.export.checkpoint import Checkpoint
    from qwen35.export.exporter import export_checkpoint
    from qwen35.export.plan import Options
    from qwen35.formats import bfp6s
    from qwen35.model.text import TextModel
    from tests.support.numpy_model import Forward

    shape = synthetic.smaller(synthetic.SHAPES["untied"], layers=4, tied=True)
    original = synthetic.write_checkpoint(tmp_path / "checkpoint", shape)
    options = Options(chunk=16, max_prompt=64, gemv_format="bfp6s")
    path = export_checkpoint(Checkpoint(tmp_path / "checkpoint"), tmp_path / "bundle", options, quiet=True)
    packed = {
        name: bfp6s.decode(bfp6s.encode(value), *value.shape)
        if name.endswith(("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight", "embed_tokens.weight"))
        else value
        for name, value in original.items()
    }
    ids = tokens("tied", 40)
    reference = Forward(shape, packed), Forward(shape, packed, npu=True)
    exact, npu = (model.logits(ids, decode_from=30)[29:] for model in reference)
    with Device.open("emu:threads=1,quiet") as device, TextModel(Bundle.open(path), device, 64) as text:
        got = run(text, ids, 30)
    assert np.abs(got - npu).max() < 6 * 2.0**-8 * np.abs(npu).max()
    assert np.abs(got - exact).max() < 1.5 * np.abs(npu - exact).max() + 2.0**-8 * np.abs(npu).max()


def test_the_rows_that_fill_a_chunk_change_nothing():
    ids = tokens("grouped", 21)
    with model("grouped") as text:
        want = text.prefill(ids)
        text.reset()
        filled = []

        def fill(rows, first):
            rows[max(21 - first, 0) :] = 0x3F80  # 1.0
            filled.append(first)

        with submits(text.device, GemmRows(text.device, fill)):
            assert np.array_equal(text.prefill(ids), want)
        assert filled


def test_rows_are_read_ahead_where_the_thread_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the first ones, and nothing behind the last; where it computes the commands, only beside the
    layer's own."""
    read: set[int] = set()

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def host_fetch(self, start: Any, nbytes: int) -> None:
            at = int(ffi.cast("uintptr_t", start))
            read.update(range(at, at + nbytes))

    def bytes_of(rows: np.ndarray, count: int) -> set[int]:
        return set(range(rows.ctypes.data, rows.ctypes.data + count))

    sleeps = [False]
    monkeypatch.setattr(decode, "_FETCH", 256)
    monkeypatch.setattr(decode, "_sleeps", lambda wait: wait() or sleeps[0])
    monkeypatch.setattr(cache, "lib", Recorder())
    ids = tokens("tied", 40)
    with model("tied") as text:
        (kv,) = (each for each in text._cache.kv if each is not None)
        row = kv.keys.strides[0]
        text.prefill(ids[:3])
        for past, token in enumerate(ids[3:], 3):
            sleeps[0] = past >= 6
            read.clear()
            text.decode(token)
            most = 256 if past < 7 else 4 * 256
            wanted = min(past * row, most)
            assert read == bytes_of(kv.keys, wanted) | bytes_of(kv.values, wanted), past
        laps = {name: calls for name, calls, _ in text.timing.items()}
        assert laps["beside.fetch"] == 2 * (len(ids) - 7)
