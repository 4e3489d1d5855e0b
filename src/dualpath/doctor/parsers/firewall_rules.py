"""Whether one rule of nftables or iptables holds for a packet: a new one, UDP, to a port, in at some interface.

What cannot be judged from that (an address, a mark, a named set, a limit) is a `maybe`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Answer = Literal["yes", "no", "maybe"]


@dataclass(frozen=True, slots=True)
class Packet:
    """The first UDP packet of a connection to `port`, in at any of `interfaces`."""

    port: int
    interfaces: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """`action` is accept, drop, reject, return, jump or goto, or empty; `target` is the chain of jump and goto."""

    text: str
    matches: Answer
    action: str
    target: str = ""


_VALUE = r"(!=\s*)?(\{[^}]*\}|\S+)"
_NFT_IGNORED = re.compile(
    r'\bcomment\s+"[^"]*"|#.*$|\bcounter\b(?:\s+packets\s+\d+\s+bytes\s+\d+)?'
    r'|\blog\b(?:\s+(?:prefix|level|group|flags)\s+(?:"[^"]*"|\S+))*|(?<=\breject)\s+with\s+.*$'
)
_NFT_ACTION = re.compile(r"\b(accept|drop|reject|return)\s*$")
_NFT_JUMP = re.compile(r"\b(jump|goto)\s+(\S+)\s*$")
_NFT_CONDITIONS: tuple[tuple[re.Pattern[str], Callable[[str, Packet], Answer]], ...] = (
    (re.compile(rf"\b(?:udp|th)\s+dport\s+{_VALUE}"), lambda value, packet: _ports(value, packet.port)),
    (re.compile(rf"\b(?:tcp|sctp|dccp|icmp|icmpv6)\s+(?:dport|sport|type|flags)\s+{_VALUE}"), lambda *_: "no"),
    (
        re.compile(rf"\b(?:meta\s+l4proto|ip\s+protocol|ip6\s+nexthdr)\s+{_VALUE}"),
        lambda value, _: _one_of(value, {"udp", "17"}),
    ),
    (re.compile(rf"\bct\s+state\s+{_VALUE}"), lambda value, _: _one_of(value, {"new"})),
    (re.compile(rf"\b(?:iifname|iif)\s+{_VALUE}"), lambda value, packet: _one_of(value, packet.interfaces)),
)

_IPTABLES_IGNORED = re.compile(
    r'-m\s+comment|--comment\s+(?:"[^"]*"|\S+)|--reject-with\s+\S+|--log-\S+\s+(?:"[^"]*"|\S+)'
)
_IPTABLES_OPTION = re.compile(r"(!\s+)?(--?[a-zA-Z0-9-]+)((?:\s+(?!-|!\s)\S+)*)")
_IPTABLES_ACTIONS = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "reject", "RETURN": "return"}


def nft_rule(line: str, packet: Packet) -> Rule:
    """Return a rule of `nft list ruleset`. Verdict maps are not followed: such a rule decides nothing."""
    rest = _NFT_IGNORED.sub(" ", line)
    action, jump = _NFT_ACTION.search(rest), _NFT_JUMP.search(rest)
    rest = _NFT_JUMP.sub("", _NFT_ACTION.sub("", rest))
    answers: list[Answer] = []
    for pattern, judge in _NFT_CONDITIONS:
        answers += [_negated(match.group(1), judge(match.group(2), packet)) for match in pattern.finditer(rest)]
        rest = pattern.sub(" ", rest)
    if rest.strip():
        answers.append("maybe")
    if jump:
        return Rule(line, _all_of(answers), jump.group(1), jump.group(2))
    return Rule(line, _all_of(answers), action.group(1) if action else "")


def iptables_rule(text: str, packet: Packet) -> Rule:
    """Return a rule of `iptables-save`, without its `-A CHAIN`."""
    answers: list[Answer] = []
    action = target = ""
    for negation, option, value in _IPTABLES_OPTION.findall(_IPTABLES_IGNORED.sub(" ", text)):
        value = value.strip()
        if option in ("-j", "-g"):
            action = _IPTABLES_ACTIONS.get(value, "jump" if option == "-j" else "goto")
            target = value
        elif option not in ("-m", "--match"):
            answers.append(_negated(negation, _iptables_condition(option, value, packet)))
    return Rule(text, _all_of(answers), action, target)


def _iptables_condition(option: str, value: str, packet: Packet) -> Answer:
    if option in ("-p", "--protocol"):
        return _one_of(value, {"udp", "17", "all"})
    if option in ("--dport", "--dports", "--destination-port", "--destination-ports"):
        return _ports(value.replace(":", "-"), packet.port)
    if option in ("--state", "--ctstate"):
        return _one_of(value.lower(), {"new"})
    if option in ("-i", "--in-interface"):
        return _one_of(value, packet.interfaces)
    return "maybe"


def _all_of(answers: Iterable[Answer]) -> Answer:
    told = set(answers)
    return "no" if "no" in told else "maybe" if "maybe" in told else "yes"


def _negated(negation: str | None, answer: Answer) -> Answer:
    if not negation or answer == "maybe":
        return answer
    return "no" if answer == "yes" else "yes"


def _one_of(value: str, wanted: Iterable[str]) -> Answer:
    """Judge a value or set against what the packet may be; of a pattern (`eth*`, `eth+`) the beginning counts."""
    wanted = set(wanted)
    unsure = False
    for word in _words(value):
        stem = word.rstrip("*+")
        if word in wanted or (stem != word and any(name.startswith(stem) for name in wanted)):
            return "yes"
        unsure = unsure or word.startswith("@")
    return "maybe" if unsure else "no"


def _ports(value: str, port: int) -> Answer:
    """Judge a port, a range `4000-5000` or a set of them; a service by name, or a named set, may be it."""
    unsure = False
    for word in _words(value):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", word)
        if match and int(match.group(1)) <= port <= int(match.group(2) or match.group(1)):
            return "yes"
        unsure = unsure or match is None
    return "maybe" if unsure else "no"


def _words(value: str) -> list[str]:
    return [word.strip().strip('"') for word in value.strip("{} ").split(",") if word.strip()]
