"""A tree of small text files such as sysfs and procfs: live, or as somebody recorded it.

read(path)      the text without its last newline; None where there is no such file or it may not be read
names(path)     what a directory holds, sorted; empty where there is none
link(path)      where a symbolic link points, as it is written; None where there is none
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

LARGEST_FILE = 8 << 20
"""Bytes read of one file: what is larger is no setting. /proc/interrupts takes 3 MB on a host with 256 CPUs."""


class Tree(Protocol):
    """Absolute paths in, text out. Nothing raises: what cannot be read is not there."""

    def read(self, path: str) -> str | None:
        """Return the text of the file at `path` without the newline at its end; `None` if it cannot be read."""

    def names(self, path: str) -> list[str]:
        """Return the names in the directory at `path`, sorted; empty if it cannot be read."""

    def link(self, path: str) -> str | None:
        """Return where the symbolic link at `path` points, as written; `None` if there is no such link."""


class LiveTree:
    """The machine itself, below `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def read(self, path: str) -> str | None:
        """Return the text of a file; bytes that are not UTF-8 are replaced."""
        try:
            with (self._root / path.lstrip("/")).open("rb") as file:
                return file.read(LARGEST_FILE).decode(errors="replace").removesuffix("\n")
        except OSError:  # also EINVAL: `speed` of a NIC that is down cannot be read
            return None

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        try:
            return sorted(os.listdir(self._root / path.lstrip("/")))
        except OSError:
            return []

    def link(self, path: str) -> str | None:
        """Return the target of a link."""
        try:
            return os.readlink(self._root / path.lstrip("/"))
        except OSError:
            return None


class RecordedTree:
    """A tree held in two tables, absolute path to text and absolute path to link target.

    Symbolic links are not followed: a recording holds each file under the paths by which it is looked up.
    """

    def __init__(self, files: Mapping[str, str], links: Mapping[str, str]) -> None:
        self.files, self.links = dict(files), dict(links)
        self._names: dict[str, set[str]] = {}
        for path in (*self.files, *self.links):
            while path not in ("", "/"):
                parent, _, name = path.rpartition("/")
                self._names.setdefault(parent or "/", set()).add(name)
                path = parent

    def read(self, path: str) -> str | None:
        """Return the recorded text."""
        text = self.files.get(path)
        return None if text is None else text.removesuffix("\n")

    def names(self, path: str) -> list[str]:
        """Return the names of what was recorded below `path`."""
        return sorted(self._names.get(path.rstrip("/") or "/", ()))

    def link(self, path: str) -> str | None:
        """Return the recorded target."""
        return self.links.get(path)
