"""Real pool nodes as child processes: see `dualpath.pool.local`, where the experiments find them too."""

from dualpath.pool.local import LocalNode, LocalNodes

__all__ = ["LocalNode", "LocalNodes"]
