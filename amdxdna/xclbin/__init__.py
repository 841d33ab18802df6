"""xclbin (AXLF) files: :class:`Xclbin` reads them, :mod:`amdxdna.xclbin.writer` makes them."""

from amdxdna.xclbin.reader import CdoGroup, Cu, Partition, Pdi, Section, Xclbin, read_any

__all__ = ["CdoGroup", "Cu", "Partition", "Pdi", "Section", "Xclbin", "read_any"]
