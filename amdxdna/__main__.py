"""`python -m amdxdna`."""

from __future__ import annotations

import sys

from amdxdna.cli import main

if __name__ == "__main__":
    sys.exit(main())
