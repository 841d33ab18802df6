"""A bundle's files as the writer takes them."""

from __future__ import annotations

import numpy as np

from qwen35.bundle.writer import BundleWriter


def fill(writer: BundleWriter, value: int = 1) -> None:
    writer.param("D", 64)
    writer.record("gemm", "lin", M=1, insts="kernels/a.bin")
    writer.file("kernels/a.bin", b"\1\2\3\4")
    writer.array("x", np.full((3, 5), value, np.float32))
    with writer.tensor("y", "u8", 7) as stream:
        stream.write(b"abc")
        stream.write(memoryview(b"defg"))
    writer.array("z", np.arange(4, dtype=np.uint16))
