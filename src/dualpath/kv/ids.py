"""Block ids: opaque 32-byte names of sealed blocks.

Where token ids are known, an id is a chained BLAKE2b-256 hash over (parent id, token ids, fingerprint), so that
equal prefixes under the same model, layout and tenant share blocks and nothing else ever does. Elsewhere it is random.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from typing import NewType

BlockId = NewType("BlockId", bytes)
ID_BYTES = 32
ROOT = BlockId(bytes(ID_BYTES))


def chain_id(parent: BlockId, tokens: Sequence[int], fingerprint: bytes) -> BlockId:
    """Return the id of the block that holds `tokens` right after `parent` (`ROOT` for the first block).

    `fingerprint` covers whatever else shapes the KV: model, adapter, layout, codec, tenant salt.
    """
    digest = hashlib.blake2b(parent, digest_size=ID_BYTES, person=b"dualpath-block-1")
    digest.update(struct.pack("<II", len(fingerprint), len(tokens)))
    digest.update(fingerprint)
    digest.update(struct.pack(f"<{len(tokens)}q", *tokens))
    return BlockId(digest.digest())


def random_id() -> BlockId:
    """Return a fresh id for a block whose token ids are not known."""
    return BlockId(os.urandom(ID_BYTES))
