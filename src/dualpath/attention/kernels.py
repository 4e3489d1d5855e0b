"""Which kernel computes: the native one for this processor, or Python. `DUALPATH_KERNEL` forces one.

DUALPATH_KERNEL   native (default where built) | amx | avx512 | avx2 | portable | python
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

from dualpath.errors import HostError, UsageError

log = logging.getLogger(__name__)

CHOICES = ("native", "amx", "avx512", "avx2", "portable", "python")


@lru_cache(maxsize=1)
def native() -> Any:
    """Return the native module, once found the same. Raises `HostError` where it is missing or does not load."""
    try:
        from dualpath.attention import _native
    except ImportError as error:
        raise HostError(
            f"the native attention kernel does not load: {error}",
            hint="install a wheel or build it (native/README.md); DUALPATH_KERNEL=python does without",
        ) from error
    return _native


def available() -> tuple[str, ...]:
    """Return the kernels that run here, best first; the last is always `python`."""
    try:
        return (*native().variants(), "python")
    except HostError:
        return ("python",)


def choose(wanted: str) -> str:
    """Return the kernel that `wanted` (one of `CHOICES`, or empty) stands for: one of `available()`."""
    if wanted and wanted not in CHOICES:
        raise UsageError(f"DUALPATH_KERNEL is {wanted}", hint=f"one of {', '.join(CHOICES)}")
    here = available()
    if wanted in here:
        return wanted
    if wanted == "native":
        native()  # says why it is missing
        return here[0]
    if wanted:
        raise HostError(f"DUALPATH_KERNEL is {wanted}; this machine can run {', '.join(here)}")
    if here == ("python",):
        log.warning("the native attention kernel is not built: attention runs in Python, many times slower")
    return here[0]


@lru_cache(maxsize=1)
def chosen() -> str:
    """Return the kernel of this process, decided once."""
    return choose(os.environ.get("DUALPATH_KERNEL", ""))


def kernel_name() -> str:
    """Return `native-amx`, `native-avx512`, `native-avx2`, `native-portable` or `python`."""
    name = chosen()
    return name if name == "python" else f"native-{name}"
