"""Failing commands on Linux's own drivers, and contexts that a subprocess may cost: run in the guest."""

from __future__ import annotations

import os
import subprocess
import threading

import numpy as np

from amdxdna import errors
from amdxdna.buffer import Buffer
from amdxdna.device import Device
from amdxdna.emu.kernels import stream
from tests.support.binding import adder, copy_xclbin

WORDS = 16
# aie2_msg_priv.h, enum aie2_msg_status: those that a command can end with. Their low four bits cover what a
# driver that copies them into the packet's state makes of them: 4 is COMPLETED, 1 NEW, 6 ABORT, 8 TIMEOUT.
STATUSES = (*range(0x1000001, 0x100000D), 0x2000004, 0x3000002, 0x3000003, 0x4000001)


def _buffers(device: Device) -> tuple[Buffer, Buffer]:
    source, target = device.alloc(4 * WORDS), device.alloc(4 * WORDS)
    source.view("u4")[:] = np.arange(WORDS)
    return source, target


def _ended(device: Device, status: int, position: int | None) -> str:
    """What the binding says of a command, or of a chain's member, that the firmware ends with `status`."""
    source, target = _buffers(device)
    good, bad = adder(device, 4 * WORDS, 1), device.pool.kernel(copy_xclbin(), stream.fail(status))
    try:
        if position is None:
            bad.run(source, target, timeout=120)
        else:
            calls = [(good, (source, target)) for _ in range(3)]
            calls[position] = (bad, (source, target))
            device.pool.chain(calls).wait(120)
    except errors.XdnaError as error:
        return f"{type(error).__name__}, member {getattr(error, 'index', None)}"
    finally:
        bad.close()
    return "success"


def statuses(positions: list[int | None]) -> dict[str, str]:
    """By status and position in a chain of three (None: a single command): how it ended.

    A good command runs right after each.
    """
    ended = {}
    with Device.open("auto") as device:
        for status in STATUSES:
            for position in positions:
                key = f"{status:#x}" + ("" if position is None else f" at {position}")
                ended[key] = _ended(device, status, position)
                _works(device)
    return ended


def told_wrong(ended: dict[str, str], position: int | None) -> dict[str, str]:
    """What :func:`statuses` gave for `position` that is no failure, or of a member that did not fail.

    After a time-out nobody may know the member.
    """
    return {
        key: how
        for key, how in ended.items()
        if how == "success" or not how.endswith((f"member {position}", "member None"))
    }


def _works(device: Device) -> None:
    source, target = _buffers(device)
    adder(device, 4 * WORDS, 5).run(source, target, outputs=[target], timeout=120)
    assert (target.view("u4") == np.arange(WORDS) + 5).all()


def subprocesses() -> None:
    """The device works on after a subprocess, a shell and a fork of the program that has it open."""

    def child() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    with Device.open("auto") as device:
        source, target = _buffers(device)
        kernel = adder(device, 4 * WORDS, 1)
        for between in (
            lambda: subprocess.run(["/bin/sh", "-c", "true"], check=True),
            lambda: os.system("true"),
            child,
        ):
            kernel.run(source, target, outputs=[target], timeout=120)
            between()
            target.view("u4")[:] = 0
            target.to_device()
            kernel.run(source, target, outputs=[target], timeout=120)
            assert (target.view("u4") == np.arange(WORDS) + 1).all()


def children_beside(children: int) -> dict[str, int]:
    """Commands of two contexts, singly and in chains, while another thread starts one child after the other:
    each result is right. Commands that the driver ended with their context are told, and run again here."""
    ended = threading.Event()

    def start() -> None:
        try:
            for _ in range(children):
                subprocess.run(["/bin/sh", "-c", "true"], check=True)
        finally:
            ended.set()

    told = rounds = 0
    with Device.open("auto") as device:
        source, target = _buffers(device)
        kernels = [adder(device, 4 * WORDS, number, variant=number) for number in (1, 2)]
        starter = threading.Thread(target=start)
        starter.start()
        while not ended.is_set() or not rounds:
            for number, kernel in enumerate(kernels, 1):
                for start_one in (
                    lambda kernel=kernel: kernel.start(source, target),
                    lambda kernel=kernel: device.pool.chain([(kernel, (source, target))] * 2),
                ):
                    target.view("u4")[:] = 0
                    target.to_device()
                    try:
                        start_one().wait(120, [target])
                    except (errors.CommandAborted, errors.CommandRejected):
                        told += 1
                        continue
                    assert (target.view("u4") == np.arange(WORDS) + number).all()
            rounds += 1
        starter.join()
        return {"rounds": rounds, "losses": device.client.losses, "told": told}
