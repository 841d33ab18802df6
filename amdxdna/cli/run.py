"""`python -m amdxdna run`: somebody's own kernel from the shell.

JSON: ``amdxdna.run`` version 1: ``device``, ``kernel``, ``buffers`` (``{"argument", "name", "bytes",
"output"}``), ``outputs`` (``{"name", "file", "equal", "count", "first", "found", "expected"}``, the last five
null where nothing was expected), ``ok``, ``runs``, ``wrong_run`` (the first, from 1, whose outputs are not
what is expected, null where all are; ``outputs`` are that run's, or the last's), ``median_us``, ``p99_us``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amdxdna.cli.common import FAILED, CommandError, Parser, UsageError, document, print_json
from amdxdna.cli.device import add_device, open_device
from amdxdna.cli.insts import read_file
from amdxdna.cli.screen import show, tell
from amdxdna.output import same_file

if TYPE_CHECKING:
    from amdxdna.buffer import Buffer
    from amdxdna.cli.arrays import Comparison, Given
    from amdxdna.device import Device
    from amdxdna.xclbin import Xclbin

_MOST_INSTRUCTIONS = 64 << 20
_MOST_RUNS = 1_000_000
# The order in which the binding's packets carry a kernel's arguments: mlir-aie's.
_ADDRESS_BYTES = 8
_LEADING = ("opcode", "instr", "ninstr")

_EPILOG = """\
Buffers are the kernel's, in the order of its arguments, as --in and --out stand on the command line. --in
takes a .npy file, any other file as raw bytes, or a size, which stands for the 32-bit words 0, 1, 2, ...;
--out takes NAME:BYTES (BYTES may end in k, m or g), starts as zeros, and is written to NAME at the end.

  amdxdna run copy.xclbin copy.insts --in a.npy --out c.npy:4096 --dtype int32 --expect want.npy

`amdxdna example DIR` writes such files for the emulated NPU. Exit status: 0; 1 when something failed, or an
output is not what --expect says."""


class _Buffers(argparse.Action):
    """Keeps --in and --out in the order in which they are given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        namespace.buffers = [*(namespace.buffers or ()), (option_string, values)]


def parser() -> Parser:
    """The options of `run`."""
    p = Parser(
        "run",
        epilog=_EPILOG,
        description="Runs a kernel: an xclbin and an instruction stream, with "
        "data from files and results to files, compared with what is expected, and timed.",
    )
    p.add_argument("xclbin", metavar="FILE.xclbin", help="the xclbin")
    p.add_argument("insts", metavar="INSTS", help="the instruction stream: binary, or hexadecimal words")
    p.add_argument(
        "--in", dest="buffers", metavar="FILE|BYTES", action=_Buffers, help="the next buffer, filled"
    )
    p.add_argument(
        "--out", dest="buffers", metavar="[NAME:]BYTES", action=_Buffers, help="the next buffer, read back"
    )
    p.add_argument(
        "--expect",
        metavar="FILE",
        action="append",
        default=[],
        help="what the next --out must hold (.npy or raw)",
    )
    p.add_argument(
        "--within",
        metavar="X",
        type=float,
        default=0.0,
        help="how far a number may be from what is expected; 0, the default, compares bits",
    )
    p.add_argument("--dtype", metavar="TYPE", default="uint8", help="what outputs hold, by numpy's name")
    p.add_argument("--kernel", metavar="NAME", help="the kernel, where the xclbin has several")
    p.add_argument(
        "--repeat",
        metavar="N",
        type=int,
        default=1,
        help="run it N times and tell median and p99; --expect goes for every run",
    )
    p.add_argument("--timeout", metavar="SECONDS", type=float, help="give up waiting for a run after that")
    add_device(p)
    p.add_json()
    return p


def run_main(argv: list[str]) -> int:
    """Runs `run` with `argv`; the exit status."""
    given = parser().parse_args(argv)
    if not 1 <= given.repeat <= _MOST_RUNS:
        raise UsageError(f"--repeat {given.repeat}", f"Give 1 to {_MOST_RUNS}")
    if given.timeout is not None and not given.timeout > 0:
        raise UsageError(f"--timeout {given.timeout:g}", "Give seconds, more than 0")
    if not given.within >= 0:
        raise UsageError(f"--within {given.within}", "Give a number, 0 or more")
    if not given.buffers:
        raise UsageError("there is no buffer", "Give --in and --out for the kernel's buffers, in order")

    from amdxdna.cli import arrays
    from amdxdna.selftest.measure import percentile
    from amdxdna.selftest.program import byte_count
    from amdxdna.xclbin import Xclbin

    dtype = arrays.dtype_of(given.dtype)
    buffers = [
        arrays.read_input(text) if option == "--in" else arrays.read_output(text)
        for option, text in given.buffers
    ]
    outputs = [buffer for buffer in buffers if buffer.output]
    if len(given.expect) > len(outputs):
        raise UsageError(f"{len(given.expect)} --expect for {len(outputs)} --out", "Give an --out for each")
    wanted = [arrays.read_array(path) for path in given.expect]
    for path, buffer, want in zip(given.expect, outputs, wanted, strict=False):
        if not want.nbytes:
            raise UsageError(f"--expect {path} holds nothing", "Give a file with what the output should be")
        if buffer.nbytes != want.nbytes:
            raise CommandError(
                f"--out {buffer.name} has {buffer.nbytes} bytes, what is expected {want.nbytes}",
                f"Make it {want.nbytes}",
            )
    targets = [buffer.target for buffer in outputs if buffer.target is not None]
    sources = [text for option, text in given.buffers if option == "--in" and byte_count(text) is None]
    for index, target in enumerate(targets):
        for other in [given.xclbin, given.insts, *sources, *given.expect, *targets[:index]]:
            if same_file(target, other):
                raise UsageError(f"--out {target} would take the place of {other}", "Name another file")
    for buffer in outputs:
        if buffer.nbytes % dtype.itemsize:
            raise UsageError(f"--out {buffer.name}: {buffer.nbytes} bytes are no whole number of {dtype}")
    xclbin = Xclbin.read(given.xclbin)
    names = argument_names(xclbin, given.kernel, len(buffers))
    stream = words_of(read_file(given.insts, _MOST_INSTRUCTIONS))

    def judge(results: Sequence[Any]) -> list[Comparison]:
        return [arrays.compare(r, want, given.within) for r, want in zip(results, wanted, strict=False)]

    with open_device(given.device) as device:
        results, compared, wrong, times = _run(device, xclbin, stream, buffers, given, judge)
        path = device.path
    found = [result.view(dtype) for result in results]
    verdicts: list[Comparison | None] = [*compared, *[None] * (len(found) - len(compared))]
    for index, (buffer, result) in enumerate(zip(outputs, found, strict=True)):
        if buffer.target is not None:
            if index < len(wanted):
                result = result.view("u1").view(wanted[index].dtype).reshape(wanted[index].shape)
            arrays.write_array(buffer.target, result)
    ok = all(verdict is None or verdict.same for verdict in verdicts)
    median, p99 = statistics.median(times), percentile(times, 0.99)
    if given.json:
        print_json(
            document(
                "run",
                device=path,
                kernel=given.kernel or xclbin.kernels[0],
                buffers=[
                    {"argument": name, "name": b.name, "bytes": b.nbytes, "output": b.output}
                    for name, b in zip(names, buffers, strict=True)
                ],
                outputs=[_output(b, v) for b, v in zip(outputs, verdicts, strict=True)],
                ok=ok,
                runs=len(times),
                wrong_run=wrong,
                median_us=round(median * 1e6, 1),
                p99_us=round(p99 * 1e6, 1),
            )
        )
    else:
        rows = [
            f"{name:<8} {'out' if b.output else 'in ':<4} {b.nbytes:>10} bytes  {b.name}"
            for name, b in zip(names, buffers, strict=True)
        ]
        for buffer, verdict in zip(outputs, verdicts, strict=True):
            rows.append(
                f"{buffer.name}: "
                + (str(verdict) if verdict is not None else "nothing expected")
                + (f" (run {wrong} of {len(times)})" if wrong and len(times) > 1 else "")
                + (f"; written to {buffer.target}" if buffer.target else "")
            )
        rows.append(
            f"{len(times)} run{'s' if len(times) > 1 else ''} on {path}: median {median * 1e6:.1f} us"
            + (f", p99 {p99 * 1e6:.1f} us" if len(times) > 1 else "")
        )
        show(rows)
    return 0 if ok else FAILED


def _output(buffer: Given, verdict: Comparison | None) -> dict[str, Any]:
    v = verdict
    told = (None,) * 5 if v is None else (v.equal, v.count, v.first, v.found or None, v.wanted or None)
    names = ("equal", "count", "first", "found", "expected")
    return {"name": buffer.name, "file": buffer.target, **dict(zip(names, told, strict=True))}


_LONGER = (
    "Its context was ended, and the command with it. If it needs longer, give more: --timeout SECONDS; if it "
    "hangs every time, xclbin and instruction stream do not fit each other or a buffer is too small"
)


def _run(
    device: Device,
    xclbin: Xclbin,
    stream: bytes,
    buffers: Sequence[Given],
    given: argparse.Namespace,
    judge: Callable[[Sequence[Any]], list[Comparison]],
) -> tuple[list[Any], list[Comparison], int | None, list[float]]:
    """Runs and times: the outputs' bytes (uint8) after the first run that `judge` finds wrong, else the last;
    what it says of them; that run's number from 1, or None; seconds a run.

    Where something is expected every run starts with the data that the first did. Raises CommandError where
    the kernel wrote behind the end of a buffer.
    """
    import numpy as np

    from amdxdna.errors import WaitTimeout
    from amdxdna.selftest.guard import GUARD_BYTES, guard, overrun
    from amdxdna.selftest.stopping import stopping

    def fill(one: Buffer, buffer: Given) -> None:
        one.view()[: buffer.nbytes] = 0 if buffer.array is None else buffer.array.reshape(-1).view(np.uint8)

    def contents() -> list[Any]:
        return [
            np.array(one.view()[: buffer.nbytes], np.uint8)
            for one, buffer in zip(made, buffers, strict=True)
            if buffer.output
        ]

    results: list[Any] = []
    said: list[Comparison] = []
    wrong = None
    times = []
    with contextlib.ExitStack() as stack:
        kernel = stack.enter_context(
            contextlib.closing(device.pool.kernel(xclbin, stream, name=given.kernel))
        )
        made = []
        for buffer in buffers:
            one = stack.enter_context(device.alloc(buffer.nbytes + GUARD_BYTES))
            fill(one, buffer)
            guard(one, buffer.nbytes)
            made.append(one)
        outputs = [one for one, buffer in zip(made, buffers, strict=True) if buffer.output]
        for number in range(1, given.repeat + 1):
            if number > 1 and given.expect:
                for one, buffer in zip(made, buffers, strict=True):
                    fill(one, buffer)
            began = time.perf_counter()
            try:
                with stopping(device):
                    kernel.run(*made, outputs=outputs, timeout=given.timeout)
            except WaitTimeout as error:
                error.remedy = _LONGER
                raise
            times.append(time.perf_counter() - began)
            if given.expect and wrong is None:
                results = contents()
                said = judge(results)
                if not all(each.same for each in said):
                    wrong = number
        for one, buffer in zip(made, buffers, strict=True):
            one.from_device()
            past = overrun(one, buffer.nbytes)
            if past:
                raise CommandError(
                    f"the kernel wrote {past} bytes and more behind the {buffer.nbytes} of {buffer.name}",
                    "Give the buffer the size that the instruction stream uses",
                )
        return results or contents(), said, wrong, times


def argument_names(xclbin: Xclbin, kernel: str | None, count: int) -> list[str]:
    """The names of the kernel's first `count` buffers, from the xclbin. Raises CommandError for too many.

    Where the file does not tell they are bo0, bo1, ... Kernels whose arguments do not begin with opcode,
    instruction stream and its size are refused: their packets have another layout.
    """
    from amdxdna.xclbin import metadata

    info = metadata.read(xclbin).kernel(xclbin.cus[xclbin.cu_index(kernel)].kernel)
    if info is None or not info.arguments:
        return [f"bo{index}" for index in range(count)]
    listed = ", ".join(argument.name for argument in info.arguments)
    if [a.buffer for a in info.arguments[:3]] != [False, True, False]:
        raise CommandError(
            f"{info.name} takes {listed}: not opcode, instructions, their size and then buffers",
            "Only kernels with mlir-aie's arguments can be run from here",
        )
    rest = info.arguments[len(_LEADING) :]
    names = [argument.name for argument in rest if argument.buffer]
    if not names and rest and all(argument.size == _ADDRESS_BYTES for argument in rest):
        # AMD's own overlays: RyzenAI-SW's xclbins declare their buffers argv0 to argv4 as uint64_t values.
        names = [argument.name for argument in rest]
        tell(
            [
                f"amdxdna: {info.name}'s arguments {', '.join(names)} are values in the file's metadata: "
                "--in and --out are given as their addresses"
            ]
        )
    if count > len(names):
        raise CommandError(
            f"{info.name} takes {len(names)} buffers ({', '.join(names)}), {count} are given",
            "Leave some away, or look at `python -m amdxdna xclbin FILE`",
        )
    return names[:count]


def words_of(data: bytes) -> bytes:
    """An instruction stream's bytes; a text file of hexadecimal words is taken for its words."""
    from amdxdna.insts.listing import from_text

    return from_text(data) or data
