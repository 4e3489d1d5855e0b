"""Framing: fed whole, one byte at a time, in random pieces, and garbage."""

import contextlib
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.errors import ProtocolError, VersionError
from dualpath.wire.frames import HEADER, MAGIC, Head, HeadParser, Limits, decode_message, encode
from dualpath.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    BlockKey,
    Challenge,
    Commit,
    Drop,
    Failure,
    FailureCode,
    Hello,
    Lane,
    Outcome,
    Outcomes,
    Ping,
    Prepare,
    PrepareItem,
    Proof,
    Read,
    Resolve,
    SlotRef,
    Welcome,
)

MESSAGES = [
    Ping(),
    Hello(1, Lane.BULK, "tenant", bytes(32)),
    Read(4096, [SlotRef(1, 2), SlotRef(2**40, 2**63)]),
    Outcomes([Outcome.OK, Outcome.LOST]),
    Resolve([BlockKey(b"id", 0)], 1.5),
    Prepare([PrepareItem(BlockKey(b"id", 1), 2, 4096, 256)], 7),
    Commit([BlockKey(b"id", 0)], 2**63),
    Abort([BlockKey(b"id", 0)], 8),
    Drop([BlockKey(b"id", 0)], 9),
    Failure(FailureCode.FULL, "full", "add nodes"),
]


BODY = msgspec.msgpack.encode


def header(magic=MAGIC, version=PROTOCOL_VERSION, flags=0, request_id=1, message=0, payload=0):
    return HEADER.pack(magic, version, flags, request_id, message, payload)


def feed_all(data, limits=None):
    """Return the heads in `data` (payloads skipped), fed whole."""
    parser, heads = HeadParser(limits), []
    while data:
        taken, head = parser.feed(data)
        data = data[taken:]
        if head is None:
            break
        heads.append(head)
        data = data[head.payload_bytes :]
    parser.eof()
    return heads


def feed_bytewise(data, limits=None):
    parser, heads, skip = HeadParser(limits), [], 0
    for number in range(len(data)):
        if skip:
            skip -= 1
            continue
        taken, head = parser.feed(data[number : number + 1])
        assert taken == 1
        if head is not None:
            heads.append(head)
            skip = head.payload_bytes
    parser.eof()
    return heads


@pytest.mark.parametrize("feed", [feed_all, feed_bytewise])
def test_round_trip(feed):
    stream = b"".join(encode(n, m, 5 * n) + b"\xff" * 5 * n for n, m in enumerate(MESSAGES))
    assert feed(stream) == [Head(n, m, 5 * n) for n, m in enumerate(MESSAGES)]


@given(st.lists(st.integers(1, 90), max_size=40))
def test_pieces_of_any_size(sizes):
    stream, parser, heads = b"".join(encode(n, m) for n, m in enumerate(MESSAGES)), HeadParser(), []
    for size in [*sizes, len(stream)]:
        piece, stream = stream[:size], stream[size:]
        while piece:
            taken, head = parser.feed(piece)
            piece = piece[taken:]
            if head is not None:
                heads.append(head.message)
    assert heads == MESSAGES


@pytest.mark.parametrize(("fields", "serial"), [([], 0), ([7], 7), ([7, "from a later release"], 7)])
def test_fields_may_be_missing_at_the_end_or_be_too_many(fields, serial):
    assert decode_message(BODY(["Drop", [[b"id", 0]], *fields])) == Drop([BlockKey(b"id", 0)], serial)


def test_payload_is_never_consumed():
    frame = encode(1, Ping(), 100)
    taken, head = HeadParser().feed(frame + b"x" * 100)
    assert taken == len(frame)
    assert head == Head(1, Ping(), 100)


MALFORMED = {
    "bad magic": (b"GET / HTTP/1.1\r\n", ProtocolError, "bad magic"),
    "bad first byte": (b"G", ProtocolError, "bad magic"),
    "version": (header(version=7), VersionError, "version 7"),
    "flags": (header(flags=1), ProtocolError, "unknown flags"),
    "oversized message": (header(message=101), ProtocolError, "oversized message"),
    "oversized payload": (header(payload=1001), ProtocolError, "oversized payload"),
    "truncated header": (header()[:-1], ProtocolError, "truncated"),
    "truncated message": (encode(1, Ping())[:-1], ProtocolError, "truncated"),
    "not msgpack": (header(message=1) + b"\xc1", ProtocolError, "not msgpack"),
    "trailing bytes": (header(message=7) + b"\x91\xa4Ping\x00", ProtocolError, "not msgpack"),
    "empty message": (header(), ProtocolError, "not msgpack"),
    "unknown message": (header(message=9) + BODY(["Nonsens"]), ProtocolError, "unknown message 'Nonsens'"),
    "wrong fields": (header(message=7) + BODY(["Read", 1]), ProtocolError, "malformed message Read"),
    "not a message": (header(message=1) + BODY(5), ProtocolError, "malformed message"),
}


@pytest.mark.parametrize("feed", [feed_all, feed_bytewise])
@pytest.mark.parametrize("name", MALFORMED)
def test_each_malformed_input_has_its_own_error(name, feed):
    data, error, words = MALFORMED[name]
    with pytest.raises(error, match=words):
        feed(data, Limits(message_bytes=100, payload_bytes=1000))


def test_error_comes_with_the_first_byte_that_shows_it():
    parser = HeadParser()
    parser.feed(MAGIC[:2])
    with pytest.raises(ProtocolError, match="bad magic"):
        parser.feed(b"x")


def outcome_of(feed, data):
    try:
        return feed(data, Limits(message_bytes=64, payload_bytes=64))
    except ProtocolError as error:
        return type(error)


GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=80).map(lambda b: header(message=len(b)) + b),
    st.tuples(st.sampled_from(MESSAGES), st.integers(0, 60), st.binary(min_size=1, max_size=3)).map(
        lambda t: encode(1, t[0])[: t[1]] + t[2] + encode(1, t[0])[t[1] + len(t[2]) :]
    ),
)


@settings(max_examples=300, deadline=None)
@given(GARBAGE)
def test_garbage_is_refused_alike_whole_and_bytewise(data):
    assert outcome_of(feed_all, data) == outcome_of(feed_bytewise, data)


@given(st.binary(max_size=100))
def test_decoding_garbage_raises_protocol_errors_only(body):
    with contextlib.suppress(ProtocolError):
        decode_message(body)


def test_deep_nesting_is_refused():
    with pytest.raises(ProtocolError):
        decode_message(b"\x91" * 100_000)


def test_what_is_refused_is_not_made_into_objects():
    body = BODY(["Read", 1, [[0]] * 200_000])
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="malformed message Read"):
        decode_message(body)
    assert tracemalloc.get_traced_memory()[1] < 2 * len(body)
    tracemalloc.stop()


def test_message_over_the_limit_is_not_sent():
    with pytest.raises(ProtocolError, match="over the limit"):
        encode(1, Failure(FailureCode.FULL, "x" * (17 << 20)))


def test_page_states_the_header_of_the_codec(request):
    page = (request.config.rootpath / "docs" / "wire-format.md").read_text()
    assert f"{HEADER.size} bytes" in page
    for message in MESSAGES:
        assert type(message).__name__ in page
    for message in (Hello, Challenge, Proof, Welcome):
        assert f"{message.__name__}({', '.join(message.__struct_fields__)})" in page
    example = encode(7, Ping(), 0).hex(" ")
    assert example in page
