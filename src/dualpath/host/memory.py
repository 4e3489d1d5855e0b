"""How much memory this process may use, and how much more: what its control groups and the machine allow."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.host.tree import LiveTree, Tree

_ROOT = "/sys/fs/cgroup"


def headroom_bytes(tree: Tree | None = None) -> int | None:
    """Return the bytes that this process may still take before something is killed; `None` if nothing says.

    The least of the machine's `MemAvailable` (proc(5)) and, of every control group it is in, `memory.max` less what is
    in use and cannot be reclaimed (`memory.current` less `inactive_file`; Documentation/admin-guide/cgroup-v2.rst).
    """
    files = LiveTree() if tree is None else tree
    left = [available] if (available := _machine(files, "MemAvailable")) is not None else []
    for base in _groups(files):
        limit, used = _integer(files.read(f"{base}/memory.max")), _integer(files.read(f"{base}/memory.current"))
        if limit is not None and used is not None:
            left.append(max(0, limit - used + _field(files.read(f"{base}/memory.stat"), "inactive_file")))
    return min(left, default=None)


def limit_bytes(tree: Tree | None = None) -> int | None:
    """Return the bytes that this process could take if it were alone; `None` if nothing says.

    The least of the machine's `MemTotal` and, of every control group it is in, `memory.max`.
    """
    files = LiveTree() if tree is None else tree
    found = [_machine(files, "MemTotal"), *(_integer(files.read(f"{base}/memory.max")) for base in _groups(files))]
    return min((one for one in found if one is not None), default=None)


def _groups(files: Tree) -> Iterator[str]:
    """Yield the folders of the control groups that this process is in, innermost first."""
    group = next((line[3:] for line in (files.read("/proc/self/cgroup") or "").splitlines() if line[:3] == "0::"), None)
    while group is not None:
        yield _ROOT + group.rstrip("/")
        group = None if group in ("", "/") else group.rpartition("/")[0] or "/"


def _machine(files: Tree, field: str) -> int | None:
    for line in (files.read("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
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
