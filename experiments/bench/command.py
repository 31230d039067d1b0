"""The command ``mqgrad bench``."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mqgrad.files import replace_file
from mqgrad.run_folder import check_file

from ..options import DataRoot, WorkloadName, WorkloadSettings, widths_option

if TYPE_CHECKING:
    from .codec import CodecReport
    from .ranks import TransportSettings

_BUSY = 0.7  # load average


def bench(
    workload: WorkloadName = "digits-cnn",
    settings: WorkloadSettings = [],  # noqa: B006 (typer reads the default, nothing changes it)
    data_root: DataRoot = None,
    num_workers: Annotated[
        int, typer.Option(help="Ranks on this machine; ignored under torchrun.", min=2)
    ] = 2,
    only: Annotated[str | None, typer.Option(help="codec or transport; both by default.")] = None,
    widths: Annotated[
        str | None,
        typer.Option(help="Bit widths of mean and steps, beside 32: 1/4+1+4; all of them by default."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="How long, about, the mean and the steps are each repeated for at most; 240 where it is not "
            "given, 20 with --quick."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller and fewer measurements: about a minute.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure to this file.")] = None,
) -> None:
    """How fast coding and sending are here, and below which link rate each bit width pays.

    Measures the codec beside memcpy and other codecs, the compressed mean between ranks, and training steps of a
    workload. Run it under torchrun or `mqgrad netlab` to measure a real or shaped link instead of loopback.
    """
    from mqgrad.trainers.workloads.workload import make_workload

    from ..provenance import describe_run
    from ..ranks import rank, world_size
    from ..settings import parse_settings
    from .tables import machine_line, print_codec

    if only not in (None, "codec", "transport"):
        raise typer.BadParameter(f"{only!r} is neither codec nor transport", param_hint="--only")
    try:
        check_file(json_file if rank() == 0 else None)  # the others write nothing
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--json") from None
    workload_settings = parse_settings(settings, data_root)
    make_workload(workload, **workload_settings)  # a mistake is found before a minute has passed
    chosen = _transport_settings(workload, workload_settings, widths, seconds, quick)
    console = Console(quiet=rank() != 0)
    if only != "codec" and world_size(num_workers) < 2:
        raise typer.BadParameter("a job of one rank has no transport: give codec", param_hint="--only")
    report = describe_run(quick)
    console.print(machine_line(report), highlight=False, soft_wrap=True)
    if (report["load_average"] or 0) > _BUSY:
        console.print(
            f"load average {report['load_average']:.1f}: other work disturbs these figures", style="yellow"
        )
    if only != "transport" and rank() == 0:
        codec = _measure_codec(quick)
        report["codec"] = dataclasses.asdict(codec)
        print_codec(codec, console)
        _save(report, json_file)  # what follows may fail
    if only != "codec":
        report |= _measure_transport(chosen, num_workers, console)
    _save(report, json_file)


def _save(report: dict[str, Any], json_file: Path | None) -> None:
    from ..ranks import rank

    if json_file is not None and rank() == 0:
        replace_file(json_file, json.dumps(report, indent=1) + "\n")


def _measure_codec(quick: bool) -> "CodecReport":
    from .codec import measure_codec
    from .peers import find_peers

    Console(stderr=True).print("codec and peers: a minute or two", highlight=False)
    if quick:
        return measure_codec(find_peers, mebibytes=16, rounds=3)
    return measure_codec(find_peers)


def _transport_settings(
    workload: str, settings: dict[str, Any], widths: str | None, seconds: float | None, quick: bool
) -> "TransportSettings":
    from .ranks import TransportSettings

    chosen = TransportSettings(workload=workload, workload_settings=settings)
    if quick:
        chosen = dataclasses.replace(chosen, rounds=3, iterations=5, seconds=20.0)
    if seconds is not None:
        chosen = dataclasses.replace(chosen, seconds=seconds)
    if given := widths_option(widths):
        chosen = dataclasses.replace(chosen, widths=given)
    return chosen


def _measure_transport(chosen: "TransportSettings", num_workers: int, console: Console) -> dict[str, Any]:
    """Print the tables, and return what they are made of."""
    from ..ranks import under_torchrun
    from .ranks import measure_locally, measure_under_torchrun
    from .tables import print_transport

    report = measure_under_torchrun(chosen) if under_torchrun() else measure_locally(chosen, num_workers)
    rates = report.break_even()
    print_transport(report, rates, console)
    return {
        "transport": dataclasses.asdict(report),
        "break_even": [dataclasses.asdict(rate) for rate in rates],
    }
