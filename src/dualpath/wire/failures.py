"""Errors on the wire: one table between `Failure` codes and the error tree, used in both directions."""

from __future__ import annotations

from dualpath.errors import (
    AuthError,
    CapacityError,
    DualPathError,
    PeerError,
    PoolFullError,
    ProtocolError,
    UsageError,
    VersionError,
)
from dualpath.wire.messages import Failure, FailureCode


class UnknownViewError(PeerError):
    """The node does not know this view: it was dropped, or its connection was lost. Extend it anew."""


# What the node raises, the code on the wire, what the client sees. Most specific first.
_TABLE: tuple[tuple[type[DualPathError], FailureCode, type[PeerError]], ...] = (
    (VersionError, FailureCode.VERSION, VersionError),
    (ProtocolError, FailureCode.PROTOCOL, ProtocolError),
    (AuthError, FailureCode.AUTH, AuthError),
    (PoolFullError, FailureCode.FULL, PoolFullError),
    (CapacityError, FailureCode.FULL, PoolFullError),
    (UnknownViewError, FailureCode.UNKNOWN_VIEW, UnknownViewError),
    (UsageError, FailureCode.INVALID, PeerError),
    (DualPathError, FailureCode.INTERNAL, PeerError),
)
_ERROR = {code: error for _, code, error in _TABLE}


def failure_of(error: DualPathError) -> Failure:
    """Return the `Failure` that tells a client about `error`."""
    code = next(code for kind, code, _ in _TABLE if isinstance(error, kind))
    return Failure(code, str(error), error.hint)


def error_of(failure: Failure, node: str) -> PeerError:
    """Return the error that a client raises for `failure` from `node`."""
    return _ERROR[failure.code](f"{node}: {failure.message}", node=node, hint=failure.hint)
