"""Runs tools: without a shell, in the C locale, within a deadline, and reading only so much of what they print.

A tool that hangs, prints for ever or leaves children behind costs its own output, not the recording.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import IO

from dualpath.doctor import netlink
from dualpath.doctor.recording import Output
from dualpath.host.tree import LARGEST_FILE

SEARCHED = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where programs are looked for after `PATH`: users often have no sbin in theirs."""
STOPPING_S = 0.2
"""How long a command that was killed may take to be gone."""
TOO_LONG, TOO_MUCH = "stopped: it took too long", f"stopped: it printed more than {LARGEST_FILE >> 20} MiB"
_PIECE = 1 << 16


class Commands:
    """Runs command lines, several at a time. Leaving its block stops those that still run, and starts no more."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            for child in self._running:
                _kill(child)

    def run_or_ask(self, line: str, until_s: float) -> Output | None:
        """Do as `run` does; where ethtool is not installed, ask the kernel in its place."""
        output = self.run(line, until_s)
        return netlink.answer(line) if output is None and line.startswith("ethtool ") else output

    def run(self, line: str, until_s: float) -> Output | None:
        """Return what a command printed; `None` if it is not installed.

        It is stopped, with whatever it started, at `until_s` of `time.monotonic` and if it prints too much: then the
        exit code is -1 and `stderr` says which. One that hangs in the kernel is left behind.
        """
        program, *words = line.split()
        folders = _folders()
        path = shutil.which(program, path=folders)
        if path is None:
            return None
        if time.monotonic() >= until_s:
            return Output("", "not started in time", -1)
        try:
            child = subprocess.Popen(
                [path, *words],
                # LD_LIBRARY_PATH and the like stay: nvidia-smi needs them in many containers.
                env={**os.environ, "PATH": folders, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return Output("", f"{path}: {error.strerror}", 126)
        with self._lock:
            self._running.add(child)
            if self._over:
                _kill(child)
        try:
            return _output(child, until_s)
        finally:
            with self._lock:
                self._running.discard(child)


def run_command(line: str, until_s: float) -> Output | None:
    """Run one command line as `Commands.run` does."""
    with Commands() as commands:
        return commands.run(line, until_s)


def _folders() -> str:
    """Return where programs are looked for. No folder that depends on where the doctor was started: it may be root."""
    own = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    return os.pathsep.join([*own, *SEARCHED])


def _output(child: subprocess.Popen[bytes], until_s: float) -> Output:
    """Return what `child` prints until it ends or has to be stopped; its pipes are closed either way."""
    assert child.stdout is not None
    assert child.stderr is not None
    printed = {child.stdout: bytearray(), child.stderr: bytearray()}
    with child.stdout, child.stderr:
        why = _read(printed, until_s)
        if not why:
            try:
                child.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                why = TOO_LONG
        if why:
            _kill(child)
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOPPING_S)
            return Output(_text(printed[child.stdout]), why, -1)
    code = child.returncode
    return Output(_text(printed[child.stdout]), _text(printed[child.stderr]), code if code >= 0 else 128 - code)


def _read(printed: dict[IO[bytes], bytearray], until_s: float) -> str:
    """Read the pipes to their ends; return why that was given up, or an empty text."""
    with selectors.DefaultSelector() as selector:
        for pipe in printed:
            selector.register(pipe, selectors.EVENT_READ, printed[pipe])
        while selector.get_map():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return TOO_LONG
            for key, _ in selector.select(left_s):
                piece = os.read(key.fd, _PIECE)
                if not piece:
                    selector.unregister(key.fileobj)
                key.data.extend(piece)
                if len(key.data) > LARGEST_FILE:
                    return TOO_MUCH
    return ""


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Stop a command and all that it started, but for what has made a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _text(data: bytes | bytearray) -> str:
    return data[:LARGEST_FILE].decode(errors="replace")
