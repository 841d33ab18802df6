"""What most of pyxrt's programs begin with."""

from __future__ import annotations

import numpy as np

import amdxdna.pyxrt as pyxrt
from amdxdna.emu.kernels import stream

TO = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
FROM = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
HELD = stream.program([stream.Delay(1), stream.Copy(4096, 1)])
"""It waits at the gate."""


class Setup:
    def __init__(self, folder, code="copy.bin"):
        self.device = pyxrt.device(0)
        self.xclbin = pyxrt.xclbin(str(folder / "copy.xclbin"))
        self.device.register_xclbin(self.xclbin)
        self.context = pyxrt.hw_context(self.device, self.xclbin.get_uuid())
        name = next(k.get_name() for k in self.xclbin.get_kernels() if "MLIR_AIE" in k.get_name())
        self.kernel = pyxrt.kernel(self.context, name)
        self.code = np.frombuffer((folder / code).read_bytes(), np.uint32)
        self.insts = pyxrt.bo(self.device, self.code.nbytes, pyxrt.bo.cacheable, self.kernel.group_id(1))
        self.insts.write(self.code, 0)
        self.insts.sync(TO)
        self.a, self.b = (
            pyxrt.bo(self.device, 4096, pyxrt.bo.host_only, self.kernel.group_id(n)) for n in (3, 4)
        )
        self.a.write(np.arange(1024, dtype=np.int32), 0)
        self.a.sync(TO)

    def run(self, by=None):
        """A run from a to b, by this control code or another set-up's."""
        by, run = by or self, pyxrt.run(self.kernel)
        for index, value in enumerate((3, by.insts, by.code.nbytes, self.a, self.b)):
            run.set_arg(index, value)
        return run

    def result(self):
        self.b.sync(FROM)
        return self.b.read(4096, 0).view(np.int32)
