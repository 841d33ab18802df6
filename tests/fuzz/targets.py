"""The parsers: what starts each, what it may raise, and the inputs that once broke it.

A target is a function of a scratch folder that gives a `Ready`; its name is what `--only` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzz import binaries, bundles, chats, machines, pictures
from tests.fuzz.run import Ready

TARGETS: dict[str, Callable[[Path], Ready]] = {
    "manifest": bundles.manifest,
    "tensors": bundles.tensors,
    "bundle": bundles.bundle,
    "config": bundles.config,
    "index": bundles.index,
    "safetensors": bundles.safetensors,
    "tokenizer": bundles.tokenizer,
    "xclbin": binaries.xclbin,
    "pdi": binaries.pdi,
    "family": binaries.family,
    "insts": binaries.insts,
    "elf": binaries.elf,
    "control-code": binaries.control_code,
    "stream": binaries.emulator_stream,
    "carriers": binaries.carriers,
    "packet": binaries.packet,
    "records": binaries.records,
    "pictures": pictures.pictures,
    "messages": chats.messages,
    "toolcalls": chats.toolcalls,
    "thinking": chats.thinking,
    "schema": chats.schema,
    "conversation": chats.conversation,
    "sampling": chats.sampling,
    "emu-options": machines.options,
    "numbers": machines.numbers,
    "kernel-log": machines.kernel_log,
    "machine": machines.machine,
}
