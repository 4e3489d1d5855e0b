"""Partial attention over blocks, and merging it: contract in `base`, theory in docs/concepts/online-softmax.md.

state = State.empty(rows, query_heads, value_dim)
attend(state, q, row_position, blocks, geometry, scale=…)   # as often as there are blocks to come, in token order
fold(state, partial)                                        # or partials from elsewhere, in token order
out, lse = finish(state, sinks)
"""

from dualpath.attention.base import BlockTable, Geometry, Partial, State
from dualpath.attention.copying import copy_blocks
from dualpath.attention.dispatch import attend, explain_blocks, get_threads, partial, set_threads
from dualpath.attention.encoding import encode_block
from dualpath.attention.kernels import kernel_name
from dualpath.attention.partials import combine, finish, fold, join, merge

__all__ = [
    "BlockTable",
    "Geometry",
    "Partial",
    "State",
    "attend",
    "combine",
    "copy_blocks",
    "encode_block",
    "explain_blocks",
    "finish",
    "fold",
    "get_threads",
    "join",
    "kernel_name",
    "merge",
    "partial",
    "set_threads",
]
