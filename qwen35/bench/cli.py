"""The command line of `bench`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qwen35.cli.args import Parser
from qwen35.cli.output import notice
from qwen35.cli.signals import stopping
from qwen35.errors import ModelError, UsageError
from qwen35.extras import install_command

if TYPE_CHECKING:
    import argparse

    from qwen35.bench.figures import Printer
    from qwen35.bench.peers import Peer
    from qwen35.bundle import Bundle

__all__ = ["bench_main", "parser"]

LENGTHS = (4096, 8192)
PROMPTS, CONTEXTS, COMPARED, HOST_CONTEXT, CHAT = (23, 778), (512, 1024, 8192), 512, 1024, 4096
PARTS = ("machine", "start", "load", "host", "text", "vision", "timed", "draft", "memory", "serve")
ASKED = ("long",)
"""Parts that take minutes: only by --only."""


def parser() -> Parser:
    """The options of `bench`."""
    p = Parser(
        prog="qwen35 bench",
        description="Measures load, prompts, tokens, the host's share, memory and pictures. One figure a "
        "line; with --peers the same shape in other programs, in turns, with medians of ratios.",
        epilog=f"Parts for --only: {', '.join(PARTS)}; and, which no run without it has, {', '.join(ASKED)}. "
        "The lines of --json are described in qwen35.bench.figures.",
    )
    p.add_argument("bundle", nargs="?", metavar="BUNDLE", help="directory (default: as for a prompt)")
    p.add_argument(
        "--random",
        metavar="SIZE",
        help="make a bundle of seeded weights first (2b, 0.8b, ...), and remove it afterwards",
    )
    p.add_argument(
        "--peers",
        action="store_true",
        help="also llama.cpp and transformers, where installed (extra `bench`) and memory allows",
    )
    p.add_argument("--json", action="store_true", help="a JSON object a line instead of the table")
    p.add_argument("--quick", action="store_true", help="fewer repetitions, short contexts, small pictures")
    p.add_argument("--cold", action="store_true", help="also embedding rows with the page cache dropped")
    p.add_argument("--profile", action="store_true", help="also a token and a prompt by stage")
    p.add_argument(
        "--only", action="append", choices=PARTS + ASKED, metavar="PART", help="only this part; repeatable"
    )
    p.add_argument(
        "--tokens",
        type=int,
        action="append",
        metavar="N",
        help="a length of `long`; repeatable (default 4096 and 8192; 32768 takes minutes)",
    )
    p.add_argument("--device", default="auto", metavar="D", help="as for a prompt (default auto)")
    p.add_argument(
        "--threads", type=int, default=0, metavar="N", help="of host and peers (default all cores)"
    )
    return p


def bench_main(argv: Sequence[str]) -> int:
    """Runs `bench` and returns 0. Raises what loading and running raise, KeyboardInterrupt at SIGTERM."""
    from qwen35.host import MOST

    options = parser().parse_args(list(argv))
    if options.bundle and options.random:
        raise UsageError("give a bundle or --random, not both")
    if not 0 <= options.threads <= MOST:
        raise UsageError(f"{options.threads} threads: give 0 (all cores) to {MOST}")
    if any(length < 1 for length in options.tokens or ()):
        raise UsageError(f"prompts of {options.tokens} tokens: give 1 or more")
    if options.tokens and "long" not in (options.only or ()):
        raise UsageError("--tokens is for --only long")
    with stopping(), _bundle(options) as path:
        _run(options, path)
    return 0


@contextlib.contextmanager
def _bundle(options: argparse.Namespace) -> Iterator[Path]:
    if not options.random:
        from qwen35.find import find_bundle

        yield find_bundle(options.bundle)
        return
    from qwen35.export import export_main

    with tempfile.TemporaryDirectory(prefix="qwen35-bench-") as folder:
        path = Path(folder) / "bundle"
        quiet = ["--quiet"] if options.json else []
        status = export_main(["--random", options.random, "--out", str(path), *quiet])
        if status == 130:
            raise KeyboardInterrupt
        if status:
            wrong = UsageError if status == 2 else ModelError
            raise wrong("the bundle could not be made", f"--random {options.random}")
        yield path


def _run(options: argparse.Namespace, path: Path) -> None:
    from qwen35 import host
    from qwen35.bench.figures import Printer
    from qwen35.bench.machine import cores
    from qwen35.bundle import Bundle

    parts = options.only or PARTS
    threads = options.threads or min(cores(), host.MOST)
    host.set_threads(threads)
    out = Printer(options.json)
    bundle = Bundle.open(path)
    options.device = _device(options.device, bundle, out)
    bandwidth = _machine(out, threads) if "machine" in parts or "load" in parts else 0.0
    if "load" in parts:
        _load(options, bundle, out, threads)
    if "start" in parts:
        from qwen35.bench.start import start_figures

        out.title("Start")
        start_figures(out, options.device, 3 if options.quick else 7)
    if "memory" in parts:
        _memory(options, path, out)
    if "serve" in parts:
        _serve(options, bundle, out, threads)
    if options.cold:
        from qwen35.bench.text import cold_figures

        out.title("Cold page cache")
        cold_figures(bundle, out, PROMPTS[-1], 2 if options.quick else 5)
    if {"load", "host", "text", "vision", "timed", "draft", "long"} & set(parts) or options.profile:
        _model(options, bundle, out, parts, threads, bandwidth)


def _device(spec: str, bundle: Bundle, out: Printer) -> str:
    """The device that a prompt with `spec` would run on, by a name that gives the same one each time."""
    from qwen35.device import open_device

    with open_device(bundle, spec, notice) as device:
        out.text([f"Device: {'an emulated NPU' if device.emulated else device.path}"])
        if not device.node.emulated:
            return str(device.path)
        return spec if spec.startswith("emu:") else "emu:quiet"


def _machine(out: Printer, threads: int) -> float:
    from amdxdna.emu.kernels import isa
    from amdxdna.emu.kernels.measure import read_bandwidth
    from qwen35 import host
    from qwen35.bench import machine

    out.title(f"Machine: {machine.cpu_name()}")
    out.add(
        "threads",
        threads,
        "threads",
        cores=machine.cores(),
        host_isa=host.isa(),
        emulated_isa=isa.variants()[isa.chosen() - 1],
    )
    found = read_bandwidth(threads=threads)
    out.add("bandwidth", found / 1e9, "GB/s", threads=threads)
    out.add("bandwidth", read_bandwidth(threads=1) / 1e9, "GB/s", threads=1)
    out.add(
        "gemm_float32",
        machine.gemm_rate() / 1e9,
        "GFLOP/s",
        threads=os.environ.get("OPENBLAS_NUM_THREADS", machine.cores()),
    )
    return found


def _load(options: argparse.Namespace, bundle: Bundle, out: Printer, threads: int) -> None:
    """Before anything of this process maps the bundle's tensors: mapped pages cannot be dropped."""
    from qwen35.bench.load import command_figures
    from qwen35.bench.peers import missing

    out.title("From the command to the first token")
    with tempfile.TemporaryDirectory(prefix="qwen35-bench-") as folder:
        file = None
        if options.peers and missing("llama"):
            notice(f"without llama: {install_command(missing('llama'))}")
        elif options.peers:
            from qwen35.bench.gguf_file import write_gguf

            file = Path(folder) / "model.gguf"
            write_gguf(bundle.config, file)
        command_figures(Path(bundle.path), options.device, out, 1 if options.quick else 5, threads, file)


def _memory(options: argparse.Namespace, path: Path, out: Printer) -> None:
    """In a process of its own: what this one did before does not count."""
    out.title("Memory")
    words = [str(path), options.device, str(CHAT), "json" if options.json else ""]
    code = "import sys; from qwen35.bench.cli import memory_main; memory_main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], check=False, stdout=subprocess.PIPE, text=True
    )
    out.write(done.stdout)
    if done.returncode:
        raise ModelError("the process whose memory is measured failed", str(path))


def _serve(options: argparse.Namespace, bundle: Bundle, out: Printer, threads: int) -> None:
    from qwen35.bench.serve import serve_figures
    from qwen35.serve import lacking

    out.title("Server")
    if missing := lacking():
        notice(f"without the server: {', '.join(missing)} not installed: {install_command(missing)}")
        return
    with _peers(options, bundle, threads, ("llama",)) as peers:
        serve_figures(
            Path(bundle.path),
            options.device,
            out,
            peers,
            8 if options.quick else 48,
            1 if options.quick else 7,
        )


def memory_main(words: Sequence[str]) -> None:
    """The process whose memory is measured."""
    from qwen35.bench.figures import Printer
    from qwen35.bench.text import memory_figures
    from qwen35.bundle import Bundle

    path, device, context, form = words
    memory_figures(Bundle.open(path), device, Printer(form == "json"), int(context))


def _model(
    options: argparse.Namespace,
    bundle: Bundle,
    out: Printer,
    parts: Sequence[str],
    threads: int,
    bandwidth: float,
) -> None:
    from qwen35.bench import text
    from qwen35.bench.draft import draft_figures
    from qwen35.bench.long import long_figures
    from qwen35.bench.pairs import speed_figures
    from qwen35.bench.timed import timed_figures
    from qwen35.bench.vision import GRIDS, vision_figures

    quick = options.quick
    contexts = CONTEXTS[:2] if quick else CONTEXTS
    repeats = 1 if quick else 3
    tokens = 8 if quick else 24
    lengths = options.tokens or LENGTHS
    longest = max(*contexts, *(lengths if "long" in parts else ()))
    with contextlib.closing(text.Subject(bundle, options.device, longest + 64)) as subject:
        if "load" in parts:
            out.title("Load")
            text.load_figures(subject, out, bandwidth)
        if "host" in parts:
            out.title("Host: commands complete at once")
            text.host_figures(subject, out, HOST_CONTEXT, PROMPTS[-1], tokens, repeats)
            text.chain_figures(subject, out, COMPARED, tokens, 2 * repeats + 1)
        if "text" in parts:
            out.title("Prompts and tokens")
            with _peers(options, bundle, threads, ("llama", "transformers")) as peers:
                speed_figures(subject, out, peers, PROMPTS, contexts, COMPARED, tokens, repeats, threads)
        if "timed" in parts and subject.emulated:
            out.title("On an NPU that takes a Ryzen AI 9 HX 370's time")
            grids = GRIDS[:1] if quick else GRIDS[:2]
            timed_figures(subject, out, contexts[1:], PROMPTS, grids, tokens, repeats)
        if "draft" in parts:
            out.title("Drafts from the prompt")
            draft_figures(subject, out, HOST_CONTEXT, tokens, repeats)
        if "long" in parts:
            out.title("Long prompts")
            with _peers(options, bundle, threads, ("llama", "transformers"), longest + 64) as peers:
                long_figures(subject, out, peers, lengths, repeats)
        if options.profile:
            out.title("Profile")
            out.text(text.profile_lines(subject, PROMPTS[-1], COMPARED, tokens))
            if subject.emulated:
                out.title("Profile on an NPU that takes a Ryzen AI 9 HX 370's time")
                with subject.mode("timed"):
                    out.text(text.profile_lines(subject, PROMPTS[-1], COMPARED, tokens))
        if "vision" in parts and bundle.config.vision is not None:
            out.title("Pictures")
            with _peers(options, bundle, threads, ("tower",)) as peers:
                vision_figures(
                    subject, out, peers[0] if peers else None, repeats, GRIDS[:2] if quick else GRIDS
                )


@contextlib.contextmanager
def _peers(
    options: argparse.Namespace,
    bundle: Bundle,
    threads: int,
    kinds: Sequence[str],
    max_ctx: int = COMPARED + PROMPTS[-1],
) -> Iterator[list[Peer]]:
    """The peers that can run; a notice for each that cannot."""
    from qwen35.bench.peers import Peer, missing

    with contextlib.ExitStack() as stack:
        peers = []
        for kind in kinds if options.peers else ():
            try:
                lacking = missing(kind)
                if lacking:
                    raise ModelError("not installed", ", ".join(lacking), install_command(lacking))
                file = None
                if kind == "llama":
                    from qwen35.bench.gguf_file import write_gguf

                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="qwen35-bench-"))
                    file = Path(folder) / "model.gguf"
                    write_gguf(bundle.config, file)
                peers.append(stack.enter_context(Peer(kind, Path(bundle.path), threads, max_ctx, file)))
            except ModelError as error:
                notice(f"without {kind}: {error}")
        yield peers
