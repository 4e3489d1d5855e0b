"""Mutual authentication by a shared key: the handshake as two small state machines. No sockets.

Theory of operation. Both sides prove that they know the key without sending it, in four messages with request id 0:

    client                                     node
      Hello(version, lane, tenant, nonce_c, owner) ──▶
      ◀── Challenge(version, keyed, nonce_n, MAC(key, "node", …))
      Proof(MAC(key, "client", …)) ──▶
      ◀── Welcome(node, instance)              or Failure

MAC is HMAC-SHA256 over a label (so that a proof of one side is never valid as the other's), the version, the lane, the
tenant, the owner and both nonces, each with its length in front, so that nothing can be replayed, swapped or moved to
another tenant or lane. The node proves itself first: a client never answers a node that does not know the key. It
authenticates the two ends; it does not encrypt. Without a key (loopback, Unix socket) both MACs are empty.
"""

from __future__ import annotations

import hmac
import secrets

from dualpath.errors import AuthError, ProtocolError, UsageError, VersionError
from dualpath.wire.messages import PROTOCOL_VERSION, Challenge, Hello, Lane, Message, Proof

NONCE_BYTES = 32
MIN_KEY_BYTES = 16
MAX_TENANT_BYTES = 256
MAX_OWNER_BYTES = 64


def check_key(key: bytes | None) -> None:
    """Raise `UsageError` for a key too short to be a secret. The key itself is never part of a message or a log."""
    if key is not None and len(key) < MIN_KEY_BYTES:
        raise UsageError(
            f"the shared key has {len(key)} bytes; at least {MIN_KEY_BYTES} are needed",
            hint="make one with: head -c 32 /dev/urandom | base64",
        )


def _mac(key: bytes | None, label: bytes, hello: Hello, node_nonce: bytes) -> bytes:
    if key is None:
        return b""
    mac = hmac.new(key, digestmod="sha256")
    for part in (
        b"dualpath handshake: " + label,
        str(hello.version).encode(),
        str(int(hello.lane)).encode(),
        hello.tenant.encode(),
        hello.owner,
        hello.nonce,
        node_nonce,
    ):
        mac.update(len(part).to_bytes(4, "little") + part)
    return mac.digest()


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise VersionError(
            f"peer speaks protocol version {version}, this is version {PROTOCOL_VERSION}",
            hint="install the same dualpath release on both sides",
        )


class ClientHandshake:
    """The client's half: send `hello`, then what `answer` returns, then expect `Welcome`."""

    def __init__(self, key: bytes | None, lane: Lane, tenant: str, owner: bytes = b"") -> None:
        check_key(key)
        self._key = key
        self.hello = Hello(PROTOCOL_VERSION, lane, tenant, secrets.token_bytes(NONCE_BYTES), owner)

    def answer(self, challenge: Message) -> Proof:
        """Check the node's proof and return ours. Raises `AuthError`, `VersionError` or `ProtocolError`."""
        if not isinstance(challenge, Challenge):
            raise ProtocolError(f"expected Challenge, got {type(challenge).__name__}")
        _check_version(challenge.version)
        if len(challenge.nonce) != NONCE_BYTES:
            raise ProtocolError(f"nonce of {len(challenge.nonce)} bytes, expected {NONCE_BYTES}")
        if challenge.keyed and self._key is None:
            raise AuthError(
                "the node wants a shared key and none was given",
                hint="give the node's key: DUALPATH_KEY for commands, `key=` of `connect`",
            )
        if not challenge.keyed and self._key is not None:
            raise AuthError(
                "the node has no shared key, so it cannot prove who it is",
                hint="start the node with the same key, or connect without one",
            )
        if not hmac.compare_digest(challenge.proof, _mac(self._key, b"node", self.hello, challenge.nonce)):
            raise AuthError("the node does not know the shared key", hint="use the same key on both sides")
        return Proof(_mac(self._key, b"client", self.hello, challenge.nonce))


class NodeHandshake:
    """The node's half: answer `Hello` with `challenge`, then `accept` the client's `Proof`, then send `Welcome`."""

    def __init__(self, key: bytes | None) -> None:
        check_key(key)
        self._key = key
        self._hello: Hello | None = None
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def challenge(self, hello: Message) -> Challenge:
        """Return the reply to a client's first message. Raises `VersionError` or `ProtocolError`."""
        if not isinstance(hello, Hello):
            raise ProtocolError(f"expected Hello, got {type(hello).__name__}")
        _check_version(hello.version)
        if len(hello.nonce) != NONCE_BYTES:
            raise ProtocolError(f"nonce of {len(hello.nonce)} bytes, expected {NONCE_BYTES}")
        if len(hello.tenant.encode()) > MAX_TENANT_BYTES:
            raise ProtocolError(f"tenant name over {MAX_TENANT_BYTES} bytes")
        if len(hello.owner) > MAX_OWNER_BYTES:
            raise ProtocolError(f"owner of {len(hello.owner)} bytes, at most {MAX_OWNER_BYTES}")
        self._hello = hello
        proof = _mac(self._key, b"node", hello, self._nonce)
        return Challenge(PROTOCOL_VERSION, self._key is not None, self._nonce, proof)

    def accept(self, proof: Message) -> Hello:
        """Return the client's `Hello`, now believed. Raises `AuthError` or `ProtocolError`."""
        if self._hello is None or not isinstance(proof, Proof):
            raise ProtocolError(f"expected Proof, got {type(proof).__name__}")
        if not hmac.compare_digest(proof.mac, _mac(self._key, b"client", self._hello, self._nonce)):
            raise AuthError("the client does not know the shared key", hint="use the same key on both sides")
        return self._hello
