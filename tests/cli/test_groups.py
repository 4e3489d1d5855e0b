"""Options in groups: a flat command line outside, groups inside, panels in the help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer

from dualpath import cli
from dualpath.cli.groups import flat
from dualpath.cli.options import Threads

seen: list[object] = []


@dataclass(frozen=True)
class Memory:
    title: ClassVar[str] = "Memory here"
    hot: Annotated[int, typer.Option(help="Kept.", min=1)] = 3
    threads: Threads = 0


@dataclass(frozen=True)
class Pool:
    title: ClassVar[str] = "Memory elsewhere"
    nodes: Annotated[int, typer.Option(help="How many.")] = 2
    cold: Annotated[bool, typer.Option("--cold", help="None yet.")] = False


def command(given: typer.Context, memory: Memory, pool: Pool, name: Annotated[str, typer.Option()] = "n") -> None:
    """Do it."""
    seen[:] = [memory, pool, name, str(given.get_parameter_source("hot")).rpartition(".")[2]]


def help_of(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the options under each title of a command's help."""
    assert cli.main([*words, "--help"]) == 0
    panels: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.partition("Examples:")[2].splitlines():
        if re.fullmatch(r"\S.*:", line):
            panels[line[:-1]] = []
        elif line.startswith("  --"):
            panels[list(panels)[-1]].append(line.split()[0].rstrip(","))
    return panels


def test_a_command_gets_its_groups_from_a_flat_line() -> None:
    app = typer.Typer()
    app.command()(flat(command))
    app(["--hot", "7", "--cold"], standalone_mode=False)
    assert seen == [Memory(hot=7), Pool(cold=True), "n", "COMMANDLINE"]
    app(["--nodes", "5", "--name", "m"], standalone_mode=False)
    assert seen == [Memory(), Pool(nodes=5), "m", "DEFAULT"]


def test_a_command_without_groups_stays_as_it_is() -> None:
    def plain(name: str = "") -> None: ...

    assert flat(plain) is plain


def test_groups_that_share_a_name_are_a_bug() -> None:
    def clash(one: Memory, other: Memory) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name"):
        flat(clash)


def test_a_shared_option_is_shown_where_each_command_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--threads" in help_of("run", capsys=capsys)["Model and work"]
    assert "--threads" in help_of("generate", capsys=capsys)["Options"]


@pytest.mark.parametrize("name", ["run", "plan"])
def test_long_helps_are_in_panels_that_can_be_taken_in(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    panels = help_of(name, capsys=capsys)
    assert list(panels)[-1] == "Options"
    assert panels["Options"][-2:] == ["--json", "--help"]
    assert all(0 < len(options) <= 12 for options in panels.values()), panels
    everything = [option for options in panels.values() for option in options]
    assert len(everything) == len(set(everything)) >= 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cold",), "--cold goes with --concurrency"),
        (("--concurrency", "0", "--control-rate", "5"), "--control-rate goes with --concurrency"),
        (("--concurrency", "2", "--prompt-file", "a"), "--prompt-file does not go with --concurrency"),
        (("--concurrency", "2", "--report", "a"), "--report does not go with --concurrency"),
    ],
)
def test_options_of_the_other_kind_of_run_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\nhint: see `dualpath run --help`\n"
