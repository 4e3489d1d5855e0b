"""Framing: a fixed header, one msgpack message, raw payload bytes. No sockets, no clock.

Theory of operation. A frame is `header | message | payload`. The header is 28 bytes, little-endian:

    offset  size  field
    0       4     magic           b"DPKV"
    4       2     version         u16, `PROTOCOL_VERSION`; checked before anything that follows is believed
    6       2     flags           u16, zero; anything else is refused, so that a later version can give it a meaning
    8       8     request id      u64; a reply carries its request's; 0 is the handshake and the connection itself
    16      4     message bytes   u32
    20      8     payload bytes   u64

A sender writes `encode(...)` and then the payload straight from where it lies. A receiver feeds a `HeadParser`, in
pieces of any size, until it returns a `Head`; the parser never consumes a byte of the payload, which the caller then
receives straight to where it belongs. After an error the stream is out of step: close the connection.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from dualpath.errors import ProtocolError, TruncatedError, VersionError
from dualpath.wire.messages import PROTOCOL_VERSION, AnyMessage, Message

MAGIC = b"DPKV"
HEADER = struct.Struct("<4sHHQIQ")
MAX_MESSAGE_BYTES = 16 << 20
MAX_PAYLOAD_BYTES = 1 << 30

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)
_TAGS = frozenset(cls.__name__ for cls in Message.__subclasses__())


@dataclass(frozen=True)
class Limits:
    """The largest message and payload that a receiver accepts, in bytes."""

    message_bytes: int = MAX_MESSAGE_BYTES
    payload_bytes: int = MAX_PAYLOAD_BYTES


HANDSHAKE_LIMITS = Limits(message_bytes=4096, payload_bytes=0)
"""What is accepted from somebody who has not proved anything yet."""


class Head(msgspec.Struct, frozen=True):
    """A frame up to its payload, of which `payload_bytes` follow on the stream."""

    request_id: int
    message: Message
    payload_bytes: int


def encode(request_id: int, message: Message, payload_bytes: int = 0) -> bytes:
    """Return header and message; the sender appends exactly `payload_bytes` raw bytes.

    Raises `ProtocolError` if the message is larger than any receiver accepts.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"{type(message).__name__} of {len(body)} bytes is over the limit of {MAX_MESSAGE_BYTES}",
            hint="split the request",
        )
    return HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, request_id, len(body), payload_bytes) + body


def decode_message(body: bytes | bytearray | memoryview) -> Message:
    """Decode one message. Raises `ProtocolError` for bad msgpack, an unknown tag, and wrong fields."""
    try:
        return _decoder.decode(body)
    except RecursionError:
        raise ProtocolError("message is nested too deeply") from None
    except msgspec.ValidationError as error:
        _refuse(body, error)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"message is not msgpack: {error}") from None


class _Start(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of any message. What follows is looked at, but not made into objects: it may be millions."""

    tag: msgspec.Raw = msgspec.Raw(b"\xc0")


_start: msgspec.msgpack.Decoder[_Start] = msgspec.msgpack.Decoder(_Start)


def _refuse(body: bytes | bytearray | memoryview, error: msgspec.ValidationError) -> NoReturn:
    """Raise for a message that is msgpack but not one of ours."""
    tag = ""
    try:
        tag = msgspec.msgpack.decode(_start.decode(body).tag, type=str)
    except msgspec.ValidationError:  # no array, or nothing that could be a name
        pass
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as again:
        raise ProtocolError(f"message is not msgpack: {again}") from None
    if tag and tag not in _TAGS:
        raise ProtocolError(f"unknown message {tag[:64]!r}") from None
    raise ProtocolError(f"malformed message {tag}: {error}") from None


class HeadParser:
    """Turns bytes, in pieces of any size, into `Head`s. One per connection and direction."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._held = bytearray()
        self._fields: tuple[int, int, int] | None = None  # request id, message bytes, payload bytes

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and its head is not complete: an end of stream here is a truncation."""
        return bool(self._held)

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[int, Head | None]:
        """Take bytes up to the end of the next head: `(bytes taken, head)`, the head being `None` if more are needed.

        Raises `VersionError` for another protocol version and `ProtocolError` for every other malformed input, at
        the first byte that shows it.
        """
        held, taken = self._held, 0
        if self._fields is None:
            if not held and len(data) >= HEADER.size:
                request_id, message_bytes, payload_bytes = self._parse_header(data)
                end = HEADER.size + message_bytes
                if len(data) >= end:  # all there at once, as nearly always: nothing is copied
                    return end, Head(request_id, decode_message(memoryview(data)[HEADER.size : end]), payload_bytes)
            taken = min(HEADER.size - len(held), len(data))
            held += data[:taken]
            self._check_start(held)
            if len(held) < HEADER.size:
                return taken, None
            self._fields = self._parse_header(held)
        request_id, message_bytes, payload_bytes = self._fields
        more = min(HEADER.size + message_bytes - len(held), len(data) - taken)
        held += data[taken : taken + more]
        taken += more
        if len(held) < HEADER.size + message_bytes:
            return taken, None
        body = bytes(memoryview(held)[HEADER.size :])
        self._held, self._fields = bytearray(), None
        return taken, Head(request_id, decode_message(body), payload_bytes)

    def eof(self) -> None:
        """The stream ended here. Raises `TruncatedError` in the middle of a head."""
        if self._held:
            raise TruncatedError(f"truncated frame: the stream ended after {len(self._held)} bytes of a frame's head")

    @staticmethod
    def _check_start(held: bytes | bytearray | memoryview) -> None:
        start = bytes(held[: len(MAGIC)])
        if not MAGIC.startswith(start):
            raise ProtocolError(
                f"bad magic {start!r}: not a dualpath connection", hint="check that the port belongs to a pool node"
            )

    def _parse_header(self, held: bytes | bytearray | memoryview) -> tuple[int, int, int]:
        magic, version, flags, request_id, message_bytes, payload_bytes = HEADER.unpack_from(held)
        if magic != MAGIC:
            self._check_start(held)
        if version != PROTOCOL_VERSION:
            raise VersionError(
                f"peer speaks protocol version {version}, this is version {PROTOCOL_VERSION}",
                hint="install the same dualpath release on both sides",
            )
        if flags:
            raise ProtocolError(f"unknown flags {flags:#06x}")
        if message_bytes > self.limits.message_bytes:
            raise ProtocolError(f"oversized message: {message_bytes} bytes, limit {self.limits.message_bytes}")
        if payload_bytes > self.limits.payload_bytes:
            raise ProtocolError(f"oversized payload: {payload_bytes} bytes, limit {self.limits.payload_bytes}")
        return request_id, message_bytes, payload_bytes
