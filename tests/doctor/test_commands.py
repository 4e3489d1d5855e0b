"""How tools are run, and how they end: slow ones, noisy ones, crashing ones, and those in the wrong place."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualpath.doctor import commands
from dualpath.doctor.commands import Commands, run_command
from dualpath.doctor.recording import Output


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def late_once(monkeypatch: pytest.MonkeyPatch, read: Callable[[list[bytes]], bool]) -> float:
    """Stop the clock of `commands` until what has been read of pipes is so; return a time before which it is then."""
    pieces: list[bytes] = []

    def noted(descriptor: int, size: int, really: Callable[[int, int], bytes] = os.read) -> bytes:
        pieces.append(really(descriptor, size))
        return pieces[-1]

    monkeypatch.setattr(os, "read", noted)
    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: 600.0 if read(pieces) else 0.0))
    return 60.0


def test_a_command_that_is_not_installed_is_none() -> None:
    assert run_command("no-such-program --at-all", time.monotonic() + 5) is None


def test_a_command_speaks_c_and_has_no_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "speak", 'echo "$LC_ALL"; cat; echo oops >&2; exit 3')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert run_command("speak", time.monotonic() + 30) == Output("C\n", "oops\n", 3)


def test_a_slow_command_is_stopped_and_so_is_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "slow", "echo first; sleep 600 & wait")  # the child holds stdout open
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    output = run_command("slow", late_once(monkeypatch, lambda pieces: b"first\n" in pieces))
    assert output is not None
    assert (output.exit_code, output.stdout) == (-1, "first\n")


def test_no_command_starts_after_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "late", f"touch {tmp_path}/started")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    output = run_command("late", time.monotonic() - 1)
    assert output is not None
    assert output.exit_code == -1
    assert not (tmp_path / "started").exists()


def test_a_command_killed_by_a_signal_does_not_look_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "crash", "kill -SEGV $$")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    output = run_command("crash", time.monotonic() + 30)
    assert output is not None
    assert output.exit_code == 139


@pytest.mark.parametrize("where", ["", ">&2"])
def test_a_command_that_prints_for_ever_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(commands, "LARGEST_FILE", 100_000)
    script(tmp_path, "noisy", f"exec yes {where}")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    output = run_command("noisy", time.monotonic() + 600)
    assert output is not None
    assert (output.exit_code, output.stderr) == (-1, commands.TOO_MUCH)
    assert len(output.stdout) <= 100_000


def test_a_command_that_closes_its_output_and_goes_on_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, "mute", "echo said; exec >&- 2>&-; exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    until_s = late_once(monkeypatch, lambda pieces: b"said\n" in pieces and pieces[-2:] == [b"", b""])  # both closed
    assert run_command("mute", until_s) == Output("said\n", commands.TOO_LONG, -1)


@pytest.mark.parametrize("path", ["", ".", ":/nowhere:", "bin"])
def test_nothing_is_run_out_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "bin").mkdir()
    for folder in (tmp_path, tmp_path / "bin"):
        script(folder, "no-such-program", "echo pwned")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    assert run_command("no-such-program", time.monotonic() + 30) is None


def test_leaving_the_block_stops_what_runs_and_starts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does it: nobody waits for the deadline."""
    started = tmp_path / "started"
    os.mkfifo(started)
    script(tmp_path, "slow", f"echo > {started}; exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    outputs: list[Output | None] = []
    with Commands() as running:
        thread = threading.Thread(target=lambda: outputs.append(running.run("slow", time.monotonic() + 600)))
        thread.start()
        started.read_text()
    thread.join(60)
    outputs.append(running.run("slow", time.monotonic() + 600))
    killed = Output("", "", 128 + signal.SIGKILL)
    assert outputs == [killed, killed]
