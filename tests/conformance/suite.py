"""Every module of the suite; importing this registers all cases."""

from __future__ import annotations

import importlib
from pathlib import Path

MODULES = tuple(
    sorted(
        path.stem
        for path in Path(__file__).parent.glob("*.py")
        if path.stem not in ("__init__", "columns", "kit", "suite")
    )
)

for _name in MODULES:
    importlib.import_module(f"{__package__}.{_name}")
