"""The text model: weights, layers, state, and its projections on the NPU.

`text` is the whole; `prompt` runs a prompt and `step` a token over `layers` (attention, DeltaNet, RoPE);
`npu` dispatches projections; `cache` holds what a conversation leaves; `trial` proves the fast ways at load.
"""
