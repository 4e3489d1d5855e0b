"""`rdma link show` and `rdma system show` (iproute2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

_LINK = re.compile(r"\s*(?:link|\d{1,5}/\d{1,5}:)\s+([\w.@-]{1,64})/(\d{1,3}):?\s(.*)", re.ASCII)
"""`link mlx5_0/1 state …`; before iproute2 5.1 `0/1: mlx5_0/1: state …`."""


@dataclass(frozen=True, slots=True)
class RdmaLink:
    """One port. Empty means that it is not said."""

    device: str
    port: int
    state: str = ""
    """`ACTIVE`, `DOWN`, …"""
    physical_state: str = ""
    """`LINK_UP`, `DISABLED`, `POLLING`, …"""
    netdev: str = ""


def parse_rdma_link(text: str) -> list[RdmaLink]:
    """Return the ports in the order printed; the `caps` lines of `-d` are skipped."""
    links: list[RdmaLink] = []
    for line in text.splitlines():
        head = _LINK.match(line)
        if head:
            words = head[3].split()
            values = dict(pairwise(words))
            links.append(
                RdmaLink(
                    device=head[1],
                    port=int(head[2]),
                    state=values.get("state", ""),
                    physical_state=values.get("physical_state", ""),
                    netdev=values.get("netdev", ""),
                )
            )
    return links


def parse_rdma_system(text: str) -> dict[str, str]:
    """Return the subsystem's settings: `{"netns": "shared", "copy-on-fork": "on"}`."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=False))
