"""The AI engine array of NPU1 and NPU2: names of registers and memories, and the ports of stream switches.

Instruction streams (amdxdna.insts) and PDIs (amdxdna.pdi) write to what is named here. Facts from aie-rt's
public register tables.
"""
