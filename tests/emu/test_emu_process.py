"""The in-process node and processes: forks, the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import textwrap

import pytest

from amdxdna.emu.node import EmuNode
from amdxdna.emu.options import EmuOptions
from amdxdna.errors import Closed
from tests.conformance import kit
from tests.support.program import python

PAGE = 4096


def run_python(code: str, *, first: str = "", timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, with a kit.Ready called `ready` and everything it needs.

    `first` is run before anything is imported.
    """
    prelude = """
        import os, signal, sys, threading, time
        from amdxdna._native import ffi, lib
        from amdxdna.emu.kernels import stream
        from amdxdna.emu.node import EmuNode
        from amdxdna.emu.options import EmuOptions
        from tests.conformance import kit
        ready = kit.Ready(EmuNode(EmuOptions(threads=1, quiet=True)))
    """
    text = textwrap.dedent(first) + textwrap.dedent(prelude) + textwrap.dedent(code)
    return python("-c", text, timeout=timeout)


@pytest.mark.parametrize("address", ["pasid", "iova"])
def test_a_forked_child_may_not_use_the_parents_node(address: str) -> None:
    client = kit.Ready(EmuNode(EmuOptions(address=address, threads=1, quiet=True)))
    child = os.fork()
    if not child:
        status = 1
        try:
            for use in (lambda: client.create_bo(1, PAGE), lambda: client.node.mmap(PAGE, 1 << 32)):
                try:
                    use()
                except Closed as refused:
                    assert "parent process" in str(refused)
                else:
                    os._exit(2)
            client.munmap(client.source.host, PAGE)
            client.node.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert client.copy() == kit.COMPLETED
    client.close()


def test_a_forked_child_has_a_device_of_its_own() -> None:
    done = run_python("""
        import signal
        from amdxdna import errors
        from amdxdna.device import Device
        from tests.support.binding import adder, hanging

        options = "emu:quiet,slots=1,threads=1,tdr=0.3"
        parent = Device.open(options)
        pair = parent.alloc(64), parent.alloc(64)
        adder(parent, 64, 1).run(*pair)
        child = os.fork()
        if not child:
            signal.alarm(60)
            mine = Device.open(options)
            assert mine.contexts() == ()
            pair = mine.alloc(64), mine.alloc(64)
            adder(mine, 64, 1).run(*pair)
            try:
                hanging(mine).run()
            except errors.CommandTimeout:
                adder(mine, 64, 1).run(*pair)
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        adder(parent, 64, 1).run(*pair)
        print("fine")
    """)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_a_child_that_exits_normally_leaves_the_parent_alone() -> None:
    done = run_python("""
        child = os.fork()
        if not child:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert ready.copy() == kit.COMPLETED
        print("fine")
    """)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize("program", ["stream.hang()", "stream.delay(600_000_000)", "stream.copy(4096, 1)"])
def test_the_interpreter_ends_with_work_in_flight(program: str) -> None:
    done = run_python(
        f"""
        for _ in range(2):
            ready.start({program}, ready.source.device, ready.destination.device,
                        command=ready.bo(4096, lib.AMDXDNA_BO_CMD), code=ready.dev(4096))
        print("bye")
    """,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")


def test_no_thread_of_a_device_is_left_at_the_interpreters_end() -> None:
    done = run_python(
        """
        for _ in range(2):
            print(ready.copy())
    """,
        first="""
        import atexit, threading
        def left():
            for thread in threading.enumerate():
                if thread.name.startswith("amdxdna-emu"):
                    thread.join(30)
                    print(thread.name, thread.is_alive())
        atexit.register(left)  # what is registered first comes last
    """,
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == [str(kit.COMPLETED)] * 2 and not [line for line in lines if "True" in line], done


def test_messages_go_to_stderr_once() -> None:
    done = run_python("""
        ready.close()
        ready = kit.Ready(EmuNode(EmuOptions(threads=1)))
        context = ready.context()
        ready.configure(context[0], ready.dev(4096, b"\\x7fELF" * 16).handle)
        print(ready.copy(context), ready.copy(context))
    """)
    assert done.stdout == f"{kit.ERROR} {kit.ERROR}\n"
    assert done.stderr.count("compiled AIE code is not interpreted") == 1


def test_unmapping_and_closing_under_a_running_command_never_crashes() -> None:
    done = run_python("""
        size = 4 << 20
        for turn in range(40):
            address = "iova" if turn % 2 else "pasid"
            client = kit.Ready(EmuNode(EmuOptions(threads=1, quiet=True, address=address)))
            source, target = client.bo(size), client.bo(size)
            program = stream.program([stream.Copy(size, 1)] * 8)
            client.start(program, source.device, target.device)
            if turn % 3 == 0:
                client.node.close()
            for bo in (source, target):
                if turn % 3 == 1:
                    client.close_bo(bo.handle)
                client.munmap(bo.host, size)
            client.mappings.clear()
            client.node.close()
        print("alive")
    """)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
