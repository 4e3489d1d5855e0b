"""Whether a new UDP packet for port 4791 gets in, by nftables and iptables rules."""

from __future__ import annotations

import pytest

from dualpath.doctor.parsers.firewall import judge_iptables, judge_nft

PORT = 4791


def nft(*rules: str, policy: str = "accept", more: str = "") -> bool:
    body = "\n".join(f"\t\t{rule}" for rule in rules)
    text = (
        "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority filter; "
        f"policy {policy};\n{body}\n\t}}\n{more}}}\n"
    )
    return judge_nft(text, PORT, {"eth2"}).dropped


@pytest.mark.parametrize(
    ("rules", "policy", "dropped"),
    [
        ((), "accept", False),
        ((), "drop", True),
        (("udp dport 4791 drop",), "accept", True),
        (("udp dport 4791 counter packets 3 bytes 900 drop",), "accept", True),
        (("udp dport 4791 reject with icmp port-unreachable",), "accept", True),
        (("udp dport { 53, 4791 } drop",), "accept", True),
        (("udp dport { 53, 4789-4795 } accept",), "drop", False),
        (("udp dport != 4791 drop",), "accept", False),
        (("th dport 4791 drop",), "accept", True),
        (("tcp dport 4791 drop",), "accept", False),
        (("meta l4proto udp drop",), "accept", True),
        (("meta l4proto { tcp, udp } accept",), "drop", False),
        (("ip protocol icmp accept",), "drop", True),
        (("udp dport 4791 accept", "drop"), "accept", False),
        (("drop", "udp dport 4791 accept"), "accept", True),
        (("ct state established,related accept",), "drop", True),
        (("ct state { established, new } accept",), "drop", False),
        (("ct state invalid drop",), "accept", False),
        (('iif "lo" accept',), "drop", True),
        (('iifname "eth2" accept',), "drop", False),
        (('iifname "eth*" udp dport 4791 drop',), "accept", True),
        (('iifname != "eth2" drop',), "accept", False),
        (("ip saddr 10.0.0.0/8 udp dport 4791 drop",), "accept", False),  # only some are dropped: no alarm
        (("ip saddr 10.0.0.0/8 udp dport 4791 accept",), "drop", False),  # only some are let in: no alarm
        (("udp dport @blocked drop",), "accept", False),
        (('log prefix "dropped: " drop',), "accept", True),
        (('counter comment "udp dport 4791 drop"',), "accept", False),
        (("ct state vmap { established : accept, related : accept, invalid : drop }",), "accept", False),
        (('iifname vmap { "lo" : accept, "eth2" : drop }',), "accept", False),  # not followed
        (("meta mark and 0x8000 == 0x8000 drop",), "accept", False),
        (("limit rate 10/second accept", "drop"), "accept", False),
    ],
)
def test_nft_rules(rules: tuple[str, ...], policy: str, dropped: bool) -> None:
    assert nft(*rules, policy=policy) is dropped


def test_nft_follows_jumps() -> None:
    more = "\tchain site {\n\t\tudp dport 4791 drop\n\t}\n\tchain out {\n\t\treturn\n\t\tdrop\n\t}\n"
    assert nft("jump site", more=more)
    assert not nft("jump out", more=more)
    assert nft("jump out", policy="drop", more=more)
    assert not nft("tcp dport 22 jump site", more=more)


def test_nft_tells_where_the_packet_was_dropped() -> None:
    base = "type filter hook prerouting priority -150; policy accept;"
    text = f"table ip mangle {{\n chain pre {{\n {base}\n udp dport 4791 drop\n }}\n}}"
    verdict = judge_nft(text, PORT)
    assert (verdict.table, verdict.chain, verdict.because) == ("ip mangle", "pre", "udp dport 4791 drop")


def test_nft_passes_over_what_is_not_input_or_not_ipv4() -> None:
    chain = "\tchain x {\n\t\ttype filter hook {hook} priority 0; policy drop;\n\t}\n"
    assert not judge_nft("table inet f {\n" + chain.replace("{hook}", "forward") + "}", PORT).dropped
    assert not judge_nft("table ip6 f {\n" + chain.replace("{hook}", "input") + "}", PORT).dropped


def test_nft_puts_broken_sets_together() -> None:
    assert not nft("udp dport { 53,\n\t\t\t     4791 } accept", policy="drop")


def test_chains_that_jump_deeper_than_the_kernel_allows_end() -> None:
    deep = "".join(f"-A c{n} -j c{n + 1}\n" for n in range(3000))
    assert not judge_iptables(f"*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j c0\n{deep}", PORT).dropped


def test_nft_chains_that_jump_in_a_circle_end() -> None:
    more = "\tchain a {\n\t\tjump b\n\t\tjump b\n\t}\n\tchain b {\n\t\tjump a\n\t\tjump a\n\t}\n"
    assert not nft("jump a", more=more)


@pytest.mark.parametrize(
    ("rules", "policy", "dropped"),
    [
        ("", "ACCEPT", False),
        ("", "DROP", True),
        ("-A INPUT -p udp -m udp --dport 4791 -j DROP", "ACCEPT", True),
        ("-A INPUT -p udp -m udp --dport 4790:4800 -j REJECT --reject-with icmp-port-unreachable", "ACCEPT", True),
        ("-A INPUT -p udp -m multiport --dports 53,4791 -j ACCEPT", "DROP", False),
        ("-A INPUT -p tcp -m tcp --dport 4791 -j DROP", "ACCEPT", False),
        ("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "DROP", True),
        ("-A INPUT -m state --state NEW -p udp -j ACCEPT", "DROP", False),
        ("-A INPUT -i lo -j ACCEPT", "DROP", True),
        ("-A INPUT ! -i eth2 -j DROP", "ACCEPT", False),
        ("-A INPUT -i eth+ -j ACCEPT", "DROP", False),
        ("-A INPUT -s 10.0.0.0/8 -p udp --dport 4791 -j DROP", "ACCEPT", False),
        (
            ':site - [0:0]\n-A INPUT -j site\n-A site -p udp --dport 4791 -m comment --comment "no -j ACCEPT" -j DROP',
            "ACCEPT",
            True,
        ),
        ("-A FORWARD -p udp --dport 4791 -j DROP", "ACCEPT", False),
        ("-A INPUT -m addrtype --dst-type LOCAL -j RETURN\n-A INPUT -j DROP", "ACCEPT", False),  # as ufw has it
        ("-A INPUT -m mark --mark 0x8000/0x8000 -j DROP", "ACCEPT", False),  # as Kubernetes has it
    ],
)
def test_iptables_rules(rules: str, policy: str, dropped: bool) -> None:
    text = f"*filter\n:INPUT {policy} [0:0]\n:FORWARD DROP [0:0]\n{rules}\nCOMMIT\n*nat\n:INPUT DROP [0:0]\nCOMMIT\n"
    assert judge_iptables(text, PORT, {"eth2"}).dropped is dropped
