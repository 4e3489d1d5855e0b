"""How each lane marks its packets: the one place that maps lanes to DSCP and `SO_PRIORITY`.

| lane     | DSCP      | TOS byte | priority (`dscp >> 3`) | `SO_PRIORITY` |
|----------|-----------|----------|------------------------|---------------|
| realtime | 46 (EF)   | 0xb8     | 5                      | 6             |
| prefetch | 26 (AF31) | 0x68     | 3                      | 3             |
| bulk     | 8 (CS1)   | 0x20     | 1                      | 1             |

Switches and RoCE NICs sort packets by priority, on the usual mapping the upper three bits of the DSCP. These priorities
(5, 3 and 1) must be among those for which flow control (PFC) is enabled, and each must have a queue of its own; where
a site maps DSCPs differently, its mapping has to be changed or the lanes are one queue on the wire. `SO_PRIORITY` sorts
within this host; 6 is the highest that needs no privilege.

The code points are those of RFC 3246 (EF), RFC 2597 (AF31) and RFC 2474 (CS1).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneClass:
    """The marks of one lane's packets."""

    dscp: int
    """Differentiated services code point, 6 bits."""
    so_priority: int
    """Value of the socket option `SO_PRIORITY`."""

    @property
    def tos(self) -> int:
        """The TOS byte (`IP_TOS`) or IPv6 traffic class (`IPV6_TCLASS`) with this code point, ECN bits zero."""
        return self.dscp << 2

    @property
    def priority(self) -> int:
        """The 802.1p priority, 0 to 7, that the usual mapping gives the code point."""
        return self.dscp >> 3


LANES = {
    "realtime": LaneClass(dscp=46, so_priority=6),
    "prefetch": LaneClass(dscp=26, so_priority=3),
    "bulk": LaneClass(dscp=8, so_priority=1),
}
"""By name, in order of precedence: each yields to those before it."""
