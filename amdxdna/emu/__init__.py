"""The emulated NPU2: a device in this process that behaves as Linux's amdxdna driver over a Strix NPU does.

``amdxdna.open_node("emu:key=value,...")`` opens it; :mod:`amdxdna.emu.options` lists the options. From the
bottom: :mod:`~amdxdna.emu.kernels` computes, :mod:`~amdxdna.emu.npu` is the NPU as its firmware presents it,
:mod:`~amdxdna.emu.driver` the kernel driver, :mod:`~amdxdna.emu.node` the node in this process, and
``amdxdna.emu.pci`` (the NPU as a PCI function for a virtual machine) and ``amdxdna.emu.seccomp``
(`emulate --`, under programs of any language) are further front ends. ``personality`` and ``faults`` are what
options change.
"""
