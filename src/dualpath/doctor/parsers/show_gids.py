"""`show_gids` (MLNX_OFED, DOCA and mlnx-tools): the filled GID entries of every port."""

from __future__ import annotations

from dualpath.host.rdma import Gid, parse_gid

_VERSIONS = {"v1": 1, "v2": 2}


def parse_show_gids(text: str) -> dict[tuple[str, int], list[Gid]]:
    """Return the entries by device and port, in the order of the table.

    A row is `DEV PORT INDEX GID [IPv4] VER [DEV]`: IPv4 stands only with v4-mapped entries.
    """
    tables: dict[tuple[str, int], list[Gid]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 5 or not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words[1:3]):
            continue
        address = parse_gid(words[3])
        at = next((at for at in (4, 5) if at < len(words) and words[at] in _VERSIONS), None)
        if address is None or at is None:
            continue
        netdev = words[at + 1] if at + 1 < len(words) else None
        tables.setdefault((words[0], int(words[1])), []).append(
            Gid(int(words[2]), address, _VERSIONS[words[at]], netdev)
        )
    return tables
