"""`python -m qwen35 accept BUNDLE`: the acceptance run, for whoever first has an NPU under this program.

Item by item it tries what the program relies on, on the bundle's own kernels and weights, and ends in a
verdict for each and the options to use. `Acceptance` makes the items, `report` tells them.
"""

from __future__ import annotations

from qwen35.accept.cli import accept_main
from qwen35.accept.item import Item, Verdict
from qwen35.accept.run import Acceptance

__all__ = ["Acceptance", "Item", "Verdict", "accept_main"]
