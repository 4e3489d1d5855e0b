"""Dual-path KV-cache I/O for long-context LLM inference.

    import dualpath

    with dualpath.connect("tcp://127.0.0.1:7700") as pool:
        cache = dualpath.transformers.DualPathCache(model, pool, hot="64MiB")

Importing this package costs milliseconds: names are looked up when they are first used (PEP 562), and
neither torch nor numpy is imported before something needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dualpath.errors import (
    AuthError,
    BlockLostError,
    CapacityError,
    DeadlineError,
    DualPathError,
    HostError,
    PeerError,
    PoolFullError,
    ProtocolError,
    TruncatedError,
    UnknownModelError,
    UnreachableError,
    UsageError,
    VersionError,
)

if TYPE_CHECKING:
    from dualpath import transformers
    from dualpath.pool.client import connect

    __version__: str

__all__ = [
    "AuthError",
    "BlockLostError",
    "CapacityError",
    "DeadlineError",
    "DualPathError",
    "HostError",
    "PeerError",
    "PoolFullError",
    "ProtocolError",
    "TruncatedError",
    "UnknownModelError",
    "UnreachableError",
    "UsageError",
    "VersionError",
    "__version__",
    "connect",
    "transformers",
]


def __getattr__(name: str) -> Any:
    if name == "connect":
        return importlib.import_module("dualpath.pool.client").connect
    if name == "transformers":
        return importlib.import_module("dualpath.transformers")
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'dualpath' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dualpath")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted(__all__)
