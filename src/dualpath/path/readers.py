"""The reader of each scheme."""

from __future__ import annotations

from dataclasses import replace
from typing import IO, TYPE_CHECKING

from dualpath.path.call_reader import BaselineReader, CallReader
from dualpath.path.config import PathConfig, Scheme
from dualpath.path.prefetch_reader import PrefetchReader
from dualpath.path.reader import MappedReader, Reader
from dualpath.path.window import DECODE, PREFILL
from dualpath.wire.messages import Lane

if TYPE_CHECKING:
    from dualpath.kv.layout import KVLayout
    from dualpath.path.arena import LocalArena
    from dualpath.path.auto import Auto
    from dualpath.path.metrics import PathMetrics
    from dualpath.pool.client import Pool


def make_reader(
    pool: Pool,
    layout: KVLayout,
    config: PathConfig,
    arena: LocalArena,
    metrics: PathMetrics,
    *,
    auto: Auto | None,
    trace: IO[str] | None,
) -> Reader:
    """Return what brings far blocks under `config.scheme`. `auto` watches arrivals; `trace` gets the decisions."""
    if config.scheme is Scheme.BASELINE:
        return BaselineReader(pool, arena, metrics, config.deadline_s)
    if config.scheme is Scheme.SINGLE:
        return CallReader(pool, arena, metrics, config.deadline_s)
    if config.scheme is Scheme.MAPPED:
        return MappedReader(pool, arena)
    policies = (DECODE, PREFILL)
    if config.one_lane:
        policies = (replace(DECODE, lane=Lane.BULK), replace(PREFILL, lane=Lane.BULK))
    reader = PrefetchReader(
        pool, arena, layout, metrics, config.deadline_s, policies=policies, ahead=config.ahead, trace=trace
    )
    if auto is not None:
        reader.flights.watch, reader.at_once = auto.watch, auto.probes_rails
    return reader
