"""`python -m qwen35`."""

from __future__ import annotations

import sys

from qwen35.cli import main

if __name__ == "__main__":
    sys.exit(main())
