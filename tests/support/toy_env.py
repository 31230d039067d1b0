"""The environment on a link where the right width is known."""

from typing import Any

from toy_link import COMPUTE_SECONDS, PEAK_ENERGY, ToyLink, efficiency, wire_seconds

from mqgrad.envs import BitWidthEnv

SLOW, FAST = 10.0, 10_000.0  # Mbit/s


def goodput(bits: int, mbit_per_s: float, peak_energy: float = PEAK_ENERGY) -> float:
    """Progress per second: what the right width maximises."""
    seconds = COMPUTE_SECONDS + wire_seconds(bits, mbit_per_s)
    return efficiency(bits, peak_energy=peak_energy) / seconds


def right_widths(
    widths: tuple[int, ...], mbit_per_s: float, peak_energy: float = PEAK_ENERGY, tolerance: float = 0.15
) -> set[int]:
    """Widths whose goodput is within ``tolerance`` of the best one's."""
    best = max(goodput(bits, mbit_per_s, peak_energy) for bits in widths)
    return {bits for bits in widths if goodput(bits, mbit_per_s, peak_energy) >= (1 - tolerance) * best}


def toy_env(mbit_per_s: float = SLOW, budget_seconds: float = 150.0, **settings: Any) -> BitWidthEnv:
    """The real environment around a toy cluster."""
    return BitWidthEnv(cluster=ToyLink(mbit_per_s), budget_seconds=budget_seconds, **settings)
