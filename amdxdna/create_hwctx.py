"""CREATE_HWCTX: how a context comes to be, and what a refusal means."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amdxdna import ioctl, query
from amdxdna._native import ffi
from amdxdna.abandoned import collect_contexts, held
from amdxdna.arguments import whole
from amdxdna.client import Client
from amdxdna.errors import ContextRefused, NoFreeContext, OutOfHeap, XdnaError
from amdxdna.heap import GRANULE
from amdxdna.reaper import PATIENCE

DEFAULT_OPS_PER_CYCLE = 2048
_ATTEMPTS = 3
CONTEXT_BYTES = 4 * GRANULE
"""Bytes of the device heap that the driver takes for each context: four command buffers (aie2_ctx.c)."""


@dataclass(frozen=True)
class QoS:
    """What a context asks of the driver: giga operations a command, the rest as the uAPI names it."""

    gops: int = 0
    fps: int = 0
    dma_bandwidth: int = 0
    latency: int = 0
    frame_exec_time: int = 0
    priority: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            whole("QoS", name, value, 0, (1 << 32) - 1)


def create(
    client: Client,
    columns: int,
    rows: int,
    own: Callable[[Any], None],
    qos: QoS | None = None,
    ops_per_cycle: int = DEFAULT_OPS_PER_CYCLE,
    patient: bool = True,
) -> None:
    """Makes a context and calls `own` with the call's struct, which has its handle.

    Where a signal handler raises after the driver has answered, `own` is called all the same, once or twice.
    Where the device is full and `patient` is set, garbage is collected and contexts on their way out are
    waited for, :data:`~amdxdna.reaper.PATIENCE` seconds at most; where the heap is full, it grows or is
    relieved. Raises NoFreeContext or ContextRefused for a refusal of the firmware's, OutOfHeap.
    """
    q = qos or QoS()
    wanted = ffi.new(
        "struct amdxdna_qos_info *",
        (q.gops, q.fps, q.dma_bandwidth, q.latency, q.frame_exec_time, q.priority),
    )
    request = ffi.new(
        "struct amdxdna_drm_create_hwctx *",
        {"qos_p": ioctl.address_of(wanted), "num_tiles": columns * rows, "max_opc": ops_per_cycle},
    )
    try:
        _ask(client, request, columns, patient)
        own(request)
    except BaseException:
        # Out of a signal handler, which runs when the driver has answered: the context exists.
        if request.handle:
            own(request)
        raise


def _ask(client: Client, request: Any, columns: int, patient: bool) -> None:
    attempt = 0
    grown = False
    while True:
        try:
            ioctl.call(client.node, "CREATE_HWCTX", request, detail=f"{columns} columns")
            return
        except XdnaError as error:
            verdict = error
        if verdict.errno in (errno.EAGAIN, errno.ENOSPC):
            _make_room(client, verdict.errno, grown)
            grown = True
            continue
        # The heap exists, so ENOENT does not mean a missing one.
        if verdict.errno in (errno.EINVAL, errno.ENOENT):
            verdict = refused(client, verdict.errno)
        elif verdict.errno == errno.ENODEV:
            verdict = _no_partition(client, columns) or verdict
        if isinstance(verdict, NoFreeContext) and patient and collect_contexts(PATIENCE):
            continue
        # Contexts that are free now may not have been a moment ago: ask again before blaming others.
        attempt += 1
        if verdict.errno != errno.EINVAL or getattr(verdict, "certain", False) or attempt >= _ATTEMPTS:
            try:
                raise verdict
            finally:
                del verdict  # its traceback has this frame: it would keep contexts for the cycle collector


def _make_room(client: Client, code: int, grown: bool) -> None:
    """Makes room in the heap for a context's own buffers, first by enlarging it. Raises OutOfHeap."""
    heap = client.heap
    if not grown:
        with client.lock, contextlib.suppress(OutOfHeap):
            heap.grow(CONTEXT_BYTES)
            return
    if not client.relieve(CONTEXT_BYTES):
        error = heap.full(CONTEXT_BYTES, code)
        error.call = "CREATE_HWCTX"
        raise error


def refused(client: Client, code: int = errno.EINVAL) -> NoFreeContext | ContextRefused:
    """The error for CREATE_HWCTX refused with `code`: EINVAL or ENOENT.

    The driver passes every refusal of the firmware on as EINVAL. Resource info (DRM minor 4) tells how many
    contexts there can be and are. Below that number, or without it, the firmware may still be full: it is the
    likely cause while other contexts work. AMD's legacy driver answers ENOENT when its virtual contexts are
    taken ("Not allow more than", aie2_ctx_runqueue.c of xdna-driver's src/driver).
    """
    use = query.ContextUse((), 0, None)
    with contextlib.suppress(XdnaError):
        use = query.context_use(client)
    limit, taken = use.limit, use.taken
    holders = tuple(sorted(Counter(c.pid for c in use.listed).items()))
    here = os.getpid()
    ours = dict(holders).get(here, 0) or held()  # in a container the driver's process ids are the host's
    others = [f"process {pid}: {count}" for pid, count in holders if pid != here]
    who = (
        ", ".join([*([f"this process holds {ours}"] if ours else []), *others])
        or "their holders are not reported"
    )
    of = f"{taken} of {limit}" if limit is not None else f"{taken}"
    full = code == errno.ENOENT or (limit is not None and taken >= limit)
    if full or (taken if limit is None else ours):
        cause = (
            f"all {max(taken, limit or 0)} hardware contexts of the device are taken"
            if full
            else f"the firmware gives no further hardware context; {of} are taken, which may be all it has"
        )
        return NoFreeContext(
            f"{cause} ({who})",
            call="CREATE_HWCTX",
            errno=code,
            holders=holders,
            certain=full,
            remedy=_whose(ours, taken),
        )
    return ContextRefused(
        f"the firmware refused the context though contexts are free ({of} are taken)",
        call="CREATE_HWCTX",
        errno=code,
        # aie2_msg_priv.h: MGMT_ERT_NOAVAIL, MGMT_ERT_INVALID_PARAM
        remedy="Look at `dmesg | grep amdxdna` for the firmware's status: 0x2000003 means it has no context "
        "left (where no process has one, a cold start helps), 0x4000003 a parameter it does not accept",
    )


def _no_partition(client: Client, columns: int) -> NoFreeContext | None:
    """The error for ENODEV from CREATE_HWCTX where columns were wanting; None: the firmware is not reached.

    The solver lets contexts of the same width share a partition, and finds none only where those of another
    are in the way (aie2_solver.c); the driver gives the same errno when its channel to the firmware is gone
    (aie2_message.c), and when the device is.
    """
    try:
        found = query.contexts(client)
    except XdnaError:
        return None
    count = Counter(c.pid for c in found if c.num_col != columns)
    if not count:
        return None
    who = ", ".join(
        f"this process holds {n}" if pid == os.getpid() else f"process {pid}: {n}"
        for pid, n in sorted(count.items())
    )
    return NoFreeContext(
        f"no partition of {columns} columns is free; contexts of other widths are in the way ({who})",
        call="CREATE_HWCTX",
        errno=errno.ENODEV,
        holders=tuple(sorted(count.items())),
        columns=columns,
        remedy=_whose(count[os.getpid()], sum(count.values())),
    )


def _whose(ours: int, taken: int) -> str:
    """What to do about contexts of which this process has `ours`."""
    own = (
        "Close contexts, kernels, models or devices that this process no longer needs; a program can "
        "share contexts through Device.pool"
    )
    other = "Close other programs that use the NPU, or wait for them to end"
    return own if ours >= taken else f"{own}. {other}" if ours else other
