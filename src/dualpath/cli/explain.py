"""`dualpath explain`: what each partial contributed, layer by layer, against float64."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualpath.cli.options import Dtype, Hot, Json, KVDtype, Nodes
from dualpath.cli.output import ByteSize, check_input, emit, progress, table

if TYPE_CHECKING:
    from dualpath.engine.load import LoadedModel
    from dualpath.path.explain import LayerReport


@dataclass(frozen=True)
class PartialLine:
    """One partial of one layer, over all query heads: ranges of max and exp-sum, and its mean share."""

    where: str
    tokens: int
    max_low: float
    max_high: float
    exp_sum_low: float
    exp_sum_high: float
    share: float


@dataclass(frozen=True)
class LayerLine:
    """One layer: its partials, and the largest absolute errors against float64 over the same KV."""

    layer: int
    partials: list[PartialLine]
    out_error: float
    lse_error: float
    unscaled_error: float


def explain_command(
    model: Annotated[str, typer.Option(help="Built-in name, model folder or hub id.")] = "smollm2",
    prompt_file: Annotated[Path | None, typer.Option(help="Document to read; default: Python's own.")] = None,
    context: Annotated[int, typer.Option(help="Tokens of the prompt.", min=2)] = 1024,
    hot: Hot = ByteSize(16 << 20),
    nodes: Nodes = 2,
    dtype: Dtype = "float32",
    kv_dtype: KVDtype = "same",
    as_json: Json = False,
) -> None:
    """Take one decode step by near-data reduction, and hold each layer's partials against float64.

    Per layer and partial (each node, and what is here): the max of the scores and the exp-sum under it, as online
    softmax keeps them, and the partial's share of the attention. Then the errors of the merged result, and the error
    that a merge without the rescale by e^(max − common max) would have made: silent at short contexts, ruinous at long.
    Float64 reads the same KV, as it is kept: what --kv-dtype costs is shown by `dualpath run`.

    Examples:
        dualpath explain
        dualpath explain --context 4096 --nodes 3
        dualpath explain --context 512 --json
    """
    check_input(prompt_file)
    from dualpath.engine.load import load_model
    from dualpath.kv.layout import kv_dtype_called

    kept = kv_dtype_called(kv_dtype)
    with progress(f"loading {model}") as bar:
        loaded = load_model(model, dtype=dtype, progress=bar.note)
    lines = _explain(loaded, prompt_file, context, int(hot), nodes, kv_dtype=kept)
    emit(as_json, {"context": context, "layers": [asdict(line) for line in lines]}, lambda _: _print(lines))


def _explain(
    loaded: LoadedModel, prompt_file: Path | None, context: int, hot: int, count: int, *, kv_dtype: str
) -> list[LayerLine]:
    from dualpath.bench.prompt import check_context, prompt_of
    from dualpath.engine.engine import Engine
    from dualpath.engine.load import kv_layout
    from dualpath.path import DualPath, PathConfig, Scheme
    from dualpath.path.explain import explain
    from dualpath.pool.client import connect
    from dualpath.pool.local import LocalNodes

    check_context(context, 1, loaded.max_context, model=loaded.name)
    ids = prompt_of(loaded, prompt_file, context).ids
    layout = kv_layout(loaded, hot_bytes=hot, kv_dtype=kv_dtype)
    capacity = 2 * layout.bytes_per_token * context + (64 << 20)
    lines: list[LayerLine] = []
    with (
        LocalNodes(count, capacity=capacity) as nodes,
        connect(nodes.spec) as pool,
        DualPath(layout, PathConfig(Scheme.REDUCE, hot_bytes=hot), pool) as path,
        Engine(loaded, path) as engine,
    ):
        sequence = path.open()
        with progress("prefill", total=context, unit="tokens") as bar:
            done = 0

            def show(now: int, _total: int) -> None:
                nonlocal done
                bar.advance(now - done)
                done = now

            logits = engine.prefill(sequence, ids, on_progress=show)
        batch = [(sequence, [int(logits.argmax())])]
        step = path.begin(batch)
        try:
            with progress("comparing", total=layout.layers, unit="layers") as bar:

                def observe(seen: Any) -> None:
                    lines.append(_line(explain(path, seen)))
                    bar.advance()

                step.observer = observe
                engine.forward(step, batch)
        finally:
            step.abort()
    return lines


def _line(report: LayerReport) -> LayerLine:
    partials = [
        PartialLine(
            partial.where,
            partial.tokens,
            float(partial.max.min()),
            float(partial.max.max()),
            float(partial.exp_sum.min()),
            float(partial.exp_sum.max()),
            float(partial.share.mean()),
        )
        for partial in report.partials
    ]
    return LayerLine(report.layer, partials, report.out_error, report.lse_error, report.unscaled_error)


def _print(lines: list[LayerLine]) -> None:
    rows: list[list[Any]] = []
    for line in lines:
        for index, partial in enumerate(line.partials):
            first = index == 0
            rows.append(
                [
                    str(line.layer) if first else "",
                    partial.where,
                    partial.tokens,
                    f"{partial.max_low:.2f} … {partial.max_high:.2f}",
                    f"{partial.exp_sum_low:.2f} … {partial.exp_sum_high:.2f}",
                    f"{partial.share:.1%}",
                    f"{line.out_error:.1e}" if first else "",
                    f"{line.lse_error:.1e}" if first else "",
                    f"{line.unscaled_error:.1e}" if first else "",
                ]
            )
    columns = ["layer", "partial", "tokens", "max", "exp-sum", "share", "out error", "lse error", "unscaled error"]
    table("partials of one decode step, ranges over query heads", columns, rows)
