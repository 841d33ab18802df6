"""The vision tower: patches in, rows of the text model's width out, its linears on the NPU.

`tower` is the whole, `lanes` the order of its work; `host` holds LayerNorm, attention and GELU, `positions`
the table and the rotation.
"""
