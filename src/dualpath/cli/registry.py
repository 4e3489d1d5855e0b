"""Commands that are imported when they are called, not before.

A listing (`dualpath --help`) is printed from the table alone, so it costs milliseconds whatever a command imports.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from dualpath.errors import UsageError


@dataclass(frozen=True)
class CommandEntry:
    """One line of the table: where a command is and what the listing says about it."""

    name: str
    module: str
    attribute: str
    """A function with typer's annotations, or a tuple of `CommandEntry`: then this is a group."""
    summary: str
    default: str = ""
    """Of a group: the function in its module that runs where none of its commands is named."""


class CommandGroup(TyperGroup):
    """A typer group over a table of entries.

    The methods take and return click's objects, which typer keeps in a private package of its own: hence `Any`.
    """

    def __init__(self, *, name: str, text: str, entries: tuple[CommandEntry, ...], **extra: Any) -> None:
        super().__init__(name=name, help=text, rich_markup_mode=None, **extra)
        self.entries = {entry.name: entry for entry in entries}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the table's order."""
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the command called `cmd_name` and return it; `None` if there is no such command."""
        entry = self.entries.get(cmd_name)
        return None if entry is None else load_command(entry)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the listing out of the table, importing nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.summary) for entry in self.entries.values()])


class CommandOrGroup(CommandGroup):
    """A group that is a command too: `alone` runs where none of its commands is named."""

    def __init__(self, *, name: str, alone: Any, entries: tuple[CommandEntry, ...]) -> None:
        super().__init__(name=name, text=alone.help, entries=entries, params=alone.params, invoke_without_command=True)
        self._alone = alone

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named, or `alone`. Raises `UsageError` for options that neither would see."""
        self.callback = partial(self._call_alone, ctx)
        return super().invoke(ctx)

    def _call_alone(self, ctx: Any, **values: Any) -> Any:
        named = ctx.invoked_subcommand
        if named is None:
            return self._alone.callback(**values)
        for parameter in self._alone.params:
            source = ctx.get_parameter_source(parameter.name)
            if source is not None and source.name == "COMMANDLINE":
                option = parameter.opts[0]
                raise UsageError(
                    f"{option} stands before {named}, which does not see it",
                    hint=f"write `{ctx.command_path} {named}` first; see its --help for what it takes",
                )
        return None


def load_command(entry: CommandEntry) -> Any:
    """Import `entry` and return its click command."""
    target = getattr(importlib.import_module(entry.module), entry.attribute)
    if isinstance(target, tuple):
        return _group(entry, target)
    return _command(entry, target)


def _group(entry: CommandEntry, entries: tuple[CommandEntry, ...]) -> CommandGroup:
    if not entry.default:
        return CommandGroup(name=entry.name, text=entry.summary, entries=entries)
    alone = _command(entry, getattr(importlib.import_module(entry.module), entry.default))
    return CommandOrGroup(name=entry.name, alone=alone, entries=entries)


def _command(entry: CommandEntry, target: Any) -> Any:
    from dualpath.cli.groups import PanelCommand, flat

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    text = keep_examples(inspect.getdoc(target) or entry.summary)
    app.command(name=entry.name, cls=PanelCommand, help=text)(flat(target))
    return typer.main.get_command(app)


def keep_examples(text: str) -> str:
    """Return `text` with every paragraph that has an indented line marked to be printed as it stands.

    Help text is otherwise re-wrapped, which would run the lines of an `Examples:` block together.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        f"\b\n{paragraph}" if any(line.startswith("  ") for line in paragraph.splitlines()) else paragraph
        for paragraph in paragraphs
    )
