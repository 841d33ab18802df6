"""How the NPU model names itself, so that its kernels are never given to real firmware.

The emulator's xclbins hold a marker where a compiled one holds a device image. Whoever loads them asks the
device for its firmware version first: only the model answers with this build number.
"""

from __future__ import annotations

from amdxdna.device_info import EMULATED_BUILD

NODE_FILE = "amdxdna-node"
"""Name of the memfd that stands for the node in a program under `emulate`: its descriptors lead there. No
other file of the emulator's is called so."""

FIRMWARE_VERSION = (1, 1, 2, EMULATED_BUILD)
"""Major, minor, patch, build."""
