"""Registers with which a design is watched: timers, trace, performance counters, events, debugging, ECC.

Offsets from aie-rt (driver/src/global: xaiemlgbl_params.h of NPU1 and xaie2pgbl_params.h of NPU2, which
agree in all of these). Names are those files', without the module where a tile has one module only.
"""

from __future__ import annotations

_TRACE = {
    0x00: "Timer_Control",
    0x08: "Event_Generate",
    0xD0: "Trace_Control0",
    0xD4: "Trace_Control1",
    0xD8: "Trace_Status",
    0xE0: "Trace_Event0",
    0xE4: "Trace_Event1",
    0xF0: "Timer_Trig_Event_Low_Value",
    0xF4: "Timer_Trig_Event_High_Value",
    0xF8: "Timer_Low",
    0xFC: "Timer_High",
    0x400: "Combo_Event_Inputs",
    0x404: "Combo_Event_Control",
    0x408: "Edge_Detection_Event_Control",
}
"""By offset from an event module's timer."""


def _events(
    base: int, prefix: str, groups: tuple[str, ...], statuses: int = 4, watchpoints: int = 0
) -> dict[int, str]:
    """One event module: `groups` of events that can be enabled, words of status, watchpoints."""
    named = {base + at: name for at, name in _TRACE.items()}
    named |= {base + 0x100 + 4 * n: f"WatchPoint{n}" for n in range(watchpoints)}
    named |= {base + 0x200 + 4 * n: f"Event_Status{n}" for n in range(statuses)}
    named |= {base + 0x500 + 4 * n: f"Event_Group_{name}_Enable" for n, name in enumerate(groups)}
    return {at: prefix + name for at, name in named.items()}


def _counters(base: int, count: int, controls: dict[int, str], prefix: str = "") -> dict[int, str]:
    """`count` performance counters; `controls`: what selects their events, by offset."""
    named = {base + at: name for at, name in controls.items()}
    named |= {base + 0x20 + 4 * n: f"Performance_Counter{n}" for n in range(count)}
    named |= {base + 0x80 + 4 * n: f"Performance_Counter{n}_Event_Value" for n in range(count)}
    return {at: prefix + name for at, name in named.items()}


def _controls(*offsets: int, name: str = "Performance_Control") -> dict[int, str]:
    return {at: f"{name}{n}" for n, at in enumerate(offsets)}


_PORTS = {0xF00: "Stream_Switch_Event_Port_Selection_0", 0xF04: "Stream_Switch_Event_Port_Selection_1"}

COMPUTE = {
    **_events(
        0x34000,
        "Core_",
        (
            "0",
            "PC",
            "Core_Stall",
            "Core_Program_Flow",
            "Errors0",
            "Errors1",
            "Stream_Switch",
            "Broadcast",
            "User_Event",
        ),
    ),
    **_events(
        0x14000,
        "Memory_",
        ("0", "Watchpoint", "DMA", "Lock", "Memory_Conflict", "Error", "Broadcast", "User_Event"),
        watchpoints=2,
    ),
    **_counters(0x31500, 4, _controls(0x00, 0x04, 0x08), "Core_"),
    **_counters(0x11000, 2, _controls(0x00, 0x08), "Memory_"),
    0x32008: "Enable_Events",
    0x32010: "Debug_Control0",
    0x32014: "Debug_Control1",
    0x32018: "Debug_Control2",
    0x3201C: "Debug_Status",
    **{0x32020 + 4 * n: f"PC_Event{n}" for n in range(4)},
    0x32100: "Core_ECC_Control",
    0x32110: "Core_ECC_Scrubbing_Event",
    0x32120: "Core_ECC_Failing_Address",
    0x12110: "Memory_ECC_Scrubbing_Event",
    0x12120: "Memory_ECC_Failing_Address",
    0x36040: "CSSD_Trigger",
    0x36070: "Core_Memory_Control",
    0x16010: "Memory_Control",
    **{0x3F000 + at: name for at, name in _PORTS.items()},
}
MEMORY = {
    **_events(
        0x94000,
        "",
        (
            "0",
            "Watchpoint",
            "DMA",
            "Lock",
            "Stream_Switch",
            "Memory_Conflict",
            "Error",
            "Broadcast",
            "User_Event",
        ),
        statuses=6,
        watchpoints=4,
    ),
    **_counters(0x91000, 4, _controls(0x00, 0x04, 0x08)),
    0x92110: "ECC_Scrubbing_Event",
    0x92120: "ECC_Failing_Address",
    0x96048: "Memory_Control",
    0x96040: "CSSD_Trigger",
    0xA06A0: "DMA_Event_Channel_Selection",
    **{0xB0000 + at: name for at, name in _PORTS.items()},
}
SHIM = {
    **_events(0x34000, "", ("0", "DMA_Activity", "Lock", "Errors", "Stream_Switch", "Broadcast_A")),
    **_counters(0x31000, 2, _controls(0x00, 0x08, name="Performance_Ctrl")),
    0xFFF24: "CSSD_Trigger",
    **{0x3F000 + at: name for at, name in _PORTS.items()},
}
