"""Every error that dualpath raises on purpose, as one tree. The second column is the party at fault.

    DualPathError
    ├── UsageError            caller   wrong argument, shape, dtype or combination
    │   ├── UnknownModelError caller   model name, folder or attention layout that is not known
    │   └── CapacityError     caller   does not fit: hot region, window, pool, model context
    ├── PeerError             peer     a node did something wrong or nothing at all; names the node
    │   ├── ProtocolError     peer     malformed, truncated, oversized or unexpected frame
    │   │   ├── TruncatedError peer    the stream ended within a frame
    │   │   └── VersionError  peer     speaks another protocol version
    │   ├── AuthError         peer     wrong or missing shared key
    │   ├── UnreachableError  peer     cannot connect, or the connection died
    │   ├── PoolFullError     peer     no free slot left at the node
    │   └── DeadlineError     peer     no answer within the stated deadline
    ├── BlockLostError        peer     a block that must exist is gone; names node, block and layer
    └── HostError             host     this machine lacks something: memory, native kernel, permission

A message says what happened, to what, and what to do next; the last part is `hint`. Per-item outcomes of
transfers are data (`transport.Outcome`), not exceptions.
"""

from __future__ import annotations


class DualPathError(Exception):
    """Base of all errors raised on purpose. `str(error)` is one line; `hint` says what to do next.

    `advice` is the hint of an error that was raised without one.
    """

    advice = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or self.advice


class UsageError(DualPathError):
    """The caller passed something that cannot work. Nothing was changed."""


class UnknownModelError(UsageError):
    """A model or an attention layout that dualpath does not know; it refuses rather than guess."""


class CapacityError(UsageError):
    """Something does not fit where it was told to go. Nothing was changed."""


class PeerError(DualPathError):
    """A node misbehaved. `node` is its address or id. The connection concerned is closed; others go on."""

    advice = "see the node's own log, and whether both sides run the same release of dualpath"

    def __init__(self, message: str, *, node: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node = node


class ProtocolError(PeerError):
    """A frame that no correct peer sends."""


class TruncatedError(ProtocolError):
    """The stream ended within a frame."""


class VersionError(ProtocolError):
    """The peer speaks another version of the wire protocol."""


class AuthError(PeerError):
    """The peer's key is wrong or missing."""

    advice = "use the same key on both sides"


class UnreachableError(PeerError):
    """Cannot connect, or the connection was lost."""

    advice = "is the node running, and is the address right?"


class PoolFullError(PeerError):
    """The node has no free slot. Nothing was stored."""

    advice = "start nodes with more --capacity, add a node, or close sequences"


class DeadlineError(PeerError):
    """The peer did not answer in time. The operation's outcome is unknown."""

    advice = "the node may be stopped or overloaded: try again, or allow a longer deadline"


class BlockLostError(DualPathError):
    """A sealed block cannot be read any more."""

    advice = "its KV has to be computed anew"

    def __init__(self, message: str, *, node: str = "", block: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node = node
        self.block = block


class HostError(DualPathError):
    """This machine lacks something that is needed."""
