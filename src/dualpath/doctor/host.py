"""A host as checks see it: the tree of its files, its NICs, and what its tools printed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar, cast

from dualpath.doctor.base import Unknown
from dualpath.doctor.recording import Measured, Output, Recording
from dualpath.host.nics import Nic, nics
from dualpath.host.tree import RecordedTree

T = TypeVar("T")


class Host:
    """A typed view of one recording. Parsed facts are computed once, when first asked for."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.tree = RecordedTree(recording.files, recording.links)
        self._facts: dict[Callable[[Host], object], object] = {}

    def once(self, fact: Callable[[Host], T]) -> T:
        """Return `fact(self)`, computed when first asked for: pair checks ask each host as often as it has peers."""
        if fact not in self._facts:
            self._facts[fact] = fact(self)
        return cast("T", self._facts[fact])

    @property
    def name(self) -> str:
        """Return what the host is called."""
        return self.recording.host

    @property
    def root(self) -> bool:
        """Return whether the recording was made with root's rights."""
        return self.recording.root

    @property
    def measured(self) -> Measured:
        """Return the measurements that go with it."""
        return self.recording.measured

    @cached_property
    def nics(self) -> tuple[Nic, ...]:
        """Return every interface."""
        return tuple(nics(self.tree))

    @cached_property
    def physical_nics(self) -> tuple[Nic, ...]:
        """Return the interfaces that are on a bus: candidates for rails."""
        return tuple(nic for nic in self.nics if nic.kind in ("physical", "member"))

    def read(self, path: str) -> str:
        """Return the text of a file that must be there. Raises `Unknown`."""
        text = self.tree.read(path)
        if text is None:
            raise Unknown(f"{path} could not be read", fix="" if self.root else "run the doctor as root")
        return text

    def output(self, line: str) -> Output | None:
        """Return what the command `line` printed; `None` if it was not run or is not installed."""
        return self.recording.commands.get(line)

    def printed(self, line: str, *, package: str = "") -> str:
        """Return the stdout of a command that must have run and succeeded. Raises `Unknown`.

        `package` is the package that has the program, for the fix.
        """
        program = line.split()[0]
        output = self.output(line)
        if output is None:
            fix = f"install {package}" if package else ""
            raise Unknown(
                f"{program} is not installed" if program in self.recording.missing else f"no output of `{line}`",
                fix=fix,
            )
        if output.exit_code == -1:
            raise Unknown(f"`{line}` took too long")
        if output.exit_code != 0 and not output.stdout.strip():
            said = output.stderr.strip().splitlines()
            why = said[-1] if said else f"exit code {output.exit_code}"
            raise Unknown(f"`{line}` failed: {why}", fix="" if self.root else "run the doctor as root")
        return output.stdout
