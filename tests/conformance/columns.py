"""Which cases other drivers answer differently, and how: one column a driver.

The suite itself says what Linux 7.3 does. A case in a driver's column must fail there, every other must pass:
on the emulated driver of that name (tests/test_emu_conformance.py), and on the driver itself where it can be
had (tests/vm).
"""

from __future__ import annotations

Column = dict[str, str]

_ONE_HEAP: Column = {
    "buffers.dev_space_is_reused": "a full heap is ENOSPC: it cannot grow",
    "buffers.heap_grows": "a second heap BO is EBUSY",
    "buffers.dev_bo_across_chunks": "a second heap BO is EBUSY",
    "buffers.dev_bo_across_scattered_chunks": "a second heap BO is EBUSY",
    "buffers.heap_limit": "a second heap BO is EBUSY",
    "errnos.with_everything": "a DEV BO larger than the heap is EINVAL",
}
_KEEPS_PAYLOAD: Column = {
    "commands.failing_command": "a failed command's payload stays",
    "packets.packets": "a failed command's payload stays",
}
_POINTERS_ENOMEM: Column = {
    "buffers.user_memory_refused": "memory that cannot be pinned is ENOMEM",
    "errnos.without_a_heap": "memory that cannot be pinned is ENOMEM",
}
_RAW_CHAINS: Column = {
    "commands.failing_chain": "the state is the low four bits of the firmware's status",
    "commands.chain_after_a_failure": "the state is the low four bits of the firmware's status",
}
_RAW_SINGLES: Column = {
    "commands.wrong_addresses": "the state is the low four bits of the firmware's status",
    "commands.before_configuration": "the state is the low four bits of the firmware's status",
    "commands.foreign_pdi": "the state is the low four bits of the firmware's status",
    "commands.several_cus": "the state is the low four bits of the firmware's status",
    "commands.argument_limit": "the state is the low four bits of the firmware's status",
    "commands.count_beyond_the_bo": "the state is the low four bits of the firmware's status",
}
_VIRTUAL: Column = {
    "contexts.one_slot": "32 virtual contexts, then ENOENT",
    "contexts.four_slots": "32 virtual contexts, then ENOENT",
    "contexts.sixteen_slots": "32 virtual contexts, then ENOENT",
    "contexts.more_slots_than_the_driver_knows": "32 virtual contexts, then ENOENT",
    "contexts.slots_are_shared_by_clients": "32 virtual contexts, then ENOENT",
    "contexts.closing_frees_slots": "32 virtual contexts, then ENOENT",
    "contexts.resource_info": "only contexts at work count",
}
_VERSION: Column = {"queries.version": "another DRM version"}
_QUERIES_OF_0_4: Column = {
    "buffers.bo_usage": "no such query",
    "contexts.resource_info": "no such query",
    "queries.no_async_error": "no such query",
}
_QUERIES_OF_0_1: Column = {
    "contexts.one_slot": "no GET_ARRAY",
    "contexts.four_slots": "no GET_ARRAY",
    "contexts.sixteen_slots": "no GET_ARRAY",
    "contexts.context_entries": "no GET_ARRAY",
    "queries.no_contexts": "no GET_ARRAY",
    "commands.submits_from_two_threads": "no GET_ARRAY",
}

_LINUX_6_18: Column = {
    **_VERSION, **_ONE_HEAP, **_KEEPS_PAYLOAD, **_POINTERS_ENOMEM, **_QUERIES_OF_0_4,
    "commands.count_beyond_the_bo": "nineteen argument words are copied whatever the count"}
_LEGACY: Column = {**_VERSION, **_ONE_HEAP, **_KEEPS_PAYLOAD, **_POINTERS_ENOMEM, **_VIRTUAL}

COLUMNS: dict[str, Column] = {
    "7.3": {},
    "7.2": {},
    "6.18": _LINUX_6_18,
    "6.18.5": {**_LINUX_6_18, **_RAW_CHAINS},
    "6.14": {**_LINUX_6_18, **_RAW_CHAINS, **_QUERIES_OF_0_1,
             "buffers.user_memory": "no user-pointer BOs",
             "buffers.user_memory_refused": "no user-pointer BOs"},
    "oot-2026-08": {**_VERSION, **_POINTERS_ENOMEM},
    "oot-2026-05": {**_VERSION, **_POINTERS_ENOMEM},
    "oot-legacy": _LEGACY,
    "oot-2025-12": _LEGACY,
    "oot-2025-09": _LEGACY,
    "oot-2025-06": {**_LEGACY, **_RAW_CHAINS, **_RAW_SINGLES},
}
"""By the name of the emulated driver's option ``driver``."""
