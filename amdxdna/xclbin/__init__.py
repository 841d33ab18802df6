"""xclbin (AXLF) files: :class:`Xclbin` reads them, :mod:`amdxdna.xclbin.writer` makes them.

`layout` has the file's structs, `reader` refuses what does not fit them (BadXclbin), `metadata` reads the
sections that describe a kernel (XML) and its memory.
"""

from amdxdna.xclbin.reader import CdoGroup, Cu, Partition, Pdi, Section, Xclbin, read_any

__all__ = ["CdoGroup", "Cu", "Partition", "Pdi", "Section", "Xclbin", "read_any"]
