"""What the rows of the raw bench mean, in words: symptom, then where to look. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dualpath.host.lanes import LANES
from dualpath.host.raw import RawBeside, RawRow
from dualpath.transport.credit import QUEUE_S
from dualpath.units import format_bits_per_s, format_bytes

DATA_LANES = ("prefetch", "bulk")
LOOPBACK = "lo"
LEAST_OF_NOMINAL = 0.5
"""A peak below this share of nominal is not the software's doing: look below it first."""
FALLEN_SHARE = 0.5
"""Large blocks that get less than this share of what smaller ones got."""
LARGE = 4
"""Large blocks are so many times the size of the fastest ones, or more."""
UNEQUAL_SHARE = 0.5
"""A rail below this share of the best one, each held against its own nominal speed where both are known."""
ADDED_SHARE = 0.8
"""All rails together bring at least this share of the sum of each alone."""
JITTER = 2.0
"""Beside a full prefetch, real-time P99 is at most this many times its idle P99, or `QUEUE_S` more: so much the
transport lets a prefetch queue (`transport.credit`)."""
COUNT_TOLERANCE = 0.01
"""The two ends count payload only, so they agree; this much may be somebody else's."""
FRAMING_SHARE = 0.2
"""Ethernet, IP, TCP and the protocol's own heads add up to 5 % at MTU 1500; a retransmission here and there is no
matter. More than this is foreign traffic."""
_FRAMING_BYTES = 256 << 10


def findings(
    rows: Sequence[RawRow], together: Sequence[RawRow] = (), beside: Sequence[RawBeside] = (), *, gpus: int = 0
) -> tuple[str, ...]:
    """Return what is wrong, the most basic first; nothing if all is well.

    Loopback is no NIC: it has memory's rates, which vary with what else the machine does, and is only checked for
    counts that differ.
    """
    wired = [row for row in rows if row.local_rail != LOOPBACK]
    return (
        *_doubts([*rows, *together]),
        *_under_half(wired),
        *_large_is_slow(wired),
        *_unequal(wired),
        *(_not_added(wired, together) if len(wired) == len(rows) else ()),
        *_jitter([one for one in beside if one.local_rail != LOOPBACK]),
        *_staged(gpus),
    )


def doubt(*, sent: int, received: int, interface_bytes: int | None, direction: str) -> str:
    """Return why counts do not belong together; empty if they do.

    `sent` and `received` are payload at the two ends; `interface_bytes` is what the local NIC counted meanwhile.
    """
    here, there = (received, sent) if direction == "read" else (sent, received)
    if abs(sent - received) > COUNT_TOLERANCE * max(sent, received):
        more, less = "others use the node too, or requests were made twice", "the node does not know of all of it"
        why = more if there > here else less
        return f"{sent} bytes sent, {received} received: {why}"
    if interface_bytes is None:
        return ""
    if interface_bytes < here:
        return f"the NIC counted {interface_bytes} of {here} bytes: the others took another way"
    if interface_bytes > here * (1 + FRAMING_SHARE) + _FRAMING_BYTES:
        return f"the NIC counted {interface_bytes} bytes for {here} of payload: other traffic shares it"
    return ""


def best_of(rows: Sequence[RawRow]) -> dict[tuple[str, str], RawRow]:
    """Return the fastest row of each pair of rails, of the lanes that carry data."""
    best: dict[tuple[str, str], RawRow] = {}
    for row in rows:
        pair = (row.local_rail, row.remote_rail)
        if row.lane in DATA_LANES and (pair not in best or row.bits_per_s > best[pair].bits_per_s):
            best[pair] = row
    return best


def _doubts(rows: Sequence[RawRow]) -> Iterator[str]:
    doubted = [row for row in rows if row.doubt]
    if doubted:
        row = doubted[0]
        yield (
            f"{len(doubted)} of {len(rows)} rows are not to be relied on; {_name(row)}, {row.lane} {row.direction}s of "
            f"{format_bytes(row.block_bytes)}: {row.doubt}. Measure on a quiet node and quiet NICs"
            + (f"; see `ip route get {_host(row)}`" if "another way" in row.doubt else "")
        )


def _under_half(rows: Sequence[RawRow]) -> Iterator[str]:
    for row in best_of(rows).values():
        nominal = row.nominal_bits_per_s
        if nominal and row.bits_per_s < LEAST_OF_NOMINAL * nominal:
            yield (
                f"{_name(row)}: {format_bits_per_s(row.bits_per_s)} at best, {row.bits_per_s / nominal:.0%} of nominal "
                f"{format_bits_per_s(nominal)}. Look at the NIC's PCIe link (LnkSta against LnkCap in `lspci -vv`) and "
                "its NUMA node first; `dualpath doctor` does. Over TCP one core can be the limit too"
            )


def _large_is_slow(rows: Sequence[RawRow]) -> Iterator[str]:
    series: dict[tuple[str, str, str], dict[int, RawRow]] = {}
    for row in rows:
        if row.lane in DATA_LANES:  # what ails a path ails every lane: of each size the best lane counts
            sizes = series.setdefault((row.local_rail, row.remote_rail, row.direction), {})
            known = sizes.get(row.block_bytes)
            if known is None or row.bits_per_s > known.bits_per_s:
                sizes[row.block_bytes] = row
    for sizes in series.values():
        best = max(sizes.values(), key=lambda row: row.bits_per_s)
        largest = sizes[max(sizes)]
        if largest.block_bytes >= LARGE * best.block_bytes and largest.bits_per_s < FALLEN_SHARE * best.bits_per_s:
            yield (
                f"{_name(best)}, {best.direction}s: {format_bits_per_s(best.bits_per_s)} with "
                f"{format_bytes(best.block_bytes)}, but {format_bits_per_s(largest.bits_per_s)} with "
                f"{format_bytes(largest.block_bytes)}. Small fine and large slow: MTU along the path "
                f"(`ping -M do -s 8972 {_host(best)}`), switch buffers and drops, socket buffers; with RoCE also PFC "
                "and the GID index at both ends"
            )


def _unequal(rows: Sequence[RawRow]) -> Iterator[str]:
    best = list(best_of(rows).values())
    by_nominal = all(row.nominal_bits_per_s for row in best)

    def worth(row: RawRow) -> float:
        return row.bits_per_s / (row.nominal_bits_per_s or 1) if by_nominal else row.bits_per_s

    fastest = max(best, key=worth, default=None)
    for row in best:
        if fastest is not None and worth(row) < UNEQUAL_SHARE * worth(fastest):
            yield (
                f"rails are unequal: {_name(row)} gives {format_bits_per_s(row.bits_per_s)}, "
                f"{_name(fastest)} {format_bits_per_s(fastest.bits_per_s)}. Compare their link speed, PCIe slot, NUMA "
                "node, MTU and cable"
            )


def _not_added(rows: Sequence[RawRow], together: Sequence[RawRow]) -> Iterator[str]:
    by_nic: dict[str, float] = {}
    for row in best_of(rows).values():  # two rails over one NIC share what it can do
        by_nic[row.local_rail] = max(by_nic.get(row.local_rail, 0.0), row.bits_per_s)
    best = max((row for row in together if row.lane in DATA_LANES), key=lambda row: row.bits_per_s, default=None)
    if best is None:
        return
    alone = sum(by_nic.values())
    if best.bits_per_s < ADDED_SHARE * alone:
        yield (
            f"all rails together: {format_bits_per_s(best.bits_per_s)}, {best.bits_per_s / alone:.0%} of "
            f"{format_bits_per_s(alone)}, the sum of each alone. They share something: a switch uplink, a PCIe root "
            "port, or this host's or the node's cores"
        )
    for rail, count in (best.rail_bytes or {}).items():
        if not count:
            yield f"{rail} brought nothing while all rails worked: is it down, or cut off in the middle?"


def _jitter(beside: Sequence[RawBeside]) -> Iterator[str]:
    marks = ", ".join(str(lane.dscp) for lane in LANES.values())
    for one in beside:
        if one.beside_p99_s <= max(JITTER * one.idle_p99_s, one.idle_p99_s + QUEUE_S):
            continue
        if one.beside_p50_s > max(JITTER * one.idle_p50_s, one.idle_p50_s + QUEUE_S / 2):
            why = (
                f"Most calls wait, so they queue behind the prefetch: does the fabric keep the lanes' DSCPs ({marks}) "
                "apart, in priorities with queues of their own?"
            )
        else:
            why = (
                f"Most calls do not wait (P50 {_time(one.beside_p50_s)}), so it is not the network's queue: look for "
                "busy cores and unpinned interrupts at both ends"
            )
        yield (
            f"{one.local_rail} → {one.remote_rail}: real-time P99 is {_time(one.beside_p99_s)} beside a full prefetch, "
            f"{_time(one.idle_p99_s)} idle. {why}"
        )


def _staged(count: int) -> Iterator[str]:
    if count:
        yield (
            f"{count} GPU{'s' if count > 1 else ''} here, and TCP stages their data through host memory: these rates "
            "are its. Measure GPU memory with `ib_write_bw --use_cuda=0` (perftest), and use an RDMA transport"
        )


def _name(row: RawRow) -> str:
    return f"{row.local_rail} → {row.remote_rail}"


def _host(row: RawRow) -> str:
    return row.remote_rail.partition("+")[0].rpartition(":")[0].strip("[]")


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
