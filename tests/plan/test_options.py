"""Plan files, flags before files, units, and questions to what makes no sense."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.errors import UsageError
from dualpath.plan.measured import parse_raw
from dualpath.plan.options import (
    DEFAULTS,
    ModelOptions,
    NetworkOptions,
    PlanOptions,
    PriceOptions,
    WorkloadOptions,
    merge,
    parse_file,
    said,
)
from dualpath.plan.quantities import parse_seconds, parse_tokens, plural, seconds
from dualpath.plan.resolve import deployment
from dualpath.plan.simulate import simulate
from dualpath.plan.sweeping import parse_sweep

from .conftest import Make, options

FILE = """
[model]
layers = 32
kv_heads = 32
head_dim = 128
dtype = "float16"
[workload]
context = "64K"
concurrency = 4
[network]
nic = "2x100G"
round_trip = "25us"
[prices]
node = 8000
"""
RAW = b"""{"method": "m", "local_host": "a", "remote_host": "b", "rows": [
  {"local_rail": "eth0", "remote_rail": "eth0", "lane": "prefetch", "transport": "tcp", "block_bytes": 1048576,
   "in_flight": 16, "bytes_sent": 1, "bytes_received": 1, "seconds": 1.0, "bits_per_s": 8e9,
   "nominal_bits_per_s": 25e9, "latency_p50_s": 0.001, "latency_p99_s": 0.002},
  {"local_rail": "eth1", "remote_rail": "eth0", "lane": "prefetch", "transport": "tcp", "block_bytes": 1048576,
   "in_flight": 16, "bytes_sent": 1, "bytes_received": 1, "seconds": 1.0, "bits_per_s": 16e9,
   "nominal_bits_per_s": 25e9, "latency_p50_s": 0.001, "latency_p99_s": 0.002},
  {"local_rail": "eth0", "remote_rail": "eth0", "lane": "realtime", "transport": "tcp", "block_bytes": 4096,
   "in_flight": 1, "bytes_sent": 1, "bytes_received": 1, "seconds": 1.0, "bits_per_s": 1e8,
   "latency_p50_s": 0.00005, "latency_p99_s": 0.0001}]}"""


def shape(**values: int | float | str) -> PlanOptions:
    return PlanOptions(model=ModelOptions(**({"layers": 32, "kv_heads": 8, "head_dim": 128} | values)))  # type: ignore[arg-type]  # any option


def test_a_file_says_what_it_says_and_the_rest_is_default() -> None:
    d = deployment(parse_file(FILE))
    assert (d.workload.context, d.workload.concurrency, d.shape.dtype) == (65_536, 4, "float16")
    assert (d.network.nic_bytes_per_s, d.network.round_trip_s) == (25e9, pytest.approx(25e-6))
    assert (d.prices.node, d.pool.nodes) == (8000, DEFAULTS.pool.nodes)
    assert d.origins["context"] == "given"
    assert "nodes" not in d.origins


def test_a_flag_goes_before_the_file() -> None:
    both = merge(PlanOptions(workload=WorkloadOptions(context="8K")), parse_file(FILE))
    assert (both.workload.context, both.workload.concurrency) == ("8K", 4)
    assert "workload.context" in set(said(both))


def test_a_flag_goes_before_the_file_where_it_says_the_default_too() -> None:
    file = parse_file("[prices]\nlifetime_years = 8\n[compute]\ngpu = 'A100'")
    both = merge(PlanOptions(prices=PriceOptions(lifetime_years=4)), file)
    assert (both.prices.lifetime_years, both.compute.gpu) == (4, "A100")
    assert deployment(merge(shape(), file)).prices.lifetime_years == 8
    assert deployment(shape()).prices.lifetime_years == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[model]\nlayer = 3", "unknown field `layer`"),
        ("[models]\n", "unknown field `models`"),
        ("[model]\nlayers = 'x'", "Expected `int"),
        ("[model", "plan file"),
        ("[prices]\ngpus = 1", "unknown field `gpus`"),
    ],
)
def test_a_bad_file_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_file(text)


def test_measured_rates_replace_nominal_ones_and_it_says_so(make: Make) -> None:
    raw = parse_raw(RAW, name="raw.json")
    assert (raw.link_bytes_per_s, raw.round_trip_s, raw.rails) == (1e9, 5e-5, 2)
    assert "under half of nominal" in raw.notes[1]
    d = deployment(shape(), raw=raw)
    assert (d.network.nic_bytes_per_s, d.network.round_trip_s, d.network.nics) == (1e9, 5e-5, 2)
    given = merge(shape(), PlanOptions(network=NetworkOptions(nics=4)))
    assert deployment(given, raw=raw).network.nics == 4
    assert (d.origins["nic"], d.origins["round_trip"]) == ("measured", "measured")


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'{"method": 1}', re.sub(rb'"bits_per_s": [0-9e]+', b'"bits_per_s": 0', RAW)]
)
def test_what_is_no_report_of_raw_bandwidth(text: bytes) -> None:
    with pytest.raises(UsageError, match=r"raw\.json"):
        parse_raw(text, name="raw.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": 0}, "0 layers"),
        ({"layers": 10**9}, "1,000,000,000 layers"),
        ({"kv_heads": 3, "query_heads": 8}, "8 query heads cannot share 3"),
        ({"dtype": "fp4"}, "fp4"),
        ({"parameters": math.nan}, "number of parameters"),
        ({"parameters": 1e300}, "parameters"),
        ({"head_dim": 10**12}, "head dim"),
        ({"latent_dim": 512}, "latent shape"),
    ],
)
def test_impossible_shapes_are_questioned(changes: dict[str, int | float | str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        deployment(shape(**changes))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nic": "400GB/s"}, "400GB/s"),
        ({"target": 0}, "target"),
        ({"target": math.nan}, "target"),
        ({"target": 1e300}, "target"),
        ({"target": 1e-300}, "target"),
        ({"context": 0}, "context"),
        ({"context": "1e400"}, "tokens"),
        ({"concurrency": 0}, "0 sequences"),
        ({"nodes": 0}, "0 nodes"),
        ({"nodes": 10**9}, "nodes"),
        ({"gpus": 10**6}, "GPUs in a host"),
        ({"nics": 10**6}, "NICs in a"),
        ({"hosts": 10**6}, "hosts"),
        ({"gpu": "H1000"}, "H1000"),
        ({"hot": "64M"}, "64M"),
        ({"hot": "9" * 400}, "more than any machine has"),
        ({"context": 1 << 50}, "tokens"),
        ({"flops": 0}, "FLOP"),
        ({"round_trip": "5 weeks"}, "weeks"),
    ],
)
def test_what_makes_no_sense_is_questioned(make: Make, values: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        make(**values)
    assert caught.value.hint


def test_a_context_beyond_the_model_is_questioned() -> None:
    with pytest.raises(UsageError, match="at most 131,072"):
        deployment(PlanOptions(model=ModelOptions(name="llama-3.1-8b"), workload=WorkloadOptions(context="256K")))


def test_the_default_context_is_no_longer_than_the_models() -> None:
    assert deployment(PlanOptions(model=ModelOptions(name="phi-4"))).workload.context == 16_384
    assert deployment(PlanOptions(model=ModelOptions(name="llama-3.1-8b"))).workload.context == 131_072
    assert deployment(PlanOptions(model=ModelOptions(name="qwen3-next-80b-a3b"))).workload.context == 131_072


@pytest.mark.parametrize(("nic", "origin"), [("connectx-7", "nominal"), ("400G", "given"), (None, None)])
def test_a_data_sheet_is_nominal(make: Make, nic: str | None, origin: str | None) -> None:
    assert make(nic=nic).origins.get("nic") == origin


def test_every_option_stands_among_the_inputs_with_its_origin(make: Make) -> None:
    """All but the shape of the model and files of measurements, which are named beside it."""
    told = {
        "workload": {"context": 1024, "concurrency": 2, "target": 5, "latency": 3, "chunk": 512},
        "compute": {"gpu": "H200", "gpus": 2, "hosts": 2, "hot": "1GiB", "window": "1GiB", "dram": "1GiB"},
        "network": {"nic": "200G", "nics": 2, "storage_nics": 2, "round_trip": "9us"},
        "pool": {"nodes": 2, "memory": "1GiB", "bandwidth": "1GB/s", "flops": "1T", "nics": 2},
        "measured": {"compute": "9ms", "local": "9GB/s"},
        "prices": dict.fromkeys(PriceOptions.__struct_fields__, 7.0),
    }
    told["compute"]["dram_bandwidth"] = "9GB/s"
    tables = {table: set(getattr(PlanOptions(), table).__struct_fields__) for table in told}
    assert tables == {table: {*values, *({"raw"} if table == "measured" else ())} for table, values in told.items()}
    file = msgspec.convert({"model": {"name": "phi-4", "dtype": "fp8"}, **told}, PlanOptions)
    plan = simulate(deployment(file))
    origins = {row.name: row.origin for row in plan.inputs}
    assert {name for name, origin in origins.items() if origin != "given"} == {
        "hbm", "flops", "local attention", "outside attention"
    }  # fmt: skip
    bare = {row.name for row in simulate(make()).inputs if row.origin == "given"}
    assert not bare
    assert {"hot", "window", "dtype", "storage nics", "price node", "price lifetime years"} <= set(origins)


def test_one_model_and_one_only() -> None:
    with pytest.raises(UsageError, match="which model"):
        deployment(PlanOptions())
    with pytest.raises(UsageError, match="more than one"):
        deployment(PlanOptions(model=ModelOptions(name="llama-3.1-8b", layers=3)))


def test_a_bare_latent_shape() -> None:
    latent = ModelOptions(layers=61, query_heads=128, latent_dim=512, rope_dim=64)
    assert deployment(PlanOptions(model=latent)).shape.groups[0].head_dim == 576


@pytest.mark.parametrize(
    ("text", "count"), [("128K", 131_072), ("128k", 131_072), ("1M", 1 << 20), (5, 5), ("10000", 10_000)]
)
def test_tokens(text: str | int, count: int) -> None:
    assert parse_tokens(text) == count


def test_times() -> None:
    assert [parse_seconds(text) for text in ("16us", "20ms", "10s", 3)] == [pytest.approx(16e-6), 0.02, 10, 3]


def test_words_for_numbers() -> None:
    assert [seconds(value) for value in (1.374, 0.0454, 16e-6, 9000)] == ["1.37 s", "45.4 ms", "16 us", "2.5 h"]
    assert [seconds(value) for value in (0.9997, 1e8)] == ["1000 ms", "27778 h"]  # no exponents
    assert [plural(count, "node") for count in (1, 2, 1000)] == ["1 node", "2 nodes", "1,000 nodes"]


def test_sweeps_double_and_end_where_they_are_told(make: Make) -> None:
    model = make().model
    assert parse_sweep("context=8K..1M", model)[1] == tuple(8192 << step for step in range(8))
    assert parse_sweep("concurrency=1..5", model) == ("concurrency", (1, 2, 4, 5))


@pytest.mark.parametrize("text", ["", "context", "context=1K", "gpus=1..8", "context=0..8", "context=8..4"])
def test_bad_sweeps(make: Make, text: str) -> None:
    with pytest.raises(UsageError):
        parse_sweep(text, make().model)


@given(st.text(max_size=30))
def test_no_text_crashes_a_parser(text: str) -> None:
    for parse in (parse_tokens, parse_seconds, parse_file):
        with contextlib.suppress(UsageError):
            parse(text)


TEXTS = st.text("0123456789.eEKMGTiBb/sunfax-", max_size=12)


@given(
    values=st.dictionaries(
        st.sampled_from(
            [
                "context",
                "latency",
                "chunk",
                "hot",
                "window",
                "dram",
                "nic",
                "round_trip",
                "memory",
                "bandwidth",
                "flops",
                "gpu",
            ]
        ),
        TEXTS,
        max_size=3,
    )
)
def test_no_value_crashes_a_plan(values: dict[str, str]) -> None:
    with contextlib.suppress(UsageError):
        simulate(deployment(options(**values)))


def test_the_guide_lists_every_key_of_a_plan_file() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "plan.md").read_text()
    block = re.search(r"```toml\n(.*?)```", guide, re.S)
    assert block is not None
    parse_file(re.sub(r"#.*", "", block.group(1)))
    for table in PlanOptions.__struct_fields__:
        part = re.search(rf"\[{table}\](.*?)(?=\n\[|\Z)", block.group(1), re.S)
        assert part is not None, table
        for key in getattr(DEFAULTS, table).__struct_fields__:
            assert key == "config" or re.search(rf"\b{key}\b", part.group(1)), f"{table}.{key}"


def test_kv_lands_in_gpu_memory_where_that_was_measured() -> None:
    row = re.search(rb'\{"local_rail": "eth0".*?\}', RAW, re.S)
    assert row is not None
    slower = row.group().replace(b"8e9", b"4e9").replace(b'"tcp"', b'"tcp", "memory": "gpu"')
    both = RAW.replace(row.group(), row.group() + b", " + slower, 1)
    assert parse_raw(both, name="raw.json").link_bytes_per_s == 0.5e9


def test_rows_in_doubt_are_not_planned_with() -> None:
    first, *others = re.findall(rb'\{"local_rail".*?\}', RAW, re.S)
    doubted = first.replace(b'"tcp"', b'"tcp", "doubt": "counts differ"').replace(b"0.001", b"0.00001")
    raw = parse_raw(RAW.replace(first, doubted), name="raw.json")
    assert (raw.link_bytes_per_s, raw.rails, raw.round_trip_s) == (2e9, 1, 5e-5)
    nothing = RAW
    for row in (first, *others):
        nothing = nothing.replace(row, row.replace(b'"tcp"', b'"tcp", "doubt": "counts differ"'))
    with pytest.raises(UsageError, match=r"not one row of raw\.json is to be relied on: counts differ"):
        parse_raw(nothing, name="raw.json")


def test_kv_is_read() -> None:
    row = re.search(rb'\{"local_rail": "eth0".*?\}', RAW, re.S)
    assert row is not None
    written = row.group().replace(b"8e9", b"24e9").replace(b'"tcp"', b'"tcp", "direction": "write"')
    assert parse_raw(RAW.replace(row.group(), row.group() + b", " + written), name="raw.json").link_bytes_per_s == 1e9
    only = b'{"method": "m", "local_host": "a", "remote_host": "b", "rows": [' + written + b"]}"
    assert parse_raw(only, name="raw.json").link_bytes_per_s == 3e9
