"""Recorded hosts as text: a bug report becomes a fixture."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dualpath.doctor.archive import write_archive
from dualpath.doctor.base import Level
from dualpath.doctor.recording import Measured, Output, Recording
from dualpath.testing.recordings import fixture_text, load_fixture

from .test_archive import RECORDING

text = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(("'''", "a\nb'", "\n", "a\r\nb", "\x7f\n"))
outputs = st.builds(Output, text, text, st.integers(-1, 255))


@given(
    st.builds(
        Recording,
        host=text,
        files=st.dictionaries(text, text, max_size=4),
        links=st.dictionaries(text, text, max_size=2),
        commands=st.dictionaries(text, outputs, max_size=4),
        missing=st.lists(text, max_size=2).map(tuple),
        root=st.booleans(),
        later=st.dictionaries(text, text, max_size=2),
        later_commands=st.dictionaries(text, outputs, max_size=2),
        later_s=st.floats(0, 1e6),
    )
)
def test_any_recording_can_be_written_as_text(recording: Recording) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.toml"
        path.write_text(fixture_text(recording), encoding="utf-8", newline="")
        assert load_fixture(path).recording == recording


def test_a_bug_report_becomes_a_fixture(tmp_path: Path) -> None:
    write_archive(RECORDING, tmp_path / "host.tar.gz")
    line = [sys.executable, "-m", "dualpath.testing.recordings", str(tmp_path / "host.tar.gz")]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(line, capture_output=True, check=True, timeout=60, env=environment)
    (tmp_path / "host.toml").write_bytes(done.stdout)
    assert load_fixture(tmp_path / "host.toml").recording == replace(RECORDING, measured=Measured())


def test_a_fixture_starts_from_another_and_leaves_things_out(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(fixture_text(RECORDING) + '[expect2]\na = "b"\n')
    (tmp_path / "own.toml").write_text(
        'base = "base.toml"\nremove = ["/.dockerenv", "ethtool eth2"]\n'
        '[expect]\nmtu = "warning"\n[files]\n"/sys/class/net/eth2/mtu" = "1500"\n'
    )
    fixture = load_fixture(tmp_path / "own.toml")
    assert fixture.expect == {"mtu": Level.WARNING}
    assert fixture.recording.host == "decode-1"
    assert fixture.recording.files["/sys/class/net/eth2/mtu"] == "1500"
    assert "/.dockerenv" not in fixture.recording.files
    assert list(fixture.recording.commands) == ["nft list ruleset"]
