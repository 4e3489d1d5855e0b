"""A plan as tables, and the tables as plain text for terminals and files. Pure: values in, words out.

Memory is in binary units (KiB, MiB, GiB), rates of links in decimal ones (GB/s, Gbit/s).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from dualpath.plan.quantities import plural, seconds
from dualpath.plan.result import Plan, Ruling, SchemeRow, Sweep
from dualpath.units import format_bits_per_s, format_bytes, format_bytes_per_s

WIDTH = 100
"""Columns that sentences fill; rows may be longer."""
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
        f"{plan.model}: {plural(plan.context, 'token')} x {plural(plan.concurrency, 'sequence')}, "
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
    yield Table("Made from", ("input", "value", "origin"), made_from, (0, 1, 2), (f"model: {plan.model_source}",))
    yield Table("Taken for granted", (), (), notes=plan.assumptions)


def text(plan: Plan, *, columns: int | None = None) -> str:
    """Return the whole page as plain text. `columns` are those of the terminal; `None`: there is none."""
    width = _prose_width(columns)
    lines = [*_wrapped(heading(plan), width), ""]
    lines += _wrapped(f"{plan.verdict.ruling.upper()}: {plan.verdict.reason}", width)
    lines += _wrapped(f"Deployment test: {plan.verdict.deployment_test}", width)
    for table in tables(plan):
        lines += ["", *as_text(table, columns=columns)]
    return "\n".join(lines)


def as_text(table: Table, *, columns: int | None = None) -> list[str]:
    """Return one table as lines: title, heading, rows, notes. Rows too long for a terminal are set as lists."""
    width, rows = _prose_width(columns), _grid(table)
    if columns is not None and any(len(row) > columns for row in rows):
        rows = _lists(table, width)
    notes = [line for note in table.notes for line in _wrapped(note, width, "  " if table.rows else "  - ")]
    return [table.title, *rows, *notes]


def _grid(table: Table) -> list[str]:
    """Return heading and rows with their cells under each other."""
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]

    def line(cells: Row) -> str:
        padded = [
            cell.ljust(width) if index in table.left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"  {'  '.join(padded)}".rstrip()

    head = [line(table.columns)] if any(table.columns) else []
    return [*head, *map(line, table.rows)]


def _lists(table: Table, width: int) -> list[str]:
    """Return every row as its first cell and below it the others, a line each with the column's name."""
    name_width = max(map(len, table.columns[1:]))
    lines = []
    for first, *others in table.rows:
        lines += _wrapped(first.strip(), width, "  ")
        for name, cell in zip(table.columns[1:], others, strict=True):
            lines += _wrapped(f"{name:<{name_width}}  {cell or NONE}", width, "    ")
    return lines


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
    index = f", {format_bytes(kv.index_bytes_per_token)} of it index" if kv.index_bytes_per_token else ""
    note = (
        f"{format_bytes(kv.bytes_per_token)} by token{index}; {format_bytes(kv.sequence_bytes)} by sequence{state}; "
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
    rows = tuple((name, format_bytes_per_s(rate), format_bits_per_s(8 * rate)) for name, rate in budget_rows(plan))
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


def _prose_width(columns: int | None) -> int:
    return WIDTH if columns is None else min(WIDTH, columns)


def _wrapped(words: str, width: int, indent: str = "") -> list[str]:
    """Return `words` within `width`, later lines at least two columns in; what has no space in it stays whole."""
    deeper = " " * max(2, len(indent))
    return textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=deeper, break_long_words=False)
