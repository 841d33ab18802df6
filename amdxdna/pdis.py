"""PDIs in the device heap, each where the firmware has seen no other."""

from __future__ import annotations

import hashlib

from amdxdna.allocation import allocate
from amdxdna.buffer import Buffer
from amdxdna.client import Client
from amdxdna.xclbin import Xclbin

TRIES = 64
"""A try is three short requests, against milliseconds for the context."""


def load_pdis(client: Client, xclbin: Xclbin) -> tuple[Buffer, ...]:
    """The PDIs of `xclbin` in DEV buffers. Raises OutOfHeap."""
    return tuple(load_pdi(client, pdi.data) for pdi in xclbin.pdis)


def load_pdi(client: Client, data: bytes) -> Buffer:
    """One PDI in a DEV buffer, not where another was. Raises OutOfHeap.

    A context names its PDI by address alone (CONFIG_CU), and the firmware leaves out the load of a PDI that
    it takes for the one it has (Xilinx/mlir-aie pull request 3056); contexts made after others were given up
    have computed garbage on hardware (amd/IRON issue 175). So a freed PDI's place is left to PDIs of the same
    content, as long as some tries find another in the heap as it is.
    """
    digest = hashlib.blake2b(data, digest_size=16).digest()
    seen = client.pdi_places
    tried: list[Buffer] = []
    try:
        while True:
            tried.append(allocate(client, len(data), "dev", flush=False))
            found = tried[-1]
            if seen.get(found.address, digest) == digest:
                break
            if len(tried) == TRIES or not _roomy(client, len(data)):
                order = list(seen)
                found = min(tried, key=lambda buffer: order.index(buffer.address))  # seen longest ago
                break
        tried.remove(found)
        seen.pop(found.address, None)
        seen[found.address] = digest
        found.write(data)
        return found
    finally:
        for buffer in tried:
            buffer.close()


def _roomy(client: Client, nbytes: int) -> bool:
    """Whether one more try neither enlarges the heap nor pushes anything out of it."""
    heap = client.heap
    return client.device_bytes + 2 * heap.taken(nbytes) < heap.size // 2
