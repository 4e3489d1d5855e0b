"""Consistent stand-ins for addresses, names and serial numbers, made of a secret.

Equal things stay equal and different ones different. What checks need of their structure survives: private, link-local
and multicast ranges, networks (addresses that share leading bytes still do), zero and all-ones bytes, the IPv4 address
inside a GID, the MAC inside a GUID or a link-local GID, and the vendor's part of a MAC.

Each byte goes through a permutation that depends on the secret and on the bytes before it: prefix-preserving, after Xu,
Fan, Ammar and Moon, "Prefix-Preserving IP Address Anonymization" (ICNP 2002), by bytes where they go by bits.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from functools import lru_cache

_MAPPED = bytes(10) + b"\xff\xff"
_KEPT_BYTES = {10: 1, 100: 2, 127: 1, 169: 2, 172: 2, 192: 2}
"""Leading bytes of an IPv4 address that tell a private, shared or link-local range (RFC 1918, 6598, 3927)."""
_PUBLIC = tuple(byte for byte in range(1, 224) if byte not in _KEPT_BYTES)


class Pseudonyms:
    """Stand-ins that depend on `salt` alone: the same one gives the same stand-ins, another one others."""

    def __init__(self, salt: bytes) -> None:
        self._salt = hashlib.blake2b(salt, digest_size=32).digest()
        self._permutation: Callable[[bytes], list[int]] = lru_cache(maxsize=65536)(self._permute)

    def host(self, name: str) -> str:
        """Return a name for the host called `name`."""
        return f"host-{self._digest(name.lower().encode())[:6]}"

    def mac(self, mac: bytes) -> bytes:
        """Return another MAC (6 bytes) of the same vendor; zero and broadcast stay."""
        if mac in (bytes(6), b"\xff" * 6):
            return mac
        # Without the bit that an EUI-64 flips: a MAC and the GID made of it have one stand-in.
        return mac[:3] + self._scrambled(mac[3:], b"mac" + bytes([mac[0] & ~2]) + mac[1:3])

    def guid(self, guid: bytes) -> bytes:
        """Return another GUID (8 bytes): if it holds a MAC, it holds that MAC's stand-in."""
        if guid[3:5] in (b"\xff\xfe", b"\x03\x00"):  # an EUI-64, and what ConnectX firmware makes of a MAC
            mac = self.mac(guid[:3] + guid[5:])
            return mac[:3] + guid[3:5] + mac[3:]
        return guid[:3] + self._scrambled(guid[3:], b"guid" + guid[:3])

    def ipv4(self, address: bytes) -> bytes:
        """Return another address (4 bytes) of the same range; loopback, multicast and netmasks stay."""
        if address[0] in (0, 127) or address[0] >= 224:
            return address
        kept = _KEPT_BYTES.get(address[0], 0)
        if kept:
            return address[:kept] + self._scrambled(address[kept:], b"v4" + address[:kept])
        order = random.Random(self._digest(b"public")).sample(_PUBLIC, len(_PUBLIC))  # noqa: S311 - a keyed digest
        return bytes([order[_PUBLIC.index(address[0])]]) + self._scrambled(address[1:], b"v4" + address[:1])

    def ipv6(self, address: bytes) -> bytes:
        """Return another address or GID (16 bytes) of the same range, and with the stand-in of what is inside."""
        if address[:12] == _MAPPED:
            return _MAPPED + self.ipv4(address[12:])
        if address[:15] == bytes(15):  # :: and ::1
            return address
        kept = 8 if address[:2] == b"\xfe\x80" else 2 if address[0] == 0xFF else 1
        return address[:kept] + self._scrambled(address[kept:8], b"v6" + address[:kept]) + self.guid(address[8:])

    def serial(self, text: str) -> str:
        """Return other digits and letters in the same places; hexadecimal ones if all are."""
        chance = random.Random(self._digest(text.encode()))  # noqa: S311 - a keyed digest
        letters = "abcdef" if re.fullmatch(r"(?:0x)?[0-9a-f-]+", text) else "abcdefghijklmnopqrstuvwxyz"

        def other(letter: str) -> str:
            if letter.isdigit():
                return chance.choice("0123456789")
            if not letter.isalpha():
                return letter
            return chance.choice(letters if letter.islower() else letters.upper())

        start = 2 if text.startswith("0x") else 0
        return text[:start] + "".join(other(letter) for letter in text[start:])

    def _scrambled(self, data: bytes, context: bytes) -> bytes:
        return bytes(self._permutation(context + data[:at])[byte] for at, byte in enumerate(data))

    def _permute(self, context: bytes) -> list[int]:
        """Return a permutation of bytes that leaves 0 and 255 alone: networks and broadcasts stay what they are."""
        inner = random.Random(self._digest(context)).sample(range(1, 255), 254)  # noqa: S311 - a keyed digest
        return [0, *inner, 255]

    def _digest(self, data: bytes) -> str:
        return hashlib.blake2b(data, key=self._salt, digest_size=16).hexdigest()
