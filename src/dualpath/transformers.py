"""What goes into an unmodified `model.generate()`: `DualPathCache`. Needs the extra `dualpath[torch]`."""

from __future__ import annotations

from dualpath.engine.hf import DualPathCache

__all__ = ["DualPathCache"]
