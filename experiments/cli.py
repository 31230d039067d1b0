"""The ``mqgrad`` command: its commands are in the files ``command.py`` and ``*_command.py``."""

import os
import sys
import warnings

import typer
from rich.console import Console
from rich.markup import escape

from mqgrad.trainers.signals import exit_on_sigterm

from . import demo_command, export_command, run_command, train_command
from .bench import command as bench_command
from .compare import command as compare_command
from .error_line import error_line
from .netlab import command as netlab_command
from .sweep import run_server_command

app = typer.Typer(
    help="Choose the bit width of quantized gradients by reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# In the order in which ``mqgrad --help`` lists them.
app.command()(train_command.train)
app.command()(export_command.export)
app.command()(run_command.run)
app.command()(demo_command.demo)
app.command()(compare_command.compare)
app.command()(bench_command.bench)
app.command(context_settings=netlab_command.SETTINGS)(netlab_command.netlab)
app.command(hidden=True)(run_server_command.serve_runs)


_python_format = warnings.formatwarning


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """One line for a RuntimeWarning, as ours are: its place in the package says nothing to who typed a command."""
    if category is RuntimeWarning and not os.environ.get("MQGRAD_TRACEBACK"):
        return f"warning: {message}\n"
    return _python_format(message, category, filename, lineno, line)


def main() -> None:
    """Entry point: a user's mistake ends in one line and exit code 2, a stopped run in 130, or 143 by SIGTERM."""
    exit_on_sigterm()
    warnings.formatwarning = format_warning
    sys.path.append(os.getcwd())  # for workloads of the user's own, whoever starts the command
    try:
        app()
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        if os.environ.get("MQGRAD_TRACEBACK"):
            raise
        Console(stderr=True).print(
            f"[red]error:[/red] {escape(error_line(error))}", highlight=False, soft_wrap=True
        )
        raise SystemExit(2) from None
