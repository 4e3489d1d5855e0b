"""On CI a missing capability fails; elsewhere, and for other reasons, a skip is a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = {
    "test_inside.py": "import pytest\ndef test_fixture(): pytest.skip('capability: a second host')\n",
    "test_mark.py": "import pytest\n@pytest.mark.skip(reason='capability: root')\ndef test_mark(): pass\n",
    "test_module.py": "import pytest\npytest.skip('capability: a GPU', allow_module_level=True)\n",
    "test_other.py": "import pytest\ndef test_other(): pytest.skip('not on this kernel')\ndef test_fine(): pass\n",
    "test_xfail.py": "import pytest\n@pytest.mark.xfail\ndef test_known(): assert False\n",
}


@pytest.mark.parametrize(
    ("ci", "summary"),
    [("true", "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors"), ("", "1 passed, 4 skipped, 1 xfailed")],
)
def test_missing_capabilities(ci: str, summary: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    options = ["-q", "-rs", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "CI": ci},
        cwd=tmp_path,
    )
    assert summary in done.stdout, done.stdout
    assert (done.returncode != 0) == bool(ci)
    for missing in ("a second host", "root", "a GPU"):
        assert (f"nothing may be missing: capability: {missing}" in done.stdout) == bool(ci)
