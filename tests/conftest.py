"""Rules of every test run: seeded, offline, and on CI nothing is left out silently."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch starts its threads: they share the cores with nodes
if (workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))

for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:  # as `make test &` and `nohup` have it, and children inherit
        signal.signal(number, lambda *_: None)  # ignored here as before, and by default no more in what tests start

settings.register_profile("dualpath", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dualpath")

CAPABILITY = "capability:"
"""How the reason of a skip begins when this machine lacks something. CI has to have it, so there it is a failure."""

IMPORTS_TORCH = re.compile(r"^(?:import|from) (?:torch|transformers|dualpath\.engine|dualpath\.transformers)\b", re.M)


@pytest.fixture
def interrupted_conditions() -> AbstractContextManager[None]:
    """Within it Ctrl-C comes whenever the lock of a condition has been taken by way of that: a call in Python, so that
    the interrupt is raised before anybody knows that there is a lock to give back."""

    def taken(self: threading.Condition) -> bool:
        self.acquire()
        raise KeyboardInterrupt

    @contextmanager
    def interrupted() -> Generator[None, None, None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Condition, "__enter__", taken)
            yield

    return interrupted()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules that import torch at their top where there is none: a pool node's environment.

    Everywhere else torch is installed, and a module that cannot be imported is an error.
    """
    if collection_path.suffix != ".py" or importlib.util.find_spec("torch") is not None:
        return None
    return True if IMPORTS_TORCH.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the files, begin with those that take longest: no process is left with one."""
    if workers > 1:
        items.sort(key=lambda item: item.get_closest_marker("model") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = skip_reason(report.longrepr)
        if reason.startswith(CAPABILITY):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: skipped on CI, where nothing may be missing: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if os.environ.get("CI") == "true" and report.skipped:
        reason = skip_reason(report.longrepr)
        if reason.startswith(CAPABILITY):
            report.outcome = "failed"
            report.longrepr = f"{collector.nodeid}: skipped on CI, where nothing may be missing: {reason}"
    return report


def skip_reason(longrepr: object) -> str:
    """Return why a test was skipped: pytest keeps `(path, line, "Skipped: why")`."""
    text = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ").strip()
