"""Bundles: a directory of manifest, tensors, kernels and tokenizer that one model runs from.

What our export adds to the published vocabulary (other readers skip or default all of it): params
`lin_kheads` and `tied` (see qwen35.model.config), tensor `embed`, record `sum FILE HEX bytes=N`.
"""

from __future__ import annotations

from qwen35.bundle.bundle import Bundle
from qwen35.bundle.errors import BundleError
from qwen35.bundle.manifest import Manifest, Record, XclbinSpec
from qwen35.bundle.specs import FileSum, GemmSpec, GemmStream, GemvSpec, Reference, TokenCase
from qwen35.bundle.tensors import Store, TensorInfo

__all__ = [
    "Bundle",
    "BundleError",
    "FileSum",
    "GemmSpec",
    "GemmStream",
    "GemvSpec",
    "Manifest",
    "Record",
    "Reference",
    "Store",
    "TensorInfo",
    "TokenCase",
    "XclbinSpec",
]
