"""How KV is laid out and named: layouts (bytes, layer groups), codecs (stored bytes) and block ids (content hashes).

Nothing here moves a byte or knows where a block lives.
"""

from dualpath.kv.ids import BlockId, chain_id, random_id
from dualpath.kv.layout import DTYPE_BYTES, FLOAT_BYTES, QUANTISED, KVLayout, LayerGroup, LayerKind, Parts

__all__ = [
    "DTYPE_BYTES",
    "FLOAT_BYTES",
    "QUANTISED",
    "BlockId",
    "KVLayout",
    "LayerGroup",
    "LayerKind",
    "Parts",
    "chain_id",
    "random_id",
]
