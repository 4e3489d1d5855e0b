"""A recording without what tells whose it is: addresses, GUIDs, serial numbers, host names (see `pseudonyms`).

It goes by how such things are written: a name that a user gave to something else (a comment in a firewall rule) stays.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import replace

import msgspec

from dualpath.doctor.pseudonyms import Pseudonyms
from dualpath.doctor.recording import Measured, Output, Recording

_PATTERN = re.compile(
    r"""
    (?P<version>(?:version|firmware|fw_ver|fw|pkg|ver|driver|rom)["']?\s*[:=/\ ]\s*["']?v?\d+(?:\.\d+){3}\b)
  | (?P<uuid>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b)
  | (?P<dashed>\b(?:[0-9a-f]{2}-){7}[0-9a-f]{2}\b)
  | (?P<colons>(?<![\w:.])(?:[0-9a-f]{0,4}:){2,19}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]{0,4})(?![\w:.]*[\w:]))
  | (?P<ipv4>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w))
  | (?P<guid>\b0x[0-9a-f]{16}\b)
  | (?P<long>\b[0-9a-f]{32,64}\b)
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""`version`: four numbers that are no address. `dashed`: lspci's serial numbers. `long`: the id of a container."""

_SERIAL = re.compile(
    r"""(?P<key>(?:vendor\ sn|serial\ number|\[SN\]|asset\ tag|phys_switch_id)["']?\s*[:=]\s*["']?
      (?:serial\ number:\s*)?)
    (?P<value>[^\s"',]+)""",
    re.IGNORECASE | re.VERBOSE,
)


def redact(recording: Recording, *, salt: bytes) -> Recording:
    """Return `recording` with addresses, serial numbers and host names replaced.

    The same `salt` gives the same stand-ins on every host; one that nobody keeps makes them final.
    """
    text = Redaction(Pseudonyms(salt), _names(recording)).text

    def outputs(commands: dict[str, Output]) -> dict[str, Output]:
        return {
            text(line): Output(text(output.stdout), text(output.stderr), output.exit_code)
            for line, output in commands.items()
        }

    return replace(
        recording,
        host=Pseudonyms(salt).host(recording.host),
        files={path: text(content) for path, content in recording.files.items()},
        commands=outputs(recording.commands),
        measured=_measured(recording.measured, text),
        later={path: text(content) for path, content in recording.later.items()},
        later_commands=outputs(recording.later_commands),
    )


class Redaction:
    """Replaces in texts what tells whose they are, and `names` wherever they stand as whole words."""

    def __init__(self, pseudonyms: Pseudonyms, names: tuple[str, ...] = ()) -> None:
        self._pseudonyms = pseudonyms
        self._names = {name.lower(): pseudonyms.host(name) for name in names}
        words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        self._named = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE) if words else None

    def text(self, text: str) -> str:
        """Return `text` with stand-ins."""
        if self._named is not None:
            text = self._named.sub(lambda found: self._names[found.group().lower()], text)
        text = _SERIAL.sub(self._serial, text)
        return "\n".join(self._line(line) for line in text.split("\n"))

    def _serial(self, found: re.Match[str]) -> str:
        return found.group("key") + self._pseudonyms.serial(found.group("value"))

    def _line(self, line: str) -> str:
        about_guids = "guid" in line.lower()

        def stand_in(found: re.Match[str]) -> str:
            text = found.group()
            match found.lastgroup:
                case "version":
                    return text
                case "ipv4":
                    return self._ipv4(text)
                case "colons":
                    return self._colons(text)
                case "dashed":
                    return self._pseudonyms.guid(bytes.fromhex(text.replace("-", ""))).hex("-")
                case "guid":  # other values of 64 bits are masks and counters
                    return "0x" + self._pseudonyms.guid(bytes.fromhex(text[2:])).hex() if about_guids else text
                case _:
                    return self._pseudonyms.serial(text)

        return _PATTERN.sub(stand_in, line)

    def _ipv4(self, text: str) -> str:
        try:
            return str(ipaddress.IPv4Address(self._pseudonyms.ipv4(ipaddress.IPv4Address(text).packed)))
        except ipaddress.AddressValueError:
            return text

    def _colons(self, text: str) -> str:
        """Return the stand-in of a MAC, an InfiniBand hardware address, a GUID or an IPv6 address, written alike."""
        groups = text.split(":")
        if all(len(group) == 2 for group in groups) and len(groups) in (6, 8, 20):
            data = bytes.fromhex("".join(groups))
            if len(groups) == 20:  # IPoIB: queue pair, then GID
                return (data[:4] + self._pseudonyms.ipv6(data[4:])).hex(":")
            return (self._pseudonyms.mac(data) if len(groups) == 6 else self._pseudonyms.guid(data)).hex(":")
        if len(groups) == 4 and all(len(group) == 4 for group in groups):  # as ibv_devinfo writes a GUID
            return self._pseudonyms.guid(bytes.fromhex("".join(groups))).hex(":", 2)
        try:
            address = ipaddress.IPv6Address(text).packed
        except ipaddress.AddressValueError:
            return text
        hidden = self._pseudonyms.ipv6(address)
        if hidden == address:  # also `0::/`, which is no address but a line of /proc/1/cgroup
            return text
        if len(groups) == 8 and all(len(group) == 4 for group in groups):  # as sysfs writes a GID
            return hidden.hex(":", 2)
        if "." in text:
            return f"{text.rpartition(':')[0]}:{ipaddress.IPv4Address(hidden[12:])}"
        return str(ipaddress.IPv6Address(hidden))


def _names(recording: Recording) -> tuple[str, ...]:
    """Return the names by which this host, and those that it probed, are called."""
    names = {recording.host, recording.host.partition(".")[0]}
    names |= {line.split()[-1] for line in recording.commands if line.startswith("ping ")}
    if recording.measured.raw is not None:
        names |= {recording.measured.raw.local_host, recording.measured.raw.remote_host}
    return tuple(sorted(name for name in names if re.search(r"[A-Za-z]", name) and ":" not in name and len(name) > 1))


def _measured(measured: Measured, text: Callable[[str], str]) -> Measured:
    raw, run = measured.raw, measured.run
    if raw is not None:
        raw = msgspec.json.decode(text(msgspec.json.encode(raw).decode()), type=type(raw))
    if run is not None:
        kept = {key: value for key, value in run.items() if key != "prompt"}  # what was written is the user's
        run = msgspec.json.decode(text(msgspec.json.encode(kept).decode()), type=dict[str, object])
    return Measured(raw=raw, run=run)
