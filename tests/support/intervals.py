"""An interval's statistics, made by hand."""

from mqgrad.statistics import IntervalStatistics

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
