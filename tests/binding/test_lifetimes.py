"""Who keeps what alive, and what an end gives back."""

from __future__ import annotations

import errno
import os

import pytest

from amdxdna.device import Device
from amdxdna.emu.driver import store
from amdxdna.opening import open_node
from amdxdna.reaper import reap
from qwen35.bundle import Bundle
from qwen35.find import find_bundle
from qwen35.model.text import TextModel
from tests.support.descriptors import descriptors

MIB = 1 << 20


@pytest.mark.parametrize(("before", "nbytes", "chunks"), [(0, 4096, 1), (40, 30 * MIB, 2), (70, 4096, 1)])
def test_a_device_buffer_keeps_the_heap_it_lies_in(before, nbytes, chunks):
    """A command in flight holds the buffer past the end of its open; the buffer holds its memory."""
    node = open_node("emu:quiet,threads=1")
    device = Device.open(node)
    keep = [device.alloc(before * MIB, "dev", flush=False)] if before else []
    buffer = device.alloc(nbytes, "dev")
    buffer.write(b"held")
    memory, bo = node.driver.memory, node.client.handles[buffer.handle]
    held = list(bo.chunks)
    assert len(held) == chunks
    memory.get(bo)
    keep.clear()
    device.close()
    del buffer  # the last view: the heap's mapping goes
    reap()
    assert all(memory.by_offset.get(chunk.map_offset) is chunk for chunk in held)
    offset = bo.dev_address - held[0].dev_address
    assert bytes(held[0].words()[offset : offset + 4]) == b"held"
    memory.put(bo)
    assert not any(memory.by_offset.get(chunk.map_offset) is chunk for chunk in held)


@pytest.mark.parametrize("step", ["ftruncate", "fcntl"])
def test_memory_that_cannot_be_had_costs_no_descriptor(monkeypatch, step):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = descriptors()
    if step == "ftruncate":
        monkeypatch.setattr(store.os, "ftruncate", refuse)
    else:
        monkeypatch.setattr(store.fcntl, "fcntl", refuse)
    with pytest.raises(OSError, match="No space"):
        store.apart(4096, "test")
    with pytest.raises(OSError, match="No space"):
        Device.open("emu:quiet,threads=1,columns=7")
    monkeypatch.undo()
    assert descriptors() <= before


def test_leaving_the_text_model_frees_what_it_took(open_emu):
    device = open_emu()
    bundle = Bundle.open(find_bundle())
    device.alloc(64, "dev").close()
    before = device.bo_usage()
    for _ in range(2):
        with TextModel(bundle, device, 64) as model:
            model.prefill([1, 2, 3])
            model.decode(4)
            assert device.contexts() and device.bo_usage().total > before.total
        assert device.contexts() == () and device.bo_usage() == before
    with pytest.raises(ValueError, match="later"), TextModel(bundle, device, 64) as model:
        model.prefill([1, 2, 3])
        raise ValueError("later")
    assert device.contexts() == () and device.bo_usage() == before
