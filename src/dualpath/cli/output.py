"""What commands say, and where: results on stdout, everything else (progress, logs, errors) on stderr.

    with progress("prefill", total=4096, unit="tokens") as bar:
        bar.advance(256)
    emit(as_json, result, print_table)      # one JSON object, or print_table(result)

Colour follows the terminal and `NO_COLOR`. Without a terminal a progress bar becomes a plain line every few seconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from dualpath.errors import HostError, UsageError
from dualpath.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from rich.console import Console


T = TypeVar("T")

PLAIN_PERIOD_S = 5.0
"""How often a progress line is printed where there is no terminal."""


def stdout_console() -> Console:
    """Return a console on stdout, for results. A reader that went away is a `BrokenPipeError`, as without rich."""
    from rich.console import Console

    class Results(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this while it handles the error; its own way is to exit with code 1

    return Results(highlight=False)


def stderr_console() -> Console:
    """Return a console on stderr, for progress and logs."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def emit(as_json: bool, value: T, render: Callable[[T], None]) -> None:
    """Print `value` on stdout: as exactly one JSON object, or for people by calling `render(value)`.

    JSON has no NaN or infinity: they become `null`. Structs and dataclasses become objects, numpy numbers numbers.
    """
    if not as_json:
        render(value)
        return
    import msgspec

    encoded = msgspec.json.encode(value, enc_hook=_plain_value)
    sys.stdout.write(msgspec.json.format(encoded, indent=2).decode() + "\n")
    sys.stdout.flush()


def terminal_columns() -> int | None:
    """Return the columns of the terminal on stdout, `None` where there is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def check_report(path: Path, option: str = "--report") -> None:
    """Raise `UsageError` for a place where nothing can be written, before work is spent on what would go there."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}", hint=f"check {option}")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write to {path}", hint=f"give {option} a file that can be written")


def check_input(path: Path | None, option: str = "--prompt-file") -> None:
    """Raise `UsageError` for a file that cannot be read, before work is spent. Opens nothing: it may be a pipe."""
    if path is None:
        return
    if path.is_dir():
        problem = errno.EISDIR
    elif not path.exists():
        problem = errno.ENOENT
    elif not os.access(path, os.R_OK):
        problem = errno.EACCES
    else:
        return
    raise _unreadable(path, option, os.strerror(problem))


def read_input(path: Path, option: str = "the path and its permissions") -> bytes:
    """Return what is in the file that `option` names. Raises `UsageError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, option, error.strerror) from None


def _unreadable(path: Path, option: str, problem: str | None) -> UsageError:
    return UsageError(f"cannot read {path}: {problem}", hint=f"check {option}")


def write_report(path: Path, page: str, option: str = "--report") -> None:
    """Write a page where `option` says, and say so on stderr. Raises `HostError`."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}", hint=f"give {option} another place") from error
    say(f"{option.strip('-')}: {path}")


def _plain_value(value: object) -> object:
    """Return what numpy's scalars and arrays stand for; this file need not import numpy for it."""
    for method in ("tolist", "to_json"):
        convert = getattr(value, method, None)
        if convert is not None:
            return convert()
    if isinstance(value, float):  # a subclass, which msgspec does not take for a float
        return float(value)
    return str(value)


def say(text: str) -> None:
    """Print one line on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the one place that prints


def complain(message: str, *, hint: str = "") -> None:
    """Print `error: …` and, where there is one, `hint: …` on stderr, each on one line."""
    for label, style, text in (("error", "bold red", message), ("hint", "bold cyan", hint)):
        if not text:
            continue
        line = " ".join(text.split())
        if sys.stderr.isatty():
            from rich.text import Text

            stderr_console().print(Text.assemble((f"{label}:", style), f" {line}"), soft_wrap=True)
        else:
            say(f"{label}: {line}")


class ProgressBar(Protocol):
    """Long work reports to it. Both methods are cheap and may be called from one thread at a time."""

    def advance(self, count: float = 1) -> None:
        """Report that `count` more units are done."""

    def note(self, text: str) -> None:
        """Show a few words beside the bar, such as the current rate; the latest replaces those before it."""


@contextlib.contextmanager
def progress(title: str, *, total: float | None = None, unit: str = "") -> Iterator[ProgressBar]:
    """Show work of `total` `unit`s (`None`: not known) on stderr until the block is left, also by an exception."""
    if sys.stderr.isatty():
        with _rich_progress(title, total, unit) as live:
            yield live
        return
    plain = PlainProgress(title, total=total, unit=unit, write=say, clock=time.monotonic)
    completed = False
    try:
        yield plain
        completed = True
    finally:
        plain.close(completed=completed)


class PlainProgress:
    """Progress as lines, for logs and pipes: the first at once, then one every `PLAIN_PERIOD_S`, then the total.

    Where nothing is counted, what a note says is a stage, and perhaps a slow one: it is printed at once.
    """

    def __init__(
        self,
        title: str,
        *,
        total: float | None,
        unit: str,
        write: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._counts = total is not None or unit != ""
        self._write, self._clock = write, clock
        self._done, self._words = 0.0, ""
        self._started_s = self._printed_s = clock()
        write(f"{title} …")

    def advance(self, count: float = 1) -> None:
        """Report that `count` more units are done; prints when a line is due."""
        self._done += count
        self._print_if_due()

    def note(self, text: str) -> None:
        """Set the words shown at the end of the line; prints when a line is due, a new stage at once."""
        if self._counts:
            self._words = text
            self._print_if_due()
        elif text != self._words:
            self._words = text
            self._write(f"{self._title}: {text}")

    def close(self, *, completed: bool) -> None:
        """Print the last line: how long it took, or how far it got."""
        elapsed = f"{self._clock() - self._started_s:.1f} s"
        if completed:
            self._write(f"{self._title}: done in {elapsed}{self._suffix() if self._counts else ''}")
        else:
            place = f" at {self._position()}" if self._counts else self._suffix()
            self._write(f"{self._title}: stopped after {elapsed}{place}")

    def _print_if_due(self) -> None:
        now_s = self._clock()
        if now_s - self._printed_s >= PLAIN_PERIOD_S:
            self._printed_s = now_s
            self._write(f"{self._title}: {self._position()}{self._suffix()}")

    def _position(self) -> str:
        of_total = "" if self._total is None else f"/{self._total:.0f}"
        return f"{self._done:.0f}{of_total} {self._unit}".rstrip()

    def _suffix(self) -> str:
        return f", {self._words}" if self._words else ""


@contextlib.contextmanager
def _rich_progress(title: str, total: float | None, unit: str) -> Iterator[ProgressBar]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    amount = "{task.completed:.0f}/{task.total:.0f}"
    if total is None:
        amount = "{task.completed:.0f}" if unit else ""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn(f"{amount} {unit}".rstrip()),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
        console=stderr_console(),
        transient=True,
    ) as live:
        task = live.add_task(title, total=total, words="")

        class Bar:
            def advance(self, count: float = 1) -> None:
                live.advance(task, count)

            def note(self, text: str) -> None:
                live.update(task, words=text)

        yield Bar()


class ByteSize(int):
    """A number of bytes that prints as people write it (`16 MiB`). Its typer option is::

    hot: Annotated[ByteSize, typer.Option(parser=byte_size, metavar="SIZE")] = ByteSize(16 << 20)
    """

    def __str__(self) -> str:
        return format_bytes(int(self))


def byte_size(text: str | int) -> ByteSize:
    """Parse what follows a size option, `64MiB` or `64MB`; anything else is a usage error that names the option."""
    try:
        return ByteSize(parse_bytes(text))
    except UsageError as error:
        raise typer.BadParameter(f"{error}; {error.hint}" if error.hint else str(error)) from None


def words(text: str) -> tuple[str, ...]:
    """Return what stands between the commas of `text`, empty pieces left out."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def host_port(text: str, *, default_host: str = "127.0.0.1") -> tuple[str, int]:
    """Parse `HOST:PORT`, `:PORT`, `PORT` or `[V6]:PORT`. Raises `UsageError`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"not an address: {text!r}", hint="write HOST:PORT, for example 127.0.0.1:7700")
    return host or default_host, int(port)


def table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Print a table on stdout; numbers are right-aligned. Piped output keeps every column whole."""
    from rich import box
    from rich.table import Table

    grid = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for index, name in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows)
        grid.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*map(shown, row))
    console = stdout_console()
    if not sys.stdout.isatty():
        console.width = 200
    console.print(grid)


def shown(value: object) -> str:
    """Return `value` for a table: three digits of a float, all digits of an integer part, a dash for nothing."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "-" if value is None else str(value)
