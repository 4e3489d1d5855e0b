"""`dualpath plan`: will it help me?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualpath.cli.output import emit, say
from dualpath.errors import HostError, UsageError

if TYPE_CHECKING:
    from dualpath.plan.check import CheckReport, Fabric
    from dualpath.plan.inputs import Deployment
    from dualpath.plan.measured import RawRates
    from dualpath.plan.options import PlanOptions
    from dualpath.plan.result import Plan, Sweep

REPORT_SWEEP = "8K..1M"

Word = str | None
Count = int | None
Number = float | None


def plan_command(
    model: Annotated[Word, typer.Option(help="Model of the catalogue, or a folder with config.json.")] = None,
    config: Annotated[Word, typer.Option(metavar="PATH", help="A hub-style config.json.")] = None,
    layers: Annotated[Count, typer.Option(help="A bare shape instead of a model.")] = None,
    kv_heads: Annotated[Count, typer.Option(help="KV heads of that shape.")] = None,
    query_heads: Annotated[Count, typer.Option(help="Query heads; default: as many as KV heads.")] = None,
    head_dim: Annotated[Count, typer.Option(help="Elements of a head.")] = None,
    latent_dim: Annotated[Count, typer.Option(help="Latent elements of a token (MLA).")] = None,
    rope_dim: Annotated[Count, typer.Option(help="Elements of RoPE beside them.")] = None,
    sliding: Annotated[Word, typer.Option(metavar="TOKENS", help="All layers of the shape slide over so many.")] = None,
    parameters: Annotated[Number, typer.Option(help="Parameters of the shape, such as 8e9.")] = None,
    dtype: Annotated[Word, typer.Option(help="KV stored as float32, bfloat16, float16, int8 or fp8.")] = None,
    context: Annotated[Word, typer.Option(metavar="TOKENS", help="128K, 1M or a number. [128K]")] = None,
    concurrency: Annotated[Count, typer.Option(help="Sequences decoded together. [8]")] = None,
    target: Annotated[Number, typer.Option(metavar="TOKENS/S", help="Wanted of each sequence. [10]")] = None,
    latency: Annotated[Word, typer.Option(metavar="TIME", help="Wanted end to end. [10s]")] = None,
    chunk: Annotated[Word, typer.Option(metavar="TOKENS", help="Of a prompt at a time. [8192]")] = None,
    gpu: Annotated[Word, typer.Option(help="GPU of the catalogue. [H100]")] = None,
    gpus: Annotated[Count, typer.Option(help="GPUs by host. [1]")] = None,
    hosts: Annotated[Count, typer.Option(help="Hosts that the model is spread over. [1]")] = None,
    hot: Annotated[Word, typer.Option(metavar="SIZE", help="HBM for KV (Path A). [what is left]")] = None,
    window: Annotated[Word, typer.Option(metavar="SIZE", help="Most HBM for prefetched KV. [1/8 of that]")] = None,
    dram: Annotated[Word, typer.Option(metavar="SIZE", help="This host's DRAM for KV. [256GiB]")] = None,
    dram_bandwidth: Annotated[Word, typer.Option(metavar="RATE", help="Of that DRAM. [300GB/s]")] = None,
    nic: Annotated[Word, typer.Option(help="NIC of the catalogue, or 400G, 2x100G. [400G]")] = None,
    nics: Annotated[Count, typer.Option(help="Such NICs by host. [1]")] = None,
    storage_nics: Annotated[Count, typer.Option(help="Of storage, for the P/D ratio. [1]")] = None,
    round_trip: Annotated[Word, typer.Option(metavar="TIME", help="To a node and back. [16us]")] = None,
    nodes: Annotated[Count, typer.Option(help="Pool nodes. [4]")] = None,
    node_memory: Annotated[Word, typer.Option(metavar="SIZE", help="DRAM of a node for KV. [512GiB]")] = None,
    node_nics: Annotated[Count, typer.Option(help="NICs of a node. [1]")] = None,
    pool_bandwidth: Annotated[Word, typer.Option(metavar="RATE", help="At which a node reads KV. [300GB/s]")] = None,
    pool_flops: Annotated[Word, typer.Option(metavar="FLOP/S", help="Of a node, such as 3T. [no limit]")] = None,
    measured: Annotated[Word, typer.Option(metavar="RAW.json", help="Rates of `dualpath bench raw --json`.")] = None,
    measured_compute: Annotated[Word, typer.Option(metavar="TIME", help="A step outside attention, measured.")] = None,
    measured_local: Annotated[Word, typer.Option(metavar="RATE", help="Local attention over KV, measured.")] = None,
    price_gpu: Annotated[Number, typer.Option(metavar="USD", help="Of a GPU with its share of the host.")] = None,
    price_node: Annotated[Number, typer.Option(metavar="USD", help="Of a pool node with memory and NICs.")] = None,
    price_nic: Annotated[Number, typer.Option(metavar="USD", help="Of a NIC here. [there already]")] = None,
    price_dram: Annotated[Number, typer.Option(metavar="USD", help="Of a GiB here. [there already]")] = None,
    gpu_hour: Annotated[Number, typer.Option(metavar="USD", help="A GPU by the hour instead.")] = None,
    node_hour: Annotated[Number, typer.Option(metavar="USD", help="A node by the hour instead.")] = None,
    lifetime: Annotated[Number, typer.Option(metavar="YEARS", help="Over which prices are written off. [4]")] = None,
    file: Annotated[Path | None, typer.Option(metavar="PLAN.toml", help="All of these; flags go first.")] = None,
    sweep: Annotated[str, typer.Option(metavar="NAME=FROM..TO", help="context or concurrency, by doubling.")] = "",
    report: Annotated[Path | None, typer.Option(help="Write one HTML page with plots here.")] = None,
    check: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN.json", help="Compare with what `dualpath run --json` measured; may be repeated."),
    ] = None,
    raw: Annotated[Path | None, typer.Option(metavar="RAW.json", help="Links for --check.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
    from dualpath.plan.inputs import Prices
    from dualpath.plan.options import (
        ComputeOptions,
        MeasuredOptions,
        ModelOptions,
        NetworkOptions,
        PlanOptions,
        PoolOptions,
        WorkloadOptions,
    )

    options = PlanOptions(
        model=ModelOptions(
            name=model, config=config, layers=layers, kv_heads=kv_heads, query_heads=query_heads, head_dim=head_dim,
            latent_dim=latent_dim, rope_dim=rope_dim, window=sliding, parameters=parameters, dtype=dtype,
        ),
        workload=WorkloadOptions(
            context=context, concurrency=concurrency, target=target, latency=latency, chunk=chunk
        ),
        compute=ComputeOptions(
            gpu=gpu, gpus=gpus, hosts=hosts, hot=hot, window=window, dram=dram, dram_bandwidth=dram_bandwidth
        ),
        network=NetworkOptions(nic=nic, nics=nics, storage_nics=storage_nics, round_trip=round_trip),
        pool=PoolOptions(
            nodes=nodes, memory=node_memory, nics=node_nics, bandwidth=pool_bandwidth, flops=pool_flops
        ),
        measured=MeasuredOptions(raw=measured, compute=measured_compute, local=measured_local),
        prices=Prices(
            gpu=price_gpu, node=price_node, nic=price_nic, dram_gib=price_dram, gpu_hour=gpu_hour, node_hour=node_hour,
            **({} if lifetime is None else {"lifetime_years": lifetime}),
        ),
    )  # fmt: skip
    if check:
        _check(check, raw, options, as_json)
        return
    if raw is not None:
        raise UsageError("--raw goes with --check", hint="to plan with measured rates use --measured")
    _plan(options, file, sweep, report, as_json)


def _plan(options: PlanOptions, file: Path | None, sweep: str, report: Path | None, as_json: bool) -> None:
    import msgspec

    from dualpath.plan.options import merge, parse_file
    from dualpath.plan.resolve import deployment
    from dualpath.plan.simulate import simulate

    if report is not None:
        _check_report(report)
    if file is not None:
        options = merge(options, parse_file(_read(file).decode("utf-8", "replace")))
    found = deployment(options, raw=None if options.measured.raw is None else _raw(Path(options.measured.raw)))
    result = simulate(found)
    if sweep:
        result = msgspec.structs.replace(result, sweep=_sweep(found, sweep))
    emit(as_json, result, _print_plan)
    if report is not None:
        _write_report(report, result, _sweep(found, f"context={REPORT_SWEEP}", beyond=False))


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
            found[str(path)] = msgspec.json.decode(_read(path))
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} is no JSON: {error}", hint="write it with `dualpath run --json`") from None
    report = check(found, fabric)
    emit(as_json, report, _print_check)
    if not report.ok:
        raise typer.Exit(1)


def _fabric(raw: Path | None, options: PlanOptions) -> Fabric:
    from dualpath.plan.check import Fabric
    from dualpath.plan.hardware import load_nic, parse_rate
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
        near_bytes_per_s=None if near is None else parse_rate(near),
    )


def _raw(path: Path) -> RawRates:
    from dualpath.plan.measured import parse_raw

    return parse_raw(_read(path), name=str(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check the path and its permissions") from None


def _check_report(path: Path) -> None:
    """Raise `UsageError` for a place where nothing can be written."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}", hint="check --report")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write a report to {path}", hint="give --report a file that can be written")


def _write_report(path: Path, result: Plan, by_context: Sweep) -> None:
    from dualpath.plan.report import render

    try:
        path.write_text(render(result, by_context), encoding="utf-8")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}", hint="give --report another place") from error
    say(f"report: {path}")


def _print_plan(result: Plan) -> None:
    from dualpath.plan.tables import text

    typer.echo(text(result))


def _print_check(report: CheckReport) -> None:
    from dualpath.plan.check import TOLERANCE, table
    from dualpath.plan.tables import as_text

    typer.echo("\n".join(as_text(table(report))))
    verdict = "all within" if report.ok else "not all within"
    typer.echo(f"largest error {report.largest_error:.0%}: {verdict} {TOLERANCE:.0%}")
