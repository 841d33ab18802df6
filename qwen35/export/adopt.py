"""`export --kernels BUNDLE`: a checkpoint's weights packed for the kernels of a bundle that exists.

The emulated NPU's streams say their own shape and format, so any such bundle's kernels can be taken over as
they are, whatever its strides, contexts and chunks. Compiled kernels read a layer's packed weights in an
order that only their compiler knows (bundles document the head's alone): those are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from qwen35.bundle.bundle import Bundle
from qwen35.bundle.config import VisionConfig
from qwen35.bundle.errors import BundleError
from qwen35.bundle.schema import TensorSpec
from qwen35.bundle.writer import BundleWriter
from qwen35.export.errors import CheckpointError
from qwen35.export.plan import Options

__all__ = ["adopted_options", "adopted_vision", "check_items", "copy_kernels"]


def adopted_options(bundle: Bundle) -> Options:
    """The options that plan a checkpoint for `bundle`'s kernels. Raises BundleError for compiled kernels."""
    if not bundle.emulated:
        raise BundleError(
            bundle.manifest.path,
            0,
            "its kernels are compiled: the order in which they read a layer's packed weights is not "
            "documented (only the head's is), so nothing else can be packed for them",
            "export without --kernels, for the emulated NPU",
        )
    config = bundle.config
    options = Options(
        chunk=config.chunk,
        max_prompt=config.max_prompt,
        head_rows=config.head_rows,
        gemv_format=config.gemv_format,
        vision="none",
    )
    if config.vision is None:
        return options
    return replace(
        options,
        vision=config.vision.weights,
        max_pixels=config.vision.max_pixels,
        vision_chunk=bundle.gemms["v_patch"].m,
    )


def adopted_vision(bundle: Bundle, planned: VisionConfig | None) -> VisionConfig | None:
    """The planned tower with the picture sizes that `bundle`'s kernels and buffers are for."""
    held = bundle.config.vision
    if planned is None or held is None:
        return None
    return replace(
        planned, min_pixels=held.min_pixels, max_pixels=held.max_pixels, max_patches=held.max_patches
    )


def check_items(bundle: Bundle, items: Iterable[TensorSpec], gemv_format: str) -> None:
    """Every packed tensor must be what a kernel of `bundle` reads. Raises CheckpointError naming both."""
    for item in items:
        if not item.rows:
            continue
        key, wanted = item.gemm or item.gemv, item.nbytes(gemv_format)
        gemm, gemv = bundle.gemms.get(key), bundle.gemvs.get(key)
        shapes = {f"gemm {key}": (gemm.n, gemm.k, gemm.b_bytes)} if gemm is not None else {}
        if gemv is not None:
            shapes[f"gemv {key}"] = (gemv.m, gemv.k, gemv.w_bytes)
        if not shapes:
            raise CheckpointError(bundle.manifest.path, f"no kernel {key}, which tensor {item.name} needs")
        for kernel, shape in shapes.items():
            if shape != (item.rows, item.k, wanted):
                raise CheckpointError(
                    bundle.manifest.path,
                    f"{kernel} is {shape[0]} x {shape[1]} in {shape[2]:,} bytes, "
                    f"the checkpoint's {item.name} {item.rows} x {item.k} in {wanted:,}",
                    "the checkpoint must have the shape of the bundle's model",
                )


def copy_kernels(writer: BundleWriter, bundle: Bundle) -> None:
    """Copies xclbins, instruction streams and their records."""
    files = [xclbin.file for xclbin in bundle.xclbins.values()]
    files += [stream.insts for gemm in bundle.gemms.values() for stream in gemm.streams]
    files += [gemv.insts for gemv in bundle.gemvs.values()]
    for file in dict.fromkeys(files):
        writer.file(file, bundle.file(file))
    for xclbin in bundle.xclbins.values():
        writer.record("xclbin", xclbin.key, xclbin.file, xclbin.kernel)
    for record in bundle.manifest.records:
        if record.tag in ("gemm", "gemm_chunks", "gemv"):
            writer.record(record.tag, *record.fields)
