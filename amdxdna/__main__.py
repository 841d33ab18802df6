"""`python -m amdxdna`."""

from __future__ import annotations

import sys

try:
    from amdxdna.cli import main
except KeyboardInterrupt:  # the command line is not there yet to tell it
    if sys.stderr is not None:
        sys.stderr.write("amdxdna: stopped\n")
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
