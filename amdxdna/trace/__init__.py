"""Records what a program asks of the NPU: every ioctl, wait and mapping, decoded by field.

A trace is JSON lines. The first is a header, the last a summary, each other one a call, written when the call
is over, or a stage. Fields and kinds of lines may be added within a version; a field that changes its meaning
or goes raises it.

Header::

    {"schema": "amdxdna.trace", "version": 1, "source": "ptrace" | "seccomp" | "binding", "pid": 71,
     "command": ["python", ...] | null, "started": "2026-01-31T12:00:00+00:00"}

Call::

    {"t": 0.001203, "us": 41.2, "pid": 71, "tid": 71, "open": 1, "call": "CREATE_BO",
     "in": {"size": 67108864, "type": "DEV_HEAP", ...}, "out": {"handle": 1},
     "errno": "EINVAL", "meaning": "...", "remedy": "..."}

``t`` is the start of the call in seconds since the header, ``us`` how long it took. ``open`` numbers the
opens of the node, from 1. ``call`` is the interface's name; ``open``, ``mmap``, ``munmap`` and ``close`` are
calls too, and a request that nobody knows is ``ioctl 0x..``. ``in`` holds the fields of the struct as the
program passed them and what they point to (``qos``, ``cus``, ``bos``, ``waits``, ``table``, ``value``),
``out`` those that changed and what was filled in (``result``, ``elements``, ``name``). Fields that are 0 on
the way in, and have no name for that value, are left out. Addresses are hexadecimal strings. ``errno``,
``meaning`` and ``remedy`` are there when the call failed.

EXEC_CMD also has ``contents`` (the first bytes of each listed BO, in hexadecimal by handle) where they were
asked for, and ``packet``::

    {"opcode": "START_CU", "state": "NEW", "words": 16, "cu_mask": 1, "kernel_opcode": 3,
     "instructions": {"address": "0x4028000", "bytes": 3248, "bo": 5, "offset": 0},
     "buffers": [{"address": "0x7f..", "bo": 7, "offset": 0}, ...]}
    {"opcode": "CMD_CHAIN", "state": "NEW", "commands": [{"bo": 9, "packet": {...}}, ...]}

and SYNCOBJ_TIMELINE_WAIT ``completed``, the commands that are known to be over since::

    [{"context": 1, "seq": 0, "bo": 8, "state": "COMPLETED", "us": 131.0, "health": "..."}]

where ``us`` runs from the start of the submit to the end of the wait, and ``health`` (in words) comes with
state TIMEOUT. ``state`` is null where the program saw the end without a wait and has used the BO again.

A stage of a program's own work (a model's, in traces of the own process)::

    {"t": 0.21, "us": 812.4, "pid": 71, "tid": 71, "stage": "host.attention"}

Summary::

    {"summary": {"seconds": 1.2, "calls": {"EXEC_CMD": {"count": 40, "errors": 0, "us": {"p50": 9.1, ...}}},
     "calls_per_second": 350.1, "opens": 1, "contexts": 2, "submits": 40,
     "submit_to_complete_us": {"p50": 120.5, "p90": 140.0, "p99": 160.2, "max": 171.0} | null,
     "states": {"COMPLETED": 40}, "errors": {"CREATE_HWCTX EINVAL": 1},
     "bytes": {"allocated": 71303168, "listed": 4096000, "instructions": 129920, "synced": 0}}}

``listed`` sums the sizes of the BOs that submits list: what the commands may move at most. Commands that no
wait was issued for count as state ``unobserved``; ``submit_to_complete_us`` is of those that completed.

Overhead, measured on a virtual machine of two cores, per call: about 70 us for a traced ioctl and 11 us for
an open or a close by ptrace (nothing for calls that the filter does not pick; a submit on the kernel's node
costs two stops more, for its packet); 50 us for an ioctl in the emulating supervisor; 35 us in the own
process.

For the own process set AMDXDNA_TRACE=FILE (``%p`` in it is the process id): every device that the binding
opens is recorded, the in-process emulated one too. Lines are appended.
"""

from __future__ import annotations

SCHEMA, VERSION = "amdxdna.trace", 1
ENVIRONMENT = "AMDXDNA_TRACE"
