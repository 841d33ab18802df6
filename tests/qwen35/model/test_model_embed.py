"""Embedding rows from head streams of both formats and from an untied table."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from qwen35 import formats
from qwen35.errors import ModelError
from qwen35.formats import to_bf16
from qwen35.model.embed import Embedding
from tests.support.synthetic import bf16_round, bfp16_round


def tied(vocab=100, head_rows=40, dim=128, name="bfp16"):
    rng = np.random.default_rng(0)
    parts = -(-vocab // head_rows)
    table = rng.standard_normal((parts * head_rows, dim)).astype(np.float32)
    module = formats.by_name(name)
    streams = [module.encode(table[i * head_rows : (i + 1) * head_rows]) for i in range(parts)]
    config = SimpleNamespace(vocab_size=vocab, hidden_size=dim, head_rows=head_rows, gemv_format=name)
    return Embedding(config, streams), table, streams, module


IDS = [0, 39, 40, 99, 7, 8, 40, 80, 79]


def test_rows_of_the_head_streams():
    embedding, table, _, _ = tied()
    assert np.array_equal(embedding.rows(IDS), bfp16_round(table)[IDS])
    assert np.array_equal(embedding.rows([5, 3]), bfp16_round(table)[[5, 3]])
    assert embedding.rows([]).shape == (0, 128)


def test_rows_of_bfp6s_streams():
    embedding, table, streams, module = tied(name="bfp6s")
    want = np.concatenate([module.decode(stream, 40, 128) for stream in streams])
    assert np.array_equal(embedding.rows(IDS), want[IDS])
    assert np.abs(want - table).max() < 0.2


@pytest.mark.parametrize("name", ["bfp16", "bfp6s"])
def test_one_row(name):
    embedding, _, _, _ = tied(name=name)
    out = np.empty(128, np.float32)
    for token in IDS:
        embedding.row(token, out)
        assert np.array_equal(out, embedding.rows([token])[0])


def test_rows_of_an_untied_table():
    table = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    config = SimpleNamespace(vocab_size=50, hidden_size=64, head_rows=16, gemv_format="bfp16")
    embedding = Embedding(config, table=to_bf16(table))
    assert np.array_equal(embedding.rows([49, 0, 3]), bf16_round(table)[[49, 0, 3]])
    out = np.empty(64, np.float32)
    embedding.row(49, out)
    assert np.array_equal(out, bf16_round(table)[49])
    embedding.hint([0, 49])


@pytest.mark.parametrize("ids", [[100], [-1], [5, 1 << 40], np.array([3, -7])])
def test_ids_outside_the_vocabulary(ids):
    # rows 100..119 exist in the padded stream and are no tokens
    embedding, _, _, _ = tied()
    for call in (embedding.rows, embedding.hint):
        with pytest.raises(ModelError, match="outside the vocabulary of 100"):
            call(ids)
    with pytest.raises(ModelError, match="outside the vocabulary of 100"):
        embedding.row(int(ids[-1]), np.empty(128, np.float32))


def test_hints_name_the_rows_pages(monkeypatch):
    embedding, _, streams, _ = tied()
    found = []

    class Lib:
        def host_will_need(self, starts, count, nbytes):
            found.append(([starts[i] for i in range(count)], nbytes))

    monkeypatch.setattr("qwen35.model.embed.lib", Lib())
    embedding.hint([41, 3, 0, 47, 99])
    group = 128 // 8 * 72
    first, second, third = (stream.__array_interface__["data"][0] for stream in streams)
    # groups of eight rows: 3 and 0 share one, 41 and 47 share one
    assert found == [(sorted([first, second, third + 19 // 8 * group]), group)]


def test_hints_bring_the_pages_of_a_mapping(tmp_path):
    """What is hinted is read from the file, though nobody has looked at it."""
    path = tmp_path / "table"
    rows, dim = 4096, 1024
    with open(path, "wb") as file:
        file.write(np.full(rows * dim, 0x3F80, np.uint16).tobytes())
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    table = np.memmap(path, np.uint16, "r", shape=(rows, dim))
    libc = ctypes.CDLL(None, use_errno=True)

    def held(row: int) -> bool:
        """Whether the page that a row begins in is in memory."""
        page = ctypes.c_void_p((table.ctypes.data + row * 2 * dim) & -mmap.PAGESIZE)
        seen = (ctypes.c_ubyte * 1)()
        assert libc.mincore(page, ctypes.c_size_t(mmap.PAGESIZE), seen) == 0
        return bool(seen[0] & 1)

    asked = [17, rows // 2, rows - 1]
    if any(map(held, range(0, rows, 2))):
        pytest.skip("this file system keeps a file's pages")
    config = SimpleNamespace(vocab_size=rows, hidden_size=dim, head_rows=16, gemv_format="bfp16")
    embedding = Embedding(config, table=table)
    embedding.hint(asked)
    end = time.monotonic() + 60
    while not all(map(held, asked)):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert (embedding.rows(asked) == 1).all()
