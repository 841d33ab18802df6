"""From a command to its first token: whole processes, the model's files in the page cache or dropped from it.

Ours is `python -m qwen35 BUNDLE --prompt ... --max-new 1`; the peer's loads the same shape and answers a
prompt of about as many tokens with one token. Both start an interpreter; the two of a pair run one after the
other.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from qwen35.bench.figures import Printer, median, ratios
from qwen35.cli.output import notice
from qwen35.errors import ModelError

__all__ = ["TOKENS", "command_figures", "dropped"]

PROMPT = "What is a river?"
TOKENS = 24
"""Tokens of the peer's prompt: as many as the question is in its chat format, more or less."""
_STAYS = 0.02
"""The share of a file that may stay in the page cache and count as cold."""

_LLAMA = """import sys, xllamacpp
file, threads, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = file, 8192, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
server.handle_completions({"prompt": [1 + 37 * at % 1000 for at in range(tokens)], "n_predict": 1,
                           "ignore_eos": True, "temperature": 0, "stream": False})"""


def command_figures(
    bundle: Path, device: str, out: Printer, repeats: int, threads: int, gguf: Path | None = None
) -> None:
    """Seconds of the whole command, warm and cold, and llama.cpp's over `gguf` in turns.

    Cold is left out, with a notice, where files stay in the page cache (other programs map them, or a file
    system in memory). Raises ModelError when a command fails.
    """
    words = [str(bundle), "--prompt", PROMPT, "--max-new", "1", "--quiet", "--device", device]
    mine = [sys.executable, "-m", "qwen35", *words]
    theirs = [sys.executable, "-c", _LLAMA, str(gguf), str(threads), str(TOKENS)] if gguf else []
    for cache in ("warm", "cold"):
        ours: list[float] = []
        peers: list[float] = []
        for turn in range(repeats + (cache == "warm")):
            if cache == "cold" and not _cold([bundle, *([gguf] if gguf else [])]):
                break
            for found, command in ((ours, mine), (peers, theirs)):
                if command:
                    seconds = _seconds(command)
                    if turn or cache == "cold":
                        found.append(seconds)
        if len(ours) < repeats:
            continue
        out.add(
            "load_command", median(ours), "s", cache=cache, of="from the command to its first token's end"
        )
        if peers:
            name = "llama.cpp Q8_0"
            out.add("load_command_peer", median(peers), "s", cache=cache, peer=name)
            out.add("load_command_ratio", ratios(ours, peers), "x", cache=cache, peer=name, pairs=len(peers))


def _cold(paths: Sequence[Path]) -> bool:
    """Drops all files of directories, and files; False, and a notice, where much of one stays."""
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file() and (stays := dropped(file)) > _STAYS:
                notice(f"without a cold page cache: {100 * stays:.0f}% of {file} stay in it")
                return False
    return True


def dropped(path: Path) -> float:
    """Drops a file from the page cache, written back first; the share of its pages that stays."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return 0.0
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
            there = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            address = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
            failed = _mincore()(address, size, there.ctypes.data)
    if failed:
        raise OSError(ctypes.get_errno(), "mincore", str(path))
    return float((there & 1).mean())


def _mincore() -> Callable[..., int]:
    found = ctypes.CDLL(None, use_errno=True).mincore
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return found


def _seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ModelError(f"a command to be measured ended with status {done.returncode}", "", " ".join(tail))
    return seconds
