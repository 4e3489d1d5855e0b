import msgspec
import pytest

from dualpath.errors import AuthError, PoolFullError, ProtocolError, UsageError, VersionError
from dualpath.wire.auth import ClientHandshake, NodeHandshake
from dualpath.wire.failures import UnknownViewError, error_of, failure_of
from dualpath.wire.messages import FailureCode, Lane, Ping, Proof

KEY, OTHER = b"k" * 32, b"o" * 32


def shake(client_key, node_key):
    client, node = ClientHandshake(client_key, Lane.PREFETCH, "t"), NodeHandshake(node_key)
    return client, node, node.challenge(client.hello)


@pytest.mark.parametrize("key", [None, KEY])
def test_both_sides_agree(key):
    client, node, challenge = shake(key, key)
    proof = client.answer(challenge)
    assert node.accept(proof) == client.hello
    assert bool(proof.mac) == bool(challenge.proof) == (key is not None)
    assert proof.mac != challenge.proof or key is None  # one side's proof is not the other's


@pytest.mark.parametrize(("client_key", "node_key"), [(KEY, OTHER), (None, KEY), (KEY, None)])
def test_client_refuses_a_node_with_another_key(client_key, node_key):
    client, _, challenge = shake(client_key, node_key)
    with pytest.raises(AuthError, match="key") as caught:
        client.answer(challenge)
    assert caught.value.hint


def test_node_refuses_a_client_without_the_key():
    _, node, challenge = shake(KEY, KEY)
    for mac in (b"", bytes(32), challenge.proof):
        with pytest.raises(AuthError):
            node.accept(Proof(mac))


@pytest.mark.parametrize("change", [{"lane": Lane.BULK}, {"tenant": "other"}, {"nonce": bytes(32)}])
def test_proof_is_bound_to_what_was_said(change):
    client, node = ClientHandshake(KEY, Lane.PREFETCH, "t"), NodeHandshake(KEY)
    proof = client.answer(node.challenge(client.hello))
    node.challenge(msgspec.structs.replace(client.hello, **change))
    with pytest.raises(AuthError):
        node.accept(proof)


def test_replayed_proof_is_refused():
    client, node, challenge = shake(KEY, KEY)
    proof = client.answer(challenge)
    again = NodeHandshake(KEY)
    again.challenge(client.hello)
    with pytest.raises(AuthError):
        again.accept(proof)
    assert node.accept(proof) == client.hello


def test_malformed_handshakes():
    client, node, challenge = shake(KEY, KEY)
    with pytest.raises(VersionError):
        NodeHandshake(KEY).challenge(msgspec.structs.replace(client.hello, version=9))
    with pytest.raises(VersionError):
        client.answer(msgspec.structs.replace(challenge, version=9))
    with pytest.raises(ProtocolError, match="nonce"):
        NodeHandshake(KEY).challenge(msgspec.structs.replace(client.hello, nonce=b"short"))
    with pytest.raises(ProtocolError, match="nonce"):
        client.answer(msgspec.structs.replace(challenge, nonce=b"short"))
    with pytest.raises(ProtocolError, match="tenant"):
        NodeHandshake(KEY).challenge(msgspec.structs.replace(client.hello, tenant="t" * 300))
    with pytest.raises(ProtocolError, match="expected Hello"):
        NodeHandshake(KEY).challenge(Ping())
    with pytest.raises(ProtocolError, match="expected Challenge"):
        client.answer(Ping())
    with pytest.raises(ProtocolError, match="expected Proof"):
        node.accept(Ping())
    with pytest.raises(ProtocolError, match="expected Proof"):
        NodeHandshake(KEY).accept(Proof(b""))
    with pytest.raises(UsageError, match="key"):
        NodeHandshake(b"short")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PoolFullError("full"), FailureCode.FULL),
        (UnknownViewError("view"), FailureCode.UNKNOWN_VIEW),
        (AuthError("key"), FailureCode.AUTH),
        (VersionError("version"), FailureCode.VERSION),
        (ProtocolError("frame"), FailureCode.PROTOCOL),
    ],
)
def test_errors_cross_the_wire(error, code):
    error.hint = "do this"
    failure = failure_of(error)
    assert failure.code is code
    back = error_of(failure, "n1")
    assert type(back) is type(error)
    assert (back.node, back.hint) == ("n1", "do this")
    assert str(error) in str(back)


def test_every_code_has_an_error():
    for code in FailureCode:
        error_of(failure_of(UsageError("x")), "n")
        assert error_of(type(failure_of(UsageError("x")))(code, "m"), "n").node == "n"
