"""The dual path: sequences whose hot KV is local and whose sealed blocks live in a pool.

`DualPath` keeps the sequences; `DualPath.begin` opens a `Step` over packed new tokens of one or more of them. Nobody
above this room knows where a block lives.
"""

from dualpath.path.config import PathConfig, Scheme
from dualpath.path.dualpath import DualPath
from dualpath.path.metrics import PathMetrics
from dualpath.path.sequences import SequenceId
from dualpath.path.step import Step

__all__ = ["DualPath", "PathConfig", "PathMetrics", "Scheme", "SequenceId", "Step"]
