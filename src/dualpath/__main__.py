"""`python -m dualpath` is the `dualpath` command."""

from __future__ import annotations

import sys

from dualpath.cli import main

if __name__ == "__main__":
    sys.exit(main())
