"""Which cases the emulated driver answers differently when it is another than Linux 7.3's: a column each.

A case in the column must fail there, every other must pass (tests/emu/test_emu_conformance.py). What Linux
6.18's own driver does is measured, in differences.py: its columns here are that, without
:data:`NOT_MODELLED`. The out-of-tree drivers' are from their source.
"""

from __future__ import annotations

from tests.conformance.differences import LINUX_6_18, LINUX_6_18_OLDER, Difference

Column = dict[str, str]

NOT_MODELLED: Column = {
    "buffers.dev_bo_is_not_exported": "a DEV BO has no file of its own",
    "errnos.with_a_heap_not_mapped": "DEV BOs are not exported",
    "commands.rejected_packets": "a list's length is checked as in Linux 7.3",
}
"""Cases that the emulated driver answers as Linux 7.3 does though 6.18 does not, and why."""


def _measured(column: dict[str, Difference]) -> Column:
    return {
        name: difference.does
        for name, difference in column.items()
        if difference.words is not None and name not in NOT_MODELLED and not name.startswith("binding.")
    }


_GROWS = ("heap_grows", "dev_bo_across_chunks", "dev_bo_across_scattered_chunks", "heap_limit")
_ONE_HEAP: Column = {
    **{f"buffers.{name}": "a second heap BO is EBUSY" for name in _GROWS},
    "buffers.dev_space_is_reused": "a full heap is ENOSPC: it cannot grow",
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
_LOW = "the state is the low four bits of the firmware's status"
_RAW_CHAINS: Column = {f"commands.{name}": _LOW for name in ("failing_chain", "chain_after_a_failure")}
_SINGLES = ("wrong_addresses", "before_configuration", "foreign_pdi", "several_cus", "count_beyond_the_bo")
_RAW_SINGLES: Column = {f"commands.{name}": _LOW for name in _SINGLES}
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
_QUERIES_OF_0_1: Column = {
    "contexts.one_slot": "no GET_ARRAY",
    "contexts.four_slots": "no GET_ARRAY",
    "contexts.sixteen_slots": "no GET_ARRAY",
    "contexts.context_entries": "no GET_ARRAY",
    "queries.no_contexts": "no GET_ARRAY",
    "commands.submits_from_two_threads": "no GET_ARRAY",
}

_LEGACY: Column = {**_VERSION, **_ONE_HEAP, **_KEEPS_PAYLOAD, **_POINTERS_ENOMEM, **_VIRTUAL}

COLUMNS: dict[str, Column] = {
    "7.3": {},
    "7.2": {},
    "6.18": _measured(LINUX_6_18),
    "6.18.5": _measured(LINUX_6_18_OLDER),
    "6.14": {
        **_measured(LINUX_6_18_OLDER),
        **_QUERIES_OF_0_1,
        "buffers.user_memory": "no user-pointer BOs",
        "buffers.user_memory_refused": "no user-pointer BOs",
    },
    "oot-2026-08": {**_VERSION, **_POINTERS_ENOMEM},
    "oot-2026-05": {**_VERSION, **_POINTERS_ENOMEM},
    "oot-legacy": _LEGACY,
    "oot-2025-12": _LEGACY,
    "oot-2025-09": _LEGACY,
    "oot-2025-06": {**_LEGACY, **_RAW_CHAINS, **_RAW_SINGLES},
}
"""By the name of the emulated driver's option ``driver``."""
