"""What a dual path counts of itself. Plain numbers that only grow, so that a caller can take differences."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass
class PathMetrics:
    """Counters of one `DualPath` (seconds, bytes).

    `stall_s`: compute waited for KV or partials. `attend_s`: time inside `Step.attend`, stalls included.
    `fetched_bytes`: KV received; `wasted_bytes`: of those, never used. `written_bytes`: KV sent to nodes.
    `peak_local_bytes`: the most KV held locally at once, hot and window together. `local_s`: time in the kernel, over
    `local_bytes` of KV in local slots. `bypassed_steps`: all KV was local, so that Path B had no part in them.
    `far_blocks`: layer blocks that nodes were to attend to, or to choose from; `far_blocks_read`: of those, read.
    """

    steps: int = 0
    stall_s: float = 0.0
    attend_s: float = 0.0
    fetched_bytes: int = 0
    wasted_bytes: int = 0
    written_bytes: int = 0
    peak_local_bytes: int = 0
    local_s: float = 0.0
    local_bytes: int = 0
    bypassed_steps: int = 0
    far_blocks: int = 0
    far_blocks_read: int = 0

    def snapshot(self) -> PathMetrics:
        """Return a copy."""
        return replace(self)
