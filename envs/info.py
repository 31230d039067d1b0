"""What the environment tells of an interval besides its observation: ``info``, and the line of ``render``."""

from typing import Any

from mqgrad.statistics.interval import IntervalStatistics
from mqgrad.trainers.link import LinkEmulation
from mqgrad.widths import format_width

_REPORTED = (
    "bits",
    "loss",
    "step_seconds",
    "compute_seconds",
    "encode_seconds",
    "wire_seconds",
    "decode_seconds",
    "wire_bytes",
)


def interval_info(
    statistics: IntervalStatistics, elapsed_seconds: float, link: LinkEmulation | None, *, is_modelled: bool
) -> dict[str, Any]:
    """The figures of an interval as plain numbers, and where they come from.

    Args:
        statistics: of the interval.
        elapsed_seconds: of training in the episode, at the end of the interval.
        link: the emulated link, if there is one.
        is_modelled: whether the seconds come from a ``ModelClock``.
    """
    return {
        # Floats, whole or not: a vector environment keeps an array of the first one's type.
        **{name: float(getattr(statistics, name)) for name in _REPORTED},
        "iteration": statistics.iteration,
        "elapsed_seconds": float(elapsed_seconds),
        "link_mbit_per_s": float(link.mbit_per_s) if link else None,
        "emulated": link is not None and not is_modelled,
        "modelled": is_modelled,
    }


def describe(statistics: IntervalStatistics, elapsed_seconds: float) -> str:
    """An interval on one line."""
    return (
        f"iteration {statistics.iteration:5d}  {format_width(statistics.bits):>4} bits  loss {statistics.loss:.4f}  "
        f"{statistics.step_seconds * 1e3:.1f} ms/iteration  {elapsed_seconds:.2f} s elapsed"
    )
