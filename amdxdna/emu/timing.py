"""How long a real NPU takes for a command: option ``timed=MODEL``. Calibration and sources, all in this file.

A command takes a fixed time, and then for each kernel the longer of two: its bytes (weights, and
activations in and out) over `bandwidth`, its operations (a multiply-add is two; whole chunks, rows of zeros
too) over `rate`. A member of a chain takes the shorter fixed time `member`. Where the columns hold another
context's, or another PDI's, configuration, `load` comes first. What a program does between its ioctls takes
its real time; what the emulator takes for EXEC_CMD and for a wait is made up for
(amdxdna/emu/npu/schedule.py), as soon as somebody waits: the kernel driver's work, interrupt and waking up
are part of `dispatch`.

Model ``hx370``, a Ryzen AI 9 HX 370 (Strix, 8 columns). Published for Qwen3.5-2B on it (README of
taconite-qwen35 in github.com/Brishen/taconite at 5f598ccafb, and the bundle brishen/iron-qwen3.5-2b-npu2):
a token about 66 ms in bfp16 and 55 in bfp6s, "bound by the weights" of 2.1 and 1.5 GB; a prompt of 23
tokens 0.2 s and of 778 1.3 s; a picture of 1,040 patches 2 to 2.5 s, of which the NPU about 0.25 s. The
runtime computes whole chunks of 256 rows and sends single commands, one a projection, three for `down` and
five for the head.

bandwidth
    All weights of a token: 302.0 M of `lin`, 62.9 of `att`, 100.7 of `o`, 604.0 of `gu`, 302.0 of `down`,
    508.6 of the head, 1,880 M, at 9 bits 2.115 GB and at 6.5 bits 1.528 GB. Both formats share everything
    else, so 587.5 MB take 66 - 55 = 11 ms: 53.4 GB/s. Each figure is rounded to a millisecond: 49 to 59
    GB/s. Assumed: both formats are read equally fast (bfp6s kernels take two cores a column).
rate
    The picture: 1,040 patches are 5 chunks, 260 tokens 2 (assumed: of 256 rows here, too); 303.0 M weights
    of 24 blocks and the patches' x 1,280 rows and 25.2 M of the merger x 512, two operations each: 0.80 T.
    250 ms less 177 commands of 0.07 ms: 3.4 T/s. It is the one time that was published for the NPU alone.
    Assumed: the text's GEMMs (K = 2,048) run as fast. They fit: 1,371.5 M weights x 256 rows are 0.21 s of
    the 0.2 s of the short prompt, four times that 0.83 s of the 1.3 s of the long one, whose rest is the
    host's.
dispatch
    Measured by who submits, host included: 94 us for a small command on a Strix (ROCm/hrx-system issue 807,
    Linux), 109.5 and 127.2 us for AMD's own (xrt-smi's `latency` on a Strix under Windows: Xilinx/XRT pull
    requests 8075 and 8319), 45 us for an empty kernel (Xilinx/XRT issue 9018, machine not told). Assumed:
    70 us of that are the NPU's and the kernel's. A token's 149 commands then take 10.4 ms, its weights
    39.6, and 16 ms of the 66 are left for the host.
member
    Assumed: 30 us. Mailbox and interrupt go, the control code and its DMA descriptors stay. No figure for
    this NPU was found.
load
    PDI again instead of going on: 570 us, not 94 (hrx-system issue 807: eight cores, with the firmware's
    copy dropped whenever another context runs): 476 us. Assumed: as much for 32 cores, which is too little.

Left out: other traffic on the memory bus (the host's, too) and DMA that waits for it, clocks that ramp up
and power modes, weights that nobody has touched yet, page-table walks, how fast the firmware takes a
command of another priority, preemption.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amdxdna.emu.kernels import Demand


@dataclass(frozen=True)
class TimingModel:
    """An NPU's speed; the module says what the fields mean and where they come from. Times in seconds."""

    bandwidth: float
    """Bytes a second."""
    rate: float
    """Operations a second."""
    dispatch: float
    member: float
    load: float

    def kernels(self, demands: Iterable[Demand]) -> float:
        """Seconds of kernels that run one after the other, without the command's fixed time."""
        return sum(
            each.seconds + max(each.nbytes / self.bandwidth, each.operations / self.rate) for each in demands
        )


MODELS = {
    "hx370": TimingModel(bandwidth=53.4e9, rate=3.4e12, dispatch=70e-6, member=30e-6, load=476e-6),
}
DEFAULT = "hx370"
