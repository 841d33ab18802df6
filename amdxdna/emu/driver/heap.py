"""The device heap of one client: up to 512 MiB in chunks of 64 MiB multiples, and the DEV BOs in it."""

from __future__ import annotations

import errno

from amdxdna.emu.driver.bo import DEV, DEV_HEAP, INVALID_ADDR, Bo, Owner
from amdxdna.emu.driver.errors import error
from amdxdna.emu.driver.memory import DeviceMemory, page_align
from amdxdna.emu.driver.ranges import RangeAllocator
from amdxdna.emu.npu import DEVICE_HEAP, HEAP_CHUNK
from amdxdna.emu.personality import Personality

DEV_ALIGN = 32 << 10


class DeviceHeap:
    """Guarded by the device's memory lock."""

    def __init__(self, client: Owner, memory: DeviceMemory, kind: Personality) -> None:
        self._client = client
        self._memory = memory
        self._kind = kind
        self._free = RangeAllocator(DEVICE_HEAP, DEVICE_HEAP + kind.heap_max)
        self.chunks: list[Bo] = []
        self.size = 0
        self.usage = 0
        """Bytes in DEV BOs."""

    def create_chunk(self, size: int) -> Bo:
        """A DEV_HEAP BO: the next part of the heap. EINVAL: no multiple of 64 MiB; ENOSPC: over 512 MiB;
        EBUSY: there is one, and the driver knows only one."""
        if not size or size % HEAP_CHUNK:
            raise error(errno.EINVAL)
        memory = self._memory
        kind = self._kind
        with memory.lock:
            if not kind.heap_grows:
                if size > kind.heap_max:
                    raise error(errno.EINVAL)
                if self.chunks:
                    raise error(errno.EBUSY)
            if self.size + size > kind.heap_max:
                raise error(errno.ENOSPC)
            chunk = memory.create(self._client, DEV_HEAP, size)
            chunk.dev_address = DEVICE_HEAP + self.size
            self.size += size
            self.chunks.append(memory.get(chunk))
            return chunk

    def create_dev(self, size: int) -> Bo:
        """A DEV BO, 32 KiB aligned.

        EINVAL: size 0, or over what a heap can be; EAGAIN: no heap, not mapped yet, or not big enough yet;
        ENOSPC: 512 MiB are used up.
        """
        aligned = page_align(size)
        if not 0 < aligned <= self._kind.heap_max:
            raise error(errno.EINVAL)
        memory = self._memory
        with memory.lock:
            start = self._free.lowest(aligned, DEV_ALIGN)
            if start is None:
                raise error(errno.ENOSPC)
            bo = Bo(DEV, aligned, self._client)
            bo.dev_address = start
            try:
                self._place(bo)
            except OSError:
                self._free.free(start, aligned)
                raise
            bo.internal = True
            self.usage += aligned
            for chunk in bo.chunks:
                memory.get(chunk)
            return bo

    def _place(self, bo: Bo) -> None:
        """Finds the chunks `bo` lies in: they must be mapped one behind the other."""
        if not self.chunks:
            raise error(errno.EAGAIN)
        first = len(self.chunks) - 1
        while self.chunks[first].dev_address > bo.dev_address:
            first -= 1
        chunk = self.chunks[first]
        expected = chunk.user_address
        user = expected + bo.dev_address - chunk.dev_address
        for number in range(first, len(self.chunks)):
            chunk = self.chunks[number]
            if chunk.user_address == INVALID_ADDR:
                raise error(errno.EAGAIN)
            if chunk.user_address != expected:
                raise error(errno.EINVAL)
            if chunk.dev_address + chunk.size >= bo.dev_address + bo.size:
                bo.user_address = user
                bo.chunks = self.chunks[first : number + 1]
                return
            expected += chunk.size
        raise error(errno.EAGAIN)

    def free(self, bo: Bo) -> None:
        """Takes back the range of a DEV BO that is gone."""
        self._free.free(bo.dev_address, bo.size)
        self.usage -= bo.size
