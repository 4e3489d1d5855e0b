"""Options in groups: a dataclass whose fields are the options of one panel of a command's help.

    @dataclass(frozen=True)
    class MemoryOptions:
        title: ClassVar[str] = "Local memory"
        hot: Annotated[ByteSize, typer.Option(...)] = ByteSize(16 << 20)

    def run_command(memory: MemoryOptions, as_json: Json = False) -> None: ...

The command line is flat: `--hot`, `--json`. The command gets its groups.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

from typer.core import TyperCommand
from typer.models import ParameterInfo

REST = "Options"
"""The panel of options that are in no group."""


def flat(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return `command` as typer wants it: each parameter that is a group stands there as the group's fields."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {n: p.annotation for n, p in signature.parameters.items() if is_dataclass(p.annotation)}
    if not groups:
        return command
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += _options(groups[parameter.name]) if parameter.name in groups else [parameter]

    @wraps(command)
    def call(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    ordered = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    typed: Any = call  # functions may have attributes, which mypy does not know of
    typed.__signature__ = signature.replace(parameters=ordered)
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return call


def _options(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=_in_panel(types[field.name], group.title),
        )
        for field in fields(group)
    ]


def _in_panel(annotation: Any, title: str) -> Any:
    """Return the annotation of an option that is shown under `title`. Aliases are shared, so theirs is not changed."""
    kind, *notes = get_args(annotation)
    shown = [copy.copy(note) for note in notes]
    for note in shown:
        if isinstance(note, ParameterInfo):
            note.rich_help_panel = title
    return Annotated[(kind, *shown)]


class PanelCommand(TyperCommand):
    """A command whose help lists its options panel by panel, in plain text.

    Typer draws panels with rich only, in boxes; the methods take click's objects, which it keeps private: hence `Any`.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel, in the order of their first options; `REST` at the end."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else REST
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or title, []).append(record)
        rest = panels.pop(REST, [])
        for title, records in [*panels.items(), (REST, rest)]:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
