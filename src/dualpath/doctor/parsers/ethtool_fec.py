"""`ethtool --show-fec NIC`, with `-I` also what was corrected and what was not."""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.doctor.parsers.labels import integer, labelled


@dataclass(frozen=True, slots=True)
class Fec:
    """Encodings in lower case, `none` and `off` both as `off`; counts are `None` without `-I`."""

    configured: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    corrected_blocks: int | None = None
    uncorrectable_blocks: int | None = None


def parse_fec(text: str) -> Fec:
    """Return the settings. Older versions write `Configured FEC encodings`, newer `Supported/Configured ...`."""
    configured: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    counts: dict[str, int | None] = {}
    for label, value in labelled(text):
        name = label.lower()
        if name.endswith(("configured fec encodings", "configured fec encoding")):
            configured = _encodings(value)
        elif name.startswith("active fec encoding"):
            active = _encodings(value)
        elif name in ("corrected_blocks", "uncorrectable_blocks"):
            counts[name] = integer(value)
    return Fec(configured, active, counts.get("corrected_blocks"), counts.get("uncorrectable_blocks"))


def _encodings(value: str) -> tuple[str, ...]:
    return tuple("off" if word == "none" else word for word in value.lower().split())
