"""The nodes that stand for other hosts: started here as child processes, or named by the user."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dualpath.bench.settings import MAPPED, ONE_RAIL, ExperimentConfig
from dualpath.transport.rails import MAX_RAILS


@dataclass(frozen=True)
class Nodes:
    """Where to connect: nodes that stand for other hosts, and nodes on this host whose memory is mapped."""

    spec: str
    mapped_spec: str
    key: str | bytes | None
    deadline_s: float
    nics: tuple[str, ...] = ()
    max_rails: int = MAX_RAILS

    def connector(self, scheme: str) -> Callable[[], Any]:
        """Return what opens a connection for `scheme`: TCP even on one machine, except `mapped`.

        Each scheme is a tenant of its own, so that no two share blocks.
        """
        from dualpath.pool.client import connect

        spec = self.mapped_spec if scheme == MAPPED else self.spec
        tenant = f"run-{os.getpid()}-{scheme}"
        rails = 1 if scheme in ONE_RAIL else self.max_rails
        return lambda: connect(
            spec, key=self.key, tenant=tenant, timeout_s=self.deadline_s, nics=self.nics, max_rails=rails
        )


def require_nodes(spec: str, *, key: str | bytes | None, deadline_s: float, nics: tuple[str, ...] = ()) -> None:
    """Raise what `connect` does for nodes that cannot be used, before a model is loaded; an empty `spec` names none."""
    if spec:
        from dualpath.pool.client import connect

        connect(spec, key=key, timeout_s=deadline_s, nics=nics).close()


@contextlib.contextmanager
def open_nodes(config: ExperimentConfig, capacity_bytes: int) -> Iterator[Nodes]:
    """Start the nodes, or use those of `config.pool`. Nodes that were started are stopped on leaving."""
    if config.pool:
        yield Nodes(config.pool, config.pool, config.key, config.deadline_s, config.nics, config.max_rails)
        return
    from dualpath.pool.local import LocalNodes

    rows = config.rows()
    with contextlib.ExitStack() as stack:
        threads = max(1, (os.cpu_count() or 1) // config.nodes)  # they share this machine's cores
        far = LocalNodes(config.nodes, capacity=capacity_bytes, threads=threads, sockets=False)
        far = stack.enter_context(far)
        mapped = ""
        if MAPPED in rows:
            near = LocalNodes(config.nodes, capacity=capacity_bytes, threads=threads)
            mapped = stack.enter_context(near).mapped_spec
        yield Nodes(far.spec, mapped, far.key, config.deadline_s)
