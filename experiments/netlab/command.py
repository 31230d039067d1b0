"""The command ``mqgrad netlab``."""

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..options import folder
from .tcp import DEFAULT_CONGESTION_CONTROL

if TYPE_CHECKING:
    from .run import LabResult

_CHANGES_SHOWN = 6

# Everything after COMMAND belongs to it, its options too, with or without `--` before it.
SETTINGS = {"allow_interspersed_args": False}


def netlab(
    command: Annotated[
        list[str] | None, typer.Argument(help="Program and arguments, run on every host at once.")
    ] = None,
    hosts: Annotated[int, typer.Option(help="Number of hosts.")] = 2,
    rate: Annotated[
        str,
        typer.Option(
            help="Of every link, each way: 500kbit, 100mbit, 1gbit, ..., none: not shaped, or several in turn: "
            "100mbit/1gbit@10s."
        ),
    ] = "100mbit",
    queue_ms: Annotated[
        float, typer.Option(help="Longest wait in a link's queue, in milliseconds; then packets are dropped.")
    ] = 200.0,
    tcp: Annotated[
        str,
        typer.Option(metavar="NAME", help="Congestion control of every host: cubic, reno, bbr, ..."),
    ] = DEFAULT_CONGESTION_CONTROL,
    time_limit_seconds: Annotated[
        float | None, typer.Option(help="Stop the command after this time.")
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(parser=folder, help="Folder for logs and netlab.json; a temporary one by default."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the lab; a unique one by default.")] = None,
    clean: Annotated[
        str | None, typer.Option(metavar="NAME", help="Remove this stale lab, or all stale ones: 'all'.")
    ] = None,
) -> None:
    """Run a command on N hosts on this machine, joined by links that the kernel shapes. Needs Linux and root.

    mqgrad netlab --hosts 4 --rate 100mbit -- mqgrad run --workload digits-mlp

    Every host is a network namespace and sees only the others. The command finds torchrun's variables set. Rank 0's
    output is shown, everyone's is kept. Exit status: that of the host that failed first, 124 after the time limit.
    """
    if clean is not None:
        if command:
            raise typer.BadParameter(
                "it removes labs and runs nothing: leave the command out", param_hint="--clean"
            )
        _clean(clean)
        return
    if not command:
        raise typer.BadParameter("give a command to run on the hosts, after --", param_hint="COMMAND")
    from mqgrad.checks import check_positive

    from .iproute import NetLabError, check_available
    from .job import find_program
    from .lab import NetLab
    from .link import LinkShape, parse_link_rates
    from .run import run_on_new_lab

    rates = parse_link_rates(rate)
    link = LinkShape(rate_mbit_per_s=rates.mbit_per_s[0], queue_ms=queue_ms)
    lab = NetLab(hosts, link, name=name, congestion_control=tcp)
    check_available()  # all that is wrong is told before there is a folder for the logs
    command = [find_program(command[0]), *command[1:]]
    if time_limit_seconds is not None:
        check_positive(time_limit_seconds=time_limit_seconds)
    is_temporary = logs is None
    logs = logs or Path(tempfile.mkdtemp(prefix="mqgrad-netlab-"))
    console = Console(stderr=True, highlight=False)  # standard output is rank 0's alone
    told = f"{hosts} hosts at {rate}, TCP {tcp}, logs in {logs}"
    console.print(f"lab {lab.name}: {told}", markup=False, soft_wrap=True)
    try:
        result = run_on_new_lab(
            lab, command, logs, schedule=rates.changes(), time_limit_seconds=time_limit_seconds
        )
    except NetLabError:
        if is_temporary:
            with contextlib.suppress(OSError):
                logs.rmdir()  # nothing was logged
        raise
    _report(result, logs, console)
    raise typer.Exit(result.status)


def _clean(name: str) -> None:
    from .iproute import NetLabError, check_available
    from .lab import clean_lab, list_labs

    check_available()
    for each in list_labs() if name == "all" else [name]:
        try:
            clean_lab(each)
        except NetLabError as error:
            if name != "all":
                raise
            typer.echo(f"kept: {error}")  # running: not stale
        else:
            typer.echo(f"removed lab {each}")


def _report(result: "LabResult", logs: Path, console: Console) -> None:
    from .job import describe, log_tail
    from .link import format_link_rate

    table = Table()
    for column in ("rank", "ending", "status", "received MiB", "sent MiB"):
        table.add_column(column, justify="left" if column in ("ending", "status") else "right")
    for host in result.hosts:
        status = "still running" if host.returncode is None else describe(host.returncode)
        mebibytes = (f"{count / 2**20:.2f}" for count in (host.rx_bytes, host.tx_bytes))
        table.add_row(str(host.rank), host.ending, status, *mebibytes)
    console.print(table)
    for change in result.rate_changes[:_CHANGES_SHOWN]:
        console.print(f"{change.seconds:.2f} s: {format_link_rate(change.rate_mbit_per_s)}")
    if (more := len(result.rate_changes) - _CHANGES_SHOWN) > 0:
        console.print(f"and {more} more changes of rate, in netlab.json")
    failed = [host.rank for host in result.hosts if host.ending == "failed"]
    for rank in failed or [host.rank for host in result.hosts if host.ending == "stopped"]:
        if rank != 0:  # whose output has been shown
            console.print(f"--- rank {rank}, last lines ---")
            console.print(log_tail(logs, rank), markup=False, soft_wrap=True)
    console.print(f"{result.outcome} after {result.seconds:.1f} s", markup=False)
