"""Deployments to plan for: one GPU and a few nodes beside it, worked out by hand where a test needs figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dualpath.plan.inputs import Deployment
from dualpath.plan.options import (
    ComputeOptions,
    ModelOptions,
    NetworkOptions,
    PlanOptions,
    PoolOptions,
    WorkloadOptions,
)
from dualpath.plan.resolve import deployment

Make = Callable[..., Deployment]

LLAMA_8B = {"layers": 32, "kv_heads": 8, "query_heads": 32, "head_dim": 128, "parameters": 8e9}


def options(**values: Any) -> PlanOptions:
    """Return options with `values` in whichever table knows their key; `window` is that of prefetch."""
    shape = {key: values.pop(key, default) for key, default in LLAMA_8B.items()}
    model = ModelOptions(**shape, **_taken(ModelOptions, values, but=("window",)))
    return PlanOptions(
        model=model,
        workload=WorkloadOptions(**_taken(WorkloadOptions, values)),
        compute=ComputeOptions(**_taken(ComputeOptions, values)),
        network=NetworkOptions(**_taken(NetworkOptions, values)),
        pool=PoolOptions(**_taken(PoolOptions, values)),
    )


def _taken(kind: Any, values: dict[str, Any], but: tuple[str, ...] = ()) -> dict[str, Any]:
    return {key: values.pop(key) for key in kind.__struct_fields__ if key in values and key not in but}


@pytest.fixture
def make() -> Make:
    """Return a maker of deployments: an 8B model on one H100, and what a test changes."""
    return lambda **values: deployment(options(**values))
