"""KV layouts: which layers keep which KV, and how many bytes a token and a layer block take.

A *layer block* is the part of a block that one layer needs, row-major and contiguous:

    full, sliding   [kv_heads, 2, block_tokens, head_dim]     K then V for each head
    latent (MLA)    [1, block_tokens, latent + rope]          V is the first `latent` columns of the same row
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from dualpath.errors import UsageError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class LayerKind(enum.StrEnum):
    """What a layer's attention sees. The value is the wire name."""

    FULL = "full"
    SLIDING = "sliding"
    LATENT = "latent"


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
        """Return the bytes of one layer block of `block_tokens` tokens."""
        streams = 1 if self.kind is LayerKind.LATENT else 2
        return self.kv_heads * streams * block_tokens * self.head_dim * DTYPE_BYTES[dtype]

    @property
    def layer_block_shape(self) -> tuple[int, ...]:
        """Return the shape of one layer block with `-1` for `block_tokens`."""
        if self.kind is LayerKind.LATENT:
            return (self.kv_heads, -1, self.head_dim)
        return (self.kv_heads, 2, -1, self.head_dim)


@dataclass(frozen=True)
class KVLayout:
    """The KV of one model: its layer groups, stored dtype and block size.

    `dtype` is one of `DTYPE_BYTES`; `fingerprint` names model and weights, so that blocks of another model never match.
    """

    groups: tuple[LayerGroup, ...]
    dtype: str
    block_tokens: int = 256
    model: str = ""

    @classmethod
    def from_config(cls, config: Any, *, dtype: str, block_tokens: int = 256, model: str = "") -> KVLayout:
        """Return the layout of a model by its Hugging Face config: a dict, or anything with `to_dict()`.

        `dtype` is the stored dtype; `model` goes into the fingerprint. Raises `UnknownModelError` if the
        attention layout is not in the table of `kv.configs`, `UsageError` for an unknown dtype or a block of
        less than a token.
        """
        from dualpath.kv.configs import layer_groups

        if dtype not in DTYPE_BYTES:
            raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPE_BYTES)}")
        if block_tokens < 1:
            raise UsageError(f"a block must hold at least one token, not {block_tokens}")
        return cls(layer_groups(config), dtype, block_tokens, model)

    @property
    def layers(self) -> int:
        """Return the number of layers that keep KV."""
        return sum(len(group.layers) for group in self.groups)

    @property
    def bytes_per_token(self) -> int:
        """Return the KV bytes of one token over all layers (sliding layers counted in full)."""
        return sum(len(group.layers) * group.layer_block_bytes(1, self.dtype) for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block over all layers."""
        return self.bytes_per_token * self.block_tokens

    def layer_block_bytes(self, group: LayerGroup) -> int:
        """Return the bytes of one of `group`'s layer blocks."""
        return group.layer_block_bytes(self.block_tokens, self.dtype)

    @property
    def fingerprint(self) -> bytes:
        """Return 16 bytes that differ whenever stored KV would not be interchangeable."""
        text = repr((self.groups, self.dtype, self.block_tokens, self.model)).encode()
        return hashlib.blake2b(text, digest_size=16).digest()
