"""The emulated NPU2: the driver's behaviour, the NPU, its kernels, the PCI function, `amdxdna emulate`."""
