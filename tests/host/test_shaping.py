from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dualpath.host.shaping import Shape, classes, default_burst, shaped_rates

RATES = st.integers(10**6, 10**12)


@given(RATES)
def test_a_priority_tree_promises_no_more_than_its_rate(rate_bits_per_s: int) -> None:
    root, *leaves = classes(Shape(rate_bits_per_s, default_burst(rate_bits_per_s), priority=True))
    assert sum(leaf.rate_bytes_per_s for leaf in leaves) <= root.rate_bytes_per_s
    assert [leaf.precedence for leaf in leaves] == [0, 1, 2]
    assert [leaf.tos for leaf in leaves] == [0xB8, 0x68, 0x20]
    assert {leaf.ceil_bytes_per_s for leaf in leaves} == {root.ceil_bytes_per_s}
    assert min(leaf.rate_bytes_per_s for leaf in leaves) >= root.rate_bytes_per_s // 100  # nobody starves


@given(RATES)
def test_without_priority_one_class_takes_everything(rate_bits_per_s: int) -> None:
    (only,) = classes(Shape(rate_bits_per_s, 1 << 17))
    assert (only.rate_bytes_per_s, only.ceil_bytes_per_s) == (rate_bits_per_s // 8,) * 2
    assert only.queue_bytes is not None
    assert only.queue_bytes < 1 << 31  # the kernel's field is 32 bits wide


class Message(dict[str, Any]):
    """As pyroute2's messages: fields by key, attributes by `get_attr`."""

    def get_attr(self, name: str) -> Any:
        return self.get(name)


def qdisc(index: int, kind: str, parent: int = 0xFFFFFFFF, **options: Any) -> Message:
    return Message(index=index, parent=parent, TCA_KIND=kind, TCA_OPTIONS=Message(options))


def test_rates_are_read_back_from_the_root_of_each_interface() -> None:
    qdiscs = [
        qdisc(2, "htb"),
        qdisc(2, "bfifo", parent=0x10010),
        qdisc(3, "tbf", TCA_TBF_PARMS={"rate": 25_000_000}),
        qdisc(4, "fq_codel"),
        qdisc(5, "mq"),
        qdisc(5, "tbf", parent=0x10001, TCA_TBF_PARMS={"rate": 1}),  # of one queue only
        qdisc(6, "htb"),
        qdisc(7, "tbf", TCA_TBF_PARMS={"rate": 0xFFFFFFFF}),
    ]
    found = shaped_rates(
        qdiscs,
        [
            qdisc(2, "htb", TCA_HTB_PARMS={"ceil": 125_000_000}),
            qdisc(2, "htb", parent=0x10001, TCA_HTB_PARMS={"ceil": 125_000_000}),
            qdisc(6, "htb", TCA_HTB_PARMS={"ceil": 0xFFFFFFFF}, TCA_HTB_CEIL64=50_000_000_000),
        ],
    )
    assert found == {2: 10**9, 3: 2 * 10**8, 6: 4 * 10**11}
