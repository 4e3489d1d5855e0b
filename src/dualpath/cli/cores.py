"""Whether idle threads of a model spin or sleep (OpenMP's wait policy). To be said before torch is loaded.

A decode step is some hundreds of short parallel regions. Threads that spin between them save a third of the step
(SmolLM2 on two cores: 50 instead of 85 ms outside attention); where nodes compute on the same cores they take as much
from those.
"""

from __future__ import annotations

import os


def yield_idle_cores() -> None:
    """Let idle threads sleep: nodes share the cores. What the user has set stands."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def yield_idle_cores_to(pool: str) -> None:
    """Do so if a node of `pool` (as `--pool` names them; empty: none) is on this host."""
    if not pool:
        return
    from dualpath.host.addresses import is_here
    from dualpath.pool.spec import parse

    if any(node.path or is_here(node.host) for node in parse(pool)):
        yield_idle_cores()
