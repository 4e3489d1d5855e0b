"""Run a node from a `NodeConfig` in JSON: `python -m dualpath.pool '{"capacity": 1073741824}'`.

For programs that start nodes; people use `dualpath pool`. The key, if any, is in the environment (DUALPATH_KEY).
"""

import logging
import os
import sys

import msgspec

from dualpath.errors import DualPathError
from dualpath.pool.server import NodeConfig, serve

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    key = os.environb.get(b"DUALPATH_KEY", b"").strip()
    try:
        serve(msgspec.json.decode(sys.argv[1], type=NodeConfig), key=key or None)
    except DualPathError as error:
        sys.exit(f"error: {error}\nhint: {error.hint}")
