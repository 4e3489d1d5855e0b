"""How KV is laid out and named: layouts (bytes per layer block, groups of layers) and block ids (content hashes).

Nothing here moves a byte or knows where a block lives.
"""

from dualpath.kv.ids import BlockId, chain_id, random_id
from dualpath.kv.layout import DTYPE_BYTES, KVLayout, LayerGroup, LayerKind

__all__ = ["DTYPE_BYTES", "BlockId", "KVLayout", "LayerGroup", "LayerKind", "chain_id", "random_id"]
