"""How the NPU model names itself, so that its kernels are never given to real firmware.

The emulator's xclbins hold a marker where a compiled one holds a device image. Whoever loads them asks the
device for its firmware version first: only the model answers with this build number, in process and behind
Linux's own driver alike. Released NPU firmware has had builds of at most four digits (AMD's linux-firmware
file names, amdnpu/17f0_*/npu.sbin.MAJOR.MINOR.PATCH.BUILD).
"""

from __future__ import annotations

NODE_FILE = "amdxdna-node"
"""Name of the memfd that stands for the node in a program under `emulate`: its descriptors lead there. No
other file of the emulator's is called so."""

FIRMWARE_BUILD = 58_597
"""0xE4E5."""

FIRMWARE_VERSION = (1, 1, 2, FIRMWARE_BUILD)
"""Major, minor, patch, build."""
