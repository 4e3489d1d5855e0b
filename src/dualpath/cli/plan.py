"""`dualpath plan`: will it help me?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualpath.cli.options import Json, Report
from dualpath.cli.output import check_report, emit, read_input, terminal_columns, write_report
from dualpath.cli.plan_options import (
    CheckFlags,
    ComputeFlags,
    MeasuredFlags,
    ModelFlags,
    NetworkFlags,
    PoolFlags,
    PriceFlags,
    WorkloadFlags,
)
from dualpath.errors import UsageError
from dualpath.plan.options import PlanOptions, merge, parse_file

if TYPE_CHECKING:
    from dualpath.plan.check import CheckReport, Fabric
    from dualpath.plan.inputs import Deployment
    from dualpath.plan.measured import RawRates
    from dualpath.plan.result import Plan, Sweep

REPORT_SWEEP = "8K..1M"


def plan_command(
    model: ModelFlags,
    workload: WorkloadFlags,
    compute: ComputeFlags,
    network: NetworkFlags,
    pool: PoolFlags,
    measured: MeasuredFlags,
    prices: PriceFlags,
    against: CheckFlags,
    file: Annotated[Path | None, typer.Option(metavar="PLAN.toml", help="All of these; flags go first.")] = None,
    sweep: Annotated[str, typer.Option(metavar="NAME=FROM..TO", help="context or concurrency, by doubling.")] = "",
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Say what a model's KV cache needs, what each way of serving it takes, and whether a dual path helps.

    Only a model is needed. Sizes of memory are binary (GiB), rates of links decimal (GB/s, Gbit/s); contexts are binary
    (128K = 131,072). Nothing is measured and nothing is changed.

    With --check the exit code is 1 if a simulated time per token is more than 20 % from the measured one.

    Examples:
        dualpath plan --model llama-3.1-8b --context 128K
        dualpath plan --model deepseek-v3 --gpu H200 --gpus 8 --nics 8 --concurrency 64 --nodes 16 --pool-flops 3T
        dualpath plan --layers 32 --kv-heads 32 --head-dim 128 --dtype float16 --context 131072 --target 20
        dualpath plan --model ./my-model --sweep context=8K..1M --report plan.html
        dualpath plan --file plan.toml --measured raw.json --json
        dualpath plan --check run.json --raw raw.json
    """
    options = PlanOptions(
        model=model.section(),
        workload=workload.section(),
        compute=compute.section(),
        network=network.section(),
        pool=pool.section(),
        measured=measured.section(),
        prices=prices.section(),
    )
    if against.check:
        _check(against.check, against.raw, options, as_json)
        return
    if against.raw is not None:
        raise UsageError("--raw goes with --check", hint="to plan with measured rates use --measured")
    _plan(options, file, sweep, report, as_json)


def _plan(options: PlanOptions, file: Path | None, sweep: str, report: Path | None, as_json: bool) -> None:
    import msgspec

    from dualpath.plan.resolve import deployment
    from dualpath.plan.simulate import simulate

    if report is not None:
        check_report(report)
    if file is not None:
        options = merge(options, parse_file(read_input(file).decode("utf-8", "replace")))
    found = deployment(options, raw=None if options.measured.raw is None else _raw(Path(options.measured.raw)))
    result = simulate(found)
    if sweep:
        result = msgspec.structs.replace(result, sweep=_sweep(found, sweep))
    emit(as_json, result, _print_plan)
    if report is not None:
        from dualpath.plan.report import render

        write_report(report, render(result, _sweep(found, f"context={REPORT_SWEEP}", beyond=False)))


def _sweep(found: Deployment, text: str, *, beyond: bool = True) -> Sweep:
    from dualpath.plan.simulate import sweep
    from dualpath.plan.sweeping import parse_sweep

    name, values = parse_sweep(text, found.model, beyond=beyond)
    return sweep(found, name, values)


def _check(runs: list[Path], raw: Path | None, options: PlanOptions, as_json: bool) -> None:
    import msgspec

    from dualpath.plan.check import check

    fabric = _fabric(raw, options)
    found: dict[str, Any] = {}
    for path in runs:
        try:
            found[str(path)] = msgspec.json.decode(read_input(path))
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"{path} is no JSON: {error}", hint="write it with `dualpath run --json`") from None
    report = check(found, fabric)
    emit(as_json, report, _print_check)
    if not report.ok:
        raise typer.Exit(1)


def _fabric(raw: Path | None, options: PlanOptions) -> Fabric:
    from dualpath.plan.check import Fabric
    from dualpath.plan.hardware import load_nic, parse_bytes_per_s
    from dualpath.plan.quantities import parse_seconds

    near = options.pool.bandwidth
    network = options.network
    if raw is not None:
        rates = _raw(raw)
        link, rails, trip = rates.link_bytes_per_s, rates.rails, rates.round_trip_s
    elif network.nic is not None and network.round_trip is not None:
        link, rails = load_nic(network.nic).bytes_per_s, network.nics or 1
        trip = parse_seconds(network.round_trip)
    else:
        raise UsageError(
            "how fast is the link?", hint="give --raw RAW.json from `dualpath bench raw`, or --nic and --round-trip"
        )
    return Fabric(
        link_bytes_per_s=link,
        rails=rails,
        round_trip_s=trip,
        near_bytes_per_s=None if near is None else parse_bytes_per_s(near),
    )


def _raw(path: Path) -> RawRates:
    from dualpath.plan.measured import parse_raw

    return parse_raw(read_input(path), name=str(path))


def _print_plan(result: Plan) -> None:
    from dualpath.plan.tables import text

    typer.echo(text(result, columns=terminal_columns()))


def _print_check(report: CheckReport) -> None:
    from dualpath.plan.check import TOLERANCE, table
    from dualpath.plan.tables import as_text

    typer.echo("\n".join(as_text(table(report), columns=terminal_columns())))
    verdict = "all within" if report.ok else "not all within"
    typer.echo(f"largest error {report.largest_error:.0%}: {verdict} {TOLERANCE:.0%}")
