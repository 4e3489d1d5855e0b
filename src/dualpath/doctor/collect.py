"""Records this machine: every file and command of `sources`, within a deadline.

Commands run side by side while files are read; what has not answered in time is stopped and recorded as such. Nothing
is changed on the machine, nothing goes through a shell, and every program speaks the C locale.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from dualpath.doctor import netlink, sources
from dualpath.doctor.globs import expand
from dualpath.doctor.recording import Output, Recording
from dualpath.errors import UsageError
from dualpath.host.nics import Nic, nics
from dualpath.host.tree import LARGEST_FILE, LiveTree, Tree

COMMANDS_S, AGAIN_S = 1.3, 0.4
"""How long commands may take where the whole is to take two seconds: the first time, and when they run again."""
STOPPING_S = 0.2
"""How long a command that was killed may take to be gone."""
AT_ONCE = 16
"""Commands that run side by side. Most wait for a driver or a firmware."""
MOST_NICS = 32
"""Interfaces that commands are run for: those that are up and no virtual functions first."""
LARGEST_PACKET = 65535
"""Bytes, IPv4 header included (RFC 791): loopback's MTU is one more."""
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for after `PATH`: users often have no sbin in theirs."""

Runner = Callable[[str, float], Output | None]
"""Runs a command line until a time of `time.monotonic`; `None` if the program is not installed."""


def collect(
    tree: Tree | None = None,
    *,
    run: Runner | None = None,
    peer: str = "",
    seconds: float = 1.0,
    patience_s: float = COMMANDS_S,
) -> Recording:
    """Return a recording of this machine.

    `peer` is an address to send probes to. Counters are read twice, `seconds` apart; once if that is 0. Commands may
    take `patience_s`; the second round `AGAIN_S` of its own. Raises `UsageError` for a peer that is no address or name.
    """
    tree, run = tree or LiveTree(), run or run_or_ask
    probes = [] if not peer else probe_lines(peer, _mtu_towards(peer, tree))
    hardware = [nic for nic in nics(tree) if nic.kind in ("physical", "member", "bond")]
    names = [nic.name for nic in hardware]
    chosen = [nic.name for nic in _by_interest(hardware, tree)[:MOST_NICS]]
    again = [line for line in _lines(sources.COUNTER_COMMANDS, chosen) if line.startswith("ethtool") or _has_rdma(tree)]
    once = [*probes, *sources.HOST_COMMANDS, *_lines(sources.NIC_COMMANDS, chosen)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        began_s = time.monotonic()
        until_s = began_s + patience_s
        outputs = {line: pool.submit(run, line, until_s) for line in [*again, *once]}
        counted = dict(_texts(tree, _counter_paths(tree, names)))
        counted_s = time.monotonic()
        files, links = _everything(tree, names)
        commands = {line: future.result() for line, future in outputs.items()}
        later: dict[str, str] = {}
        later_outputs: dict[str, Output | None] = {}
        if seconds > 0:
            time.sleep(max(0.0, counted_s + seconds - time.monotonic()))
            later_s = time.monotonic() - counted_s
            until_s = time.monotonic() + max(AGAIN_S, patience_s - COMMANDS_S)
            repeated = {line: pool.submit(run, line, until_s) for line in again if commands[line] is not None}
            later = dict(_texts(tree, _counter_paths(tree, names)))
            later_outputs = {line: future.result() for line, future in repeated.items()}
    return Recording(
        host=tree.read("/proc/sys/kernel/hostname") or socket.gethostname(),
        files={**files, **counted},
        links=links,
        commands={line: output for line, output in commands.items() if output is not None},
        missing=tuple(sorted({line.split()[0] for line, output in commands.items() if output is None})),
        root=os.geteuid() == 0,
        later=later,
        later_commands={line: output for line, output in later_outputs.items() if output is not None},
        later_s=later_s if seconds > 0 else 0.0,
    )


def run_or_ask(line: str, until_s: float) -> Output | None:
    """Run a command line as `run_command` does; where ethtool is not installed, ask the kernel in its place."""
    output = run_command(line, until_s)
    return netlink.answer(line) if output is None and line.startswith("ethtool ") else output


def run_command(line: str, until_s: float) -> Output | None:
    """Run a command line without a shell; stop it, and whatever it started, at `until_s` of `time.monotonic`."""
    program, *words = line.split()
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SEARCHED}")
    if path is None:
        return None
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        return Output("", "not started in time", -1)
    # LD_LIBRARY_PATH and the like stay: nvidia-smi needs them in many containers.
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SEARCHED}", "LC_ALL": "C"}
    try:
        child = subprocess.Popen(
            [path, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Output("", f"{path}: {error.strerror}", 126)
    try:
        stdout, stderr = child.communicate(timeout=left_s)
    except subprocess.TimeoutExpired:
        return Output(_text(_stopped(child)), "stopped: it took too long", -1)
    code = child.returncode
    return Output(_text(stdout), _text(stderr), code if code >= 0 else 128 - code)


def _stopped(child: subprocess.Popen[bytes]) -> bytes:
    """Stop a command and all it started; return what it had printed. One that hangs in the kernel is left behind."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        return child.communicate(timeout=STOPPING_S)[0]
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    return b""


def probe_lines(peer: str, mtu: int) -> list[str]:
    """Return the commands that try whether packets of `mtu` bytes reach `peer` uncut. Raises `UsageError`."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]*", peer):
        raise UsageError(f"not an address or a host name: {peer!r}", hint="give --peer the address of the other host")
    header = 28  # IPv4 20, ICMP 8
    with suppress(ValueError):
        header = 48 if ipaddress.ip_address(peer.partition("%")[0]).version == 6 else 28
    sizes = (min(mtu, LARGEST_PACKET) - header, sources.PROBE_SMALL_BYTES)
    return [sources.PROBE.replace("SIZE", str(size)).replace("PEER", peer) for size in sizes]


def _mtu_towards(peer: str, tree: Tree) -> int:
    """Return the MTU of the interface that leads to `peer`: whose address the kernel would send from."""
    import psutil

    with suppress(OSError, UnicodeError):
        family, kind, _, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # a datagram socket: nothing is sent
            source = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(one.address.partition("%")[0] == source for one in addresses):
                return int(tree.read(f"/sys/class/net/{name}/mtu") or 1500)
    return 1500


def _has_rdma(tree: Tree) -> bool:
    return bool(tree.names("/sys/class/infiniband"))


def _by_interest(hardware: list[Nic], tree: Tree) -> list[Nic]:
    def place(nic: Nic) -> tuple[bool, bool, str]:
        return tree.link(f"/sys/class/net/{nic.name}/device/physfn") is not None, not nic.up, nic.name

    return sorted((nic for nic in hardware if not nic.name.startswith("-")), key=place)


def _lines(patterns: tuple[str, ...], names: list[str]) -> list[str]:
    return [
        line
        for pattern in patterns
        for line in ([pattern.replace("NIC", name) for name in names] if "NIC" in pattern else [pattern])
    ]


def _text(data: bytes) -> str:
    return data[:LARGEST_FILE].decode(errors="replace")


# --- files ---------------------------------------------------------------------------------------------------------


def _everything(tree: Tree, hardware: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what `sources` names, but for counters: texts and links, by path."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    there: list[str] = []
    for pattern in _patterns(tree, hardware):
        if pattern.endswith("@"):
            links |= {path: link for path in expand(tree, pattern[:-1]) if (link := tree.link(path)) is not None}
        elif pattern.endswith("/"):
            there += [path for path in expand(tree, pattern[:-1]) if _exists(tree, path)]
        else:
            files |= dict(_texts(tree, expand(tree, pattern)))
    for path in _gid_paths(tree):
        files |= dict(_texts(tree, [path]))
    files |= dict(_nodes(tree))
    return {**dict.fromkeys(there, ""), **files}, links


def _patterns(tree: Tree, hardware: list[str]) -> Iterator[str]:
    yield from sources.HOST_FILES
    for name in tree.names("/sys/class/net"):
        patterns = (*sources.NIC_FILES, *(sources.HARDWARE_FILES if name in hardware else ()))
        yield from (pattern.replace("NIC", name) for pattern in patterns)
    for device in tree.names("/sys/class/infiniband"):
        yield from (pattern.replace("DEVICE", device).replace("PORT", "*") for pattern in sources.RDMA_FILES)
    for address in _pci_functions(tree):
        yield from (pattern.replace("PCI", address) for pattern in sources.PCI_FILES)


def _counter_paths(tree: Tree, hardware: list[str]) -> Iterator[str]:
    for pattern in sources.COUNTERS:
        for name in hardware if "NIC" in pattern else ("",):
            yield from expand(tree, pattern.replace("NIC", name).replace("DEVICE", "*").replace("PORT", "*"))


def _texts(tree: Tree, paths: Iterator[str] | list[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        text = tree.read(path)
        if text is not None:
            yield path, _kept(path, text)


def _kept(path: str, text: str) -> str:
    """Return the lines of a file that are recorded."""
    pattern = sources.KEPT_LINES.get(path)
    if pattern is None:
        return text
    kept: list[str] = []
    seen: set[str] = set()
    for line in text.replace("\0", "\n").splitlines():
        found = re.search(pattern, line)
        if found is None or (path in sources.FIRST_ONLY and found.group() in seen):
            continue
        seen.add(found.group())
        kept.append(line)
    return "\n".join(kept)


def _exists(tree: Tree, path: str) -> bool:
    parent, _, name = path.rpartition("/")
    return name in tree.names(parent or "/")


def _gid_paths(tree: Tree) -> Iterator[str]:
    for port in expand(tree, "/sys/class/infiniband/*/ports/*"):
        for index in range(sources.GIDS):
            gid = tree.read(f"{port}/gids/{index}")
            if gid is not None and gid.strip("0:\n "):
                yield from (f"{port}/{pattern.replace('INDEX', str(index))}" for pattern in sources.GID_FILES)


def _pci_functions(tree: Tree) -> list[str]:
    """Return the PCI functions that data passes, and the bridges above them."""
    base = "/sys/bus/pci/devices"
    found: set[str] = set()
    for address in tree.names(base):
        if (tree.read(f"{base}/{address}/class") or "").startswith(sources.PCI_CLASSES):
            way = (tree.link(f"{base}/{address}") or address).split("/")
            found |= {
                address,
                *(part for part in way if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", part)),
            }
    return sorted(found)


def _nodes(tree: Tree) -> Iterator[tuple[str, str]]:
    for name in tree.names(sources.DEVICE_NODES):
        path = f"{sources.DEVICE_NODES}/{name}"
        try:
            info = Path(path).stat()
        except OSError:  # gone meanwhile, or a tree that is not this machine's
            yield path, ""
        else:
            yield path, f"{stat.filemode(info.st_mode)} {info.st_uid} {info.st_gid}"
