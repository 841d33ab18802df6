"""transformers' Qwen3.5 text model in float32 over a synthetic checkpoint's tensors: the ground truth.

`bf16_activations` makes it round what enters and leaves every packed matrix to bf16, as the NPU's kernels do.
The difference it makes is the bf16 activation error, measured without any code of this repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.support import synthetic

PREFIXES = ("model.language_model.", "model.")


def causal_lm(shape, tensors):
    """Qwen3_5ForCausalLM in eval mode with `tensors` (any prefix) as its float32 weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    settings = synthetic.config(synthetic.smaller(shape, vision=None))
    settings.pop("architectures")
    config = transformers.models.qwen3_5.Qwen3_5TextConfig(**settings)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.models.qwen3_5.Qwen3_5ForCausalLM(config)
    model = model.to_empty(device="cpu").float().eval()
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        short = name.removeprefix("model.")
        source = next((p + short for p in PREFIXES if p + short in tensors), name)
        if source not in tensors:
            source = next(p + "embed_tokens.weight" for p in PREFIXES if p + "embed_tokens.weight" in tensors)
        value = torch.from_numpy(np.ascontiguousarray(tensors[source], np.float32))
        parameter.data.copy_(value.reshape(parameter.shape))
    rotary = model.model.rotary_emb
    inv_freq, _ = rotary.compute_default_rope_parameters(config)
    rotary.inv_freq = inv_freq
    return model


def logits(model, ids, positions=None, embeddings=None):
    """Logits float32 [n, vocab] of one forward; `positions` int [3, n], `embeddings` {index: row}."""
    import torch

    with torch.no_grad():
        rows = model.model.embed_tokens(torch.tensor([list(map(int, ids))]))
        for index, row in (embeddings or {}).items():
            rows[0, index] = torch.from_numpy(row)
        where = None if positions is None else torch.from_numpy(np.array(positions))[:, None]
        return model(inputs_embeds=rows, position_ids=where, use_cache=False).logits[0].numpy()


PACKED = ("_proj", "in_proj_qkv", "in_proj_z", "lm_head")
"""Linears of the text model that the NPU runs, by the ends of their names."""


@contextmanager
def bf16_activations(model, packed=PACKED) -> Iterator[None]:
    """Rounds inputs and outputs of the linears named by `packed` to bf16 while it lasts."""
    import torch

    def rounded(x):
        return x.to(torch.bfloat16).float()

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith(packed):
            handles.append(module.register_forward_pre_hook(lambda _, args: (rounded(args[0]),)))
            # gate and up leave the NPU as one product, which down_proj's input rounds
            if not name.endswith(("gate_proj", "up_proj")):
                handles.append(module.register_forward_hook(lambda _, args, out: rounded(out)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
