"""Who may import whom: no circles, and the floors of the house. Imports for types alone count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

CORE = [
    "weak",
    "_native text signals forklock files output aie errors arguments",
    "causes",
    "uapi usermem sysfs kmsg packet eviction reaper xclbin elf",
    "node",
    "ioctl version profile heap device_info query",
    "client",
    "buffer losses",
    "allocation",
    "pdis run marks",
    "abandoned kernel",
    "create_hwctx",
    "hwctx chain",
    "shared restart controlcode",
    "pool",
    "opening",
    "device",
]
"""The binding from the ground up: each floor imports itself and those below. `node` is the seam, `ioctl` the
one ioctl function, `opening` the place that knows of the emulated device."""

EMULATOR = {
    *("amdxdna.opening", "amdxdna.emu", "amdxdna.cli", "amdxdna.doctor", "amdxdna.selftest", "amdxdna.trace"),
    *("amdxdna.insts", "qwen35.device", "qwen35.export", "qwen35.rootfs", "qwen35.accept", "qwen35.bench"),
}
"""Who may know the emulator: what opens it, writes kernels for it, or looks at it as a tool."""


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package in ("amdxdna", "qwen35"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported, and what type checkers read."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, field, []))


def named(name: str, path: Path, node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            parts = parts[: len(parts) - node.level + 1]
            base = ".".join([*parts, *([node.module] if node.module else [])])
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            # What is no Python module is a name in its package, or an extension module beside it.
            yield whole if whole in modules() or alias.name.startswith("_") else base


@cache
def imports(inside: bool = False) -> dict[str, set[str]]:
    """Module -> modules it imports; `inside`: in functions, too."""
    graph = {}
    for name, path in modules().items():
        tree = ast.parse(path.read_text())
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.stmt)] if inside else statements(tree.body)
        graph[name] = {to for node in nodes for to in named(name, path, node)} - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Every set of modules that import each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for to in graph[name] & graph.keys():
            if to not in index:
                visit(to)
                low[name] = min(low[name], low[to])
            elif to in stack:
                low[name] = min(low[name], index[to])
        if low[name] == index[name]:
            at = stack.index(name)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_the_search_sees_a_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_no_circles() -> None:
    assert circles(imports()) == []


def test_no_circles_of_qwen35_hidden_in_functions() -> None:
    """Imports inside functions make a start quicker; they are not there to hide a circle."""
    graph = {name: found for name, found in imports(inside=True).items() if name.startswith("qwen35")}
    assert circles(graph) == []


def floor_of(name: str) -> int | None:
    """The floor of a module of the binding's core; None for what is no part of it."""
    parts = name.split(".")
    if parts[0] != "amdxdna" or len(parts) < 2:
        return None
    return next((at for at, floor in enumerate(CORE) if parts[1] in floor.split()), None)


@pytest.mark.parametrize("number", range(len(CORE)), ids=lambda number: CORE[number].split()[0])
def test_the_core_imports_downwards(number: int) -> None:
    for name, found in imports(inside=True).items():
        if floor_of(name) == number:
            for to in found:
                if to.split(".")[0] == "amdxdna" and not (number == len(CORE) - 2 and ".emu" in to):
                    level = floor_of(to)
                    allowed = to in {"amdxdna", "amdxdna.trace.node"} and number == len(CORE) - 2
                    assert allowed or (level is not None and level <= number), f"{name} imports {to}"


def test_every_module_of_the_core_has_a_floor() -> None:
    beside = {
        "__main__",
        "entry",
        "cli",
        "doctor",
        "emu",
        "insts",
        "parser",
        "pdi",
        "programs",
        "pyxrt",
        "streams",
    } | {
        "selftest",
        "trace",
    }
    tops = {name.split(".")[1] for name in modules() if name.startswith("amdxdna.")}
    assert {floor for line in CORE for floor in line.split()} - {"_native"} | beside == tops


def test_who_knows_the_emulator() -> None:
    for name, found in imports(inside=True).items():
        if not any(name == known or name.startswith(known + ".") for known in EMULATOR):
            assert not {to for to in found if to.startswith("amdxdna.emu")}, name


def test_the_binding_does_not_know_the_model() -> None:
    for name, found in imports(inside=True).items():
        if name.startswith("amdxdna"):
            assert not {to for to in found if to.startswith("qwen35")}, name


CHANGING = {
    "amdxdna": "selftest.steps.Bench trace.observer._Mapping trace.session.TracedBo trace.session.Submitted "
    "trace.session.TracedContext trace.recorder.Pending doctor.machine.Machine xclbin.writer._Blob "
    "insts.listing.Listing emu.npu.schedule.Totals emu.seccomp.files.Caller emu.pci.firmware._Event "
    "emu.pci.firmware._State pdi.array.TileState pdi.array.Array emu.npu.slot.Slot emu.npu.health.Health "
    "emu.npu.health.Fatal",
    "qwen35": "model.decode._Plan stats.Stats bundle.validate._Checker serve.answering.Limits "
    "serve.answering.Service engine.Input engine.Session train.corpus.Corpus",
}
"""The records that change once they are made; all others are values, which threads share."""


def test_records_do_not_change_but_for_those_that_say_so() -> None:
    found = set()
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            for made in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                text = ast.unparse(made)
                if text.startswith("dataclass") and "frozen=True" not in text:
                    found.add(f"{name}.{node.name}")
    assert found == {f"{package}.{name}" for package, names in CHANGING.items() for name in names.split()}
