"""The tables that ``mqgrad bench`` prints."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mqgrad.widths import format_width

from .break_even import BreakEven
from .codec import CodecFigures, CodecReport
from .ranks import TransportReport


def machine_line(report: dict[str, Any]) -> str:
    """One line that names what the figures were measured on."""
    machine, versions = report["machine"], report["versions"]
    pages = "huge pages" if report["huge_pages"] else "default pages"
    quick = ", quick" if report["quick"] else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {report['vector_extension']}, {pages}, "
        f"torch {versions['torch']}, codec: {versions['codec']}, {report['date']}{quick}"
    )


def print_codec(report: CodecReport, console: Console) -> None:
    """Speeds, and ours over the peers', by number of threads; and the peers that are missing."""
    for threads in sorted({figures.threads for figures in report.figures}):
        ours, peers = ([f for f in part if f.threads == threads] for part in (report.figures, report.peers))
        console.print(codec_table([*ours, *peers], report.mebibytes))
        if peers:
            console.print(ratio_table(ours, peers))
    for note in report.notes:
        console.print(note, highlight=False, markup=False)
    for skipped in report.skipped:
        console.print(f"not measured: {skipped.name} ({skipped.reason})", highlight=False, markup=False)


def codec_table(figures: list[CodecFigures], mebibytes: float) -> Table:
    """Speeds of coders with one number of threads."""
    memmove = statistics.median(f.memmove_gb_per_s for f in figures)
    torch_copy = statistics.median(f.torch_copy_gb_per_s for f in figures)
    read = statistics.median(f.read_gb_per_s for f in figures)
    title = (
        f"{_threads(figures)}, {mebibytes:g} MiB, GB/s: libc's memmove {memmove:.1f}, torch's copy "
        f"{torch_copy:.1f} (× copy: the faster), read {read:.1f}"
    )
    columns = (
        "bits",
        "coder",
        "encode\nGB/s",
        "×\ncopy",
        "×\nread",
        "decode\n+ add\nGB/s",
        "×\ncopy",
        "both\n× copy",
        "mean\nof 4\nGB/s",
        "NMSE",
    )
    rows = [
        (
            format_width(f.bits),
            f.coder,
            f"{f.encode_gb_per_s:.2f}",
            f"{f.encode_per_copy:.2f}",
            f"{f.encode_per_read:.2f}",
            f"{f.decode_add_gb_per_s:.2f}",
            f"{f.decode_add_per_copy:.2f}",
            f"{f.round_trip_per_copy:.2f}",
            "" if f.mean_gb_per_s is None else f"{f.mean_gb_per_s:.2f}",
            f"{f.nmse:.2g}",
        )
        for f in figures
    ]
    return _table(title, columns, rows)


def ratio_table(ours: list[CodecFigures], peers: list[CodecFigures]) -> Table:
    """Each peer in a row, our codes of its width beside one another; all with one number of threads."""
    widths = {peer.bits for peer in peers}
    codes = {(f.bits, f.coder.partition(",")[0]): f for f in ours if f.bits in widths}
    names = list(dict.fromkeys(name for _, name in codes))
    title = f"ours ÷ peer, {_threads(ours)}: speed of encode and decode together (more: faster), NMSE (less: better)"
    columns = ("bits", "peer", *(f"{name}\nspeed, NMSE" for name in names))
    rows = [
        (
            format_width(peer.bits),
            peer.coder,
            *(_ratios(codes.get((peer.bits, name)), peer) for name in names),
        )
        for peer in peers
    ]
    return _table(title, columns, rows)


def _ratios(ours: CodecFigures | None, peer: CodecFigures) -> str:
    """Speeds are compared as multiples of the copy in the same rounds."""
    if ours is None:
        return ""
    return f"{ours.round_trip_per_copy / peer.round_trip_per_copy:.2f}, {ours.nmse / peer.nmse:.2g}"


def _threads(figures: list[CodecFigures]) -> str:
    threads = figures[0].threads
    return f"{threads} thread{'s' * (threads > 1)}"


_ON_THREADS = (
    "A part of what the hook gains on plain DDP is not due to codes: its threads wait for a core, DDP's take one "
    "from computing (docs/results-costs.md). That part is what 32 bits gain, which are sent as they are."
)


def print_transport(report: TransportReport, rates: list[BreakEven], console: Console) -> None:
    """Tables of the collective and of the steps."""
    console.print(collective_table(report))
    console.print(step_table(report, rates))
    console.print(_ON_THREADS, highlight=False)


def collective_table(report: TransportReport) -> Table:
    """The mean of one gradient vector at each width."""
    rounds = report.collectives[0].rounds
    what = f"mean of {report.settings.mebibytes:g} MiB over {report.world_size} ranks"
    title = f"{what}, {report.link}, {rounds} rounds"
    columns = ("bits", "ms", "encode ms", "wire ms", "decode ms", "sent MiB", "wire Mbit/s")
    rows = [
        (
            format_width(c.bits),
            *(f"{s * 1e3:.1f}" for s in (c.seconds, c.encode_seconds, c.wire_seconds, c.decode_seconds)),
            f"{c.wire_bytes / 2**20:.2f}",
            f"{c.wire_mbit_per_s:.0f}",
        )
        for c in report.collectives
    ]
    return _table(title, columns, rows)


def step_table(report: TransportReport, rates: list[BreakEven]) -> Table:
    """A training step at each width, and the link rate below which it beats plain DDP."""
    by_bits = {rate.bits: rate.mbit_per_s for rate in rates}
    first = report.steps[0]
    title = (
        f"step of {report.workload} ({report.parameters:,} parameters), {report.world_size} ranks, {report.link}, "
        f"{first.rounds} rounds of {first.iterations}"
    )
    columns = (
        "bits",
        "step ms",
        "× plain",
        "least–most",
        "encode ms",
        "wire ms",
        "decode ms",
        "pays below\nMbit/s",
    )
    rows = [
        (
            "DDP" if s.bits is None else format_width(s.bits),
            f"{s.step_seconds * 1e3:.2f}",
            f"{s.per_plain:.3f}",
            "" if s.bits is None else "{:.2f}–{:.2f}".format(*s.per_plain_range),
            *(
                "" if s.bits is None else f"{t * 1e3:.2f}"  # plain DDP does not tell
                for t in (s.encode_seconds, s.wire_seconds, s.decode_seconds)
            ),
            format_rate(by_bits[s.bits]) if s.bits in by_bits else "",
        )
        for s in report.steps
    ]
    return _table(title, columns, rows)


def format_rate(mbit_per_s: float | None) -> str:
    """A break-even rate as text."""
    return "any rate" if mbit_per_s is None else f"{mbit_per_s:,.0f}"


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    # Within 80 columns, which pipes have, too.
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("coder", "peer") else "right")
    for row in rows:
        table.add_row(*row)
    return table
