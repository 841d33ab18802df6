"""`python -m qwen35 bench`: speed and memory, ours beside other programs' in the same run.

`bench_main(argv)` is the command line; the JSON lines are described in `qwen35.bench.figures`.

Where the time goes (`--profile`), the 2B shape in bfp16 on two cores with AVX-512, the projections on the
emulated NPU; a machine shared with others, so shares say more than milliseconds:

====================  ================  ========================================================
of a token, 512       share             what bounds it
====================  ================  ========================================================
gu                    28 %              680 MB of weights
head                  20 %              572 MB
down                  20 %              340 MB, three K slices in one chain
lin                   15 %              340 MB
o                     8 %               113 MB in 24 runs: the dispatch is a fifth of each
att                   3 %               71 MB
DeltaNet step         3 %               36 MB of state, read and written
attention             1 %               the cache (a sixth at context 8,192)
norms, rest           1 %
====================  ================  ========================================================

====================  ================
of a prompt of 778    share
====================  ================
gu                    39 %
lin, down             20 % each
o                     7 %
DeltaNet, chunked     5 %
att                   4 %
attention             3 %
norms                 1 %
====================  ================
"""

from __future__ import annotations

from qwen35.bench.cli import bench_main

__all__ = ["bench_main"]
