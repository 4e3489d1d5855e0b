"""All that touches the inside of transformers: an attention function, a mask function, and caches.

    model.forward ─▶ cache.update(k, v, layer)      notes k and v, returns them unchanged (`_NotingLayer`)
                  ─▶ attention function             takes the note, gives q, k, v to the cache's open `Step`

The hand-over is thread-local: within a layer, transformers calls `update` and then the attention function on the same
thread. `DualPathCache` is for an unmodified `model.generate()`: it opens a step at the first layer, commits it at the
last. `PackedCache` is for `Engine`, which opens and commits steps itself. Rows are stored unpadded, so that the mask
function passes the 2-D padding mask through, and causality and windows are the kernel's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from dualpath.cost import layout_that_fits
from dualpath.engine.fingerprint import adapter_state, fingerprint
from dualpath.engine.joined import JoinedStep
from dualpath.engine.lending import NAME, borrow, give_back
from dualpath.engine.tensors import absorb, dtype_of, expand, pack, raw, undifferentiable
from dualpath.engine.told import Told
from dualpath.errors import UsageError
from dualpath.kv.layout import KVLayout, LayerKind, kv_dtype_called
from dualpath.path import DualPath, PathConfig, Scheme, SequenceId, Step
from dualpath.pool.client import Pool
from dualpath.units import parse_bytes

CACHE_KEYWORD = "cache" if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 20) else "past_key_values"


@dataclass(slots=True)
class _Note:
    cache: _NotingCache
    layer: int
    keys: torch.Tensor
    values: torch.Tensor


class _Local(threading.local):
    note: _Note | None = None


_local = _Local()


class _NotingLayer(CacheLayerMixin):
    """A cache layer that keeps nothing: it notes what the attention function of the same layer will need."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: _NotingCache, index: int) -> None:
        super().__init__()
        self._cache = weakref.ref(cache)
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to allocate: slots are the path's."""

    @torch.compiler.disable
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note k and v (`[batch, kv_heads, new tokens, head_dim]`) and return them."""
        cache = self._cache()
        assert cache is not None
        cache.require_use()
        left = _local.note
        if left is not None and left.cache is cache and left.layer < self._index:
            _local.note = None
            raise UsageError(
                "this cache was passed to a model that does not compute dualpath attention",
                hint="pass it to the model that it was made for, and leave that model's attention implementation alone",
            )
        _local.note = _Note(cache, self._index, key_states, value_states)
        return key_states, value_states

    @torch.compiler.disable
    def get_seq_length(self) -> int:
        """Return the columns committed so far, padding included."""
        cache = self._cache()
        return 0 if cache is None else cache.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the mask's width and offset."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: no limit of its own."""
        return -1


class _NotingCache(Cache):
    """Base of both caches: converts between torch and the path's arrays."""

    def __init__(self, layout: KVLayout) -> None:
        super().__init__(layers=[_NotingLayer(self, i) for i in range(layout.layers)])
        self.layout = layout
        self.columns = 0
        self._groups = {layer: group for group in layout.groups for layer in group.layers}

    def require_use(self) -> None:
        """Raise `UsageError` if nothing may be added to this cache now."""

    def attend(self, note: _Note, call: _Call) -> torch.Tensor:
        """Return `[batch, tokens, heads, value_dim]` for one layer."""
        raise NotImplementedError

    def _run(self, step: Step | JoinedStep, note: _Note, call: _Call, rows: torch.Tensor | None) -> torch.Tensor:
        """Pass one layer through `step`; `rows` picks tokens out of batch x tokens (all of them if `None`)."""
        latent = self._groups[note.layer].kind is LayerKind.LATENT
        q = pack(call.query, rows)
        if latent:
            q = absorb(call.module, q)
            k, v = pack(torch.cat([note.keys, note.values], -1), rows), None
        else:
            k, v = pack(note.keys, rows), pack(note.values, rows)
        out = torch.from_numpy(
            step.attend(
                note.layer,
                np.ascontiguousarray(q.float().numpy()),
                raw(k, self.layout.dtype),
                None if v is None else raw(v, self.layout.dtype),
                scale=call.scale,
                softcap=call.softcap or 0.0,
                sinks=None if call.sinks is None else call.sinks.detach().float().numpy(),
            )
        )
        return expand(call.module, out) if latent else out


class PackedCache(_NotingCache):
    """For `Engine`: batch 1, tokens of all sequences packed one after another; `step` is set before each forward."""

    def __init__(self, layout: KVLayout) -> None:
        super().__init__(layout)
        self.step: Step | JoinedStep | None = None

    def attend(self, note: _Note, call: _Call) -> torch.Tensor:
        """See the base."""
        if self.step is None:
            raise UsageError("no step is open")
        return self._run(self.step, note, call, None)[None]


class DualPathCache(_NotingCache):
    """A cache for an unmodified `model.generate()`: hot KV here, the rest in `pool`.

    `hot` and `window` are sizes like `"64MiB"`; `scheme` as in `Scheme`; `pool` may be `None` for scheme `local`;
    `block_tokens` 0 takes the largest power of two, from 16 to 256, of which a block fits the hot region; `kv_dtype`
    `"int8"` or `"fp8"` keeps sealed blocks in one byte an element, which changes the output a little, and so does a
    `read_fraction` below 1 (`fetch`, `sharded`, `reduce`): steps of one token read that share of far blocks. Works with
    greedy, sampling, beam and assisted generation, left-padded batches, several turns on one cache, and
    `prefill_chunk_size` (a one-shot prompt needs scratch of one layer's KV in the window). Sets the model's attention
    implementation; `close()` (or leaving the context) restores it and gives the pool's blocks back. Raises
    `UnknownModelError` for an attention layout that is not known, `CapacityError` if hot or window are too small.

    Blocks are named by content and by a checksum of the model's weights, which are read once here, and of the adapters
    that are active: models that share all this share blocks, and others never do. Once adapters were changed, the model
    needs another cache. Tokens whose positions do not count their row's tokens share nothing, such as those after
    padding in a call of the model without `position_ids`; `generate()` passes them.
    """

    def __init__(
        self,
        model: Any,
        pool: Pool | None = None,
        *,
        hot: str | int = "64MiB",
        window: str | int = "64MiB",
        scheme: str | Scheme | None = None,
        block_tokens: int = 0,
        kv_dtype: str = "same",
        read_fraction: float = 1.0,
        threads: int = 0,
        deadline_s: float = 10.0,
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        chosen = Scheme.of(scheme) if scheme is not None else (Scheme.LOCAL if pool is None else Scheme.SHARDED)
        settings = PathConfig(
            chosen, parse_bytes(hot), parse_bytes(window), threads, deadline_s, read_fraction=read_fraction
        )
        dtype = dtype_of(model)
        name = fingerprint(model, config, dtype)
        layout = layout_that_fits(
            config,
            dtype=dtype,
            hot_bytes=settings.hot_bytes,
            block_tokens=block_tokens,
            model=name,
            kv_dtype=kv_dtype_called(kv_dtype),
        )
        super().__init__(layout)
        self.path = DualPath(layout, settings, pool)
        self._rows: list[SequenceId] = []
        self._step: Step | None = None
        self._packed: torch.Tensor | None = None
        self._told = Told()
        self._model, self._adapters = model, adapter_state(model)
        self._last = max(self._groups)
        self._modules = {id(module) for module in model.modules()}
        borrow(model)
        cache = weakref.ref(self)
        hook: Any = model.register_forward_pre_hook(
            lambda _module, args, kwargs: _tell(cache, args, kwargs), with_kwargs=True
        )
        # Not a method: it runs as well when the cache is collected without having been closed.
        self._end = weakref.finalize(self, _end, model, hook, self.path)
        self._end.atexit = False

    def __enter__(self) -> DualPathCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise `UsageError`: most of it is not here."""
        raise UsageError(
            "a dualpath cache cannot be copied or pickled: its KV is in a pool",
            hint="make another cache over the same pool and give it the same tokens: equal prefixes share blocks",
        )

    def close(self) -> None:
        """Give everything back and restore the model's attention implementation. Idempotent."""
        self._end()
        self.path.close()  # what is left of it after an interrupt
        self._step = None
        self._rows, self.columns = [], 0

    def require_use(self) -> None:
        """See the base."""
        if not self._end.alive:
            raise UsageError("this cache is closed", hint="make another one")

    def attend(self, note: _Note, call: _Call) -> torch.Tensor:
        """See the base. The first layer opens a step, the last one commits it; an error undoes it."""
        batch, _, tokens, _ = note.keys.shape
        if id(call.module) not in self._modules:
            raise UsageError("this cache was made for another model", hint="make one for each model")
        if note.layer == 0:
            self._begin(batch, tokens, call.mask)
        if self._step is None:
            raise UsageError(
                "this cache was given to a forward pass that did not start at layer 0", hint="run the model as a whole"
            )
        try:
            out = self._run(self._step, note, call, self._packed)
            if note.layer == self._last:
                try:
                    self._step.commit()
                finally:  # an interrupt may come once it counts
                    self.columns += 0 if self._step.open else tokens
                self._step = None
        except BaseException:
            self._undo()
            raise
        if self._packed is None:
            return out.view(batch, tokens, *out.shape[1:])
        padded = out.new_zeros(batch * tokens, *out.shape[1:])
        padded[self._packed] = out
        return padded.view(batch, tokens, *out.shape[1:])

    def _begin(self, batch: int, tokens: int, mask: torch.Tensor | None) -> None:
        self._undo()
        ids, positions = self._told.take(batch, tokens, columns=self.columns)
        if adapter_state(self._model) != self._adapters:
            raise UsageError(
                "the model's adapters are not as they were when this cache was made: what it holds is named by them",
                hint="make a new cache after adapters were added, activated, merged, disabled or scaled",
            )
        if not self._rows:
            self._rows = [self.path.open() for _ in range(batch)]
        if len(self._rows) != batch:
            raise UsageError(
                f"the cache holds {len(self._rows)} sequences, the batch has {batch}",
                hint="make a cache for each batch, or reset() this one",
            )
        valid = None
        if mask is not None:
            if mask.dim() != 2:
                raise UsageError("only 2-D padding masks are supported", hint="pass attention_mask [batch, tokens]")
            valid = mask[:, -tokens:].bool()
        self._packed = None if valid is None or bool(valid.all()) else valid.reshape(-1).nonzero().squeeze(1)
        new: list[tuple[SequenceId, Sequence[int] | int]] = []
        for row, sequence in enumerate(self._rows):
            keep = torch.ones(tokens, dtype=torch.bool) if valid is None else valid[row]
            start, count = self.path.length(sequence), int(keep.sum())
            counted = bool((positions[..., row, keep] == torch.arange(start, start + count)).all())
            new.append((sequence, ids[row][keep].tolist() if ids is not None and counted else count))
            if mask is not None and int(mask[row].sum()) != start + count:
                raise UsageError(
                    "the padding mask changed for tokens that are already cached",
                    hint="pass the attention_mask of all tokens, cached ones included; padding never moves",
                )
        self._step = self.path.begin(new)

    def _undo(self) -> None:
        """Undo the open step, if there is one: of a forward pass that fails, or was interrupted between layers."""
        step, self._step = self._step, None
        if step is not None:
            step.abort()

    # --- what generate() does to a cache between steps ---------------------------------------------------------

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes a fork of row `beam_idx[i]`; no sealed block is copied."""
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows."""
        self._select(torch.arange(len(self._rows))[indices].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        self._select([row for row in range(len(self._rows)) for _ in range(repeats)])

    def _select(self, rows: list[int]) -> None:
        self._undo()
        chosen: list[SequenceId] = []
        try:
            for row in rows:
                one = self._rows[row]
                chosen.append(self.path.fork(one) if one in chosen else one)
        except BaseException:
            self._forget(set(chosen) - set(self._rows))
            raise
        gone = set(self._rows) - set(chosen)
        self._rows = chosen
        self._forget(gone)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `abs(tokens_to_remove)` columns of every row."""
        self._undo()
        count = abs(tokens_to_remove)
        for sequence in self._rows:
            self.path.crop(sequence, max(0, self.path.length(sequence) - count))
        self.columns = max(0, self.columns - count)

    def reset(self) -> None:
        """Forget all sequences."""
        self._undo()
        gone, self._rows, self.columns = self._rows, [], 0
        self._forget(gone)

    def _forget(self, sequences: Iterable[SequenceId]) -> None:
        """Close all of these: what is raised for one, such as an interrupt, is raised when the others are closed."""
        with ExitStack() as closing:
            for sequence in sequences:
                closing.callback(self.path.close_sequence, sequence)


@dataclass(slots=True)
class _Call:
    """What transformers passes to an attention function, as far as it matters here."""

    module: torch.nn.Module
    query: torch.Tensor
    mask: torch.Tensor | None
    scale: float
    softcap: float | None
    sinks: torch.Tensor | None


@torch.compiler.disable
def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The registered function: query `[batch, heads, tokens, head_dim]`; returns `[batch, tokens, heads, …]`."""
    note, _local.note = _local.note, None
    if note is None or note.layer != getattr(module, "layer_idx", None):
        raise UsageError(
            "the model is set to dualpath attention, but no dualpath cache was passed",
            hint=f"generate(..., {CACHE_KEYWORD}=DualPathCache(model, pool)), or close the cache to restore the model",
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = note.cache.attend(note, _Call(module, query, attention_mask, scale, softcap, s_aux))
    return undifferentiable(out.to(query.dtype), query, key, value), None


@torch.compiler.disable
def _mask(*, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
    """The registered mask function: hand the 2-D padding mask through (`None` where nothing is padded)."""
    if attention_mask is None or bool(attention_mask.bool().all()):
        return None
    return attention_mask.bool()


def _tell(cache: weakref.ref[DualPathCache], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before each forward pass: note its tokens and positions, so that blocks get content ids and can be recomputed."""
    owner = cache()
    if owner is not None and any(value is owner for value in (*args, *kwargs.values())):  # by whichever name
        owner._told.note(args, kwargs)


def _end(model: Any, hook: Any, path: DualPath) -> None:
    hook.remove()
    give_back(model)
    path.close()


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
