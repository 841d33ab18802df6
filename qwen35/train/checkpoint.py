"""Writes a trained network as an ordinary Hugging Face checkpoint, for the exporter."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from amdxdna.output import write_whole
from qwen35.train.network import MERGE, Network
from qwen35.train.scenes import MAX_PIXELS, MIN_PIXELS, PATCH

TEMPLATE = (
    "{%- if messages[0]['role'] == 'system' %}<|im_start|>system\n{{ messages[0]['content'] }}<|im_end|>\n"
    "{%- endif %}{%- for m in messages if m['role'] != 'system' %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] }}<|im_end|>\n{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\n' if enable_thinking is defined and enable_thinking else '<think>\n\n</think>\n\n' }}"
    "{%- endif %}"
)


def stop_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens that end an answer."""
    return [tokenizer.token_to_id(name) or 0 for name in ("<|endoftext|>", "<|im_end|>")]


def save_pretrained(net: Network, tokenizer: Tokenizer, folder: Path) -> None:
    """config, weights (float32), tokenizer, preprocessor and generation files into `folder`."""
    with torch.no_grad():
        model = net.fold()
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    stop = stop_ids(tokenizer)
    files = {
        "generation_config.json": {"do_sample": False, "eos_token_id": stop, "pad_token_id": stop[0]},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": 2048,
            "chat_template": TEMPLATE,
        },
        "preprocessor_config.json": {
            "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
            "patch_size": PATCH,
            "temporal_patch_size": 2,
            "merge_size": MERGE,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "resample": 3,
            "rescale_factor": 1 / 255,
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
    }
    for name, content in files.items():
        write_whole(folder / name, (json.dumps(content, indent=2) + "\n").encode())
