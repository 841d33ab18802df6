"""Bundles: a directory of manifest, tensors, kernels and tokenizer that one model runs from.

`manifest` and `tensors` read the two text files, `params` and `specs` their records; `schema` says which
tensors there are, `sizes` knows the published models, `validate` refuses, `config` is what the model takes,
`writer` writes.

What our export adds to the published vocabulary (other readers skip or default all of it):

- params `lin_kheads` and `tied`, tensor `embed` (see qwen35.bundle.params);
- record `sum FILE HEX bytes=N`, the SHA-256 of each file but the manifest;
- contexts `gemm`, `gemv` and `vision` whose streams are the emulated NPU's: every packed tensor, the
  head's included, has the layout the format documents for the head (qwen35.formats), so that one tensor
  serves a GEMM and a GEMV; the tower's end with a float32 bias an output (qwen35.export.vision);
- tokenizer.json of the built-in model says `ignore_merges` (a text that is a token of its own is not put
  together by merges): the published tokenizers do without it, and the public reference runtime ignores it,
  so that a few texts get other ids there;
- param `I` is the MLP width after padding to a multiple of 32; C of `gu` has rows of n_down*D elements,
  v_fc1 writes n_fc2*D columns, so that no K slice reads past its row.
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
