"""`python -m qwen35`."""

from __future__ import annotations

import sys

try:
    from qwen35.cli import main
except KeyboardInterrupt:  # the command line is not there yet to tell it
    if sys.stderr is not None:
        sys.stderr.write("qwen35: stopped\n")
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
