"""What a user can set of the experiment, and what follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dualpath.attention.bounds import check_fraction
from dualpath.attention.dispatch import check_threads
from dualpath.errors import CapacityError, UsageError
from dualpath.kv import KVLayout
from dualpath.kv.layout import kv_dtype_called
from dualpath.pool.spec import check_deadline, parse
from dualpath.transport.rails import MAX_RAILS
from dualpath.units import format_bytes

HF = "hf"
LOCAL = "local"
MAPPED = "mapped"
AUTO = "auto"
SCHEMES = (HF, LOCAL, "baseline", "single", "fetch", "sharded", "reduce", MAPPED, AUTO)
ON_REQUEST = ("single", AUTO)
"""Schemes that are run only when they are asked for."""
ONE_RAIL = ("baseline", "single")
"""Schemes that use one NIC, as what they stand for does."""
FOLD_ALIKE = (LOCAL, "baseline", "single", "fetch", "sharded", MAPPED)
"""Schemes that fold the same blocks in the same order: bitwise equal, also over quantised KV."""
READ_PARTLY = ("fetch", "sharded", "reduce")
"""Schemes that a fraction to read is for; `HF` and `LOCAL`, all exact, may stand beside them."""
FILLS = ("prompt", "random")


@dataclass(frozen=True)
class ExperimentConfig:
    """Settings of one experiment.

    | field | meaning |
    |---|---|
    | `model`, `dtype` | see `engine.load.load_model` |
    | `kv_dtype` | what sealed blocks are kept in: one of `kv.layout.KV_DTYPES` |
    | `read_fraction` | share of far blocks that a decode step reads in the schemes `READ_PARTLY`; 1: all |
    | `schemes` | rows, run in the order of `SCHEMES`; empty: all that apply, but `ON_REQUEST` |
    | `prompt_file`, `offset` | the document, and its first token; `None`: a text that comes with Python |
    | `context` | tokens of the prompt, or of random KV |
    | `new_tokens` | tokens to decode |
    | `fill` | `prompt`: prefill a document; `random`: seeded random KV, no prefill |
    | `hot_bytes`, `window_bytes` | local memory of Path A and Path B |
    | `block_tokens` | 0: as many as fit the hot region, 16 to 256 |
    | `nodes`, `pool` | start `nodes` nodes here, or use those of the spec `pool` |
    | `threads` | of attention and model; 0: all cores |
    | `interleave` | schemes take turns every so many tokens; 0: one after another |
    | `seed` | of random KV, random token ids |
    | `deadline_s` | longest wait for a node |
    | `nics`, `max_rails` | NICs of this host that may be used, and how many pairs of NICs for a node; see `connect` |
    | `trace_prefetch` | file for the prefetcher's decisions; `None`: not written |
    """

    model: str = "smollm2-135m"
    dtype: str = "float32"
    kv_dtype: str = "same"
    read_fraction: float = 1.0
    schemes: tuple[str, ...] = ()
    prompt_file: Path | None = None
    offset: int = 0
    context: int = 4096
    new_tokens: int = 64
    fill: str = "prompt"
    hot_bytes: int = 16 << 20
    window_bytes: int = 64 << 20
    block_tokens: int = 0
    nodes: int = 2
    pool: str = ""
    key: bytes | None = None
    threads: int = 0
    interleave: int = 0
    seed: int = 0
    deadline_s: float = 10.0
    nics: tuple[str, ...] = ()
    max_rails: int = MAX_RAILS
    trace_prefetch: Path | None = None

    @property
    def random(self) -> bool:
        """Return whether KV is random instead of a prompt's."""
        return self.fill == "random"

    @property
    def reference(self) -> str:
        """Return the scheme that the others are compared with."""
        return LOCAL if self.random else HF

    @property
    def on_mapped_pool(self) -> bool:
        """Return whether `pool` names nodes whose memory is mapped here."""
        return self.pool.strip().startswith("mapped:")

    def rows(self) -> tuple[str, ...]:
        """Return the schemes to show, in order. Raises `UsageError` for what cannot be run."""
        chosen = self.schemes or tuple(s for s in SCHEMES if s not in ON_REQUEST and self._applies(s))
        unknown = [scheme for scheme in chosen if scheme not in SCHEMES]
        if unknown:
            raise UsageError(f"unknown scheme {unknown[0]!r}", hint=f"one or more of {','.join(SCHEMES)}")
        self._check_partial(chosen)
        if self.random and HF in chosen:
            raise UsageError("scheme hf cannot start from random KV", hint="compare with local instead")
        if MAPPED in chosen and not self._applies(MAPPED):
            raise UsageError(
                "scheme mapped needs nodes on this host",
                hint="leave out --pool, or give --pool mapped:/path.sock",
            )
        return tuple(scheme for scheme in SCHEMES if scheme in chosen)

    def order(self) -> tuple[str, ...]:
        """Return the schemes to run: the rows, with the reference before them."""
        return (self.reference, *(scheme for scheme in self.rows() if scheme != self.reference))

    @property
    def partial(self) -> bool:
        """Return whether only a part of far blocks is to be read."""
        return self.read_fraction < 1.0

    def fraction_of(self, scheme: str) -> float:
        """Return the share of far blocks that a decode step of this scheme reads."""
        return self.read_fraction if scheme in READ_PARTLY else 1.0

    def _check_partial(self, chosen: tuple[str, ...]) -> None:
        """Raise `UsageError` for schemes that would read everything where a part was asked for."""
        others = [scheme for scheme in chosen if scheme not in (HF, LOCAL, *READ_PARTLY)]
        hint = f"it goes with scheme {', '.join(READ_PARTLY)}; {HF} and {LOCAL} may stand beside"
        if self.partial and self.trace_prefetch is not None:
            raise UsageError("partial reads prefetch nothing that could be traced", hint="leave out --trace-prefetch")
        if self.partial and others:
            raise UsageError(f"scheme {others[0]} has no use for --read-fraction {self.read_fraction:g}", hint=hint)
        if self.partial and not set(chosen) & set(READ_PARTLY):
            raise UsageError(f"no scheme here has a use for --read-fraction {self.read_fraction:g}", hint=hint)

    def _applies(self, scheme: str) -> bool:
        if self.partial and scheme not in (HF, LOCAL, *READ_PARTLY):
            return False
        if scheme == HF:
            return not self.random
        return scheme != MAPPED or not self.pool or self.on_mapped_pool

    def check(self) -> None:
        """Raise `UsageError` for values that cannot work, before anything slow begins."""
        kv_dtype_called(self.kv_dtype)
        check_fraction(self.read_fraction)
        if self.fill not in FILLS:
            raise UsageError(f"unknown fill {self.fill!r}", hint=f"one of {', '.join(FILLS)}")
        if min(self.hot_bytes, self.window_bytes) < 1 or self.nodes < 1:
            raise UsageError("hot region, window and the number of nodes must be at least 1")
        if min(self.block_tokens, self.offset, self.interleave) < 0:
            raise UsageError("block tokens, offset and interleave cannot be negative")
        check_threads(self.threads)
        if self.random and self.prompt_file is not None:
            raise UsageError("random KV has no prompt", hint="leave out --prompt-file or --fill random")
        if self.pool:
            parse(self.pool)
        elif self.nics:
            raise UsageError(
                "nodes on this host are not reached over its NICs", hint="name nodes elsewhere with --pool"
            )
        check_deadline(self.deadline_s)
        self.rows()


def node_capacity(config: ExperimentConfig, layout: KVLayout) -> int:
    """Return the bytes each node must be able to hold: one node may get all KV, and turns add up."""
    blocks = -(-(config.context + config.new_tokens) // layout.block_tokens) + 1
    return blocks * layout.block_bytes * _remote_at_once(config) * 5 // 4 + (64 << 20)


def check_memory(config: ExperimentConfig, layout: KVLayout, available_bytes: int) -> None:
    """Raise `CapacityError` if the KV of the schemes that are alive at once is more than this machine's memory."""
    tokens = config.context + config.new_tokens
    one, wide = tokens * layout.bytes_per_token, tokens * layout.open.bytes_per_token
    here = 0 if config.pool else _remote_at_once(config)
    beside = sum(1 for scheme in config.order() if scheme in (HF, LOCAL)) if config.interleave else 1
    needed = one * here + wide * beside
    if needed > available_bytes * 0.9:
        raise CapacityError(
            f"{here + beside} copies of {format_bytes(wide)} of KV do not fit the {format_bytes(available_bytes)} "
            "of free memory",
            hint="use a smaller --context, --dtype bfloat16, fewer --scheme, or nodes elsewhere with --pool",
        )


def _remote_at_once(config: ExperimentConfig) -> int:
    """Return how many schemes keep KV at the nodes at the same time."""
    remote = sum(1 for scheme in config.order() if scheme not in (HF, LOCAL))
    return remote if config.interleave else min(1, remote)
