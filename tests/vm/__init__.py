"""Linux's own driver in QEMU, on the emulated NPU as a PCI function; README.md here says how."""
