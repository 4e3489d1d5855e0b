"""The command line's skeleton: listing, exit codes, error lines, signals."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from dualpath import cli, errors
from dualpath.cli.registry import CommandEntry, keep_examples, load_command

Outcome = tuple[int, str, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run_line(*words: str) -> Outcome:
        code = cli.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_line


@pytest.fixture(autouse=True)
def keep_sigterm() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `dualpath version` raise `error`."""

    def describe() -> dict[str, str | None]:
        raise error

    monkeypatch.setattr("dualpath.cli.version.describe_installation", describe)


def test_no_arguments_prints_the_listing(run: Callable[..., Outcome]) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    for entry in cli.COMMANDS:
        assert f"  {entry.name} " in out


def test_the_listing_imports_no_command() -> None:
    code = (
        "import sys; from dualpath.cli import main; main(['--help']);"
        "print(*(m for m in sys.modules if m.startswith('dualpath.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stderr.split()) == {"dualpath.cli.registry"}


@pytest.mark.parametrize("entry", cli.COMMANDS, ids=lambda entry: entry.name)
def test_every_command_has_help_with_an_example(entry: CommandEntry, run: Callable[..., Outcome]) -> None:
    code, out, _ = run(entry.name, "--help")
    assert code == 0
    if entry.attribute != "COMMANDS":  # a group lists its commands; each of them has examples
        assert "Examples:" in out
        assert f"dualpath {entry.name}" in out.partition("Examples:")[2]


@pytest.mark.parametrize("name", ["attention", "transport"])
def test_benches_have_help_with_an_example(name: str, run: Callable[..., Outcome]) -> None:
    code, out, _ = run("bench", name, "--help")
    assert code == 0
    assert f"\n      dualpath bench {name} --json" in out


def test_version_as_json_is_one_object(run: Callable[..., Outcome]) -> None:
    code, out, err = run("version", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["python"] == ".".join(map(str, sys.version_info[:3]))


def test_version_option(run: Callable[..., Outcome]) -> None:
    assert run("--version") == run("version")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["teleport"], "No such command 'teleport'"),
        (["version", "--colour"], "--colour"),
        (["bench"], "Missing command"),
        (["bench", "transport", "--size", "4M"], "not a size: '4M'"),
        (["bench", "transport", "--in-flight", "0"], "--in-flight"),
        (["bench", "attention", "--dtype", ","], "--dtype is empty"),
        (["bench", "attention", "--threads", "9999"], "cannot use 9999 threads"),
    ],
)
def test_usage_errors_are_one_line_and_a_hint(words: list[str], says: str, run: Callable[..., Outcome]) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert lines[1].startswith("hint: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("bad", hint="do better"), 2),
        (errors.UnknownModelError("bad", hint="do better"), 2),
        (errors.CapacityError("bad", hint="do better"), 2),
        (errors.DeadlineError("bad", node="n", hint="do better"), 1),
        (errors.BlockLostError("bad", hint="do better"), 1),
        (errors.HostError("bad", hint="do better"), 1),
    ],
)
def test_own_errors_are_two_lines(
    error: errors.DualPathError, code: int, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, error)
    assert run("version") == (code, "", "error: bad\nhint: do better\n")


def test_an_error_of_several_lines_becomes_one(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, errors.HostError("no\n  memory"))
    assert run("version") == (1, "", "error: no memory\nhint: see `dualpath version --help`\n")


@pytest.mark.parametrize("kind", [errors.UsageError, errors.ProtocolError, errors.AuthError, errors.DeadlineError])
def test_no_error_is_without_a_hint(
    kind: type[errors.DualPathError], run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, kind("bad"))
    _, _, err = run("version")
    assert err.splitlines()[1].startswith("hint: ")


def test_a_missing_extra_says_how_to_get_it(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    code, _, err = run("version")
    assert code == 1
    assert "torch" in err
    assert "hint: pip install 'dualpath[torch]'" in err


def test_a_missing_file_is_named(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, FileNotFoundError(2, "No such file or directory", "prompt.txt"))
    code, _, err = run("version")
    assert code == 1
    assert err.startswith("error: prompt.txt: No such file")


def test_running_out_of_memory_is_one_line_and_a_hint(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, MemoryError())
    code, _, err = run("version")
    assert (code, err.splitlines()[0]) == (1, "error: out of memory")
    assert err.splitlines()[1].startswith("hint: ")


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), ModuleNotFoundError("no dualpath.x", name="dualpath.x")])
def test_a_bug_keeps_its_traceback(
    error: Exception, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        run("version")


def test_ctrl_c_is_one_line_and_130(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert run("version") == (130, "", "error: interrupted\n")


def test_the_traceback_can_be_had(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALPATH_TRACEBACK", "1")
    failing(monkeypatch, errors.UsageError("bad"))
    with pytest.raises(errors.UsageError):
        run("version")


def test_sigterm_unwinds(tmp_path: object) -> None:
    """`finally` blocks run, so children are stopped and memory is released."""
    code = (
        "import sys, dualpath.cli as cli, dualpath.cli.version as v\n"
        "def wait():\n"
        "    try:\n"
        "        print('ready', flush=True); sys.stdin.read()\n"
        "    finally:\n"
        "        print('unwound', flush=True)\n"
        "v.describe_installation = wait\n"
        "sys.exit(cli.main(['version']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.terminate()
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (143, "unwound\n", "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "dualpath", "version"], stdout=gone, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_table_without_a_reader_is_no_error() -> None:
    code = "from dualpath import cli; import dualpath.cli.version as v; from dualpath.cli.output import table\n"
    code += "v._print_versions = lambda found: table('t', ['a'], [[1]])\nraise SystemExit(cli.main(['version']))"
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as gone:
        done = subprocess.run([sys.executable, "-c", code], stdout=gone, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_one_line_and_a_hint() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dualpath", "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "error: cannot write: No space left on device\nhint: make room, or write elsewhere\n"


def test_a_stdout_that_was_closed_before_the_start_is_no_bug() -> None:
    line = f"exec {sys.executable} -m dualpath version --json >&-"
    done = subprocess.run(["/bin/sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["doctor collect -o /dev/null --seconds 0", "plan --model smollm2 --bogus"])
def test_a_stderr_that_was_closed_before_the_start_is_no_bug(words: str) -> None:
    line = f"exec {sys.executable} -m dualpath {words} 2>&-"
    done = subprocess.run(["/bin/sh", "-c", line], stdout=subprocess.DEVNULL, check=False, timeout=60)
    assert done.returncode == (2 if "bogus" in words else 0)


def test_a_stdin_that_was_closed_before_the_start_is_empty() -> None:
    line = f"exec {sys.executable} -m dualpath generate --prompt-file - <&-"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: the prompt is empty")


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_an_interrupt_that_a_library_turned_into_something_else(
    link: str, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ModuleNotFoundError("Could not import module 'LlamaConfig'.")
    setattr(error, link, RuntimeError())
    setattr(getattr(error, link), link, KeyboardInterrupt())
    failing(monkeypatch, error)
    assert run("version") == (130, "", "error: interrupted\n")


def test_the_hint_names_the_command_of_a_group(run: Callable[..., Outcome]) -> None:
    assert run("bench", "accuracy", "--needles", "-5")[2].endswith("hint: see `dualpath bench accuracy --help`\n")


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_memory_that_runs_out(
    error: BaseException, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, error)
    code, out, err = run("version")
    assert (code, out) == (1, "")
    assert err.startswith("error: out of memory\nhint: ")


def test_a_broken_socket_is_not_taken_for_a_broken_stdout(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, BrokenPipeError(32, "Broken pipe"))
    with pytest.raises(BrokenPipeError):
        run("version")


def test_groups_nest_and_unknown_names_are_none() -> None:
    group = load_command(CommandEntry("bench", "dualpath.cli.bench", "COMMANDS", "Measure."))
    names = {"attention", "transport", "raw", "foreign", "lanes", "rails", "overlap", "auto", "accuracy"}
    assert names == set(group.list_commands(None))
    assert group.get_command(None, "attention").name == "attention"
    assert group.get_command(None, "teleport") is None


def test_examples_keep_their_lines() -> None:
    assert keep_examples("One\ntwo.\n\nExamples:\n    a\n    b") == "One\ntwo.\n\n\b\nExamples:\n    a\n    b"


def test_every_entry_of_the_table_exists() -> None:
    for entry in cli.COMMANDS:
        assert importlib.util.find_spec(entry.module) is not None, entry.module


def test_generate_takes_no_pool_that_it_would_not_use() -> None:
    from dualpath.cli.generate import choose_scheme

    with pytest.raises(errors.UsageError, match="scheme local uses no pool"):
        choose_scheme("local", "127.0.0.1:1")
    assert choose_scheme("", "").value == "local"
