"""Paths with `*`, `**` and `{a,b}`, looked up in a tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from dualpath.host.tree import Tree

DEEPEST = 4
"""Folders that `**` goes down."""


def alternatives(pattern: str) -> list[str]:
    """Return what `pattern` stands for once its `{a,b}` are written out, in order."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        return [pattern]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [one for word in braces.group(1).split(",") for one in alternatives(before + word + after)]


def expand(tree: Tree, pattern: str) -> Iterator[str]:
    """Yield the paths in `tree` that `pattern` may mean. One without `*` is yielded whether or not it is there."""
    for one in alternatives(pattern):
        yield from _walk(tree, "", one.strip("/").split("/"))


def _walk(tree: Tree, base: str, parts: list[str]) -> Iterator[str]:
    if not parts:
        yield base
        return
    first, *rest = parts
    if first == "**":
        yield from _below(tree, base, DEEPEST)
    elif "*" in first:
        for name in tree.names(base or "/"):
            if fnmatchcase(name, first):
                yield from _walk(tree, f"{base}/{name}", rest)
    else:
        yield from _walk(tree, f"{base}/{first}", rest)


def _below(tree: Tree, base: str, depth: int) -> Iterator[str]:
    for name in tree.names(base):
        path = f"{base}/{name}"
        yield path
        if depth > 1 and tree.link(path) is None:  # a link may lead anywhere, also back
            yield from _below(tree, path, depth - 1)
