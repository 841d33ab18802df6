"""`python -m qwen35 bench`: speed and memory, ours beside other programs' in the same run.

`bench_main(argv)` is the command line; the JSON lines are described in `qwen35.bench.figures`.

Where the time goes (`--profile`), the 2B shape in bfp16 on two cores with AVX-512, the projections on the
emulated NPU, 56 ms a token at 60 GB/s of memory bandwidth; a machine shared with others, so shares say more
than milliseconds. A dispatch costs 35 us where nothing else is in the caches and about 65 between two GEMVs
that stream their weights through them; meanwhile the idle core brings the next weights nearer.

====================  ================  ========================================================
of a token, 512       share             what bounds it
====================  ================  ========================================================
gu                    26 %              680 MB of weights
down                  22 %              340 MB, three K slices in one chain
head                  20 %              572 MB
lin                   14 %              340 MB
o                     8 %               113 MB in 24 runs: the dispatch is a third of each
att                   3 %               71 MB
DeltaNet step         3 %               36 MB of state, read and written
attention             1 %               the cache (a sixth at context 8,192)
norms, rest           2 %
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
