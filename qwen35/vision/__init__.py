"""The vision tower: patches in, rows of the text model's width out, its linears on the NPU."""
