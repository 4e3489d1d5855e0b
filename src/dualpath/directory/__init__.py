"""The directory: who is alive, who holds which block, who owns which sequence and how far it is published.

base      the contract that clients use
state     the state machine behind every backend: pure, time is an argument
memory    the embedded backend: the state machine, a lock and a clock
"""

from dualpath.directory.base import Directory, Location, NodeInfo, SequenceInfo, StaleOwnerError, Watch
from dualpath.directory.memory import MemoryDirectory

__all__ = ["Directory", "Location", "MemoryDirectory", "NodeInfo", "SequenceInfo", "StaleOwnerError", "Watch"]
