"""How programs find `pyxrt`: installed for a while, and `python -m amdxdna pyxrt` with what they start."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import amdxdna.pyxrt as pyxrt
from amdxdna.pyxrt import devices
from tests.support.program import python

ROOT = Path(__file__).parents[2]


def test_installed_for_a_while():
    before = sys.modules.get("pyxrt")
    with pyxrt.installed():
        import pyxrt as found
        import pyxrt.ext as ext

        assert found is pyxrt and ext is pyxrt.ext and found.implementation == "amdxdna"
        assert sys.path[1] == str(pyxrt.FOLDER)  # behind the script's own folder
        with pyxrt.installed():
            assert sys.path.count(str(pyxrt.FOLDER)) == 1
        assert sys.path[1] == str(pyxrt.FOLDER) and sys.modules["pyxrt"] is pyxrt
    assert sys.modules.get("pyxrt") is before and str(pyxrt.FOLDER) not in sys.path


def test_the_device_is_given_to_installed(monkeypatch):
    monkeypatch.setenv(devices.DEVICE, "7")
    with pyxrt.installed("emu:quiet,threads=1"):
        assert pyxrt.device(0).get_info(pyxrt.xrt_info_device.name) == "NPU Strix"
    assert os.environ[devices.DEVICE] == "7"
    with pytest.raises(TypeError, match="device is 7"):
        pyxrt.install(7)


FORKED = """
import os, signal, sys, threading, time
import {package}
{before}
held = threading.Event()
class Slow:
    @staticmethod
    def find_spec(name, *_):
        if name == {module!r} and not held.is_set():
            held.set()
            time.sleep(0.3)
sys.meta_path.insert(0, Slow)
other = threading.Thread(target=lambda: {use})
other.start()
assert held.wait(60)
child = os.fork()
if not child:
    signal.alarm(300)
    {use}
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
other.join()
"""


@pytest.mark.parametrize(
    ("package", "module", "before", "use"),
    [
        ("amdxdna.pyxrt", "amdxdna.emu.node", "", "amdxdna.pyxrt.device(0)"),
        ("amdxdna", "amdxdna.device", "", "amdxdna.Device"),
        (
            "amdxdna.pyxrt",
            "amdxdna.pyxrt.queries",
            "d = amdxdna.pyxrt.device(0)",
            "d.get_info(amdxdna.pyxrt.xrt_info_device.name)",
        ),
    ],
    ids=["device", "name", "info"],
)
def test_the_child_of_a_fork_in_the_middle_of_an_import(package, module, before, use):
    code = FORKED.format(package=package, module=module, before=before, use=use)
    ended = python("-c", code, env={devices.DEVICE: "emu:quiet"})
    assert ended.returncode == 0, ended.stderr


def test_a_real_one_is_not_shadowed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyxrt", type(sys)("pyxrt"))
    with pytest.raises(ImportError, match="another pyxrt"):
        pyxrt.install()


def command(*words, **settings):
    return python("-m", "amdxdna", "pyxrt", *words, **settings)


SCRIPT = """
import subprocess, sys
sys.path.insert(0, "/opt/xilinx/xrt/python")
import pyxrt as xrt, helper
assert "pyxrt" in sys.modules and xrt.implementation == "amdxdna"
print(sys.argv[1:], __name__, xrt.device(0).get_info(xrt.xrt_info_device.name), flush=True)
subprocess.run([sys.executable, "-c", "import pyxrt, pyxrt.ext; print(pyxrt.implementation, "
                "pyxrt.enumerate_devices(), pyxrt.ext.bo(pyxrt.device(0), 64).size())"], check=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helper.py").write_text("")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_and_its_children(script):
    ended = command("--device", "emu:quiet,threads=1", "--", script, "3", "--flag")
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.splitlines() == ["['3', '--flag'] __main__ NPU Strix", "amdxdna 1 64"]


def test_a_module(script):
    ended = command("--device", "emu:quiet,threads=1", "--", "-m", "script", "0", cwd=script.parent)
    assert ended.returncode == 0 and "__main__" in ended.stdout, ended.stderr


SPAWNED = """
import multiprocessing, sys
if "install" in sys.argv:
    import amdxdna.pyxrt
    if __name__ == "__main__":
        amdxdna.pyxrt.install()
import pyxrt

def child():
    import pyxrt.ext
    sys.exit(5 if pyxrt.implementation == "amdxdna" and pyxrt.enumerate_devices() == 1 else 6)

if __name__ == "__main__":
    for method in sys.argv[1].split(","):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join(300)
        print(method, process.exitcode)
"""


def test_children_of_multiprocessing(tmp_path):
    """Their path for modules is a copy of the parent's, not PYTHONPATH's."""
    path = tmp_path / "spawned.py"
    path.write_text(SPAWNED)
    ended = command("--device", "emu:quiet,threads=1", "--", path, "spawn,forkserver")
    assert ended.stdout == "spawn 5\nforkserver 5\n" and ended.returncode == 0, ended.stderr
    ended = python(path, "spawn", "install", cwd=tmp_path, env={devices.DEVICE: "emu:quiet,threads=1"})
    assert ended.stdout == "spawn 5\n" and ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("import sys; sys.exit('gone')", 1, "gone"),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(f'{sys.stdout.name} {sys.stdout.mode}')", 1, "<stdout> w"),
        ("def x(:", 1, "SyntaxError: invalid syntax"),
    ],
)
def test_how_a_script_ends(tmp_path, text, status, said):
    path = tmp_path / "s.py"
    path.write_text(text)
    ended = command("--", path)
    assert ended.returncode == status and ended.stderr.strip().endswith(said)


LATE = """
import atexit, os, pyxrt, sys, threading, time
value = 5
def late(what):
    time.sleep(0.2)
    print(what, value, sys.modules["__main__"].value, __name__, flush=True)
threading.Thread(target=late, args=("thread",)).start()
atexit.register(late, "atexit")
print(os.path.basename(__file__), sys.argv[1:], pyxrt.implementation, flush=True)
"""


def test_a_folder_and_its_module_outlive_the_last_line(tmp_path):
    """Threads and what is registered at exit still have the program's names."""
    (tmp_path / "__main__.py").write_text(LATE)
    ended = command("--", tmp_path, "x")
    said = ["__main__.py ['x'] amdxdna", "thread 5 5 __main__", "atexit 5 5 __main__"]
    assert (ended.returncode, ended.stdout.splitlines()) == (0, said), ended.stderr
    (tmp_path / "other").mkdir()
    ended = command("--", tmp_path / "other")
    assert ended.returncode == 2 and "no __main__.py" in ended.stderr
    ended = command("--", "-m", "no.such.module")
    assert ended.returncode == 2 and "no module named no.such.module" in ended.stderr


def test_a_program_from_stdin_and_its_end_by_ctrl_c():
    text = "import pyxrt, sys\nprint(sys.argv, __name__, flush=True)\nraise KeyboardInterrupt"
    ended = command("--", "-", "x", stdin=text)
    assert (ended.returncode, ended.stdout) == (-signal.SIGINT, "['-', 'x'] __main__\n"), ended.stderr
    assert ended.stderr.splitlines()[1:] == ['  File "<stdin>", line 3, in <module>', "KeyboardInterrupt"]


def test_a_device_that_is_not_there(monkeypatch, tmp_path):
    path = tmp_path / "s.py"
    path.write_text("print('ran')")
    for device in ("nope", "emu:nope=1"):
        ended = command("--device", device, "--", path)
        assert ended.returncode == 2 and not ended.stdout and ended.stderr.count("\n") == 1
        assert f"--device {device}" in ended.stderr
    path.write_text("import pyxrt\ndef use():\n    pyxrt.device(7)\nuse()")
    ended = command("--device", "emu", "--", path)
    lines = [line for line in ended.stderr.splitlines() if "^" not in line]
    assert ended.returncode == 1 and lines == [  # the program's own frames, then what is wrong
        "Traceback (most recent call last):",
        f'  File "{path}", line 4, in <module>',
        "    use()",
        f'  File "{path}", line 3, in use',
        "    pyxrt.device(7)",
        "RuntimeError:  No such device with index '7'",
        "AMDXDNA_PYXRT_DEVICE names device 0 alone. Give index 0",
    ]
    monkeypatch.setenv(devices.DEVICE, "nope")
    with pytest.raises(RuntimeError, match=r"^ No such device with index '0'\n"):
        pyxrt.device(0)


def test_wrong_usage(tmp_path):
    for words in ((), ("--", tmp_path / "none.py"), ("--", "-m")):
        ended = command(*words)
        assert ended.returncode == 2 and "Traceback" not in ended.stderr and ended.stderr
    assert (Path(command("--path").stdout.strip()) / "pyxrt.py").is_file()
