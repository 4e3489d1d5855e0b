"""What a user can set of a dual path."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dualpath.attention.bounds import check_fraction
from dualpath.attention.dispatch import check_threads
from dualpath.errors import UsageError
from dualpath.pool.spec import check_deadline


class Scheme(enum.StrEnum):
    """How a decode step reaches KV that is not local."""

    LOCAL = "local"
    """All KV local, no pool."""
    BASELINE = "baseline"
    """Read when needed, through two intermediate copies, on the connection that carries control messages too."""
    SINGLE = "single"
    """As `BASELINE` without the copies, straight into slots that attention reads: no prefetch, no lane of its own."""
    FETCH = "fetch"
    """Layer blocks prefetched ahead of compute, straight into the slots that attention reads; nodes filled in turn."""
    SHARDED = "sharded"
    """As `FETCH`, with the blocks spread over all nodes and pulled at once."""
    REDUCE = "reduce"
    """Queries go to the nodes, partial attention comes back. Prompts, whose queries are many, use `SHARDED`."""
    MAPPED = "mapped"
    """Nodes on this host: attention reads their arena in place."""
    AUTO = "auto"
    """Some blocks as `SHARDED`, the rest as `REDUCE`, as suits the speeds that steps have shown."""

    @classmethod
    def of(cls, name: str) -> Scheme:
        """Return the scheme called `name`. Raises `UsageError`."""
        try:
            return cls(name)
        except ValueError:
            raise UsageError(f"unknown scheme {name!r}", hint=f"one of {', '.join(cls)}") from None

    @property
    def spreads(self) -> bool:
        """Whether blocks are spread over all nodes."""
        return self in (Scheme.SHARDED, Scheme.REDUCE, Scheme.MAPPED, Scheme.AUTO)

    @property
    def reduces(self) -> bool:
        """Whether nodes attend to blocks that they hold."""
        return self in (Scheme.REDUCE, Scheme.AUTO)

    @property
    def reads_partly(self) -> bool:
        """Whether a step can read the far blocks only that its query needs most."""
        return self in (Scheme.FETCH, Scheme.SHARDED, Scheme.REDUCE)


@dataclass(frozen=True)
class PathConfig:
    """Settings of one `DualPath`.

    | field | meaning |
    |---|---|
    | `scheme` | see `Scheme` |
    | `hot_bytes` | Path A: local memory for recent blocks and open tails; unlimited in scheme `local` |
    | `window_bytes` | Path B: local memory for blocks in flight or waiting, and for the scratch of a prompt chunk |
    | `threads` | threads of the attention kernel; 0 = all cores this process may use |
    | `deadline_s` | longest wait for a block, a partial or a write |
    | `reduce_rows` | schemes `reduce` and `auto`: steps with more query rows than this fetch instead |
    | `ahead` | whether blocks are read before their layer asks; off shows what prefetch gains |
    | `one_lane` | whether blocks ride the lane of everything else, BULK; on shows what lanes gain |
    | `read_fraction` | the share of far blocks that a step of one token reads (`Scheme.reads_partly`); 1: all, exact |
    | `trace` | file to which the prefetcher's decisions are appended (see `path.trace`); empty: none |
    """

    scheme: Scheme = Scheme.SHARDED
    hot_bytes: int = 64 << 20
    window_bytes: int = 64 << 20
    threads: int = 0
    deadline_s: float = 10.0
    reduce_rows: int = 32
    ahead: bool = True
    one_lane: bool = False
    trace: str = ""
    read_fraction: float = 1.0

    def __post_init__(self) -> None:
        """Raise `UsageError` for a value that cannot work."""
        check_deadline(self.deadline_s)
        if min(self.hot_bytes, self.window_bytes, self.reduce_rows) < 0:
            raise UsageError(f"hot_bytes, window_bytes and reduce_rows cannot be negative: {self}")
        check_fraction(self.read_fraction)
        if self.read_fraction < 1.0 and not self.scheme.reads_partly:
            raise UsageError(
                f"scheme {self.scheme.value} reads all far blocks, not a fraction of {self.read_fraction:g}",
                hint=f"partial reads go with scheme {', '.join(scheme for scheme in Scheme if scheme.reads_partly)}",
            )
        if self.read_fraction < 1.0 and self.trace:
            raise UsageError("partial reads prefetch nothing that could be traced", hint="leave out one of the two")
        check_threads(self.threads)
