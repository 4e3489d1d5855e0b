"""No text makes a parser raise: neither arbitrary text nor a real sample that was cut, shuffled or damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.doctor.parsers.ethtool_link import parse_ethtool, parse_ethtool_driver
from dualpath.doctor.parsers.ibstat import parse_ibstat
from dualpath.doctor.parsers.ibv_devinfo import parse_ibv_devinfo
from dualpath.doctor.parsers.lspci import parse_lspci, parse_lspci_tree
from dualpath.doctor.parsers.numactl import parse_numactl
from dualpath.doctor.parsers.nvidia import parse_gpu_query, parse_topology
from dualpath.doctor.parsers.ping import parse_ping
from dualpath.doctor.parsers.rdma import parse_rdma_link, parse_rdma_system
from dualpath.doctor.parsers.show_gids import parse_show_gids
from dualpath.testing.recordings import load_fixture

COMMANDS = load_fixture(Path(__file__).parent.parent / "fixtures" / "mlx5-healthy.toml").recording.commands
QUERY = next(line for line in COMMANDS if line.startswith("nvidia-smi --query-gpu"))
PARSERS: dict[str, Callable[[str], object]] = {
    "lspci -Dvvv": parse_lspci,
    "lspci -Dtv": parse_lspci_tree,
    "ethtool ens1np0": parse_ethtool,
    "ethtool -i ens1np0": parse_ethtool_driver,
    "ibv_devinfo -v": parse_ibv_devinfo,
    "show_gids": parse_show_gids,
    "ibstat": parse_ibstat,
    "rdma -d link show": parse_rdma_link,
    "rdma system show": parse_rdma_system,
    "nvidia-smi topo -m": parse_topology,
    QUERY: parse_gpu_query,
    "numactl --hardware": parse_numactl,
    "ping -M do -c 1 -W 1 -s 8972 10.10.1.12": parse_ping,
}
each_parser = pytest.mark.parametrize("line", PARSERS)


def damaged(text: str, seed: int) -> str:
    """Return `text` with lines moved, left out or doubled, characters replaced, and its end cut off."""
    random = Random(seed)
    lines = text.splitlines(keepends=True)
    first = random.randrange(len(lines))
    mixed = list("".join(random.choice([lines, lines[first : first + 40], random.choices(lines, k=40)])))
    for _ in range(random.randrange(12)):
        mixed[random.randrange(len(mixed))] = random.choice("\t\n :.,[]()x09-+|\\²éGN\x00\x1b")
    return "".join(mixed[: random.choice([len(mixed), random.randrange(len(mixed))])])


@each_parser
@settings(max_examples=50)
@given(text=st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\t\n :.,[]()x0123456789GPUNIC/-+|\\"))))
def test_arbitrary_text(line: str, text: str) -> None:
    PARSERS[line](text)


@each_parser
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_damaged_samples(line: str, seed: int) -> None:
    PARSERS[line](damaged(COMMANDS[line].stdout, seed))


@each_parser
def test_a_sample_cut_after_each_character(line: str) -> None:
    text = COMMANDS[line].stdout[:3000]
    for end in range(0, len(text), 7):
        PARSERS[line](text[:end])


@each_parser
def test_a_sample_says_something(line: str) -> None:
    assert PARSERS[line](COMMANDS[line].stdout) != PARSERS[line]("")
