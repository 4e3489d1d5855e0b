"""How much more memory this process may use: what its control group and the machine still allow."""

from __future__ import annotations

from dualpath.host.tree import LiveTree, Tree

_ROOT = "/sys/fs/cgroup"


def headroom_bytes(tree: Tree | None = None) -> int | None:
    """Return the bytes that this process may still take before something is killed; `None` if nothing says.

    The least of the machine's `MemAvailable` (proc(5)) and, of every control group it is in, `memory.max` less what is
    in use and cannot be reclaimed (`memory.current` less `inactive_file`; Documentation/admin-guide/cgroup-v2.rst).
    """
    files = LiveTree() if tree is None else tree
    left = [available] if (available := _available(files)) is not None else []
    group = next((line[3:] for line in (files.read("/proc/self/cgroup") or "").splitlines() if line[:3] == "0::"), None)
    while group is not None:
        base = _ROOT + group.rstrip("/")
        limit, used = _integer(files.read(f"{base}/memory.max")), _integer(files.read(f"{base}/memory.current"))
        if limit is not None and used is not None:
            left.append(max(0, limit - used + _field(files.read(f"{base}/memory.stat"), "inactive_file")))
        group = None if group in ("", "/") else group.rpartition("/")[0] or "/"
    return min(left, default=None)


def _available(files: Tree) -> int | None:
    for line in (files.read("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            kibibytes = _integer(rest.split()[0] if rest.split() else "")
            return None if kibibytes is None else kibibytes * 1024
    return None


def _field(text: str | None, name: str) -> int:
    for line in (text or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _integer(value) or 0
    return 0


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None
