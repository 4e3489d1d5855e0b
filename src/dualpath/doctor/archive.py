"""A recording as one file, `host.tar.gz`, that people can look into, and its way back.

    manifest.json          version, host, root, programs missing, later_s, and the commands with their exit codes
    files/<path>           texts; a text that stands for a folder is a folder
    links/<path>@          symbolic links, apart from the files, so that unpacking never writes through one; the @ sets
                           a link apart from the folder of what is recorded below it
    commands/0000.out, .err
    later/files/<path>, later/commands/0000.out, .err
    measured/raw.json, measured/run.json

Reading happens in memory: nothing is unpacked to disk, whatever the archive says, and what is too large is refused.
"""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dualpath.doctor.recording import Measured, Output, Recording
from dualpath.errors import HostError, UsageError
from dualpath.host.raw import RawReport

VERSION = 1
FORMAT = "dualpath-doctor"
LARGEST_MEMBER = 32 << 20
LARGEST_TOTAL = 256 << 20
MOST_MEMBERS = 200_000
"""Far above what a host with hundreds of NICs says, far below what hurts."""

_DEVICE = re.compile(r"/sys/class/(?:net|infiniband)/([^/]+)")
_SHELL = re.compile(r"[\s\"'`$;&|<>(){}*?!\\]")

_AGAIN = "record the host again with `dualpath doctor collect`"


class CommandEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command of the manifest; its output is in the members `<folder>/<number>.out` and `.err`."""

    line: str
    exit_code: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds. Unknown fields are ignored, so that a later version can add some."""

    format: str
    version: int
    host: str
    root: bool = False
    missing: tuple[str, ...] = ()
    later_s: float = 0.0
    commands: tuple[CommandEntry, ...] = ()
    later_commands: tuple[CommandEntry, ...] = ()


def write_archive(recording: Recording, path: Path) -> None:
    """Write `recording` to `path`, replacing what is there; `-` is stdout.

    Raises `HostError` where that is not possible; a file that was there is then whole still.
    """
    data = pack(recording)
    if str(path) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_bytes(data)
        else:
            _replace(path, data)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}", hint="give -o another place") from error


def _replace(path: Path, data: bytes) -> None:
    """Write a file beside `path` and put it in its place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_archive(path: Path) -> Recording:
    """Return the recording in the file at `path`. Raises `UsageError` for what is no whole recording."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check the path") from error
    return unpack(data, name=str(path))


def pack(recording: Recording) -> bytes:
    """Return the archive of `recording`. Equal recordings give equal bytes: it carries no times and no owners."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, text in _members(recording):
            info = tarfile.TarInfo(name)
            if text is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
                continue
            data = text.encode(errors="surrogatepass")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for path, target in recording.links.items():
            info = tarfile.TarInfo(f"links{path}@")
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return buffer.getvalue()


def unpack(data: bytes, *, name: str = "the archive") -> Recording:
    """Return the recording in `data`. Raises `UsageError` for anything but a whole archive of this version."""
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    try:
        limited = _Limited(gzip.GzipFile(fileobj=io.BytesIO(data)))
        with tarfile.open(fileobj=limited, mode="r|") as archive:
            for count, member in enumerate(archive):
                if count >= MOST_MEMBERS:
                    raise _Refused(f"more than {MOST_MEMBERS:,} members")
                _take(archive, member, texts, links)
        while limited.read(1 << 16):  # to its end, where gzip has its checksum
            pass
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        what = (
            "ends too early" if isinstance(error, EOFError | tarfile.ReadError) and data[:2] == b"\x1f\x8b" else error
        )
        raise UsageError(f"{name} is no recording: {what}", hint=_AGAIN) from error
    except RecursionError as error:  # tarfile follows headers about headers one call deeper each
        raise UsageError(f"{name} is no recording: headers without end", hint=_AGAIN) from error
    except (_Refused, UnicodeError, ValueError) as error:
        raise UsageError(f"{name} is no recording: {error}", hint=_AGAIN) from error
    return _recording(name, texts, links)


class _Refused(Exception):
    """Something in an archive that no writer of ours puts there."""


class _Limited(io.RawIOBase):
    """A stream that refuses to unpack more than `LARGEST_TOTAL` bytes: a small file may hold a huge one."""

    def __init__(self, inner: gzip.GzipFile) -> None:
        self._inner, self._left = inner, LARGEST_TOTAL

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise _Refused(f"more than {LARGEST_TOTAL >> 20} MiB when unpacked")
        return data


def _members(recording: Recording) -> Iterator[tuple[str, str | None]]:
    """Yield the members with their texts; `None` for a folder."""
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        host=recording.host,
        root=recording.root,
        missing=recording.missing,
        later_s=recording.later_s,
        commands=tuple(CommandEntry(line, output.exit_code) for line, output in recording.commands.items()),
        later_commands=tuple(CommandEntry(line, output.exit_code) for line, output in recording.later_commands.items()),
    )
    yield "manifest.json", msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
    for folder, files in (("files", recording.files), ("later/files", recording.later)):
        parents = {parent for path in files for parent in _parents(path)}
        for path, text in files.items():
            yield f"{folder}{path}", None if path in parents and not text else text
    for folder, commands in (("commands", recording.commands), ("later/commands", recording.later_commands)):
        for number, output in enumerate(commands.values()):
            yield f"{folder}/{number:04}.out", output.stdout
            if output.stderr:
                yield f"{folder}/{number:04}.err", output.stderr
    if recording.measured.raw is not None:
        yield "measured/raw.json", msgspec.json.encode(recording.measured.raw).decode()
    if recording.measured.run is not None:
        yield "measured/run.json", msgspec.json.encode(recording.measured.run).decode()


def _parents(path: str) -> Iterator[str]:
    while (path := path.rpartition("/")[0]) not in ("", "/"):
        yield path


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, texts: dict[str, str], links: dict[str, str]) -> None:
    name = member.name
    if posixpath.normpath(name) != name or name.startswith(("/", "..")):
        raise _Refused(f"a member named {name!r}")
    if (device := _DEVICE.search(name)) and _SHELL.search(device[1]):
        raise _Refused(f"an interface named {device[1]!r}: fixes are commands that people paste into a shell")
    if member.issym():
        links[name.removesuffix("@")] = member.linkname
    elif member.isdir():
        texts[name] = ""
    elif member.isreg() and not member.issparse():
        if member.size > LARGEST_MEMBER:
            raise _Refused(f"{name!r} has {member.size:,} bytes; {LARGEST_MEMBER:,} are the most")
        file = archive.extractfile(member)
        texts[name] = file.read().decode(errors="surrogatepass") if file else ""
    else:
        raise _Refused(f"{name!r} is neither a file nor a link")


def _recording(name: str, texts: dict[str, str], links: dict[str, str]) -> Recording:
    manifest = _manifest(name, texts.get("manifest.json"))
    return Recording(
        host=manifest.host,
        files=_below("files", texts),
        links=_below("links", links),
        commands=_outputs(name, "commands", manifest.commands, texts),
        missing=manifest.missing,
        root=manifest.root,
        measured=Measured(
            raw=_decoded(name, "measured/raw.json", texts, RawReport),
            run=_decoded(name, "measured/run.json", texts, dict[str, object]),
        ),
        later=_below("later/files", texts),
        later_commands=_outputs(name, "later/commands", manifest.later_commands, texts),
        later_s=manifest.later_s,
    )


def _manifest(name: str, text: str | None) -> Manifest:
    if text is None:
        raise UsageError(f"{name} is no recording: it has no manifest.json", hint=_AGAIN)
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{name}: manifest.json is malformed: {error}", hint=_AGAIN) from error
    if manifest.format != FORMAT:
        raise UsageError(f"{name} is no recording: its format is {manifest.format!r}", hint=_AGAIN)
    if manifest.version != VERSION:
        raise UsageError(
            f"{name} has version {manifest.version}; this release reads version {VERSION}",
            hint="use the same release of dualpath on both hosts",
        )
    return manifest


def _below(folder: str, table: dict[str, str]) -> dict[str, str]:
    return {path.removeprefix(folder): text for path, text in table.items() if path.startswith(f"{folder}/")}


def _outputs(name: str, folder: str, entries: tuple[CommandEntry, ...], texts: dict[str, str]) -> dict[str, Output]:
    found: dict[str, Output] = {}
    for number, entry in enumerate(entries):
        stdout = texts.get(f"{folder}/{number:04}.out")
        if stdout is None:
            raise UsageError(f"{name} is no whole recording: {folder}/{number:04}.out is missing", hint=_AGAIN)
        found[entry.line] = Output(stdout, texts.get(f"{folder}/{number:04}.err", ""), entry.exit_code)
    return found


def _decoded(name: str, member: str, texts: dict[str, str], kind: type[Any]) -> Any:
    text = texts.get(member)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{name}: {member} is malformed: {error}", hint=_AGAIN) from error
