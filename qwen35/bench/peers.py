"""Other programs that run the same shape: each in a process of its own, asked for one run at a time.

The process (`python -m qwen35.bench.peers KIND ...`) answers a JSON line with a JSON line: {"prompt": n,
"new": m} -> {"prompt": seconds, "token": seconds}, {"url": true} -> {"url": where its server listens},
{"patches": [rows, columns]} -> {"tower": seconds}. It does nothing between requests, so that runs of two
programs can alternate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen35 import meminfo
from qwen35.bench.figures import median
from qwen35.errors import ModelError

if TYPE_CHECKING:
    from qwen35.bundle.config import ModelConfig, VisionConfig

__all__ = ["Peer", "float32_bytes", "missing", "require_free", "serve", "text_config"]

NAMES = {"llama": "llama.cpp Q8_0", "transformers": "transformers float32", "tower": "transformers float32"}
NEEDS = {
    "llama": ("xllamacpp", "gguf"),
    "transformers": ("torch", "transformers"),
    "tower": ("torch", "transformers"),
}
_FLOAT32 = 4


class Peer:
    """A peer's process. Raises ModelError when its packages or its memory are not there."""

    def __init__(self, kind: str, bundle: Path, threads: int, max_ctx: int, file: Path | None = None) -> None:
        self.kind, self.name = kind, NAMES[kind]
        words = [kind, str(bundle), str(threads), str(max_ctx), str(file or "")]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qwen35.bench.peers", *words],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        try:
            self.resident = int(self._answer()["resident"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self) -> str:
        """Where the peer's own HTTP server listens (llama.cpp's)."""
        return str(self.ask(url=True)["url"])

    def ask(self, **request: Any) -> dict[str, Any]:
        """Has the peer make one run and returns what it measured."""
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ModelError(f"{self.name} ended", "", "see the lines above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ModelError(str(answer["error"]), self.name)
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def missing(kind: str) -> list[str]:
    """The packages a peer needs that are not installed."""
    return [name for name in NEEDS[kind] if find_spec(name) is None]


def serve(words: list[str]) -> None:
    """The peer's process."""
    kind, bundle, threads, max_ctx, file = words
    answers = os.fdopen(os.dup(1), "w")
    # What a library prints is not an answer.
    silence = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(silence, descriptor)

    def answer(record: dict[str, Any]) -> None:
        print(json.dumps(record), file=answers, flush=True)

    try:
        from qwen35.bench.machine import memory
        from qwen35.bundle import Bundle

        config = Bundle.open(bundle).config
        run = {"llama": _llama, "transformers": _transformers, "tower": _tower}[kind](
            config, int(threads), int(max_ctx), file
        )
        answer({"resident": memory().resident})
        for line in sys.stdin:
            answer(run(json.loads(line)))
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})


def _ordinary(config: ModelConfig) -> int:
    """Ids below this are no control tokens."""
    return config.vocab_size * 9 // 10


def _llama(config: ModelConfig, threads: int, max_ctx: int, file: str) -> Any:
    import random

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel = max_ctx, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    rng = random.Random(0)

    def run(request: dict[str, Any]) -> dict[str, Any]:
        if "url" in request:
            return {"url": server.listening_address}
        ids = [rng.randrange(_ordinary(config)) for _ in range(request["prompt"])]
        found = server.handle_completions(
            {
                "prompt": ids,
                "n_predict": max(request["new"], 1),
                "ignore_eos": True,
                "cache_prompt": False,
                "temperature": 0,
                "stream": False,
            }
        )
        times = (json.loads(found) if isinstance(found, str) else found)["timings"]
        return {"prompt": times["prompt_ms"] / 1e3, "token": times["predicted_per_token_ms"] / 1e3}

    return run


def _fill(module: Any) -> None:
    """Random weights, a block of them over and over: what a product costs does not depend on them."""
    import torch

    block = torch.randn(1 << 20) * 0.02
    with torch.no_grad():
        for parameter in module.parameters():
            flat = parameter.view(-1)
            for start in range(0, flat.numel(), block.numel()):
                part = flat[start : start + block.numel()]
                part.copy_(block[: part.numel()])


def _make(build: Any, config: Any, threads: int) -> Any:
    import torch
    from transformers import initialization

    torch.set_num_threads(threads)
    config._attn_implementation = "sdpa"
    with initialization.no_init_weights():
        module = build(config)
    module.tie_weights()
    _fill(module)
    return module.eval()


def text_config(c: ModelConfig) -> Any:
    """transformers' configuration of the same text model."""
    from transformers import Qwen3_5TextConfig

    names = {"lin": "linear_attention", "att": "full_attention"}
    return Qwen3_5TextConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.rms_norm_eps,
        linear_conv_kernel_dim=c.linear_conv_kernel_dim,
        linear_key_head_dim=c.linear_key_head_dim,
        linear_value_head_dim=c.linear_value_head_dim,
        linear_num_key_heads=c.linear_num_key_heads,
        linear_num_value_heads=c.linear_num_value_heads,
        tie_word_embeddings=c.tie_word_embeddings,
        layer_types=[names[kind] for kind in c.layer_types],
        max_position_embeddings=32768,
        dtype="float32",
        rope_parameters={
            "rope_type": "default",
            "rope_theta": c.rope_theta,
            "partial_rotary_factor": c.rotary_dim / c.head_dim,
            "mrope_section": list(c.mrope_section or (c.rotary_dim // 2, 0, 0)),
            "mrope_interleaved": True,
        },
    )


def float32_bytes(c: ModelConfig) -> int:
    """Bytes of the text model's matrices in float32."""
    layer = c.hidden_size * (c.n_lin + c.o_in + 3 * c.intermediate_size)
    tables = 1 if c.tie_word_embeddings else 2
    return _FLOAT32 * (c.num_hidden_layers * layer + tables * c.vocab_size * c.hidden_size)


def require_free(nbytes: int) -> None:
    """Raises MemoryError where a model of `nbytes`, and what it works with, has no room."""
    free = meminfo.available() or 0
    if nbytes * 1.15 > free:
        raise MemoryError(f"it needs {nbytes / 1e9:.1f} GB of memory, {free / 1e9:.1f} are free")


def _transformers(config: ModelConfig, threads: int, max_ctx: int, file: str) -> Any:
    import torch
    from transformers import Qwen3_5ForCausalLM

    require_free(float32_bytes(config))
    model = _make(Qwen3_5ForCausalLM, text_config(config), threads)

    def run(request: dict[str, Any]) -> dict[str, float]:
        ids = torch.randint(0, _ordinary(config), (1, request["prompt"]))
        with torch.inference_mode():
            began = time.perf_counter()
            out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
            prompt = time.perf_counter() - began
            seconds = []
            for _ in range(request["new"]):
                began = time.perf_counter()
                token = out.logits[:, -1:].argmax(-1)
                out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
                seconds.append(time.perf_counter() - began)
        return {"prompt": prompt, "token": median(seconds) if seconds else 0.0}

    return run


def _tower(config: ModelConfig, threads: int, max_ctx: int, file: str) -> Any:
    import torch
    from transformers import Qwen3_5VisionConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

    v: VisionConfig | None = config.vision
    if v is None:
        raise ModelError("the bundle has no vision tower")
    model = _make(
        Qwen3_5VisionModel,
        Qwen3_5VisionConfig(
            depth=v.depth,
            hidden_size=v.hidden_size,
            intermediate_size=v.intermediate_size,
            num_heads=v.num_heads,
            patch_size=v.patch_size,
            spatial_merge_size=v.spatial_merge_size,
            temporal_patch_size=2,
            out_hidden_size=v.out_hidden_size,
            dtype="float32",
            num_position_embeddings=v.pos_side**2,
            hidden_act="gelu_pytorch_tanh",
        ),
        threads,
    )

    def run(request: dict[str, Any]) -> dict[str, float]:
        rows, columns = request["patches"]
        patches = torch.randn(rows * columns, 2 * v.patch_dim)
        with torch.inference_mode():
            began = time.perf_counter()
            model(patches, grid_thw=torch.tensor([[1, rows, columns]]))
            return {"tower": time.perf_counter() - began}

    return run


if __name__ == "__main__":
    serve(sys.argv[1:])
