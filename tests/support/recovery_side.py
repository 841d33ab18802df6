"""What goes wrong around other processes, and how a program gets over it: each function is one scenario.

They run on a kernel node that is found through sysfs: in a guest on Linux's own driver, and on the host under
`python -m amdxdna emulate`. Both are given two context slots (`pressure` takes any number).
`python -m tests.support.recovery_side NAME` runs one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from amdxdna import errors
from amdxdna.device import Device
from tests.support.binding import adder, copy_xclbin, hanging

SLOTS = 2
GONE_SECONDS = 60
_NUMBERS = b"".join(i.to_bytes(4, "little") for i in range(16))


class Other:
    """Another process that runs `work`, a generator function, to its next yield at every step()."""

    def __init__(self, work: Callable[[], Iterator[None]]) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ours[1])
            os.close(theirs[0])
            status = 1
            try:
                for _ in work():
                    os.write(theirs[1], b"+")
                    if os.read(ours[0], 1) != b"+":
                        break
                status = 0
            finally:
                os._exit(status)
        os.close(ours[0])
        os.close(theirs[1])
        self._go, self._done = ours[1], theirs[0]
        self._wait()

    def _wait(self) -> None:
        assert os.read(self._done, 1) == b"+", "the other process ended"

    def step(self) -> None:
        """Lets it go on, and waits until it has."""
        os.write(self._go, b"+")
        self._wait()

    def end(self) -> int:
        """Lets it end; its wait status."""
        os.write(self._go, b"-")
        return os.waitpid(self.pid, 0)[1]

    def kill(self) -> None:
        """Kills it and waits until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextlib.contextmanager
def other(work: Callable[[], Iterator[None]]) -> Iterator[Other]:
    """Another process, killed at the end if it is still there."""
    process = Other(work)
    try:
        yield process
    finally:
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            process.kill()


def works(device: Device, add: int = 1, variant: int = 0) -> None:
    """A kernel adds to sixteen numbers, and is closed again."""
    kernel = adder(device, 64, add, variant=variant)
    with device.alloc(64) as source, device.alloc(64) as target:
        source.write(_NUMBERS)
        kernel.run(source, target, outputs=[target])
        expected = b"".join((i + add).to_bytes(4, "little") for i in range(16))
        assert target.read() == expected
    kernel.close()


def only_ours(device: Device) -> None:
    """Waits until no other process has a context: a killed one's stays until its command's timeout."""
    end = time.monotonic() + GONE_SECONDS
    while {context.pid for context in device.contexts()} - {os.getpid()}:
        assert time.monotonic() < end, device.contexts()
        time.sleep(0.05)


def pressure() -> None:
    """Slots that another process holds are told with their holder; what it releases can be used at once."""

    def holder() -> Iterator[None]:
        with Device.open("auto") as device:
            held = [device.context(copy_xclbin(i)) for i in range(device.resources().npu_task_max)]
            yield
            held.pop().close()
            yield
            # What this process wants back now is taken: by then the pool of the first holds it.
            try:
                device.context(copy_xclbin(7))
            except errors.NoFreeContext:
                held.pop().close()
                yield

    with other(holder) as process, Device.open("auto") as device:
        try:
            works(device)
        except errors.NoFreeContext as error:
            all_ = device.resources().npu_task_max
            assert error.holders == ((process.pid, all_),), error.holders
            assert f"all {all_} hardware contexts" in str(error), error
            assert f"process {process.pid}: {all_}" in str(error), error
        else:
            raise AssertionError("a context was free")
        process.step()
        kernels = [adder(device, 64, 1, variant=i) for i in range(3)]
        source, target = device.alloc(64), device.alloc(64)
        for _ in range(2):
            for kernel in kernels:
                kernel.run(source, target)
        assert device.pool.resident == 1 and device.pool.swaps == 5, device.pool.stats
        process.step()
        for kernel in kernels:
            kernel.run(source, target)
        assert device.pool.resident == 2, device.pool.stats


def sixty_forgotten() -> None:
    """A program makes sixty contexts and forgets them, with two slots; then some of which it
    holds the last one."""
    with Device.open("auto") as device:
        xclbins = [copy_xclbin(i) for i in range(3)]
        for i in range(60):
            device.context(xclbins[i % 3])
        held = device.context(xclbins[0])
        for i in range(12):
            held = device.context(xclbins[i % 3])
        del held
        gc.collect()
        works(device)
        assert len(device.contexts()) <= 1, device.contexts()


def never_closed() -> None:
    """A process that ends with its contexts open gives them back, and its buffers."""

    def careless() -> Iterator[None]:
        device = Device.open("auto")
        device.alloc(1 << 20)
        _ = [device.context(copy_xclbin(i)) for i in range(SLOTS)]
        yield

    with other(careless) as process:
        process.end()
    with Device.open("auto") as device:
        assert device.contexts() == ()
        works(device)


def fork() -> None:
    """A forked child may not use its parent's device, and leaves it alone; it may open one of its own."""
    with Device.open("auto") as device:
        works(device)
        kernel = adder(device, 64, 1)
        source, target = device.alloc(64), device.alloc(64)
        run = kernel.start(source, target)

        def child() -> Iterator[None]:
            for use in (lambda: device.alloc(64), lambda: kernel.start(source, target), device.contexts):
                try:
                    use()
                except errors.Closed:
                    continue
                raise AssertionError("the child used its parent's device")
            device.close()
            with Device.open("auto") as own:
                works(own, 5)
            yield

        with other(child) as process:
            assert process.end() == 0
        run.wait()
        works(device, 3)
        assert len(device.contexts()) == 1, device.contexts()


def killed() -> None:
    """A process killed in the middle of a command: its slot comes back, and others go on meanwhile."""

    def victim() -> Iterator[None]:
        device = Device.open("auto")
        hanging(device).start()
        yield

    with Device.open("auto") as device:
        works(device)
        with other(victim) as process:
            assert [context.pid for context in device.contexts()] == [process.pid]
            process.kill()
        works(device, 2)
        only_ours(device)
        kernels = [adder(device, 64, 1, variant=i) for i in range(SLOTS)]
        source, target = device.alloc(64), device.alloc(64)
        for kernel in kernels:
            kernel.run(source, target)
        assert device.pool.swaps == 0 and device.pool.resident == SLOTS, device.pool.stats


def killed_often() -> None:
    """Processes killed at any moment of a copy, one after the other, leave nothing behind."""

    def victim() -> Iterator[None]:
        device = Device.open("auto")
        kernel = adder(device, 64, 1, delay_us=3000)
        source, target = device.alloc(64), device.alloc(64)
        kernel.start(source, target)
        yield

    for _ in range(3):
        with other(victim) as process:
            process.kill()
    with Device.open("auto") as device:
        works(device)
        only_ours(device)


def timeout() -> None:
    """A timed-out context's report is in words, its place is taken by a fresh one, and the next run works."""
    with Device.open("auto") as device:
        kernel = hanging(device)
        try:
            kernel.run()
        except errors.CommandTimeout as error:
            assert "no progress" in str(error) and "context PC 0x" in str(error), error
            assert "operation 0" in str(error) and "no fatal error" in str(error), error
        else:
            raise AssertionError("no timeout")
        for i in range(3):
            works(device, i)
        assert len(device.contexts()) <= 1


SCENARIOS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (pressure, sixty_forgotten, never_closed, fork, killed, killed_often, timeout)
}


def run(name: str) -> None:
    """Runs one scenario."""
    SCENARIOS[name]()


if __name__ == "__main__":
    run(sys.argv[1])
    print("ok")
