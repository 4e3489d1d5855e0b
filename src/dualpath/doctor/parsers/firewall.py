"""`nft list ruleset` and `iptables-save`: what happens to a new UDP packet for one port.

Both are read into the same chains. A rule whose other conditions cannot be judged (an address, a mark, a named set)
is a `maybe`: it may accept, and it is not held against the host if it drops, so that no alarm is false.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

MOST_CHAINS = 500
"""Chains that are walked; a limit to how deep they call each other (the kernel allows 16 levels)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`action` is accept, drop, reject, return, jump or goto; `target` is the chain of the last two."""

    text: str
    matches: str
    """`yes`, `no` or `maybe`."""
    action: str
    target: str = ""


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
    names = frozenset(interfaces)
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
            chain.rules.append(_nft_rule(line, port, names))
    return _all(tables)


def judge_iptables(text: str, port: int, interfaces: Iterable[str] = ()) -> Verdict:
    """Return the verdict of `iptables-save` output on a new UDP packet for `port` coming in at one of `interfaces`."""
    tables: dict[str, dict[str, Chain]] = {}
    names = frozenset(interfaces)
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
            chain.rules.append(_iptables_rule(match.group(2), port, names))
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
            verdict = _walk(chain, chains, reached)
            if verdict is None and chain.policy == "drop":
                verdict = Verdict(dropped=True, because="policy drop")
            if verdict is not None and verdict.dropped:
                return replace(verdict, table=table, chain=chain.name)
    return Verdict(dropped=False)


def _walk(chain: Chain, chains: Mapping[str, Chain], reached: dict[str, Verdict | None]) -> Verdict | None:
    """Return the first verdict of a chain; `None` if the packet reaches its end. Each chain is walked once."""
    if chain.name not in reached:
        reached[chain.name] = None  # chains that jump in a circle are refused by the kernel
        reached[chain.name] = _first(chain, chains, reached)
    return reached[chain.name]


def _first(chain: Chain, chains: Mapping[str, Chain], reached: dict[str, Verdict | None]) -> Verdict | None:
    for rule in chain.rules:
        if rule.matches == "no":
            continue
        if rule.action == "accept":
            return Verdict(dropped=False, because=rule.text)
        if rule.action in ("drop", "reject") and rule.matches == "yes":
            return Verdict(dropped=True, because=rule.text)
        if rule.action == "return" and rule.matches == "yes":
            return None
        if rule.action in ("jump", "goto") and rule.target in chains and len(reached) < MOST_CHAINS:
            verdict = _walk(chains[rule.target], chains, reached)
            if verdict is not None and not (verdict.dropped and rule.matches == "maybe"):
                return verdict
            if rule.action == "goto" and rule.matches == "yes":
                return None
    return None


def _nft_rule(line: str, port: int, names: frozenset[str]) -> Rule:
    text = re.sub(r"\bcomment\s+\"[^\"]*\"", "", re.sub(r"#.*$", "", line)).strip()
    action = re.search(r"\b(accept|drop|reject|return)\b(?!.*\b(?:accept|drop|reject|return)\b)", text)
    jump = re.search(r"\b(jump|goto)\s+(\S+)", text)
    rest = re.sub(
        r"\bcounter(?:\s+packets\s+\d+\s+bytes\s+\d+)?|\blog\b(?:\s+(?:prefix|level|group)\s+(?:\"[^\"]*\"|\S+))*",
        "",
        text,
    )
    rest = re.sub(r"\breject\s+with\s+.*$|\b(?:accept|drop|reject|return)\b|\b(?:jump|goto)\s+\S+", "", rest)
    matches = _conditions(_nft_conditions(rest, port, names))
    if jump:
        return Rule(line, matches, jump.group(1), jump.group(2))
    return Rule(line, matches, action.group(1) if action else "")


def _nft_conditions(rest: str, port: int, names: frozenset[str]) -> list[str]:
    found = []

    def take(pattern: str, judge: object) -> None:
        nonlocal rest
        for match in re.finditer(pattern, rest):
            found.append(judge(match) if callable(judge) else str(judge))
        rest = re.sub(pattern, " ", rest)

    value = r"(!=\s*)?(\{[^}]*\}|\S+)"
    take(rf"\b(?:udp|th)\s+dport\s+{value}", lambda m: _negate(m.group(1), _ports(m.group(2), port)))
    take(r"\b(?:tcp|sctp|dccp|icmp|icmpv6)\s+(?:dport|sport|type|flags)\s+(?:!=\s*)?(?:\{[^}]*\}|\S+)", "no")
    take(
        rf"\b(?:meta\s+l4proto|ip\s+protocol|ip6\s+nexthdr)\s+{value}",
        lambda m: _negate(m.group(1), _one_of(m.group(2), {"udp", "17"})),
    )
    take(rf"\bct\s+state\s+{value}", lambda m: _negate(m.group(1), _one_of(m.group(2), {"new"})))
    take(r"\bct\s+state\s+vmap\s+\{[^}]*\}", "maybe")
    take(rf"\b(?:iifname|iif)\s+{value}", lambda m: _negate(m.group(1), _one_of(m.group(2), names)))
    if rest.strip():
        found.append("maybe")
    return found


def _iptables_rule(text: str, port: int, names: frozenset[str]) -> Rule:
    found = []
    rest = re.sub(
        r"-m\s+comment|--comment\s+(?:\"[^\"]*\"|\S+)|--reject-with\s+\S+|--log-\S+\s+(?:\"[^\"]*\"|\S+)", " ", text
    )
    options = re.findall(r"(!\s+)?(--?[a-zA-Z0-9-]+)((?:\s+(?!-|!\s)\S+)*)", rest)
    action, target = "", ""
    for negated, option, value in options:
        value = value.strip()
        if option in ("-j", "-g"):
            action = (
                value.lower()
                if value in ("ACCEPT", "DROP", "REJECT", "RETURN")
                else "goto"
                if option == "-g"
                else "jump"
            )
            target = value
        elif option in ("-p", "--protocol"):
            found.append(_negate(negated, "yes" if value in ("udp", "17", "all") else "no"))
        elif option in ("--dport", "--dports", "--destination-port", "--destination-ports"):
            found.append(_negate(negated, _ports(value.replace(":", "-"), port)))
        elif option in ("--state", "--ctstate"):
            found.append(_negate(negated, _one_of(value.lower(), {"new"})))
        elif option in ("-i", "--in-interface"):
            found.append(_negate(negated, _one_of(value, names)))
        elif option not in ("-m", "--match"):
            found.append("maybe")
    return Rule(text, _conditions(found), action, target)


def _conditions(found: Iterable[str]) -> str:
    told = set(found)
    return "no" if "no" in told else "maybe" if "maybe" in told else "yes"


def _negate(negation: str, answer: str) -> str:
    return {"yes": "no", "no": "yes"}.get(answer, answer) if negation else answer


def _words(value: str) -> list[str]:
    return [word.strip().strip('"') for word in value.strip("{} ").split(",") if word.strip()]


def _one_of(value: str, wanted: Iterable[str]) -> str:
    """Judge a value or set against what the packet may be; a pattern (`eth*`, `@set`) may match."""
    words = _words(value)
    wanted = set(wanted)
    if any(word in wanted for word in words):
        return "yes"
    if any(word.startswith("@") for word in words):
        return "maybe"
    stems = [word.rstrip("*+") for word in words if word.endswith(("*", "+"))]
    return "yes" if any(name.startswith(stem) for name in wanted for stem in stems) else "no"


def _ports(value: str, port: int) -> str:
    """Judge a port, a range `4000-5000` or a set of them."""
    for word in _words(value):
        if word.startswith(("@", "$")):
            return "maybe"
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", word)
        if match and int(match.group(1)) <= port <= int(match.group(2) or match.group(1)):
            return "yes"
        if not match and not word.isdigit():
            return "maybe"  # a service by name
    return "no"
