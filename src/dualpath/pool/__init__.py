"""The pool: processes on other hosts that hold blocks and compute attention on them, and the client that uses them.

    client     connect() → Pool → PoolNode: what `path` uses
    service    a node without sockets: store + arenas + near-data attention
    server     a node as a process: service, data port, Unix socket, management port; local: some on this host
    store      which block is where, who needs it, what may go: pure
    arena      the memory; slab: which slots of it are free
    views      block tables kept at the node; near: attention over them

Nothing here imports PyTorch.
"""

from dualpath.pool.client import Pool, PoolNode, connect

__all__ = ["Pool", "PoolNode", "connect"]
