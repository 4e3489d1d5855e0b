"""`dualpath generate`: stream a completion, with old KV in a pool."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualpath.cli.cores import yield_idle_cores_to
from dualpath.cli.key import shared_key
from dualpath.cli.options import Deadline, Dtype, Explain, Hot, KVDtype, ReadFraction, Threads, Window
from dualpath.cli.output import ByteSize, emit, progress, read_input, say
from dualpath.cli.run import require_auto
from dualpath.errors import UsageError
from dualpath.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dualpath.engine.load import LoadedModel
    from dualpath.path import PathConfig
    from dualpath.pool.client import Pool


def generate_command(
    model: Annotated[str, typer.Option(help="Built-in name, model folder or hub id.")] = "smollm2",
    prompt: Annotated[str | None, typer.Option(help="The prompt itself.")] = None,
    prompt_file: Annotated[str | None, typer.Option(metavar="FILE", help="File with the prompt; - is stdin.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")] = False,
    pool: Annotated[str, typer.Option(metavar="HOST:PORT,...", help="Nodes that hold older KV.")] = "",
    new_tokens: Annotated[int, typer.Option(help="Most tokens to write.", min=1)] = 128,
    hot: Hot = ByteSize(64 << 20),
    window: Window = ByteSize(64 << 20),
    scheme: Annotated[
        str, typer.Option(help="baseline, fetch, sharded, reduce, mapped or auto; local without a pool.")
    ] = "",
    dtype: Dtype = "float32",
    kv_dtype: KVDtype = "same",
    read_fraction: ReadFraction = 1.0,
    threads: Threads = 0,
    deadline: Deadline = 10.0,
    explain: Explain = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Stream the most likely continuation of a prompt to stdout; statistics go to stderr.

    The key of a pool that wants one is read from DUALPATH_KEY.

    Examples:
        dualpath generate --prompt "The capital of France is"
        dualpath generate --chat --prompt "What is the capital of France?"
        dualpath generate --prompt-file book.txt --pool 10.0.0.5:7480,10.0.0.6:7480 --hot 64MiB
        cat book.txt | dualpath generate --prompt-file - --json
    """
    yield_idle_cores_to(pool)
    text = read_prompt(prompt, prompt_file)
    chosen = choose_scheme(scheme, pool)
    if explain:
        require_auto((chosen.value,))
    from dualpath.engine.load import load_model
    from dualpath.kv.layout import kv_dtype_called
    from dualpath.path import PathConfig

    kept = kv_dtype_called(kv_dtype)
    settings = PathConfig(
        scheme=chosen,
        hot_bytes=int(hot),
        window_bytes=int(window),
        threads=threads,
        deadline_s=deadline,
        read_fraction=read_fraction,
    )
    with connected(settings, pool) as nodes:
        with progress(f"loading {model}") as bar:
            loaded = load_model(model, dtype=dtype, progress=bar.note)
        ids = prompt_ids(loaded, text, chat=chat)
        found = _generate(loaded, ids, settings, nodes, kv_dtype=kept, new_tokens=new_tokens, quiet=as_json)
    emit(as_json, found, print_statistics)
    if explain and not as_json:
        say(found["choice"]["sentence"])


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """Return the prompt's text. Raises `UsageError` unless exactly one source is given and it is not empty."""
    if (prompt is None) == (prompt_file is None):
        raise UsageError("give one prompt", hint="use --prompt TEXT, or --prompt-file FILE (- is stdin)")
    if prompt is not None:
        text = prompt
    elif prompt_file == "-":
        text = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    else:
        text = read_input(Path(str(prompt_file)), "--prompt-file").decode("utf-8", errors="replace")
    if not text:
        raise UsageError("the prompt is empty", hint="give --prompt or --prompt-file at least one word")
    return text


def choose_scheme(name: str, pool: str) -> Any:
    """Return the `Scheme` to use: `reduce` with a pool, `local` without one, unless the user says otherwise."""
    from dualpath.path import Scheme
    from dualpath.pool.spec import parse

    chosen = Scheme.of(name or ("reduce" if pool else "local"))
    if chosen is Scheme.LOCAL:
        if pool:
            raise UsageError("scheme local uses no pool", hint="leave out --pool, or choose another --scheme")
        return chosen
    if not pool:
        raise UsageError(f"scheme {chosen.value} needs a pool", hint="name its nodes with --pool HOST:PORT,...")
    if chosen is Scheme.MAPPED and not all(address.path for address in parse(pool)):
        raise UsageError("scheme mapped needs nodes on this host", hint="name them with --pool mapped:/path.sock,...")
    return chosen


@contextlib.contextmanager
def connected(settings: PathConfig, pool: str) -> Iterator[Pool | None]:
    """Yield the pool that the scheme needs, if it needs one; what is wrong with it is said before a model is loaded."""
    from dualpath.pool.client import connect

    if settings.scheme.value == "local":
        yield None
        return
    with connect(pool, key=shared_key(), timeout_s=settings.deadline_s) as found:
        yield found


def prompt_ids(loaded: LoadedModel, text: str, *, chat: bool) -> list[int]:
    """Return the prompt's token ids. Raises `UsageError` for a model without tokenizer or chat template."""
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise UsageError(f"{loaded.name} has no tokenizer", hint="use a model folder or a built-in name")
    if not chat:
        return [int(token) for token in tokenizer(text, verbose=False)["input_ids"]]
    if not tokenizer.chat_template:
        raise UsageError(f"{loaded.name} has no chat template", hint="leave out --chat")
    message = [{"role": "user", "content": text}]
    templated = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return [int(token) for token in tokenizer(templated, add_special_tokens=False, verbose=False)["input_ids"]]


def _generate(
    loaded: LoadedModel,
    ids: list[int],
    settings: PathConfig,
    pool: Pool | None,
    *,
    kv_dtype: str,
    new_tokens: int,
    quiet: bool,
) -> dict[str, Any]:
    """Run prefill and decode, printing text as it comes unless `quiet`, and return the statistics."""
    from dualpath.bench.prompt import check_context
    from dualpath.engine.engine import Engine
    from dualpath.engine.load import kv_layout, use_threads
    from dualpath.path import DualPath

    left = loaded.max_context - len(ids)
    hint = f"use --new-tokens {left} or less" if left > 0 else "use a shorter prompt"
    check_context(len(ids), new_tokens, loaded.max_context, model=loaded.name, hint=hint)
    use_threads(settings.threads)
    layout = kv_layout(loaded, hot_bytes=settings.hot_bytes, kv_dtype=kv_dtype)
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(DualPath(layout, settings, pool))
        engine = stack.enter_context(Engine(loaded, path))
        found = _stream(engine, loaded, ids, new_tokens, quiet=quiet)
        sent = sum(node.counters.tx_bytes for node in pool.nodes) if pool is not None else 0
        received = sum(node.counters.rx_bytes for node in pool.nodes) if pool is not None else 0
        metrics = path.metrics.snapshot()
        choice = {} if path.auto is None else {"choice": path.auto.explain()}
    return {
        **found,
        "scheme": settings.scheme.value,
        "sent_bytes": sent,
        "received_bytes": received,
        "stall_s": metrics.stall_s,
        "peak_local_kv_bytes": metrics.peak_local_bytes,
        "read_fraction": settings.read_fraction,
        "far_blocks": metrics.far_blocks,
        "far_blocks_read": metrics.far_blocks_read,
        **choice,
    }


def _stream(engine: Any, loaded: LoadedModel, ids: list[int], new_tokens: int, *, quiet: bool) -> dict[str, Any]:
    from dualpath.bench.rows import percentile
    from dualpath.engine.text import TextStream, greedy_tokens, plain_decoder, stop_tokens

    stops, stream = stop_tokens(loaded), TextStream(plain_decoder(loaded.tokenizer))
    sequence = engine.path.open()
    started_s = time.perf_counter()
    with progress("prefill", total=len(ids), unit="tokens") as bar:
        done = 0

        def advance(now: int, _total: int) -> None:
            nonlocal done
            bar.advance(now - done)
            done = now

        logits = engine.prefill(sequence, ids, on_progress=advance)
    tokens: list[int] = []
    at_s: list[float] = []
    pieces: list[str] = []
    for token in greedy_tokens(engine, sequence, logits, limit=new_tokens, stops=stops):
        at_s.append(time.perf_counter())
        tokens.append(token)
        pieces.append(stream.push(token))
        _write(pieces[-1], quiet=quiet)
    pieces.append(stream.flush())
    _write(pieces[-1] + "\n", quiet=quiet)
    steps = [later - earlier for earlier, later in itertools.pairwise(at_s)]
    return {
        "text": "".join(pieces),
        "tokens": tokens,
        "stopped": "end of text" if tokens[-1] in stops else "length",
        "prompt_tokens": len(ids),
        "ttft_s": at_s[0] - started_s,
        "tpot_ms_p50": percentile(steps, 0.5) * 1e3,
        "tpot_ms_p99": percentile(steps, 0.99) * 1e3,
        "tokens_per_s": len(steps) / sum(steps) if steps else None,
    }


def _write(text: str, *, quiet: bool) -> None:
    if text and not quiet:
        sys.stdout.write(text)
        sys.stdout.flush()


def print_statistics(found: dict[str, Any]) -> None:
    """Print one line on stderr: the text is on stdout already."""
    rate = "" if found["tokens_per_s"] is None else f", {found['tokens_per_s']:.1f} tokens/s"
    wire = found["sent_bytes"] + found["received_bytes"]
    partly = ""
    if found["read_fraction"] < 1.0 and found["far_blocks"]:
        partly = f", {found['far_blocks_read'] / found['far_blocks']:.0%} of far blocks read"
    say(
        f"{found['scheme']}: {found['prompt_tokens']} tokens read in {found['ttft_s']:.2f} s, "
        f"{len(found['tokens'])} written{rate}; {format_bytes(wire)} on the wire, "
        f"at most {format_bytes(found['peak_local_kv_bytes'])} of KV local{partly}"
    )
