"""Kernels from a bundle's records: GEMM and GEMV on the emulated NPU, groups of runs, contexts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amdxdna._native import lib
from amdxdna.device import Device
from amdxdna.emu.driver import teardown
from amdxdna.opening import open_node
from qwen35.bundle import Bundle
from qwen35.errors import ModelError
from qwen35.formats import bfp16, from_bf16, to_bf16
from qwen35.model.options import Options
from qwen35.model.projections import Projections
from tests.support.binding import ProxyNode
from tests.support.model_bundle import bundle_path
from tests.support.synthetic import bf16_round


@pytest.fixture
def npu(device):
    path = bundle_path("grouped", "strides", (("chunks", 2), ("max_prompt", 96)))
    return Projections(Bundle.open(path), device)


def weight(npu, name, rows, k):
    """A packed tensor in a buffer, and its matrix."""
    stream = np.array(npu.bundle.tensors.bytes(name))
    buffer = npu.alloc(stream.size)
    buffer.view()[:] = stream
    return buffer, bfp16.decode(stream, rows, k).astype(np.float64)


def filled(npu, shape, seed):
    values = bf16_round(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    buffer = npu.alloc(values.size * 2)
    buffer.view(np.uint16)[:] = to_bf16(values).reshape(-1)
    return buffer, values.astype(np.float64)


def test_alloc_is_zeroed(npu):
    first = npu.alloc(5000)
    first.view()[:] = 7
    first.close()
    assert not npu.alloc(5000).view().any()


def test_gemv(npu):
    spec = npu.gemv_spec("att")
    w, matrix = weight(npu, "l3.g.in", spec.m, spec.k)
    x, values = filled(npu, (spec.k,), 1)
    y = npu.alloc(spec.m * 2)
    npu.dispatch("att", 0, [(x, w, y)]).run()
    assert np.array_equal(from_bf16(y.view(np.uint16)), bf16_round((matrix @ values).astype(np.float32)))


@pytest.mark.parametrize("chunks", [1, 2, 3, 5])
def test_gemm_over_more_chunks_than_one_stream_takes(npu, chunks):
    spec = npu.gemm_spec("lin")
    assert spec.max_chunks == 2 and spec.lda > spec.k
    w, matrix = weight(npu, "l0.g.in", spec.n, spec.k)
    reads, writes = npu.spans("lin", chunks)
    rows = chunks * spec.m
    assert (reads, writes) == (rows * spec.lda, rows * spec.c_stride)
    a, values = filled(npu, (rows, spec.lda), chunks)
    c = npu.alloc(writes * 2)
    npu.gemm("lin", chunks, a, w, c)
    got = from_bf16(c.view(np.uint16).reshape(rows, spec.c_stride))
    want = bf16_round((values[:, : spec.k] @ matrix.T).astype(np.float32))
    assert np.array_equal(got[:, : spec.n], want)
    assert not got[:, spec.n :].any()


def test_buffers_that_are_too_short(npu):
    spec = npu.gemm_spec("o")
    w, _ = weight(npu, "l0.g.o", spec.n, spec.k)
    a, c = (npu.alloc(size * 2) for size in npu.spans("o", 3))
    with pytest.raises(ModelError, match="gemm o over 2 chunks spans"):
        npu.gemm("o", 4, a, w, c)


def test_spans_follow_the_records(npu):
    # a stream may stop at the last row's last element, or read on behind it; buffers hold whole rows
    spec = npu.gemm_spec("o")
    tight = [
        replace(s, a_elems=(s.chunks * spec.m - 1) * spec.lda + spec.k, c_elems=s.c_elems + 100 * s.chunks)
        for s in spec.streams
    ]
    npu.bundle.gemms["o"] = replace(spec, streams=tuple(tight))
    row_a, row_c = spec.m * spec.lda, spec.m * spec.c_stride
    assert npu.spans("o", 1) == (row_a, row_c + 100)
    assert npu.spans("o", 2) == (2 * row_a, 2 * row_c + 200)
    assert npu.spans("o", 3) == (3 * row_a, 3 * row_c + 100)
    assert npu.spans("o", 4) == (4 * row_a, 4 * row_c + 200)


@pytest.mark.parametrize("count", [5, 32, 33, 65])
def test_a_group_of_runs(npu, count):
    """Also of more than a chain holds."""
    spec = npu.gemv_spec("down")
    operands, wanted = [], []
    weights = [weight(npu, f"l{j}.g.down{j % 2}", spec.m, spec.k) for j in range(4)]
    for j in range(count):
        w, matrix = weights[j % 4]
        x, values = filled(npu, (spec.k,), j)
        operands.append((x, w, npu.alloc(spec.m * 2)))
        wanted.append(bf16_round((matrix @ values).astype(np.float32)))
    group = npu.dispatch("down", 0, operands)
    for _ in range(3):
        for _, _, y in operands:
            y.view()[:] = 0
        group.run()
        for (_, _, y), want in zip(operands, wanted, strict=True):
            assert np.array_equal(from_bf16(y.view(np.uint16)), want)


def test_kernels_are_made_once_and_share_contexts(npu):
    assert npu.kernel("lin", 1) is npu.kernel("lin", 1)
    assert npu.kernel("lin", 1) is not npu.kernel("lin", 2)
    assert npu.kernel("lin", 1).shared is npu.kernel("gu", 2).shared
    assert npu.kernel("lin", 0).shared is not npu.kernel("lin", 1).shared
    spec = npu.gemm_spec("gu")
    assert npu.kernel("gu", 2).ops == 2 * 2 * spec.m * spec.k * spec.n


def test_an_xclbins_only_kernel_runs_whatever_the_manifest_calls_it(npu):
    xclbins = npu.bundle.xclbins
    xclbins["gemv"] = replace(xclbins["gemv"], kernel="MAIN")
    assert npu.kernel("lin", 0).name == "MLIR_AIE"


def test_keys_the_bundle_lacks(npu):
    for call in (npu.gemm_spec, npu.gemv_spec):
        with pytest.raises(ModelError, match=r"has no gem[mv] v_patch"):
            call("v_patch")


def test_drain_waits_for_what_is_in_flight(npu):
    spec = npu.gemv_spec("att")
    w, _ = weight(npu, "l3.g.in", spec.m, spec.k)
    x, _ = filled(npu, (spec.k,), 1)
    runs = [npu.kernel("att", 0).start(x, w, npu.alloc(spec.m * 2)) for _ in range(3)]
    npu.drain()
    assert all(run.done for run in runs)
    npu.close()
    npu.close()


def test_a_driver_without_chains_gets_single_commands(npu, monkeypatch):
    """A chain that the driver drops is tried once; this group and all later ones run singly."""
    from amdxdna.errors import CommandRejected

    spec = npu.gemv_spec("att")
    w, _ = weight(npu, "l3.g.in", spec.m, spec.k)
    inputs = [filled(npu, (spec.k,), seed)[0] for seed in range(6)]
    outputs = [npu.alloc(spec.m * 2) for _ in inputs]
    group = npu.dispatch("att", 0, [(x, w, y) for x, y in zip(inputs, outputs, strict=True)])
    group.run()
    want = [y.read() for y in outputs]
    tried = []

    class Dropped:
        def wait(self, *_):
            raise CommandRejected("the driver dropped the packet", call="EXEC_CMD", state=1)

    def chain(calls, flush=True):
        tried.append(len(calls))
        return Dropped()

    monkeypatch.setattr(npu.device.pool, "chain", chain)
    alone, shown = npu.dispatch("att", 0, [(inputs[0], w, outputs[0])]), []
    npu.watcher = lambda calls, chained: shown.append((len(list(calls)), chained))
    alone.run()
    alone.show()
    assert shown == [(1, False)] * 2 and tried == [], "a single run is no chain"
    npu.watcher = None
    for _ in range(2):
        for y in outputs:
            y.view()[:] = 0
        group.run()
        assert [y.read() for y in outputs] == want
    assert tried == [6]
    assert not npu.chains


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("happens", ["nothing", "a lost context", "a chain that fails", "a chain not run"])
def test_two_groups_in_flight(happens, ready):
    """Each gives what it gives alone, whatever of them has to be run again."""
    fault = {
        "nothing": "",
        "a lost context": ",driver=6.18,hang=2",
        "a chain that fails": ",fail=2",
        "a chain not run": ",chain_skip=2",
    }[happens]
    node = open_node(f"emu:quiet,threads=1{fault}")
    node.driver.idle_wait = 0.0
    npu = Projections(
        Bundle.open(bundle_path("grouped", "strides", (("chunks", 2), ("max_prompt", 96)))),
        Device.open(node),
        Options(chains="off" if happens == "a lost context" else "on"),
    )
    groups, expected = [], []
    for key, name in (("att", "l3.g.in"), ("down", "l0.g.down0")):
        spec = npu.gemv_spec(key)
        w, matrix = weight(npu, name, spec.m, spec.k)
        inputs = [filled(npu, (spec.k,), seed) for seed in range(2)]
        results = [npu.alloc(spec.m * 2) for _ in inputs]
        groups.append(npu.dispatch(key, 0, [(x, w, y) for (x, _), y in zip(inputs, results, strict=True)]))
        expected += [
            (y, bf16_round((matrix @ values).astype(np.float32)))
            for y, (_, values) in zip(results, inputs, strict=True)
        ]
    for group in groups:
        if ready:
            group.ready()
        group.start()
    if happens == "a lost context":
        teardown.flush(node.client)
    for group in groups:
        group.finish()
    for y, want in expected:
        assert np.array_equal(from_bf16(y.view(np.uint16)), want)
    assert npu.chains == (happens == "nothing")
    npu.close()
    npu.device.close()


def test_a_group_behind_another_whose_context_goes_meanwhile():
    """The driver knows the context no more while its command still runs: the next one's is a new one."""
    node = open_node("emu:quiet,threads=1,driver=6.18")
    npu = Projections(
        Bundle.open(bundle_path("grouped", "strides", (("chunks", 2), ("max_prompt", 96)))),
        Device.open(node),
        Options(chains="off"),
    )
    first, second = npu.gemv_spec("o"), npu.gemv_spec("att")
    (x, _), y, z = filled(npu, (first.k,), 1), npu.alloc(first.m * 2), npu.alloc(second.m * 2)
    groups = [
        npu.dispatch("o", 0, [(x, weight(npu, "l0.g.o", first.m, first.k)[0], y)]),
        npu.dispatch("att", 0, [(y, weight(npu, "l3.g.in", second.m, second.k)[0], z)]),
    ]
    for group in groups:
        group.run()
    want = z.read()
    for buffer in (y, z):
        buffer.view()[:] = 0
        buffer.to_device()
    npu.blind = True  # a mark that the second one reads would give the mark again, and so give it away
    node.driver.npu.faults.next("slow", 300_000)
    groups[0].start()
    gone = list(node.client.contexts.values())
    node.client.contexts.clear()
    groups[1].start(behind=groups[0])
    for group in groups:
        group.finish()
    assert z.read() == want
    # the second one again, since nothing says which of two contexts' commands is over first
    assert node.driver.npu.faults.commands == 3
    for hwctx in gone:
        teardown.finish(hwctx)
    npu.close()


def test_a_group_behind_one_of_another_context():
    """Contexts do not wait for each other: what may have been read too early is read again."""
    node = ProxyNode(open_node("emu:quiet,threads=1"))

    def submits():
        return node.requests.count(lib.DRM_IOCTL_AMDXDNA_EXEC_CMD)

    with Device.open(node) as device:
        npu = Projections(Bundle.open(bundle_path("grouped", "strides", (("max_prompt", 96),))), device)
        first, second = npu.gemv_spec("lin"), npu.gemm_spec("o")
        reads, writes = npu.spans("o", 1)
        middle, c = npu.alloc(max(reads, first.m) * 2), npu.alloc(writes * 2)
        w, matrix = weight(npu, "l0.g.in", first.m, first.k)
        w_o, matrix_o = weight(npu, "l0.g.o", second.n, second.k)
        x, values = filled(npu, (first.k,), 2)
        before = npu.dispatch("lin", 0, [(x, w, middle.sub(0, first.m * 2))])
        after = npu.dispatch("o", 1, [(middle, w_o, c)])
        before.start()
        after.start(behind=before)
        before.finish()
        assert submits() == 2
        after.finish()
        assert submits() == 3
        row = bf16_round((matrix @ values).astype(np.float32))[: second.k]
        got = from_bf16(c.view(np.uint16)[: second.n])
        assert np.array_equal(got, bf16_round((matrix_o @ row).astype(np.float32)))
