"""Files of bundles and checkpoints."""

from __future__ import annotations

import copy
import json
import random
import shutil
import struct
from functools import partial
from pathlib import Path
from typing import Any

from qwen35.bundle import Bundle
from qwen35.bundle.errors import BundleError
from qwen35.bundle.manifest import Manifest
from qwen35.bundle.params import read_config
from qwen35.bundle.schema import text_schema, vision_schema
from qwen35.bundle.tensors import read_index
from qwen35.errors import ModelError, TokenizerError
from qwen35.export.checkpoint import Checkpoint
from qwen35.export.errors import CheckpointError
from qwen35.export.plan import Options, plan_text
from qwen35.export.safetensors import SafeTensors
from qwen35.export.vision import plan_vision
from qwen35.model.rope import Rope
from qwen35.tokenizer import Tokenizer
from tests.fuzz import mutate
from tests.fuzz.run import Ready
from tests.support import synthetic
from tests.support.synthetic import SHAPES, smaller, write_checkpoint
from tests.support.synthetic_bundle import Habits, write_bundle


def _bundle(folder: Path) -> Path:
    return write_bundle(folder / "b", SHAPES["untied"], None, Habits(contexts=True, unknown=True, chunks=3))


def _written(path: Path, parse: Any) -> Any:
    def run(data: bytes) -> None:
        path.write_bytes(data)
        parse()

    return run


def manifest(folder: Path) -> Ready:
    """manifest.txt and the model's constants in it."""
    directory = _bundle(folder)
    original = (directory / "manifest.txt").read_bytes()

    def parse() -> None:
        config = read_config(Manifest.read(directory))
        if config.rotary_dim < 4096:
            Rope(config)

    theta = original.replace(b"rope_theta 10000000.0", b"rope_theta 1e-300")
    assert theta != original and b"gemv_format" not in original
    return Ready(
        _written(directory / "manifest.txt", parse),
        partial(_text, original),
        (BundleError,),
        (
            lambda: theta,
            lambda: b"\n" * (8 << 20),
            lambda: b"a=b " * (2 << 20),
            lambda: b"version 1\n" * 800_000,
            lambda: b"version 1\n" + (b"param " + b"n" * 5000 + b" 1\n") * 2,
            lambda: original + b"param gemv_format " + b"n" * 5000,
        ),
    )


def _text(original: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(300)) if rng.random() < 0.05 else mutate.text(rng, original)


def tensors(folder: Path) -> Ready:
    """tensors.txt."""
    path = _bundle(folder) / "tensors.txt"
    original = path.read_bytes()
    return Ready(
        _written(path, lambda: read_index(path)),
        partial(_text, original),
        (BundleError,),
        (
            lambda: b"\n" * (64 << 20),
            lambda: b"\n" * (16 << 20),
            lambda: b" " * (16 << 20),
            lambda: b"\n".join(b"%d u8 1 8 8" % i for i in range(200_000)),
        ),
    )


def bundle(folder: Path) -> Ready:
    """A whole bundle of which one text file was edited."""
    source = _bundle(folder)
    copy = Path(shutil.copytree(source, folder / "copy", copy_function=shutil.copyfile))
    originals = {name: (source / name).read_bytes() for name in ("manifest.txt", "tensors.txt")}

    def make(rng: random.Random) -> tuple[str, bytes]:
        name = rng.choice(list(originals))
        return name, mutate.text(rng, originals[name])

    def parse(given: tuple[str, bytes]) -> None:
        name, data = given
        (copy / name).write_bytes(data)
        try:
            opened = Bundle.open(copy)
        except BundleError as error:
            assert error.path.startswith(str(copy)) and error.line >= 0
            raise
        finally:
            (copy / name).write_bytes(originals[name])
        for tensor in opened.tensors:
            opened.tensors.get(tensor)
        assert opened.config.hidden_size == 128

    def contexts(*more: bytes) -> tuple[str, bytes]:
        name, data = "manifest.txt", originals["manifest.txt"]
        line = next(one for one in data.split(b"\n") if one.startswith(b"xclbin gemm "))
        return name, data.replace(line, b"\n".join(line.replace(b"gemm", one, 1) for one in more))

    return Ready(
        parse,
        make,
        (BundleError,),
        (lambda: contexts(b"x" * 5000), lambda: contexts(*(b"c%d" % i for i in range(2000)))),
    )


def _checkpoint(folder: Path) -> Path:
    write_checkpoint(folder / "hf", smaller(SHAPES["vision"], layers=4))
    return folder / "hf"


def _plan(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    config = plan_text(checkpoint, Options())
    vision = plan_vision(checkpoint, Options())
    for item in text_schema(config):
        item.nbytes("bfp16")
    for item in vision_schema(vision) if vision is not None else ():
        item.nbytes("bfp16")
    Rope(config)


_EDGES: list[Any] = [
    1e-300,
    1e300,
    10**400,
    -1,
    0,
    1 << 20,
    1 << 24,
    1 << 31,
    float("nan"),
    float("inf"),
    True,
    None,
    [],
    {},
    "8",
]


def config(folder: Path) -> Ready:
    """config.json of a checkpoint, up to the plan of the export."""
    directory = _checkpoint(folder)
    original = json.loads((directory / "config.json").read_text())

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return mutate.json_text(rng, original)
        edited = mutate.tree(rng, original, lambda r: copy.deepcopy(r.choice(_EDGES)))
        return json.dumps(edited).encode()

    def edge(key: str, value: Any) -> bytes:
        edited = json.loads(json.dumps(original))
        section = edited.get("text_config", edited)
        (section["rope_parameters"] if key == "rope_theta" else section)[key] = value
        return json.dumps(edited).encode()

    values = [
        ("rope_theta", 1e-300),
        ("rope_theta", 10**400),
        ("num_hidden_layers", 1 << 31),
        ("hidden_size", 10**400),
        ("intermediate_size", 1 << 20),
        ("rms_norm_eps", 1e-300),
        ("vocab_size", 1 << 24),
    ]
    deep = (lambda: b'{"a":' * 100_000, lambda: b"[" * (8 << 20), lambda: b"[]," * (3 << 20))
    return Ready(
        _written(directory / "config.json", lambda: _plan(directory)),
        make,
        (CheckpointError,),
        (*(partial(edge, *pair) for pair in values), *deep),
    )


def index(folder: Path) -> Ready:
    """model.safetensors.index.json."""
    directory = _checkpoint(folder)
    path = directory / "model.safetensors.index.json"
    original = json.loads(path.read_text())
    return Ready(
        _written(path, lambda: Checkpoint(directory)),
        lambda rng: mutate.json_text(rng, original),
        (CheckpointError,),
        (lambda: b'{"weight_map": {"a": "../config.json"}}', lambda: b"[[],[]," * (1 << 20)),
    )


def safetensors(folder: Path) -> Ready:
    """A safetensors file: its length, its header, its tensors."""
    path = folder / "x.safetensors"
    values = synthetic.weights(smaller(SHAPES["tied"], layers=1))
    few = {name: values[name] for name in list(values)[:4]}
    synthetic.write_safetensors(path, few, dict.fromkeys(few, "F32"))
    original = path.read_bytes()
    (length,) = struct.unpack_from("<Q", original)
    header, body = json.loads(original[8 : 8 + length]), original[8 + length :]

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return mutate.binary(rng, original[: 8 + length]) + body
        text = mutate.json_text(rng, header)
        said = len(text) if rng.random() < 0.9 else rng.choice(mutate.NUMBERS)
        return struct.pack("<Q", said) + text + body

    def parse() -> None:
        file = SafeTensors(path)
        for name in file:
            file.array(name)

    return Ready(
        _written(path, parse),
        make,
        (CheckpointError,),
        (lambda: struct.pack("<Q", 24 << 20) + b"[]," * (8 << 20), lambda: b"\xff" * 8, lambda: b""),
    )


_TEXTS = [
    "",
    "Hello, world!",
    "a  b\n\nc",
    "don't 123",
    "\u4f60\u597d \U0001f427 e\u0301",
    "<|im_start|>user\n<think>",
]


def tokenizer(folder: Path) -> Ready:
    """tokenizer.json, and what the tokenizer then makes of some texts."""
    path = folder / "tokenizer.json"
    original = json.loads(synthetic.tokenizer_json())

    def parse() -> None:
        read = Tokenizer(path)
        for text in _TEXTS:
            for special in (False, True):
                ids = read.encode(text, allow_special=special)
                read.decode(ids)
        for token in range(0, min(read.vocab_size, 400), 7):
            read.token_bytes(token)

    def seed(**changes: Any) -> bytes:
        return json.dumps({**original, **changes}).encode()

    return Ready(
        _written(path, parse),
        lambda rng: mutate.json_text(rng, original),
        (TokenizerError, ModelError),
        (
            lambda: b" " * (64 << 20),
            lambda: b"[" * (32 << 20),
            lambda: b'{"added_tokens": [' + b"[]," * (10 << 20),
            lambda: seed(added_tokens=[{"id": 1 << 62, "content": "x"}]),
            lambda: seed(added_tokens=[{"id": True, "content": "x"}]),
            lambda: seed(added_tokens=[{"id": 3, "content": "\ud800"}]),
            lambda: seed(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}),
            lambda: seed(
                pre_tokenizer={
                    "type": "Split",
                    "pattern": {"Regex": "("},
                    "behavior": "Isolated",
                    "invert": False,
                }
            ),
            lambda: seed(model={"type": "BPE", "vocab": {}, "merges": []}),
            lambda: seed(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
        ),
    )
