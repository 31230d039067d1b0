"""An interval's statistics, made by hand, and what a controller does with them."""

import dataclasses

from mqgrad.controllers import make_controller
from mqgrad.statistics.interval import IntervalStatistics

BASE = IntervalStatistics(
    iteration=10,
    bits=4,
    world_size=2,
    losses=(2.0,) * 10,
    step_seconds=0.2,
    compute_seconds=0.1,
    encode_seconds=0.01,
    wire_seconds=0.05,
    decode_seconds=0.01,
    wire_bytes=1e6,
    gradient_signal=1.0,
    gradient_noise=10.0,
    peak_energy=60.0,
)


def widths_of(spec: str, *intervals: dict[str, object]) -> list[int]:
    """Widths from the start on; each interval is run at the width decided before it."""
    controller = make_controller(spec)
    widths = [controller.initial_bits]
    for changes in intervals:
        widths.append(controller.decide(statistics(bits=widths[-1], **changes)))
    return widths


def statistics(**changes: object) -> IntervalStatistics:
    return dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]


def losses(*values: float) -> list[dict[str, object]]:
    return [{"losses": (value,)} for value in values]
