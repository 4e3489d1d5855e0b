"""`ping -M do -s SIZE ADDRESS` (iputils): does a packet of that size pass whole?"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COUNTS = re.compile(r"(\d{1,9}) packets transmitted, (\d{1,9}) (?:packets )?received", re.ASCII)
_LOCAL = re.compile(r"message too long, mtu\s?[=:]\s?(\d{1,6})", re.ASCII | re.IGNORECASE)
_ROUTER = re.compile(r"From (\S{1,80}).{0,40}(?:Frag needed|too big).{0,20}mtu ?= ?(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Probe:
    """How a probe went. `None` means that it is not said."""

    sent: int | None = None
    received: int | None = None
    local_mtu: int | None = None
    """The own interface's MTU, or the route's as learnt, where the packet was too long to leave."""
    router: str = ""
    """Who answered that the packet is too long."""
    router_mtu: int | None = None


def parse_ping(text: str) -> Probe:
    """Return what `ping` reported."""
    counts, local, router = _COUNTS.search(text), _LOCAL.search(text), _ROUTER.search(text)
    return Probe(
        sent=int(counts[1]) if counts else None,
        received=int(counts[2]) if counts else None,
        local_mtu=int(local[1]) if local else None,
        router=router[1] if router else "",
        router_mtu=int(router[2]) if router else None,
    )
