"""The balancer against hosts of known speeds: it finds them out, settles near the best split, and probes cheaply."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import pytest

from dualpath.cost.balance import NodeRates, Rates, Speed, StepLoad, balance_blocks, fetch_all, reduce_all, split_at
from dualpath.path.balancer import Balancer
from dualpath.path.choice import Choice, Form
from dualpath.path.rates import Answers, LiveRates, Median, NodeSeen, Received, StepSeen, Traffic, copy_share

BLOCK = 400_000.0


@dataclass
class Host:
    """Runs made-up steps at exactly these speeds, whatever the balancer thinks of them."""

    rates: Rates
    blocks: tuple[int, ...]
    outside_s: float = 0.05
    layers: int = 30
    hot_blocks: int = 2
    jitter: tuple[float, ...] = (1.0,)
    steps: int = 0
    total_s: float = 0.0
    forms: list[Form] = field(default_factory=list)

    @property
    def load(self) -> StepLoad:
        remote = tuple(count * BLOCK for count in self.blocks)
        return StepLoad(self.outside_s, self.layers, self.hot_blocks * BLOCK, remote)

    def best_s(self) -> float:
        return min(split.step_s for split in (fetch_all(self.load, self.rates), reduce_all(self.load, self.rates)))

    def step(self, balancer: Balancer) -> None:
        shares = balancer.choice.shares
        self.forms.append(balancer.choice.form)
        fetched = [round(share * count) for share, count in zip(shares, self.blocks, strict=True)]
        split = split_at(self.load, self.rates, tuple(count * BLOCK for count in fetched))
        step_s = split.step_s * self.jitter[self.steps % len(self.jitter)]
        self.total_s, self.steps = self.total_s + step_s, self.steps + 1
        balancer.after(self.seen(fetched, step_s))

    def seen(self, fetched: list[int], step_s: float) -> StepSeen:
        count = self.layers * (self.hot_blocks + sum(fetched)) * int(BLOCK)
        local_s = count / self.rates.local.bytes_per_s
        arrived = [int(self.layers * BLOCK * each) for each in fetched]
        nodes = []
        for node, blocks, far, bytes_ in zip(self.rates.nodes, self.blocks, fetched, arrived, strict=True):
            near = int(self.layers * (blocks - far) * BLOCK)
            answers = Answers()
            if near:
                near_s = near / node.near.bytes_per_s
                answers = Answers(near, near_s, self.layers, self.layers * node.round_trip_s)
            nodes.append(NodeSeen(blocks, far, answers, Received(bytes_, bytes_ / node.rail_bytes_per_s)))
        total = sum(arrived)
        together = min(self.rates.receiver_bytes_per_s, sum(node.rail_bytes_per_s for node in self.rates.nodes))
        copies_s = total * self.rates.copy_s_per_byte
        stall_s = max(0.0, step_s - self.outside_s - local_s - copies_s)
        received = Received(total, total / together, copies_s, total)
        return StepSeen(step_s, stall_s, local_s, count, 1, 1, self.layers, BLOCK, tuple(nodes), received)


def host(mbit: float, nodes: int, hot: int, remote: int, *, near: float = 6e9, copy: float = 0.0) -> Host:
    rail = mbit * 125e3
    each = tuple(NodeRates(Speed(near), rail, 3e-4) for _ in range(nodes))
    rates = Rates(Speed(18e9), 1.25e9, each, copy)
    blocks = tuple(remote // nodes + (i < remote % nodes) for i in range(nodes))
    return Host(rates, blocks, hot_blocks=hot)


def balancer_for(one: Host) -> Balancer:
    return Balancer(LiveRates(copy_share=1.0), len(one.blocks))


@pytest.mark.parametrize(
    ("mbit", "nodes", "hot", "remote", "near"),
    list(itertools.product((100, 940, 9400), (1, 2, 4), (1, 8), (6, 30, 250), (6e9, 5e8))),
)
def test_it_is_hardly_ever_slower_than_the_best_fixed_scheme(
    mbit: float, nodes: int, hot: int, remote: int, near: float
) -> None:
    one = host(mbit, nodes, hot, remote, near=near)
    balancer = balancer_for(one)
    for _ in range(400):
        one.step(balancer)
    settled = balancer.settled
    fetched = tuple(share * count * BLOCK for share, count in zip(settled.shares, one.blocks, strict=True))
    assert split_at(one.load, one.rates, fetched).step_s <= 1.035 * balance_blocks(one.load, one.rates, BLOCK).step_s
    first_probe_s = split_at(one.load, one.rates, tuple(BLOCK for _ in one.blocks)).step_s
    wasted = first_probe_s + 8 * reduce_all(one.load, one.rates).step_s  # what finding out may cost, once
    assert one.total_s - wasted <= 1.05 * one.steps * one.best_s()


def test_a_noisy_host_does_not_make_it_waver() -> None:
    noise = (1.0, 1.3, 0.9, 1.0, 1.8, 0.95, 1.0, 1.05, 0.8, 1.1)
    one = replace(host(940, 2, 2, 30), jitter=noise)
    balancer = balancer_for(one)
    shares = set()
    for _ in range(600):
        one.step(balancer)
        shares.add(balancer.settled.shares)
    assert len(shares) <= 4


def test_it_follows_a_link_that_becomes_slow_and_fast_again() -> None:
    one = host(9400, 1, 1, 6, near=5e8)
    balancer = balancer_for(one)

    def run(steps: int) -> None:
        for _ in range(steps):
            one.step(balancer)

    run(100)
    assert balancer.settled.shares[0] > 0.5
    fast, slow = one.rates, replace(one.rates, nodes=(replace(one.rates.nodes[0], rail_bytes_per_s=5e6),))
    one.rates = slow
    run(100)
    assert balancer.settled.form is Form.REDUCE
    one.rates = fast
    run(6000)  # it has to find out by probes, and the last one was dear
    assert balancer.settled.shares[0] > 0.5


def test_probes_cost_at_most_their_share() -> None:
    one = host(100, 2, 1, 40)
    balancer = balancer_for(one)
    for _ in range(5000):
        one.step(balancer)
    ordinary_s = reduce_all(one.load, one.rates).step_s
    probes = one.forms.count(Form.MIXED)
    assert 2 <= probes <= 40
    probe_s = split_at(one.load, one.rates, (BLOCK, BLOCK)).step_s - ordinary_s
    assert (probes - 1) * probe_s <= 0.02 * one.total_s


def test_while_it_fetches_it_looks_now_and_then_what_reducing_everything_would_take() -> None:
    one = host(9400, 2, 1, 30, near=2e9)
    balancer = balancer_for(one)
    for _ in range(5000):
        one.step(balancer)
    assert balancer.settled.form is Form.MIXED
    assert one.forms[8:].count(Form.REDUCE) >= 5
    ordinary_s = balancer.settled.split.step_s  # type: ignore[union-attr]  # there is one
    extra_s = sum(
        one.forms[8:].count(form) * (corner(one.load, one.rates).step_s - ordinary_s)
        for form, corner in ((Form.REDUCE, reduce_all), (Form.FETCH, fetch_all))
    )
    assert 0 < extra_s <= 0.02 * one.total_s


def test_where_reducing_everything_is_dear_it_looks_at_one_block() -> None:
    one = host(9400, 1, 1, 10, near=2e6)
    balancer = balancer_for(one)
    for _ in range(600):
        one.step(balancer)
    assert balancer.settled.form is Form.FETCH
    assert one.forms[8:].count(Form.REDUCE) == 0


@pytest.mark.parametrize("mbit", [940, 2000, 9400])
def test_it_prefetches_across_steps_while_no_probe_is_affordable(mbit: float) -> None:
    """Hardly any step is followed by one that fetches something else."""
    one = host(mbit, 2, 1, 30, near=1e5 * mbit)
    balancer = balancer_for(one)
    for _ in range(300):
        one.step(balancer)
    assert balancer.settled.form is Form.MIXED
    others = unlike = 0
    for _ in range(700):
        expected = balancer.repeats
        one.step(balancer)
        others += not expected
        unlike += expected and balancer.choice.form is not balancer.settled.form
    assert 5 <= others < 50
    assert unlike == 0  # what is prefetched is wanted


class Distant(Host):
    """What it reads takes as long as the bytes do, and `asking_s` more."""

    asking_s = 3e-4

    def seen(self, fetched: list[int], step_s: float) -> StepSeen:
        def later(one: Received) -> Received:
            return replace(one, busy_s=one.busy_s + self.asking_s) if one.bytes else one

        found = super().seen(fetched, step_s)
        nodes = tuple(replace(node, received=later(node.received)) for node in found.nodes)
        return replace(found, nodes=nodes, received=later(found.received))


@pytest.mark.parametrize("rail", [10e9, 40e9, 120e9])
@pytest.mark.parametrize("remote", [250, 2000])
def test_a_probe_reads_for_long_enough_to_show_how_fast_a_rail_is(rail: float, remote: int) -> None:
    """One block of all layers takes 1.2 to 0.1 ms on these rails, and asking for it 0.3."""
    rates = Rates(Speed(18e9), 2 * rail, (NodeRates(Speed(1e13), rail, 1e-6),) * 2)  # nothing is worth fetching
    one = Distant(rates, (remote // 2, remote // 2))
    balancer = balancer_for(one)
    for _ in range(1500):
        one.step(balancer)
    found = balancer.speeds.rates(one.seen([1, 1], 0.1))
    assert found is not None
    for node in found.nodes:
        assert 0.75 * rail < node.rail_bytes_per_s <= rail
    assert 2 <= sum(form is not Form.REDUCE for form in one.forms) < 60
    assert balancer.probing.spent_s <= 0.02 * one.total_s


def test_nothing_remote_means_no_probe_and_no_path_b() -> None:
    one = host(940, 2, 4, 0)
    balancer = balancer_for(one)
    for _ in range(50):
        one.step(balancer)
    assert balancer.settled.form is Form.BYPASS
    assert balancer.probing.count == 0
    assert balancer.choice.sentence(["a", "b"]) == "all KV that a step reads is local: Path B is not used"
    one.blocks = (3, 2)
    for _ in range(20):
        one.step(balancer)
    assert balancer.settled.form is not Form.BYPASS
    assert balancer.settled.rates is not None


def test_a_node_without_blocks_needs_no_rates() -> None:
    one = host(940, 2, 1, 1)
    assert one.blocks == (1, 0)
    balancer = balancer_for(one)
    for _ in range(10):
        one.step(balancer)
    assert balancer.settled.used == (True, False)
    assert "node b" not in balancer.settled.sentence(["a", "b"])


def test_a_form_that_is_worse_than_the_model_says_is_left_again() -> None:
    """Steps that fetch take twice as long as they should: contention that no rate shows."""

    class Crowded(Host):
        def step(self, balancer: Balancer) -> None:
            self.jitter = (2.0,) if any(balancer.choice.shares) else (1.0,)
            super().step(balancer)

    plain = host(9400, 1, 1, 6, near=2e9)
    one = Crowded(plain.rates, plain.blocks, hot_blocks=1)
    balancer = balancer_for(one)
    for _ in range(300):
        one.step(balancer)
    fetching = [form for form in one.forms if form is not Form.REDUCE]
    assert len(fetching) < 40
    assert balancer.settled.form is Form.REDUCE
    for _ in range(100):
        plain.step(other := balancer_for(plain)) if plain.steps == 0 else plain.step(other)
    assert other.settled.form is not Form.REDUCE  # without the crowding it is worth it


def test_a_corner_that_is_better_than_the_model_says_is_found() -> None:
    """Nodes that compute on this host's own cores: without them its steps are faster than their rates say."""

    class Shared(Host):
        def step(self, balancer: Balancer) -> None:
            self.jitter = (0.6,) if all(share == 1.0 for share in balancer.choice.shares) else (1.0,)
            super().step(balancer)

    plain = host(3000, 2, 1, 6)
    one = Shared(plain.rates, plain.blocks, hot_blocks=1)
    assert reduce_all(one.load, one.rates).step_s < fetch_all(one.load, one.rates).step_s
    balancer = balancer_for(one)
    for _ in range(200):
        one.step(balancer)
    assert balancer.settled.form is Form.FETCH


# --- rates -----------------------------------------------------------------------------------------------------------


def test_rates_are_those_of_the_host() -> None:
    one = host(940, 2, 2, 12, copy=2e-10)
    balancer = balancer_for(one)
    for _ in range(4):
        one.step(balancer)
    found = balancer.speeds.rates(one.seen([1, 1], 0.1))
    assert found is not None
    assert found.local.bytes_per_s == pytest.approx(18e9)
    assert [node.rail_bytes_per_s for node in found.nodes] == pytest.approx([117.5e6] * 2)
    assert [node.near.bytes_per_s for node in found.nodes] == pytest.approx([6e9] * 2)
    assert [node.round_trip_s for node in found.nodes] == pytest.approx([3e-4] * 2)
    assert found.receiver_bytes_per_s == pytest.approx(235e6)
    assert found.copy_s_per_byte == pytest.approx(2e-10)
    assert balancer.speeds.outside_s(one.seen([1, 1], 0.1)) == pytest.approx(0.05)


def test_a_reply_that_was_there_already_only_bounds_the_round_trip() -> None:
    live = LiveRates(copy_share=0.0)
    seen = host(940, 1, 1, 4).seen([1], 0.1)

    def trip(answers: Answers) -> float:
        node = replace(seen.nodes[0], answers=answers)
        live.saw(0.0, replace(seen, nodes=(node,)))
        found = live.rates(seen)
        assert found is not None
        return found.nodes[0].round_trip_s

    assert trip(Answers(100, 1e-3, bound_s=5e-3)) == 5e-3
    assert trip(Answers(100, 1e-3, bound_s=9e-3)) == 5e-3
    assert trip(Answers(100, 1e-3, trips=2, trips_s=2e-3, bound_s=9e-3)) == 3e-3  # the median of two
    assert trip(Answers(100, 1e-3, trips=1, trips_s=1e-3)) == 1e-3


def test_other_numbers_of_rows_have_rates_of_their_own() -> None:
    live = LiveRates(copy_share=0.0)
    seen = host(940, 1, 1, 4).seen([1], 0.1)
    live.saw(0.0, seen)
    assert live.rates(seen) is not None
    assert live.rates(replace(seen, query_rows=8)) is None


def test_short_reads_count_while_nothing_better_is_known() -> None:
    live, seen = LiveRates(copy_share=0.0), host(940, 1, 1, 4).seen([1], 0.1)

    def rail(came: Received, fetched: int) -> float:
        node = replace(seen.nodes[0], received=came, fetched_blocks=fetched)
        live.saw(7.0, replace(seen, nodes=(node,), received=came))
        found = live.rates(seen)
        assert found is not None
        assert found.receiver_bytes_per_s == found.nodes[0].rail_bytes_per_s
        return found.nodes[0].rail_bytes_per_s

    assert rail(Received(100_000, 5e-4), 1) == 2e8
    assert live.rail_age_s(8.0, 0) == math.inf  # to be looked at again
    assert rail(Received(1_000_000, 2e-3), 2) == 5e8
    assert rail(Received(100_000, 5e-4), 1) == 5e8
    assert live.rail_age_s(8.0, 0) == 1.0
    assert rail(Received(150_000, 5e-4), 4) == 4e8  # all there is: the median of two


def test_a_prompt_shows_rails_only() -> None:
    live = LiveRates(copy_share=0.0)
    came = Received(1_000_000, 0.01)
    live.saw(1.0, StepSeen(0.0, 0.0, 0.0, 0, 0, 0, 1, 1.0, (NodeSeen(received=came),), came))
    assert live.rail_age_s(3.0, 0) == 2.0


def test_a_rail_is_busy_while_a_read_is_in_flight() -> None:
    traffic = Traffic(2)
    for node in (0, 1):
        traffic.sent(0.0, node, 10)
        traffic.ended(0.5, node, 10, arrived_bytes=10, cpu_s=None)
    connecting = Received(10, 0.0)  # the time that this took is not the link's
    assert traffic.take(0.5) == (Received(20, 0.0), [connecting, connecting])
    traffic.sent(1.0, 0, 300)
    traffic.ended(2.0, 0, 100, arrived_bytes=100, cpu_s=None)
    traffic.sent(2.5, 1, 50)
    traffic.ended(3.0, 0, 100, arrived_bytes=100, cpu_s=0.25)
    traffic.ended(4.0, 0, 100, arrived_bytes=0, cpu_s=0.25)
    total, by_node = traffic.take(10.0)
    assert by_node == [Received(200, 3.0, 0.25, 100), Received(0, 7.5)]
    assert total == Received(200, 9.0, 0.25, 100)
    traffic.ended(11.0, 1, 50, arrived_bytes=50, cpu_s=None)
    assert traffic.take(12.0)[1] == [Received(), Received(50, 1.0)]


def test_the_median_forgets_and_knows_its_age() -> None:
    median = Median(3)
    assert median.value() is None
    for at, value in enumerate((100.0, 1.0, 2.0, 3.0)):
        median.add(at, value)
    assert median.value() == 2.0
    assert median.age_s(5.0) == 2.0


def test_copies_cost_the_compute_only_where_no_core_is_left() -> None:
    assert copy_share(threads=8, cores=64) == 0.0
    assert copy_share(threads=2, cores=2) == 0.5


# --- words -----------------------------------------------------------------------------------------------------------


def test_the_choice_as_a_sentence() -> None:
    one = host(940, 2, 2, 30)
    split = split_at(one.load, one.rates, (6 * BLOCK, 0.0))
    choice = Choice(Form.MIXED, (0.4, 0.0), (True, True), one.rates, split, (0.07, 0.9))
    text = choice.sentence(["A", "B"])
    assert text.startswith(
        "fetching 40 % from node A: NIC 940 Mbit/s, near-data 6 GB/s; "
        "reducing all at node B: NIC 940 Mbit/s, near-data 6 GB/s, local 18 GB/s. Expected: "
    )
    assert "mostly rail of node A; reducing all 70 ms, fetching all 900 ms" in text
    found = choice.as_dict(["A", "B"])
    assert found["sentence"] == text
    assert [node["fetched_share"] for node in found["nodes"]] == [0.4, 0.0]
    assert found["bottleneck"] == "rail"
    assert set(Choice(Form.REDUCE, (0.0,)).as_dict(["A"])) == {"form", "sentence"}
