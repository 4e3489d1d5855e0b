"""Models that were converted once, kept under `${XDG_CACHE_HOME:-~/.cache}/dualpath/models/`.

A folder in the cache is complete or absent: a conversion writes into `.<name>.part` under a lock and is renamed
into place. Its manifest holds sizes and CRC-32s, checked at every use (about 0.1 s for 260 MB); a folder that
fails the check is thrown away and converted again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from dualpath.errors import HostError

_MANIFEST = "manifest.json"
_CHUNK = 1 << 22


def cache_root() -> Path:
    """Return the folder that converted models are kept in; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dualpath" / "models"


def converted(name: str, convert: Callable[[Path], None], *, root: Path | None = None) -> Path:
    """Return the folder `name` of the cache, calling `convert(empty folder)` first if there is no sound one.

    Only one process converts at a time; the others wait and use its result. If `convert` raises, the cache is as
    before. Raises `HostError` if the cache cannot be written.
    """
    root = cache_root() if root is None else root
    target = root / name
    if is_sound(target):
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{name}.lock"):
            if not is_sound(target):
                _replace(target, root / f".{name}.part", convert)
    except OSError as error:
        raise HostError(
            f"cannot keep the converted model in {root}: {error.strerror or error}",
            hint="free some space, or point XDG_CACHE_HOME at a folder you can write to",
        ) from error
    return target


def is_sound(folder: Path) -> bool:
    """Return whether `folder` has a manifest and every file in it has the size and checksum it should have."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        files = dict(manifest["files"])
        sizes = all((folder / name).stat().st_size == size for name, (size, _) in files.items())
        return bool(files) and sizes and all(_crc(folder / name) == crc for name, (_, crc) in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _replace(target: Path, part: Path, convert: Callable[[Path], None]) -> None:
    """Convert into `part` and put it in the place of `target`. The caller holds the lock."""
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        convert(part)
        files = {file.name: (file.stat().st_size, _crc(file)) for file in sorted(part.iterdir())}
        (part / _MANIFEST).write_text(json.dumps({"files": files}, indent=1))
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel drops it if the process dies."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
