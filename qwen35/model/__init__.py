"""The text model: weights, layers, state, and its projections on the NPU.

`text` is the whole; `prefill` runs a prompt and `decode` a token over `layers` (attention, DeltaNet, RoPE);
`projections` has the kernels, and `dispatch` sends groups of their runs to the device; `cache` holds the
state; `probe` proves the fast ways at load.
"""
