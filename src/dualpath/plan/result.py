"""What a plan says: plain value objects in base units (bytes, seconds, bytes per second), as they stand in the JSON."""

from __future__ import annotations

import enum

import msgspec

from dualpath.cost.prefill_decode import RatioBounds
from dualpath.cost.tpot import Scheme
from dualpath.plan.inputs import Origin


class Ruling(enum.StrEnum):
    """Whether a dual path helps."""

    NOT_NEEDED = "not needed"
    WORTH_IT = "worth it"
    WILL_NOT_MEET = "will not meet the target"


class Verdict(msgspec.Struct, frozen=True):
    """The ruling, why, and what the deployment test says (all KV in the wanted time, against the NICs)."""

    ruling: Ruling
    reason: str
    deployment_test: str


class InputRow(msgspec.Struct, frozen=True):
    """One number that the plan was made from, as text, and where it is from."""

    name: str
    value: str
    origin: Origin


class LayerKv(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of one kind: bytes of a token in one layer, and what all of them keep of a whole context."""

    kind: str
    layers: int
    bytes_per_token_and_layer: float
    window_tokens: int
    held_bytes: int


class Kv(msgspec.Struct, frozen=True, kw_only=True):
    """KV of one sequence and of all. `read_bytes` is what one step of all sequences reads."""

    dtype: str
    bytes_per_token: float
    state_bytes: int
    groups: tuple[LayerKv, ...]
    sequence_bytes: int
    total_bytes: int
    read_bytes: int


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """HBM of all GPUs, what comes off first, and which tier holds what. `room_bytes` may be negative.

    `remote_bytes` is KV for which Path A has no room: in the host's DRAM (`tiers`) or in the pool (Path B).
    """

    hbm_bytes: float
    weight_bytes: float
    activation_bytes: float
    buffer_bytes: float
    window_bytes: float
    room_bytes: float
    hot_bytes: float
    remote_bytes: float
    dram_bytes: float
    pool_bytes: float


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per second: this side's NICs, what expert traffic takes of them, PCIe, and what is left to receive KV.

    `joined`: what comes if all nodes send, which is no more than the receiver takes. `tier`: out of this host's DRAM.
    """

    nic_bytes_per_s: float
    all_to_all_bytes_per_s: float
    pcie_bytes_per_s: float
    receiver_bytes_per_s: float
    sender_bytes_per_s: float
    all_senders_bytes_per_s: float
    joined_bytes_per_s: float
    tier_bytes_per_s: float


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per second that the target asks for: new KV, re-reading all KV, of that the remote part, loading it all."""

    new_kv_bytes_per_s: float
    reread_bytes_per_s: float
    remote_reread_bytes_per_s: float
    load_bytes_per_s: float


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """How far ahead to prefetch: lead in seconds, layer blocks and their bytes."""

    lead_s: float
    blocks: int
    layer_block_bytes: float
    bytes: float


class SchemeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One scheme. `fits`: the memory is there; `short_bytes` of it are missing. `ttft_s` is a cold prompt, `resume_s`
    one whose KV lies where the scheme keeps it; `None` where the model's parameters are not known."""

    scheme: Scheme
    tpot_s: float
    bottleneck: str
    fits: bool
    short_bytes: float
    meets_target: bool
    tokens_per_s: float
    """Of all sequences together."""
    wire_bytes_per_step: float
    ttft_s: float | None
    resume_s: float
    gpus_needed: int | None = None
    """Least GPUs whose HBM holds it all (all-local only)."""
    nics_needed: int | None = None
    """Least NICs at this end that bring a step's bytes in time; `None`: no number does, or there are enough."""
    nodes_needed: int | None = None
    """Least nodes that hold the remote KV and meet the target; `None`: no number does, or none is needed."""


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """One plan: what it is made of, its step time, and US dollars per 10^6 output tokens, if prices are known."""

    plan: str
    made_of: str
    nodes: int
    tpot_s: float | None
    meets_target: bool
    usd_per_hour: float | None
    usd_per_million_tokens: float | None
    missing: str


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One of the 2 x 2: KV stored as `dtype`, with the dual path or without."""

    dtype: str
    dual_path: bool
    total_bytes: int
    tpot_s: float | None
    how: str
    meets_target: bool


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep. Times are by scheme; a scheme whose memory is missing has none."""

    value: int
    total_kv_bytes: int
    tpot_s: dict[str, float | None]
    best: str
    ruling: Ruling


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A plan at growing values of one input."""

    name: str
    points: tuple[SweepPoint, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    model: str
    model_source: str
    context: int
    concurrency: int
    target_tokens_per_s: float
    budget_s: float
    verdict: Verdict
    inputs: tuple[InputRow, ...]
    kv: Kv
    memory: Memory
    links: Links
    demand: Demand
    window: Window | None
    schemes: tuple[SchemeRow, ...]
    costs: tuple[CostRow, ...]
    price_notes: tuple[str, ...]
    compression: tuple[Cell, ...]
    prefill_decode: RatioBounds | None
    assumptions: tuple[str, ...]
    sweep: Sweep | None = None
