"""`nft list ruleset` and `iptables-save`: what happens to a new UDP packet for one port.

Both are read into the same chains. A rule that may or may not hold counts if it accepts, and is not held against the
host if it drops: a false alarm is worse than a missed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dualpath.doctor.parsers.firewall_rules import Packet, Rule, iptables_rule, nft_rule

DEEPEST = 16
"""How deep chains may jump: the kernel's own limit."""


@dataclass(slots=True)
class Chain:
    """Rules in order. `hook` is `input` for a base chain of incoming packets, and empty for one that is jumped to."""

    name: str
    hook: str = ""
    policy: str = "accept"
    rules: list[Rule] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the packet, the rule (or policy) that says so, and the base chain that it was found from."""

    dropped: bool
    because: str = ""
    table: str = ""
    chain: str = ""


def judge_nft(text: str, port: int, interfaces: Iterable[str] = ()) -> Verdict:
    """Return the verdict of an nftables ruleset on a new UDP packet for `port` coming in at one of `interfaces`.

    Only what filters IPv4 counts (families `ip` and `inet`): hosts that do not use IPv6 often drop all of it.
    """
    tables: dict[str, dict[str, Chain]] = {}
    packet = Packet(port, frozenset(interfaces))
    chains: dict[str, Chain] = {}
    chain: Chain | None = None
    for line in _statements(text):
        if match := re.match(r"table\s+(\S+)\s+(\S+)\s*\{", line):
            counts = match.group(1) in ("ip", "inet")
            chains = tables.setdefault(f"{match.group(1)} {match.group(2)}", {}) if counts else {}
            chain = None
        elif match := re.match(r"chain\s+(\S+)\s*\{", line):
            chain = chains.setdefault(match.group(1), Chain(match.group(1)))
        elif line.endswith("{") or line == "}":
            chain = None
        elif chain is not None and line.startswith("type "):
            hook = re.search(r"\bhook\s+(\w+)", line)
            policy = re.search(r"\bpolicy\s+(\w+)", line)
            chain.hook = hook.group(1) if hook else ""
            chain.policy = policy.group(1) if policy else "accept"
        elif chain is not None and line:
            chain.rules.append(nft_rule(line, packet))
    return _all(tables)


def judge_iptables(text: str, port: int, interfaces: Iterable[str] = ()) -> Verdict:
    """Return the verdict of `iptables-save` output on a new UDP packet for `port` coming in at one of `interfaces`."""
    tables: dict[str, dict[str, Chain]] = {}
    packet = Packet(port, frozenset(interfaces))
    chains: dict[str, Chain] = {}
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("*"):
            chains = tables.setdefault(line[1:], {}) if line in ("*filter", "*mangle", "*raw") else {}
        elif match := re.match(r":(\S+)\s+(\S+)", line):
            hook = "input" if match.group(1) in ("INPUT", "PREROUTING") else ""
            chains[match.group(1)] = Chain(match.group(1), hook, match.group(2).lower())
        elif match := re.match(r"-A\s+(\S+)\s+(.*)", line):
            chain = chains.setdefault(match.group(1), Chain(match.group(1)))
            chain.rules.append(iptables_rule(match.group(2), packet))
    return _all(tables)


def _statements(text: str) -> Iterator[str]:
    """Yield lines, those of a set that is broken over several put together. A heading ends with its brace."""
    held = ""
    for line in text.splitlines():
        held = f"{held} {line.strip()}".strip()
        if held.endswith("{") or held.count("{") <= held.count("}"):
            yield held
            held = ""


def _all(tables: Mapping[str, Mapping[str, Chain]]) -> Verdict:
    """A packet must pass every base chain; one drop is final."""
    for table, chains in tables.items():
        reached: dict[str, Verdict | None] = {}
        for chain in chains.values():
            if chain.hook not in ("input", "prerouting"):
                continue
            verdict = _walk(chain, chains, reached, DEEPEST)
            if verdict is None and chain.policy == "drop":
                verdict = Verdict(dropped=True, because="policy drop")
            if verdict is not None and verdict.dropped:
                return replace(verdict, table=table, chain=chain.name)
    return Verdict(dropped=False)


def _walk(chain: Chain, chains: Mapping[str, Chain], reached: dict[str, Verdict | None], depth: int) -> Verdict | None:
    """Return the first verdict of a chain; `None` if the packet reaches its end. Each chain is walked once."""
    if chain.name not in reached:
        reached[chain.name] = None  # chains that jump in a circle are refused by the kernel
        reached[chain.name] = _first(chain, chains, reached, depth)
    return reached[chain.name]


def _first(chain: Chain, chains: Mapping[str, Chain], reached: dict[str, Verdict | None], depth: int) -> Verdict | None:
    certain = True  # no longer so after a rule that may have left this chain
    for rule in chain.rules:
        if rule.matches == "no":
            continue
        sure = certain and rule.matches == "yes"
        if rule.action == "accept":
            return Verdict(dropped=False, because=rule.text)
        if rule.action in ("drop", "reject") and sure:
            return Verdict(dropped=True, because=rule.text)
        if rule.action == "return":
            if sure:
                return None
            certain = False
        elif rule.action in ("jump", "goto") and rule.target in chains and depth > 0:
            verdict = _walk(chains[rule.target], chains, reached, depth - 1)
            if verdict is not None and (sure or not verdict.dropped):
                return verdict
            if rule.action == "goto" and sure:
                return None
    return None
