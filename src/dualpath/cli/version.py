"""`dualpath version`."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated

import typer

from dualpath.cli.output import emit

PACKAGES = ("numpy", "torch", "transformers")


def version_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the version of dualpath, of Python and of the packages that matter to a report.

    Examples:
        dualpath version
        dualpath version --json
    """
    emit(as_json, describe_installation(), _print_versions)


def describe_installation() -> dict[str, str | None]:
    """Return versions by name, `None` for what is not installed. Imports none of the packages."""
    found: dict[str, str | None] = {
        "dualpath": _version_of("dualpath"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    found.update((name, _version_of(name)) for name in PACKAGES)
    return found


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print_versions(found: dict[str, str | None]) -> None:
    for name, version in found.items():
        typer.echo(f"{name:<13}{version or 'not installed'}")
