"""What older drivers do otherwise than the suite says, by driver: one column for each that it is run on.

A case that is listed is run and must fail with the words given; where it passes, or fails otherwise, the
table is out of date. Run as a script it prints the table for README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """`does`: what the driver does, for people. `words`: part of the failure; None where it is not run."""

    does: str
    words: str | None


def _slow(name: str) -> tuple[str, Difference]:
    return f"timeouts.{name}", Difference("a hang ends after 60 s: not run", None)


LINUX_6_18: dict[str, Difference] = {
    "buffers.dev_space_is_reused": Difference("ENOSPC where the heap is full", "ENOSPC instead of EAGAIN"),
    "buffers.heap_grows": Difference(
        "one heap of 64 MiB at most: EBUSY for another", "Device or resource busy"
    ),
    "buffers.dev_bo_across_chunks": Difference(
        "one heap of 64 MiB at most: EBUSY for another", "Device or resource busy"
    ),
    "buffers.dev_bo_across_scattered_chunks": Difference(
        "one heap of 64 MiB at most: EBUSY for another", "Device or resource busy"
    ),
    "binding.heap_growth": Difference(
        "one heap of 64 MiB at most: EBUSY for another", "67108864 is the most it can have"
    ),
    "buffers.heap_limit": Difference("EINVAL for a heap of more than 64 MiB", "EINVAL instead of ENOSPC"),
    "buffers.dev_bo_is_not_exported": Difference("exports a DEV BO", "no error instead of ENOTSUP"),
    "buffers.user_memory_refused": Difference(
        "ENOMEM for memory that it cannot pin", "ENOMEM instead of EFAULT"
    ),
    "buffers.bo_usage": Difference("does not know the query", "Operation not supported"),
    "commands.failing_command": Difference(
        "leaves the packet of a failed command as it was", "[FAILED] * count"
    ),
    "commands.before_configuration": Difference(
        "EINVAL for a command before CONFIG_HWCTX", "Invalid argument"
    ),
    "commands.rejected_packets": Difference(
        "sends a command longer than its BO to the firmware", "START_NPU, count beyond the BO"
    ),
    "commands.count_beyond_the_bo": Difference(
        "sends a command longer than its BO to the firmware", "state(packet) == ERROR"
    ),
    "contexts.task_limit_is_the_drivers": Difference("does not know the query", "Operation not supported"),
    "contexts.resource_info": Difference("does not know the query", "Operation not supported"),
    "contexts.inherited_by_a_child": Difference(
        "a close in any process destroys the contexts", "Invalid argument"
    ),
    "errnos.without_a_heap": Difference("other errno values", "ENOMEM instead of EFAULT"),
    "errnos.with_a_heap_not_mapped": Difference("other errno values", "EINVAL instead of ENOTSUP"),
    "errnos.with_everything": Difference("other errno values", "ENOTSUP instead of EINVAL"),
    "errnos.unprivileged": Difference("other errno values", "wait status 0x100"),
    "errnos.sync_at_the_end": Difference("takes it", "SYNC_AT_END"),
    "packets.packets": Difference("rejects START_NPU_PREEMPT_ELF", "EXEC START_NPU_PREEMPT_ELF"),
    "power.idle_with_a_context": Difference(
        "does not suspend while a context exists", "suspend did not happen within"
    ),
    "power.pdi_closed_before_suspend": Difference("does not suspend while a context exists", None),
    "queries.version": Difference("an older DRM minor", "== (0, 10, 0)"),
    "queries.power_modes": Difference("does not know the query", "Operation not supported"),
    "queries.no_async_error": Difference("does not know the query", "Operation not supported"),
    **dict(
        map(
            _slow,
            (
                "hang",
                "recovery",
                "submit_right_after",
                "queue_behind_a_hang",
                "hang_in_a_chain",
                "late_reply",
                "other_context_keeps_going",
                "destroy_with_a_hung_command",
                "command_bo_closed_in_flight",
                "close_with_a_hung_command",
            ),
        )
    ),
}

_STATE = Difference("puts 4 bits of the status of a failed chain in the packet's state", ") == ERROR")
# Mended by Linux commit 750817a7c41d: 6.18.5, .9 and .12 are without it, 6.18.15 has it.
LINUX_6_18_OLDER = {
    **LINUX_6_18,
    "commands.failing_chain": _STATE,
    "commands.chain_after_a_failure": _STATE,
    "binding.hang_and_recovery": Difference("a hang ends after 60 s: not run", None),
}

COLUMNS: dict[str, dict[str, Difference]] = {
    "7.3.4": {},
    "6.18.15": LINUX_6_18,
    "6.18.5 to 6.18.12": LINUX_6_18_OLDER,
}


def table() -> Iterator[str]:
    """Markdown: a row for the cases with the same answers, a column a driver."""
    names = [name for name, column in COLUMNS.items() if column]
    rows: dict[tuple[str, ...], list[str]] = {}
    for case in dict.fromkeys(case for name in names for case in COLUMNS[name]):
        cells = (COLUMNS[name][case].does if case in COLUMNS[name] else "as the suite says" for name in names)
        rows.setdefault(tuple(cells), []).append(f"`{case}`")
    yield f"| case | {' | '.join(names)} |"
    yield "|---|" + "---|" * len(names)
    for texts, cases in rows.items():
        same = texts if len(set(texts)) > 1 else (texts[0], *['"'] * (len(names) - 1))
        yield f"| {', '.join(cases)} | {' | '.join(same)} |"


if __name__ == "__main__":
    print("\n".join(table()))
