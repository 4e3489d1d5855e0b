"""KV layouts: which layers keep which KV, and how many bytes a token and a layer block take.

A *layer block* is the part of a block that one layer needs. Its `data` is row-major and contiguous:

    full, sliding   [kv_heads, 2, block_tokens, head_dim]     K then V for each head
    latent (MLA)    [1, block_tokens, latent + rope]          V is the first `latent` columns of the same row

In a quantised dtype a second part follows, `scales`: bfloat16 of the shape of `data` without `block_tokens`, that is
one scale for each channel of each stream. Both parts begin at a multiple of 64 bytes, and so do slots in a row:

    [ data: 1 byte an element ][ pad ][ scales: 2 bytes a channel ][ pad ]        value = element x scale
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dualpath.errors import UsageError

FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Dtypes that models compute in, and bytes of an element."""

QUANTISED = ("int8", "float8_e4m3")
"""Dtypes of one byte that sealed blocks may be kept in, with scales."""

KV_DTYPES = {"same": "", "int8": "int8", "fp8": "float8_e4m3"}
"""What users call the dtype of sealed blocks: the model's own, or a quantised one."""

DTYPE_BYTES = FLOAT_BYTES | dict.fromkeys(QUANTISED, 1)
SCALE_BYTES = 2
_ALIGN = 64


class LayerKind(enum.StrEnum):
    """What a layer's attention sees. The value is the wire name."""

    FULL = "full"
    SLIDING = "sliding"
    LATENT = "latent"


def kv_dtype_called(name: str) -> str:
    """Return the `KVLayout.kv_dtype` that a name of `KV_DTYPES` stands for. Raises `UsageError`."""
    if name not in KV_DTYPES:
        raise UsageError(f"KV cannot be kept as {name!r}", hint=f"one of {', '.join(KV_DTYPES)}")
    return KV_DTYPES[name]


@dataclass(frozen=True)
class Parts:
    """Where the parts of a layer block lie in its slot, in bytes. `scales_at == bytes` where there are no scales."""

    data_bytes: int
    scales_at: int
    bytes: int

    @staticmethod
    def of(streams: int, block_tokens: int, width: int, dtype: str) -> Parts:
        """Return the parts of `streams` matrices `[block_tokens, width]`, one each for K and V of a head."""
        data = streams * block_tokens * width * DTYPE_BYTES[dtype]
        if dtype not in QUANTISED:
            return Parts(data, data, data)
        scales_at = _aligned(data)
        return Parts(data, scales_at, _aligned(scales_at + streams * width * SCALE_BYTES))


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that keep KV in the same way. Blocks are kept per (block id, layer group).

    `head_dim` is the width of a stored row in elements: for `LATENT` it is latent + rope, and `value_dim` is latent.
    `window` is the number of most recent tokens that a query sees, itself included; 0 means all.
    """

    kind: LayerKind
    layers: tuple[int, ...]
    query_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0

    def layer_block_bytes(self, block_tokens: int, dtype: str) -> int:
        """Return the bytes of one layer block of `block_tokens` tokens, scales included."""
        streams = 1 if self.kind is LayerKind.LATENT else 2
        return Parts.of(self.kv_heads * streams, block_tokens, self.head_dim, dtype).bytes

    @property
    def layer_block_shape(self) -> tuple[int, ...]:
        """Return the shape of one layer block with `-1` for `block_tokens`."""
        if self.kind is LayerKind.LATENT:
            return (self.kv_heads, -1, self.head_dim)
        return (self.kv_heads, 2, -1, self.head_dim)


@dataclass(frozen=True)
class KVLayout:
    """The KV of one model: its layer groups, dtypes and block size.

    `dtype` is what the model computes in, and what open blocks hold: one of `FLOAT_BYTES`. `kv_dtype` is what sealed
    blocks are kept in, one of `DTYPE_BYTES`; empty: the same. `model` names model and weights, so that blocks of
    another model never match. Sizes are those of sealed blocks.
    """

    groups: tuple[LayerGroup, ...]
    dtype: str
    block_tokens: int = 256
    model: str = ""
    kv_dtype: str = ""

    @classmethod
    def from_config(
        cls, config: Any, *, dtype: str, block_tokens: int = 256, model: str = "", kv_dtype: str = ""
    ) -> KVLayout:
        """Return the layout of a model by its Hugging Face config: a dict, or anything with `to_dict()`.

        `model` goes into the fingerprint. Raises `UnknownModelError` if the attention layout is not in the table of
        `kv.configs` or its KV cannot be kept (`require_reusable`), `UsageError` for an unknown dtype or a block of
        less than a token.
        """
        from dualpath.kv.configs import layer_groups, require_reusable

        if dtype not in FLOAT_BYTES:
            raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(FLOAT_BYTES)}")
        if kv_dtype not in ("", dtype, *QUANTISED):
            raise UsageError(f"{dtype} cannot be kept as {kv_dtype!r}", hint=f"one of {', '.join((dtype, *QUANTISED))}")
        if block_tokens < 1:
            raise UsageError(f"a block must hold at least one token, not {block_tokens}")
        require_reusable(config)
        return cls(layer_groups(config), dtype, block_tokens, model, "" if kv_dtype == dtype else kv_dtype)

    @property
    def sealed_dtype(self) -> str:
        """Return the dtype of sealed blocks."""
        return self.kv_dtype or self.dtype

    @property
    def open(self) -> KVLayout:
        """Return the layout of open blocks: the same, not quantised."""
        return replace(self, kv_dtype="") if self.kv_dtype else self

    @property
    def layers(self) -> int:
        """Return the number of layers that keep KV."""
        return sum(len(group.layers) for group in self.groups)

    @property
    def bytes_per_token(self) -> int:
        """Return the KV bytes of one token over all layers (sliding layers counted in full), its share of scales
        included and rounded up."""
        return -(-self.block_bytes // self.block_tokens)

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block over all layers."""
        return sum(len(group.layers) * self.layer_block_bytes(group) for group in self.groups)

    def layer_block_bytes(self, group: LayerGroup) -> int:
        """Return the bytes of one of `group`'s layer blocks."""
        return group.layer_block_bytes(self.block_tokens, self.sealed_dtype)

    @property
    def fingerprint(self) -> bytes:
        """Return 16 bytes that differ whenever stored KV would not be interchangeable."""
        text = repr((self.groups, self.dtype, self.block_tokens, self.model, self.kv_dtype)).encode()
        return hashlib.blake2b(text, digest_size=16).digest()
