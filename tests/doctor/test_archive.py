"""Recordings in a file and back; files that are none."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.doctor import archive
from dualpath.doctor.archive import pack, read_archive, unpack, write_archive
from dualpath.doctor.recording import Measured, Output, Recording
from dualpath.errors import HostError, UsageError
from dualpath.host.raw import RawReport, RawRow

RAW = RawReport(
    method="made up",
    local_host="decode-1",
    remote_host="pool-1",
    rows=(
        RawRow(
            local_rail="eth2",
            remote_rail="eth2",
            lane="bulk",
            transport="tcp",
            block_bytes=1 << 20,
            in_flight=8,
            bytes_sent=1,
            bytes_received=1,
            seconds=1.0,
            bits_per_s=8.0,
            latency_p50_s=0.1,
            latency_p99_s=0.2,
        ),
    ),
)

RECORDING = Recording(
    host="decode-1",
    files={"/sys/class/net/eth2": "", "/sys/class/net/eth2/mtu": "9000", "/.dockerenv": "", "/odd name/ü": "a\0b\n"},
    links={"/sys/class/net/eth2": "../../devices/x", "/sys/class/net/eth2/device": "../../../0000:3b:00.0"},
    commands={"ethtool eth2": Output("Settings\n"), "nft list ruleset": Output("", "not permitted\n", 1)},
    missing=("mlnx_qos",),
    root=True,
    measured=Measured(raw=RAW, run={"schemes": [{"scheme": "fetch", "tpot_ms": [1.5, 2.0]}]}),
    later={"/sys/class/net/eth2/statistics/rx_bytes": "12"},
    later_commands={"ethtool -S eth2": Output("     rx: 1\n", "", -1)},
    later_s=1.0,
)


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "host.tar.gz"
    write_archive(RECORDING, path)
    assert read_archive(path) == RECORDING


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
texts = st.text(max_size=40)
outputs = st.builds(Output, texts, texts, st.integers(-1, 255))


@given(
    st.builds(
        Recording,
        host=texts,
        files=st.dictionaries(paths, texts, max_size=8),
        links=st.dictionaries(paths, st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)),
        commands=st.dictionaries(texts, outputs, max_size=4),
        missing=st.lists(texts, max_size=3).map(tuple),
        root=st.booleans(),
        later=st.dictionaries(paths, texts, max_size=4),
        later_commands=st.dictionaries(texts, outputs, max_size=2),
        later_s=st.floats(0, 1e6),
    )
)
def test_any_recording_comes_back(recording: Recording) -> None:
    assert unpack(pack(recording)) == recording


def test_equal_recordings_are_equal_bytes() -> None:
    assert pack(RECORDING) == pack(RECORDING)


def test_people_can_look_into_it(tmp_path: Path) -> None:
    """`tar xf` makes texts and links of it, and no link stands where something else would be written through it."""
    write_archive(RECORDING, tmp_path / "host.tar.gz")
    subprocess.run(["tar", "xf", "host.tar.gz"], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "files/sys/class/net/eth2/mtu").read_text() == "9000"
    assert os.readlink(tmp_path / "links/sys/class/net/eth2/device@") == "../../../0000:3b:00.0"
    with tarfile.open(tmp_path / "host.tar.gz") as tar:
        kinds = {member.name: member.type for member in tar}
    assert kinds["files/sys/class/net/eth2/mtu"] == tarfile.REGTYPE
    assert kinds["files/sys/class/net/eth2"] == tarfile.DIRTYPE
    assert kinds["links/sys/class/net/eth2@"] == tarfile.SYMTYPE
    assert all(kind != tarfile.SYMTYPE for name, kind in kinds.items() if not name.startswith("links/"))


def test_nothing_that_was_cut_short_is_taken_for_whole() -> None:
    data = pack(RECORDING)
    for length in range(0, len(data) - 1, 7):
        with pytest.raises(UsageError) as caught:
            unpack(data[:length], name="host.tar.gz")
        assert str(caught.value).startswith("host.tar.gz")
        assert caught.value.hint


@given(st.binary(max_size=200))
def test_bytes_that_are_no_archive_are_refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        unpack(data)
    with pytest.raises(UsageError):
        unpack(gzip.compress(data, mtime=0))


@given(st.integers(0, 10**9), st.integers(0, 255))
def test_a_damaged_tar_is_refused_or_read(place: int, byte: int) -> None:
    plain = bytearray(gzip.decompress(pack(RECORDING)))
    plain[place % len(plain)] = byte
    with contextlib.suppress(UsageError):
        unpack(gzip.compress(bytes(plain), mtime=0))


def made(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def manifest(**changes: object) -> tuple[tarfile.TarInfo, bytes]:
    fields = {"format": "dualpath-doctor", "version": 1, "host": "a", **changes}
    return tarfile.TarInfo("manifest.json"), json.dumps(fields).encode()


def special(name: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "manifest.json"
    return info, b""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (made(), "no manifest.json"),
        (made((tarfile.TarInfo("files/etc/os-release"), b"x")), "no manifest.json"),
        (made(manifest(version=2)), "has version 2; this release reads version 1"),
        (made(manifest(format="sosreport")), "its format is 'sosreport'"),
        (made(manifest(host=7)), "malformed"),
        (made((tarfile.TarInfo("manifest.json"), b"{")), "malformed"),
        (made(manifest(commands=[{"line": "lspci"}])), "commands/0000.out is missing"),
        (made(manifest(), (tarfile.TarInfo("files/../../etc/passwd"), b"x")), "a member named"),
        (made(manifest(), (tarfile.TarInfo("/etc/passwd"), b"x")), "a member named"),
        (made(manifest(), (tarfile.TarInfo("files/sys/class/net/$(reboot)/mtu"), b"9000")), "paste into a shell"),
        (made(manifest(), special("links/sys/class/infiniband/a;b@", tarfile.SYMTYPE)), "paste into a shell"),
        (made(manifest(), special("files/dev/sda", tarfile.BLKTYPE)), "neither a file nor a link"),
        (made(manifest(), special("files/x", tarfile.LNKTYPE)), "neither a file nor a link"),
        (made(manifest(), (tarfile.TarInfo("files/x"), b"\xff\xfe")), "decode"),
        (made(manifest(), (tarfile.TarInfo("measured/raw.json"), b"{}")), "measured/raw.json is malformed"),
        (made(manifest(), (tarfile.TarInfo("measured/run.json"), b'{"a":' * 50_000)), "measured/run.json is malformed"),
        (made(manifest(host="a"), (tarfile.TarInfo("manifest.json"), b"[" * 50_000)), "manifest.json is malformed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "archive",  # an archive's bytes hold the time
)
def test_what_is_wrong_is_said(data: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        unpack(data)
    assert caught.value.hint


def test_a_member_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST_MEMBER", 100)
    with pytest.raises(UsageError, match="'files/x' has 101 bytes; 100 are the most"):
        unpack(made(manifest(), (tarfile.TarInfo("files/x"), bytes(101))))


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST_TOTAL", 1 << 20)
    with pytest.raises(UsageError, match="more than 1 MiB"):
        unpack(gzip.compress(bytes(8 << 20), mtime=0) + pack(RECORDING))
    with pytest.raises(UsageError, match="more than 1 MiB"):
        unpack(made(manifest(), (tarfile.TarInfo("files/x"), bytes(2 << 20))))


def test_too_many_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_MEMBERS", 3)
    with pytest.raises(UsageError, match="more than 3 members"):
        unpack(pack(RECORDING))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_about_headers_without_end_are_refused(kind: bytes) -> None:
    header, text = special("x", kind)[0], b"12 path=aaa\n"
    header.size = len(text)
    endless = (header.tobuf() + text.ljust(tarfile.BLOCKSIZE, b"\0")) * 3000
    with pytest.raises(UsageError, match="headers without end"):
        unpack(gzip.compress(endless, mtime=0))


def test_fields_of_a_later_release_are_ignored() -> None:
    assert unpack(made(manifest(colour="blue"))).host == "a"


def test_paths_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_archive(tmp_path / "none.tar.gz")
    with pytest.raises(HostError, match="cannot write"):
        write_archive(RECORDING, tmp_path / "no" / "such" / "folder.tar.gz")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "host.tar.gz"
    write_archive(RECORDING, place)

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(HostError, match="No space left"):
        write_archive(Recording("another"), place)
    assert read_archive(place) == RECORDING
    assert list(tmp_path.iterdir()) == [place]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "host.tar.gz"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        write_archive(RECORDING, pipe)
        assert unpack(read.result(60)) == RECORDING
    assert pipe.is_fifo()


def test_a_dash_is_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_archive(RECORDING, Path("-"))
    assert unpack(capfdbinary.readouterr().out) == RECORDING
