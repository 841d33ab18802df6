"""The emulated NPU as a PCI function: what Linux's own amdxdna driver probes and uses in a virtual machine.

A vfio-user server (:mod:`.vfio_user`) hands QEMU an NPU2 function (:mod:`.function`) whose firmware
(:mod:`.firmware`) is the NPU model the in-process emulated device uses too.
"""
