"""What the experiment ran on, and the CPU time that its processes took."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Return CPU, cores, memory and versions, for the report."""
    found: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _psutil().virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    for package in ("dualpath", "torch", "transformers", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def available_bytes() -> int:
    """Return the memory that could be used now without swapping."""
    return int(_psutil().virtual_memory().available)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children so far (user and system)."""
    psutil = _psutil()
    own = psutil.Process()
    total = _of(own)
    for child in own.children(recursive=True):
        try:
            total += _of(child)
        except psutil.Error:
            continue  # it ended in between
    return total


def _of(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _psutil() -> Any:
    return importlib.import_module("psutil")
