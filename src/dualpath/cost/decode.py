"""What one decoded token costs: KV bytes held, bytes moved, and the time those bytes add."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.kv.layout import KVLayout, LayerGroup, LayerKind

_FLOAT32 = 4


def kv_bytes(layout: KVLayout, context: int) -> int:
    """Return the KV bytes that a decode step at `context` tokens reads; a sliding layer reads its window only."""
    return sum(_layers_bytes(layout, group, _visible(group, context)) for group in layout.groups)


def fetch_bytes_per_token(layout: KVLayout, context: int, hot_bytes: int) -> int:
    """Return the KV bytes that must come over the wire for one token, when every visible sealed block that is not
    hot is read once. Local are the open tail and as many of the latest whole blocks as `hot_bytes` holds with it.

    An estimate: bytes of headers are left out, and hot bytes are taken to be shared in proportion by all layers.
    """
    local_blocks = max(0, hot_bytes - layout.open.block_bytes) // layout.block_bytes
    total = 0
    for group in layout.groups:
        for blocks in _sealed_blocks(layout, group, context):
            total += max(0, blocks - local_blocks) * layout.layer_block_bytes(group)
    return total


def reduce_bytes_per_token(layout: KVLayout, nodes: int) -> int:
    """Return the payload bytes of one token's queries and partials with `nodes` nodes; the context has no part in it.

    Per layer and node: the query row out (float32 `[query_heads, head_dim]`), `(out, lse)` back (float32
    `[query_heads, value_dim + 1]`).
    """
    return sum(
        nodes * len(group.layers) * group.query_heads * (group.head_dim + group.value_dim + 1) * _FLOAT32
        for group in layout.groups
    )


def expected_fetch_tpot_s(local_s: float, wire_bytes: float, bytes_per_s: float, *, overlapped: bool) -> float:
    """Return the time per token of a scheme that moves `wire_bytes` for a token that takes `local_s` all-local.

    `overlapped`: a NIC moves the bytes while the CPU computes, so the longer of the two counts. Otherwise the CPU
    itself moves them (loopback), and they add up.
    """
    transfer_s = wire_bytes / bytes_per_s
    return max(local_s, transfer_s) if overlapped else local_s + transfer_s


def _visible(group: LayerGroup, context: int) -> int:
    return min(context, group.window) if group.kind is LayerKind.SLIDING else context


def _layers_bytes(layout: KVLayout, group: LayerGroup, tokens: int) -> int:
    return len(group.layers) * layout.layer_block_bytes(group) * tokens // layout.block_tokens


def _sealed_blocks(layout: KVLayout, group: LayerGroup, context: int) -> Iterator[int]:
    """Yield for each layer of `group` how many sealed blocks the next query sees."""
    first = (context - _visible(group, context)) // layout.block_tokens
    sealed = context // layout.block_tokens
    for _ in group.layers:
        yield max(0, sealed - first)
