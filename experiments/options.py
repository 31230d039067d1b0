"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mqgrad.trainers.workloads.workload import workload_names
from mqgrad.widths import Width, parse_widths

WorkloadName = Annotated[
    str,
    typer.Option(
        help=f"What is trained: {', '.join(workload_names())}, or your own as package.module:factory."
    ),
]
WorkloadSettings = Annotated[
    list[str], typer.Option("--set", metavar="NAME=VALUE", help="A setting of the workload; may be repeated.")
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder of the workload's data, for those on public data sets; sets data_root."),
]
Workers = Annotated[
    int, typer.Option(help="Worker processes on this machine; ignored under torchrun.", min=1)
]
Latency = Annotated[float, typer.Option(help="Latency of the emulated link per collective, in milliseconds.")]
TimeoutSeconds = Annotated[
    float,
    typer.Option(
        help="Longest that an iteration, a reset or an evaluation may take before its rank counts as hung."
    ),
]
Seed = Annotated[
    int, typer.Option(help="Seed of weights, data order, rounding and agent.", min=0, max=2**31 - 1)
]


def folder(text: str | Path) -> Path:
    """Raises BadParameter for an empty text, as of a variable of the shell that is not set: Path takes the current
    folder for it."""
    if not str(text):
        raise typer.BadParameter("it is empty; give the name of a folder, '.' for the current one")
    return Path(text)


def check_latency(link_mbit_per_s: str | None, latency_ms: float) -> None:
    """Raises BadParameter for a latency without a link that would have it."""
    if link_mbit_per_s is None and latency_ms:
        raise typer.BadParameter(
            f"{latency_ms:g} ms are of an emulated link: give its rate too, with --link-mbit-per-s",
            param_hint="--link-latency-ms",
        )


def widths_option(text: str | None) -> tuple[Width, ...] | None:
    """``"1/4+2+32"`` → (0.25, 2, 32)."""
    try:
        return None if text is None else parse_widths(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--widths") from None


def print_paths(text: str, *, stderr: bool = False) -> None:
    """Print lines that people copy from: not wrapped, and brackets in paths are no markup."""
    Console(stderr=stderr, markup=False, soft_wrap=True).print(text)
