"""The command ``mqgrad demo``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .options import folder


def demo(
    output: Annotated[
        Path, typer.Option(parser=folder, help="Folder for everything the demo writes.")
    ] = Path("demo-output"),
    train_seconds: Annotated[float, typer.Option(help="Wall-clock time for learning the policy.")] = 150.0,
) -> None:
    """The whole job in about six minutes: learn a policy, freeze it, compare it on runs it has not seen."""
    from .demo import run_demo

    run_demo(output, train_seconds, Console(markup=False))  # a path may have brackets
