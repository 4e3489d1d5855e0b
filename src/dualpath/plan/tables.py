"""A plan as tables, and the tables as plain text within 100 columns. Pure: values in, words out.

Memory is in binary units (KiB, MiB, GiB), rates of links in decimal ones (GB/s, Gbit/s).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from dualpath.plan.quantities import gbit_per_s, gbyte_per_s, seconds
from dualpath.plan.result import Plan, Ruling, SchemeRow, Sweep
from dualpath.units import format_bytes

WIDTH = 100
NONE = "-"
_SHORT = {Ruling.WILL_NOT_MEET: "will miss"}

Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A titled table. `left` are the columns of words, the others are numbers; `notes` stand below, a line each."""

    title: str
    columns: Row
    rows: tuple[Row, ...]
    left: tuple[int, ...] = (0,)
    notes: tuple[str, ...] = ()


def heading(plan: Plan) -> str:
    """Return the plan's question in one line."""
    return (
        f"{plan.model}: {plan.context:,} tokens x {plan.concurrency} sequence{'' if plan.concurrency == 1 else 's'}, "
        f"{plan.target_tokens_per_s:g} tokens/s each ({seconds(plan.budget_s)} a token)"
    )


def tables(plan: Plan) -> Iterator[Table]:
    """Yield all tables, the most wanted first."""
    yield _schemes(plan)
    if plan.sweep is not None:
        yield sweep_table(plan.sweep)
    yield _kv(plan)
    yield _memory(plan)
    yield _bandwidth(plan)
    if plan.compression:
        yield _compression(plan)
    yield _costs(plan)
    if plan.prefill_decode is not None:
        yield _ratio(plan)
    made_from = tuple((row.name, row.value, row.origin) for row in plan.inputs)
    yield Table("Made from", ("input", "value", "origin"), made_from, (0, 1, 2))
    yield Table("Taken for granted", (), (), notes=plan.assumptions)


def text(plan: Plan) -> str:
    """Return the whole page as plain text."""
    lines = [heading(plan), ""]
    lines += _wrapped(f"{plan.verdict.ruling.upper()}: {plan.verdict.reason}")
    lines += _wrapped(f"Deployment test: {plan.verdict.deployment_test}")
    for table in tables(plan):
        lines += ["", *as_text(table)]
    return "\n".join(lines)


def as_text(table: Table) -> list[str]:
    """Return one table as lines: title, heading, rows, notes."""
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]

    def line(cells: Row) -> str:
        padded = [
            cell.ljust(width) if index in table.left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"  {'  '.join(padded)}".rstrip()

    head = [line(table.columns)] if any(table.columns) else []
    notes = [row for note in table.notes for row in _wrapped(note, "  " if table.rows else "  - ")]
    return [table.title, *head, *map(line, table.rows), *notes]


def budget_rows(plan: Plan) -> tuple[tuple[str, float], ...]:
    """Return what the target asks of links and what they have, bytes per second: for the table and the plot."""
    asked, has = plan.demand, plan.links
    return (
        ("asked: new KV", asked.new_kv_bytes_per_s),
        ("asked: loading all KV in the latency", asked.load_bytes_per_s),
        ("asked: reading all KV for every token", asked.reread_bytes_per_s),
        ("asked: of that, KV that is not in HBM", asked.remote_reread_bytes_per_s),
        ("there: NICs of this side", has.nic_bytes_per_s),
        ("taken: expert traffic", has.all_to_all_bytes_per_s),
        ("there: PCIe of the GPUs", has.pcie_bytes_per_s),
        ("there: NICs of all nodes", has.all_senders_bytes_per_s),
        ("left: to receive KV", has.receiver_bytes_per_s),
        ("left: from all nodes to this receiver", has.joined_bytes_per_s),
        ("left: from this host's DRAM", has.tier_bytes_per_s),
    )


def sweep_table(sweep: Sweep) -> Table:
    """Return the sweep: TPOT by scheme, a dash where the memory is missing."""
    schemes = tuple(sweep.points[0].tpot_s)
    rows = tuple(
        (
            f"{point.value:,}",
            format_bytes(point.total_kv_bytes),
            *(NONE if time is None else seconds(time) for time in point.tpot_s.values()),
            _SHORT.get(point.ruling, str(point.ruling)),
        )
        for point in sweep.points
    )
    columns = (sweep.name, "KV", *schemes, "verdict")
    return Table(f"Time per token by {sweep.name}", columns, rows, (len(columns) - 1,))


def needs(row: SchemeRow) -> str:
    """Return what a scheme would need to meet the target, in a few words."""
    wanted = ((row.gpus_needed, "GPUs"), (row.nodes_needed, "nodes"), (row.nics_needed, "NICs"))
    return ", ".join(f"{count} {name}" for count, name in wanted if count is not None)


def _schemes(plan: Plan) -> Table:
    rows = tuple(
        (
            str(row.scheme),
            seconds(row.tpot_s) + ("" if row.fits else "*"),
            "yes" if row.meets_target else "no",
            f"{row.tokens_per_s:,.0f}" if row.tokens_per_s >= 10 else f"{row.tokens_per_s:.2g}",
            NONE if row.ttft_s is None else seconds(row.ttft_s),
            seconds(row.resume_s),
            format_bytes(row.wire_bytes_per_step),
            row.bottleneck,
            needs(row),
        )
        for row in plan.schemes
    )
    short = [f"{row.scheme} {format_bytes(row.short_bytes)}" for row in plan.schemes if not row.fits]
    notes = (f"* if there were more memory: {', '.join(short)} short",) if short else ()
    columns = ("scheme", "TPOT", "meets", "tok/s", "TTFT", "resume", "wire/step", "bound by", "needs")
    return Table("Schemes", columns, rows, (0, 7, 8), notes)


def _kv(plan: Plan) -> Table:
    kv = plan.kv
    rows = tuple(
        (
            group.kind,
            str(group.layers),
            f"{group.bytes_per_token_and_layer:,.0f} B",
            f"{group.window_tokens:,}" if group.window_tokens else "all",
            format_bytes(group.held_bytes),
        )
        for group in kv.groups
    )
    state = f", {format_bytes(kv.state_bytes)} of it recurrent state" if kv.state_bytes else ""
    note = (
        f"{format_bytes(kv.bytes_per_token)} by token; {format_bytes(kv.sequence_bytes)} by sequence{state}; "
        f"{format_bytes(kv.total_bytes)} in all; a step reads {format_bytes(kv.read_bytes)}"
    )
    columns = ("attention", "layers", "by token and layer", "tokens kept", "of one sequence")
    return Table(f"KV, stored as {kv.dtype}", columns, rows, notes=(note,))


def _memory(plan: Plan) -> Table:
    found, ahead = plan.memory, plan.window
    rows = (
        ("HBM", found.hbm_bytes),
        ("- weights", found.weight_bytes),
        ("- activations", found.activation_bytes),
        ("- buffers, graphs, fragmentation", found.buffer_bytes),
        ("- prefetch window", found.window_bytes),
        ("KV in HBM (hot)", found.hot_bytes),
        ("KV elsewhere", found.remote_bytes),
        ("  room in this host's DRAM", found.dram_bytes),
        ("  room in the pool", found.pool_bytes),
    )
    notes = () if ahead is None else (
        f"prefetch: lead {seconds(ahead.lead_s)}, window {ahead.blocks:,} layer blocks of "
        f"{format_bytes(ahead.layer_block_bytes)}",
    )  # fmt: skip
    texts = tuple((name, format_bytes(count)) for name, count in rows)
    return Table("HBM, what comes off it, and where KV lies", ("", ""), texts, notes=notes)


def _bandwidth(plan: Plan) -> Table:
    rows = tuple((name, gbyte_per_s(rate), gbit_per_s(rate)) for name, rate in budget_rows(plan))
    return Table("Bandwidth", ("decimal", "bytes", "bits"), rows)


def _compression(plan: Plan) -> Table:
    by_dtype: dict[str, list[str]] = {}
    for cell in plan.compression:
        words = cell.how if cell.tpot_s is None else f"{seconds(cell.tpot_s)} ({cell.how})"
        by_dtype.setdefault(cell.dtype, [format_bytes(cell.total_bytes)]).append(words)
    rows = tuple((dtype, *cells) for dtype, cells in by_dtype.items())
    return Table("Compression x dual path: time per token", ("KV as", "in all", "without", "dual path"), rows)


def _costs(plan: Plan) -> Table:
    rows = tuple(
        (
            row.plan,
            row.made_of,
            NONE if row.tpot_s is None else seconds(row.tpot_s),
            "yes" if row.meets_target else "no",
            NONE if row.usd_per_hour is None else f"{row.usd_per_hour:.2f}",
            f"({row.missing})" if row.usd_per_million_tokens is None else f"{row.usd_per_million_tokens:.2f}",
        )
        for row in plan.costs
    )
    columns = ("plan", "made of", "TPOT", "meets", "USD/hour", "USD/10^6 tokens")
    return Table("Cost", columns, rows, (0, 1), plan.price_notes)


def _ratio(plan: Plan) -> Table:
    bounds = plan.prefill_decode
    assert bounds is not None
    note = "some link is the bottleneck at any ratio"
    if bounds.possible:
        note = f"no link is the bottleneck while {bounds.lowest:.3g} <= P/D <= {bounds.highest:.3g}"
    return Table("Prefill hosts to decode hosts", (), (), notes=(note,))


def _wrapped(words: str, indent: str = "") -> list[str]:
    """Return `words` within the width, later lines two columns further in."""
    return textwrap.wrap(words, WIDTH, initial_indent=indent, subsequent_indent=" " * max(2, len(indent)))
