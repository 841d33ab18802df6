"""Plain words, pipes and the shell's limits: of each command line the exit status and stderr's first line."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amdxdna.entry import needed
from amdxdna.programs import own_commands, own_program
from qwen35.serve import cli as server
from tests.support.program import FIRST, ROOT, SECONDS, holding, python

DRIVER, QWEN, AMD = "tests.support.cli_driver", "qwen35", "amdxdna"
NO_NPU = {name: value for name, value in os.environ.items() if not name.startswith(("QWEN35_", "AMDXDNA_"))}


def run(
    module: str, *words: str, stdin: bytes | None = None, cwd: Path = ROOT, shell: str = "", **env: str
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr; `stdin` None is /dev/null; `shell` goes before exec, or behind it."""
    command = [sys.executable, "-m", module, *words]
    if shell:
        before, _, behind = shell.partition("@")
        command = ["sh", "-c", f'{before} exec "$@" {behind}', "sh", *command]
    with holding(stdin or b"") as pipe:
        done = subprocess.run(
            command,
            capture_output=True,
            cwd=cwd,
            timeout=SECONDS,
            env={**NO_NPU, "PYTHONPATH": str(ROOT), "PATH": FIRST, **env},
            stdin=subprocess.DEVNULL if stdin is None else pipe,
        )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


E, A = "qwen35: error: ", "amdxdna: error: "
TABLE = [
    # Questions as they are typed.
    (DRIVER, ["What is a whale?", "-q"], 0, ""),
    (DRIVER, ["What", "is", "a", "whale", "-q"], 0, ""),
    (DRIVER, ["whale?", "-q"], 0, ""),
    (DRIVER, ["tests", "What is it?", "-q"], 0, ""),
    (DRIVER, ["-q", "--max-new", "9", "What is it?"], 0, ""),
    (DRIVER, ["chat", "-q"], 0, ""),
    (DRIVER, [], 2, E + "nothing was asked: give a question in quotes, --prompt TEXT, "),
    (
        DRIVER,
        ["whale"],
        2,
        E + "whale is no command, and no bundle of that name is here: to ask it, python -m qwen35 --prompt ",
    ),
    (
        DRIVER,
        ["quen35"],  # the folder qwen35 is no bundle
        2,
        E + "quen35 is no command, and no bundle of that name is here: to ask it, python -m qwen35 --prompt ",
    ),
    (DRIVER, [""], 2, E + "nothing was asked: the question is empty"),
    (DRIVER, ["2b"], 2, E + "2b is no command, and no bundle of that name is here: not downloaded yet: "),
    (DRIVER, ["bundle"], 2, E + "bundle is no command, and no bundle of that name is here: make it of a "),
    (
        DRIVER,
        ["-p", "x", "--stats"],
        2,
        E + "argument --stats: expected one argument, one of text, json, none",
    ),
    (DRIVER, ["x.png"], 2, E + "a picture is no bundle (x.png): did you mean --image x.png?"),
    (DRIVER, ["--image", "qwen35/data/sample.png", "What", "-q"], 1, E + "this bundle has no vision tower ("),
    (DRIVER, ["--image", "-", "What"], 2, E + "no picture came (stdin): pipe one in"),
    (DRIVER, ["--image", "-", "--chat"], 2, E + "--image - takes the whole of stdin for one picture"),
    (DRIVER, ["--image", "a.png", "--prompt", "x", "--max-new", "0"], 2, E + "argument --max-new: "),
    (DRIVER, ["--chat=1"], 2, E + "argument --chat: ignored explicit argument"),
    (DRIVER, ["2b", "--image", "qwen35/data/sample.png"], 2, E + "nothing was asked: "),
    (DRIVER, ["Who?", "--prompt", "x"], 2, E + "'Who?' is taken for a question, and --prompt asks already"),
    (
        DRIVER,
        ["Who is it?", "--chat"],
        2,
        E + "'Who is it?' is taken for a question, and --chat asks already",
    ),
    # Commands of other programs, and misspelt ones.
    (DRIVER, ["pull", "2b"], 2, E + "there is no command pull: python -m qwen35 info 2b"),
    (DRIVER, ["run", "2b"], 2, E + "there is no command run: "),
    (DRIVER, ["exprot"], 2, E + "there is no command exprot: did you mean export?"),
    (DRIVER, ["exprot", "folder", "--out", "x"], 2, E + "there is no command exprot: did you mean export?"),
    (
        DRIVER,
        ["exprot", "checkpoint"],
        2,
        E + "there is no command exprot: did you mean export? To ask it, python -m qwen35 --prompt 'exprot ",
    ),
    (DRIVER, ["inf", "2b"], 2, E + "there is no command inf: did you mean info?"),
    (DRIVER, ["char"], 2, E + "there is no command char: did you mean chat? To ask it, python -m "),
    (DRIVER, ["what", "is", "2b", "-q"], 0, ""),
    (DRIVER, ["imagine", "whales", "-q"], 0, ""),
    (DRIVER, ["expert", "advice", "-q"], 0, ""),
    (DRIVER, ["benhc", "tests"], 2, E + "there is no command benhc: did you mean bench?"),
    (QWEN, ["help"], 0, ""),
    (QWEN, ["version"], 0, ""),
    (AMD, [], 2, "usage: amdxdna COMMAND"),
    (AMD, ["help"], 0, ""),
    (AMD, ["infoo"], 2, A + "infoo: no such command. Did you mean info?"),
    (AMD, ["xyzzy"], 2, A + "xyzzy: no such command. There are: doctor"),
    # Paths that are not there.
    (QWEN, ["./nope", "Who?"], 1, E + "there is no such bundle (nope): give a directory with a manifest.txt"),
    (
        QWEN,
        ["qwen35/data/defualt", "-p", "x"],
        1,
        E
        + "there is no such bundle (qwen35/data/defualt): give a directory with a manifest.txt (did you mean "
        "qwen35/data/default?)",
    ),
    (
        QWEN,
        ["quen35", "-p", "x"],
        1,
        E + "there is no such bundle (quen35): give a directory with a manifest.txt",
    ),
    (QWEN, ["2b", "-p", "x"], 1, E + "there is no such bundle (2b): not downloaded yet: "),
    (
        QWEN,
        ["qwen3.5-2b", "What is it?"],
        1,
        E + "there is no such bundle (qwen3.5-2b): not downloaded yet: ",
    ),
    (
        DRIVER,
        ["-p", "x", "--image", "a.png"],
        1,
        E + "the picture cannot be read: No such file or directory (a.png)",
    ),
    (DRIVER, ["-p", "x", "--image", "README.md"], 1, E + "not a picture of a known format (README.md)"),
    (DRIVER, ["-p", "x", "--json-schema", "none.json"], 2, E + "cannot read the schema: No such file"),
    # Which device.
    (QWEN, ["-p", "x", "--device", "npu"], 1, E + "open failed (ENOENT, No such file or directory): "),
    (
        AMD,
        ["info", "--device", "foo"],
        1,
        A + "open failed (ENOENT, No such file or directory): foo is no device",
    ),
    (AMD, ["info", "--device", "npu"], 1, A + "open failed (ENOENT, No such file or directory): "),
]


@pytest.mark.parametrize(("module", "words", "status", "line"), TABLE, ids=lambda value: str(value)[:40])
def test_status_and_first_line(module: str, words: list[str], status: int, line: str) -> None:
    if "npu" in words and any(Path("/dev/accel").glob("accel*")):
        pytest.skip("an accelerator is here")
    found, out, err = run(module, *words)
    first = err.partition("\n")[0]
    assert (found, first[: len(line)]) == (status, line), err
    assert bool(out) == (status == 0 and "chat" not in words)
    assert status == 0 or module == AMD or err.count("\n") == 1, err


@pytest.mark.parametrize("word", ["xeport", "exprot", "expotr"])
def test_a_command_with_two_letters_swapped_asks_nothing(word: str) -> None:
    """Whatever stands behind it; with more letters wrong a word may begin a sentence."""
    from qwen35.cli.words import interpret
    from qwen35.errors import UsageError

    for more in (["whales"], ["all", "whales"]):
        with pytest.raises(UsageError, match=f"there is no command {word}: did you mean export"):
            interpret([word, *more], "", ["export", "bench"])
    assert interpret([word, "all", "the", "whales"], "", ["export"]) == (None, f"{word} all the whales")
    assert interpret(["expert", "advice"], "", ["export"]) == (None, "expert advice")


def test_what_the_words_ask() -> None:
    assert run(DRIVER, "What is", "a whale", "-q")[1] == "You said: What is a whale\n"
    assert run(DRIVER, "tests", "two", "words", "-q")[1] == "You said: two words\n"


@pytest.mark.parametrize(
    ("words", "stdin", "asked"),
    [
        ([], b"What is a whale?\n", "What is a whale?\n"),
        (["tests"], b"Q", "Q"),
        (["-p", "Summarise"], b"a\nb\n", "Summarise\n\na\nb"),
        (["Sum it up"], b"a", "Sum it up\n\na"),
        (["-p", "Summarise"], b"", "Summarise"),
        (["-p", "Summarise"], b" \n", "Summarise"),
        (["-p", "X", "--prompt-file", "-"], b"file\n", "X\n\nfile"),
        (["-p", "X", "--prompt-file", "{file}"], b"more", "X\n\nof a file\n\nmore"),
        (["--prompt-file", "{file}"], None, "of a file\n"),
    ],
)
def test_pipes_are_asked(tmp_path: Path, words: list[str], stdin: bytes | None, asked: str) -> None:
    file = tmp_path / "prompt"
    file.write_text("of a file\n")
    words = [word.format(file=file) for word in words]
    status, out, err = run(DRIVER, *words, "-q", stdin=stdin)
    assert (status, out.rstrip("\n"), err) == (0, f"You said: {asked}".rstrip("\n"), "")


def test_a_file_on_stdin_is_asked_and_a_terminal_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("line")
    with file.open() as log:
        done = python("-m", DRIVER, "-q", "-p", "Sum", stdin=log.fileno())
    assert done.stdout == "You said: Sum\n\nline\n"
    master, slave = os.openpty()
    try:
        done = python("-m", DRIVER, "-q", "-p", "Sum", stdin=slave)
    finally:
        os.close(master)
        os.close(slave)
    assert done.stdout == "You said: Sum\n"


def test_a_picture_on_stdin() -> None:
    """Taken where it is asked about, and told from a prompt; the mock, which is loaded then, has no tower."""
    data = (ROOT / "qwen35/data/sample.png").read_bytes()
    for name in ("-", "/dev/stdin"):
        status, _, err = run(DRIVER, "--image", name, "What is it?", stdin=data)
        assert status == 1 and "this bundle has no vision tower" in err
    status, _, err = run(DRIVER, "--image", "-", "What is it?", stdin=b"text")
    assert status == 1 and err.startswith(f"{E}not a picture of a known format (stdin): ")
    status, _, err = run(DRIVER, "What is it?", stdin=data)
    assert status == 2 and err == f"{E}this is a picture, not a prompt (stdin): give it with --image -\n"


def test_a_pipe_that_says_nothing_is_told() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", DRIVER, "-p", "x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=NO_NPU,
    ) as program:
        assert program.stderr is not None
        assert (
            b"reading stdin to its end, for the prompt; < /dev/null leaves it out"
            in program.stderr.readline()
        )
        assert program.communicate(b"late", timeout=SECONDS)[0] == b"You said: x\n\nlate\n"


def test_bytes_that_are_no_text_are_refused() -> None:
    status, _, err = run(DRIVER, "-p", "x", stdin=b"ab\xff")
    assert status == 2 and err == E + "not UTF-8 at byte 2 (stdin): convert the prompt first\n"


def test_statistics_say_what_answered_and_where() -> None:
    err = run(DRIVER, "-p", "x", "--stats", "json")[2]
    values = json.loads(err.splitlines()[-1])
    assert (values["model"], values["device"], values["emulated"]) == ("mock", "mock", True)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (QWEN, ["--help"]),
        (DRIVER, ["-p", "x", "-q"]),
        (DRIVER, ["--interactive", "-q"]),
        (DRIVER, ["--chat", "-q"]),
        (QWEN, ["info"]),
        (AMD, ["--help"]),
        (AMD, ["info"]),
        (AMD, ["example", "--help"]),
        (AMD, ["info", "--json", "--device", "emu"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_a_full_stdout_is_an_error_and_a_full_stderr_is_none(module: str, words: list[str]) -> None:
    asked = b"one\ntwo\nthree\n"
    status, _, err = run(module, *words, shell="@ >/dev/full", stdin=asked)
    last = err.splitlines()[-1].partition(": ")[2]
    assert (status, last.lower()) == (1, "error: stdout cannot be written: no space left on device")
    assert "Traceback" not in err and err.count("stdout") == 1
    assert run(module, *words, shell="@ 2>/dev/full")[0] == 0


SAMPLE = ["-q", "--image", "qwen35/data/sample.png", "--prompt", "What is in this picture?", "--max-new", "2"]


@pytest.mark.parametrize(
    ("module", "limit", "words", "says"),
    [
        # A prompt or a picture that is not there would be told, if it were looked at first.
        (
            QWEN,
            "-v 153600",
            ["--image", "no.png", "-p", "x"],
            "the address space is limited to 150 MiB",
        ),
        (
            QWEN,
            "-v 450560",
            ["--prompt-file", "no.txt"],
            "the address space is limited to 440 MiB",
        ),
        (QWEN, "-v 450560", ["info"], "the address space is limited to 440 MiB"),
        (QWEN, "-d 16384", ["-p", "x"], "private memory is limited to 16 MiB"),
        (QWEN, "-d 122880", SAMPLE, "private memory is limited to 120 MiB"),
        (QWEN, "-s 128", ["info"], "the stack is limited to 128 KiB"),
        (AMD, "-s 128", ["doctor", "--device", "emu"], "the stack is limited to 128 KiB"),
    ],
)
def test_a_limit_that_is_too_low_is_told_before_anything_else(
    module: str, limit: str, words: list[str], says: str
) -> None:
    status, out, err = run(module, *words, shell=f"ulimit {limit};")
    assert (status, out) == (1, "")
    told = (
        rf"{module}: error: out of memory: {says} \(ulimit {limit[:2]}\) and at least \d+ are needed: raise "
    )
    assert re.fullmatch(rf"{told}the limit\n", err), err


@pytest.mark.parametrize(
    ("letter", "more", "words"),
    [
        ("v", 0, SAMPLE),
        ("d", 0, SAMPLE),
        # Where malloc could reserve for one thread, and others would find nothing.
        ("v", 60 << 20, ["-q", "--prompt", "What is a whale?", "--max-new", "2"]),
    ],
)
def test_what_is_asked_for_is_enough(letter: str, more: int, words: list[str]) -> None:
    least = needed(resource.RLIMIT_AS if letter == "v" else resource.RLIMIT_DATA)
    status, out, err = run(QWEN, *words, shell=f"ulimit -{letter} {least + more >> 10};")
    assert (status, err) == (0, "") and out.strip(), err


@pytest.fixture
def stack() -> Iterator[Callable[[int], None]]:
    """Sets this process's limit on stacks, for the test."""
    before = resource.getrlimit(resource.RLIMIT_STACK)
    yield lambda size: resource.setrlimit(resource.RLIMIT_STACK, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_STACK, before)


def test_larger_stacks_of_threads_are_asked_for(stack: Callable[[int], None]) -> None:
    asked = {}
    for size in (8 << 20, 64 << 20, resource.RLIM_INFINITY):
        stack(size)
        asked[size] = needed(resource.RLIMIT_AS, cores=2)
    usual = asked[8 << 20]
    assert asked[64 << 20] - usual == 7 * (56 << 20)
    assert usual - asked[resource.RLIM_INFINITY] == 7 * (6 << 20), "threads have 2 MiB without a limit"


def test_the_readme_names_what_is_asked_for(stack: Callable[[int], None]) -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    stack(8 << 20)
    two, data = (needed(bound, cores=2) >> 20 for bound in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    further = [
        needed(resource.RLIMIT_AS, cores=cores) - needed(resource.RLIMIT_AS, cores=cores - 1) >> 20
        for cores in (3, 16, 17, 64, 65, 400)
    ]
    found = re.search(
        r"asks for (\d+) MiB of address space on two cores and (\d+) more for each further one "
        r"\(from the 17th (\d+), from the 65th none\), `serve` for (\d+) more; "
        r"under `ulimit -d` for (\d+), `serve` for (\d+) more",
        text,
    )
    assert found is not None
    each, less = int(found[2]), int(found[3])
    assert further == [each, each, less, less, 0, 0]
    serve = [server.ADDRESS_SPACE >> 20, server.DATA >> 20]
    assert [int(found[at]) for at in (1, 5, 4, 6)] == [two, data, *serve]


@pytest.mark.parametrize(
    ("limit", "words", "says"),
    [
        (
            "-n 16",
            ["serve", "--port", "0"],
            "16 files may be open (ulimit -n) and a server needs 32: raise the",
        ),
        ("-f 0", ["-q", "-p", "x", "--device", "emu:quiet"], "files may not grow so large (ulimit -f)"),
    ],
)
def test_other_limits_are_named(limit: str, words: list[str], says: str) -> None:
    status, out, err = run(QWEN, *words, shell=f"ulimit {limit};")
    assert (status, out, err.count("\n")) == (1, "", 1) and says in err, err


def test_too_few_file_descriptors_are_told_wherever_they_run_out() -> None:
    told = 0
    for limit in range(4, 10):
        status, out, err = run(QWEN, "-q", "-p", "x", shell=f"ulimit -n {limit};")
        if status == 0 or "Fatal Python error" in err:  # Python's own start, in an editable installation
            continue
        line = f"{E}file descriptors ran out: {limit} may be open (ulimit -n): raise the limit\n"
        assert (status, out, err) == (1, "", line)
        told += 1
    assert told > 1


@pytest.mark.parametrize("module", [QWEN, AMD])
def test_ctrl_c_before_the_command_line_is_loaded(module: str, tmp_path: Path) -> None:
    (tmp_path / "difflib.py").write_text("raise KeyboardInterrupt\n")
    assert run(module, "info", cwd=tmp_path) == (130, "", f"{module}: stopped\n")


def test_a_folder_that_is_gone_is_no_reason_not_to_answer(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    status, _, err = run(DRIVER, "-p", "x", cwd=gone, shell=f"rmdir {gone};")
    assert status == 0 and "running mock" in err, err


def test_a_limit_on_processes_is_no_ctrl_c() -> None:
    """OpenBLAS raises SIGINT where it cannot start a thread."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to be a user whom the limit binds")
    keep = "+dac_override,+dac_read_search"
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    user += [f"--inh-caps={keep}", f"--ambient-caps={keep}"]
    done = subprocess.run(
        [*user, sys.executable, "-B", "-m", QWEN, "-p", "x", "-q"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=SECONDS,
        env=NO_NPU,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)),
    )
    if "setpriv" in done.stderr:
        pytest.skip(f"no such user can be made here: {done.stderr}")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"{E}no thread can be started: the limit on processes"), (
        done
    )


def hidden(module: str, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command line in an environment without the package `name`."""
    code = (
        f"import sys\nsys.modules[{name!r}] = None\nimport importlib.util as u\nfind = u.find_spec\n"
        f"u.find_spec = lambda n, *a: None if n == {name!r} else find(n, *a)\n"
        f"from {module}.cli import main\nsys.exit(main({list(words)!r}))"
    )
    return python("-c", code)


def test_a_missing_extra_is_told_with_its_command_before_anything_is_loaded(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text("{}")
    done = hidden(QWEN, "llguidance", "-p", "x", "--json-schema", str(schema), "no-such-bundle")
    assert done.returncode == 2 and done.stderr.startswith(
        f"{E}llguidance is not installed (--json-schema): "
    )
    assert "-m pip install 'llguidance" in done.stderr
    done = hidden(QWEN, "torch", "export", str(tmp_path), "--out", str(tmp_path / "b"), "--refs")
    assert done.returncode == 2 and "torch is not installed (--refs): " in done.stderr
    assert "-m pip install torch" in done.stderr


def test_a_library_that_cannot_load_is_one_line() -> None:
    from qwen35.errors import explain

    essay = ImportError("\n\nIMPORTANT: PLEASE READ THIS FOR ADVICE\n")
    essay.__cause__ = ImportError("libx.so.1: failed to map segment from shared object")
    assert explain(essay) == (
        "a library cannot be loaded: libx.so.1: failed to map segment from shared object: memory or "
        "address space ran out (ulimit -v)"
    )


def test_emulate_says_how_to_name_a_temporary_folder() -> None:
    code = (
        "import sys, tempfile\ntempfile._candidate_tempdir_list = lambda: ['/nonexistent']\n"
        "from amdxdna.cli import main\nsys.exit(main(['emulate', '--', 'true']))"
    )
    done = python("-c", code)
    if "seccomp" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 1 and done.stderr == (
        A + "no temporary folder can be written. Set TMPDIR to one that can\n"
    )


def test_saving_where_nothing_can_be_written_names_the_file() -> None:
    status, _, err = run(DRIVER, "--chat", "-q", stdin=b"one\n/save /proc/talk.json\n/save /none/talk.json\n")
    assert status == 1 and err.splitlines() == [
        f"{E}no such file or directory (/proc/talk.json)",
        f"{E}no such file or directory (/none/talk.json)",
    ]


@pytest.mark.parametrize(
    ("folder", "path", "program", "told"),
    [
        ("", "", ".venv/bin/python3", ".venv/bin/python3"),
        ("sub", "", ".venv/bin/python3", "{}/.venv/bin/python3"),
        ("/", "", ".venv/bin/python3", "{}/.venv/bin/python3"),
        ("/", ".venv/bin", ".venv/bin/python3", "python3"),
        ("", "", "a b/python3", "'a b/python3'"),
    ],
)
def test_how_to_call_this_python(
    folder: str, path: str, program: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command to copy works where it was printed; from the root of all folders it is whole."""
    for each in (tmp_path / "sub", (tmp_path / program).parent):
        each.mkdir(parents=True, exist_ok=True)
    (tmp_path / program).touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / program))
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "/nothing")
    monkeypatch.chdir(tmp_path / folder)
    for unseen in ("", None, f"/{'x' * 300}/python"):
        with monkeypatch.context() as here:
            here.setattr(sys, "executable", unseen)
            assert (own_program("python"), own_program("hf")) == ("python", "hf")
    own = told.format(tmp_path)
    assert own_program("python") == own
    text = "see {0} -m qwen35 info or `{0} -m amdxdna doctor`; script.python -m amdxdna, python -m json"
    assert own_commands(text.format("python")) == text.format(own)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (QWEN, ["pull"]),
        (QWEN, ["2b", "-p", "x"]),
        (AMD, ["info", "-x"]),
        (AMD, ["example", "{}/new"]),
    ],
)
def test_commands_are_printed_as_they_run_from_here(module: str, words: list[str], tmp_path: Path) -> None:
    words = [word.format(tmp_path) for word in words]
    _, out, err = run(module, *words, PATH="/usr/bin:/bin", cwd=tmp_path)
    (told,) = re.findall(r"\S*python\S* -m \w+", out + err)
    assert run(module, cwd=tmp_path, shell=f"{told} --help; exit;")[1].startswith("usage: ")
