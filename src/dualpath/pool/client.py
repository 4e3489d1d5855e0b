"""The pool client: typed access to the nodes of a pool. Knows the protocol, not where blocks are (see `directory`).

    with connect("tcp://127.0.0.1:7700,tcp://127.0.0.1:7701", key=key) as pool:
        node = pool.nodes[0]
        refs = node.prepare([PrepareItem(key, layers, slot_bytes, tokens)])[0]
        if refs:                                     # empty: somebody has already sealed this block there
            node.write(refs, sources, slot_bytes)
            node.commit([key])

What holds when something fails is in `node`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dualpath.errors import DeadlineError, DualPathError, UnreachableError, UsageError
from dualpath.kv.ids import BlockId
from dualpath.pool.node import NodePartials, PendingAttend, PendingRank, PoolNode
from dualpath.pool.spec import Address, check_deadline, dial, parse
from dualpath.transport.base import TransferCounters
from dualpath.transport.rails import MAX_RAILS

__all__ = ["NodePartials", "PendingAttend", "PendingRank", "Pool", "PoolNode", "connect"]


class Pool:
    """The nodes of a pool as `tenant` sees them, in the order of the spec. Closes them all when left.

    Several paths may share one, on one thread: to its nodes they are one owner, whose requests have one order.
    """

    def __init__(self, nodes: Sequence[PoolNode], tenant: str = "default") -> None:
        self.nodes = tuple(nodes)
        self.tenant = tenant
        self.kept: Counter[tuple[int, BlockId]] = Counter()
        """How many sequences and forks, of all paths over this pool, own a block at node number `[0]`: a node knows
        them as one owner, which pins a block or does not."""
        self.wanted: Counter[tuple[int, BlockId]] = Counter()
        """How many steps, of all paths over this pool, have been given a block's slots and will seal it."""
        self.owed: dict[tuple[int, BlockId], set[int]] = {}
        """The layer groups of blocks that no path over this pool needs any more, until their nodes are told."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> PoolNode:
        return self.nodes[index]

    @property
    def counters(self) -> TransferCounters:
        """Bytes moved so far, over all nodes."""
        total = TransferCounters()
        for node in self.nodes:
            one = node.counters
            total.tx_bytes += one.tx_bytes
            total.rx_bytes += one.rx_bytes
            total.requests += one.requests
        return total

    def close(self) -> None:
        """Close all connections. Idempotent."""
        for node in self.nodes:
            with contextlib.suppress(DualPathError):
                node.close()


def connect(
    spec: str,
    *,
    key: str | bytes | None = None,
    tenant: str = "default",
    timeout_s: float = 10.0,
    nics: Sequence[str] = (),
    max_rails: int = MAX_RAILS,
) -> Pool:
    """Connect to every node of `spec` at once: `tcp://host:port,...`, `host:port,...` or `mapped:/path.sock,...`.

    `timeout_s` bounds connecting, and is the default deadline of each request. A node that listens at several NICs is
    reached over all of them; `nics` names the NICs of this host that may be used (default: all that lead there), and
    `max_rails` bounds how many pairs of NICs are used for a node. Raises `UsageError` for a bad spec,
    `UnreachableError` for a node that is not there, `AuthError` for a wrong key; nothing is left open then.
    """
    check_deadline(timeout_s)
    _check_nics(nics)
    addresses = parse(spec)
    nodes = [
        PoolNode(
            dial(address, key=key, tenant=tenant, nics=nics, max_rails=max_rails), str(address), timeout_s=timeout_s
        )
        for address in addresses
    ]
    pool = Pool(nodes, tenant)
    with ThreadPoolExecutor(len(nodes), thread_name_prefix="dualpath-connect") as threads:
        problems = list(threads.map(_greet, nodes, addresses))
    for problem in problems:
        if problem is not None:
            pool.close()
            raise problem
    return pool


def _check_nics(nics: Sequence[str]) -> None:
    """Raise `UsageError` for a NIC that this host does not have, rather than use another one."""
    if nics:
        from dualpath.host.addresses import local_addresses

        known = {one.nic for one in local_addresses()}
        unknown = [nic for nic in nics if nic not in known]
        if unknown:
            hint = f"these are: {', '.join(sorted(known))}"
            raise UsageError(f"no NIC called {unknown[0]} is up and has an address here", hint=hint)


def _greet(node: PoolNode, address: Address) -> DualPathError | None:
    """Return why `node` cannot be used, if it cannot."""
    try:
        node.ping()
    except (UnreachableError, DeadlineError) as error:
        hint = f"is it running, and is the address right? start one with: {address.start_command}"
        reason = str(error).removeprefix(f"{error.node}: ")
        return UnreachableError(f"no pool node at {address}: {reason}", node=str(address), hint=hint)
    except DualPathError as error:
        return error
    return None
