"""`dualpath lab`: hosts emulated on this machine, with NICs of known speed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Annotated, Any

import typer

from dualpath.cli.cores import yield_idle_cores
from dualpath.cli.output import emit, say, table
from dualpath.cli.registry import CommandEntry

COMMANDS = (
    CommandEntry("list", __name__, "list_command", "Name the labs that come with dualpath."),
    CommandEntry("up", __name__, "up_command", "Bring a lab up."),
    CommandEntry("status", __name__, "status_command", "Show a lab's hosts, or which labs are up."),
    CommandEntry("exec", __name__, "exec_command", "Run a command in a host of a lab that is up."),
    CommandEntry("run", __name__, "run_command", "Bring a lab up, run a command, take the lab down."),
    CommandEntry("down", __name__, "down_command", "Take a lab down."),
)

GRACE_S = 5.0
"""How long the command of `lab run` has to end after an interruption."""

LabArgument = Annotated[str, typer.Argument(metavar="FILE", help="A TOML file, or the name of a ready-made lab.")]
CommandArgument = Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command and its arguments.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def list_command(as_json: JsonOption = False) -> None:
    """Name the labs that come with dualpath. Every command that takes a FILE takes these names too.

    Examples:
        dualpath lab list
        dualpath lab list --json
    """
    from dualpath.host.lab.config import ready_made

    emit(as_json, {"labs": list(ready_made().values())}, _print_ready_made)


def up_command(file: LabArgument, as_json: JsonOption = False) -> None:
    """Bring a lab up: hosts as network namespaces, NICs of the given rates. Needs root.

    All or nothing: after a failure nothing of it is left.

    Examples:
        sudo dualpath lab up two-hosts-two-nics
        sudo dualpath lab up my-lab.toml
    """
    from dualpath.host.lab.build import up
    from dualpath.host.lab.config import find_lab
    from dualpath.host.lab.status import status

    config = find_lab(file)
    up(config)
    emit(as_json, status(config), _print_status)


def status_command(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A TOML file, or the name of a ready-made lab.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show a lab's hosts with their NICs, rates and processes; without FILE, which labs are up.

    Examples:
        dualpath lab status
        sudo dualpath lab status two-hosts-two-nics --json
    """
    from dualpath.host.lab.build import labs
    from dualpath.host.lab.config import find_lab
    from dualpath.host.lab.status import status

    if file:
        emit(as_json, status(find_lab(file)), _print_status)
    else:
        emit(as_json, {"up": labs()}, _print_labs)


def exec_command(file: LabArgument, host: Annotated[str, typer.Argument()], command: CommandArgument) -> None:
    """Run a command in a host of a lab that is up. Its exit code is the command's. Needs root.

    Hosts of a lab share this machine's cores: OMP_WAIT_POLICY is passive in the command, if it is not set.

    Examples:
        sudo dualpath lab exec two-hosts-one-nic a -- ip -stats link
        sudo dualpath lab exec two-hosts-one-nic b -- dualpath rails
    """
    from dualpath.host.lab import Lab, find_lab
    from dualpath.host.lab.build import require_root

    found = Lab(find_lab(file))
    words = found.host(host).command(command)
    require_root()
    found.require_up()
    yield_idle_cores()
    sys.stdout.flush()
    os.execv(words[0], words)  # noqa: S606 - the words are the user's own command line


def run_command(
    file: LabArgument,
    command: CommandArgument,
    host: Annotated[str, typer.Option(metavar="NAME", help="Host to run it in; otherwise it runs outside.")] = "",
) -> int:
    """Bring a lab up, run a command, and take the lab down whatever happens. Needs root.

    The exit code is the command's, 128 and the signal's number if a signal ended it. Whatever still runs in the lab's
    hosts then is ended too.

    Examples:
        sudo dualpath lab run two-hosts-one-nic --host a -- ip route
        sudo dualpath lab run two-hosts-two-nics -- sh ./measure.sh
    """
    from dualpath.host.lab import Lab, find_lab, lab

    config = find_lab(file)
    words = Lab(config).host(host).command(command) if host else command
    heed_hangup()
    yield_idle_cores()
    with lab(config), subprocess.Popen(words) as child:
        code = _wait(child)
    return 128 - code if code < 0 else code


def down_command(file: LabArgument) -> None:
    """Take a lab down and end the processes in its hosts. Needs root. A lab that is not up is no error.

    Examples:
        sudo dualpath lab down two-hosts-two-nics
    """
    from dualpath.host.lab.build import down
    from dualpath.host.lab.config import find_lab

    name = find_lab(file).name
    say(f"{name} is down" if down(name) else f"{name} was not up")


def heed_hangup() -> None:
    """Have a lost ssh connection end this process as SIGTERM does, so that no lab is left behind."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, _frame: sys.exit(128 + number))


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for `child`; when this process is interrupted or terminated, see that it ends too."""
    try:
        return child.wait()
    except BaseException as error:
        # Ctrl-C in a terminal has reached the child as well; a second signal would cut its own cleaning up short.
        if not isinstance(error, KeyboardInterrupt):
            child.send_signal(signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
        finally:
            child.kill()
        raise


def _print_ready_made(found: dict[str, Any]) -> None:
    rows = []
    for one in found["labs"]:
        rates = sorted({nic.rate for host in one.hosts for nic in host.nics})
        rows.append([one.name, ", ".join(host.name for host in one.hosts), len(one.hosts[0].nics), ", ".join(rates)])
    table("Ready-made labs", ["name", "hosts", "NICs each", "rates"], rows)


def _print_labs(found: dict[str, Any]) -> None:
    rows = [[name, ", ".join(namespaces)] for name, namespaces in found["up"].items()]
    if rows:
        table("Labs that are up", ["lab", "namespaces"], rows)
    else:
        typer.echo("no lab is up")


def _print_status(found: Any) -> None:
    from dualpath.units import format_bits_per_s, format_bytes

    if not found.up:
        typer.echo(f"lab {found.name} is not up")
        return
    rows = [
        [
            host.name,
            nic.name,
            ", ".join(nic.addresses),
            nic.state,
            nic.mtu,
            None if nic.shaped_bits_per_s is None else format_bits_per_s(nic.shaped_bits_per_s),
            format_bytes(nic.counters.rx_bytes),
            format_bytes(nic.counters.tx_bytes),
            len(host.processes),
        ]
        for host in found.hosts
        for nic in host.nics
    ]
    columns = ["host", "NIC", "address", "state", "MTU", "rate", "received", "sent", "processes"]
    table(f"Lab {found.name}", columns, rows)
