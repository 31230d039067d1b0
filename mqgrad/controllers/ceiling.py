"""What any schedule of one width over time can save."""

import math
from collections.abc import Sequence


def saving_ceiling_bits(norms_sq: Sequence[float]) -> float:
    """Most bits per element that a time-only schedule saves over a fixed width at equal quantization error.

    Quantization error goes as ‖g‖²·4^(−b). The best schedule follows log2‖g_n‖ and equalises the error, a fixed
    width has the error of the mean, so they differ by ½·log2(AM/GM) of the squared norms: 0.55 bit for an
    exponential decay of the norm by 10. To be printed beside any saving of a controller.

    Args:
        norms_sq: squared gradient norms over a run, all of them positive.

    Raises:
        ValueError: the run is empty, or a norm is zero, negative or not finite.
    """
    wrong = [value for value in norms_sq if not (math.isfinite(value) and value > 0)]
    if wrong or not norms_sq:
        raise ValueError(f"squared gradient norms must be positive and finite, got {wrong[:3] or 'none'}")
    logs = [math.log2(value) for value in norms_sq]
    highest = max(logs)  # the mean is taken relative to it, so that no norm overflows
    log_mean = highest + math.log2(sum(2 ** (log - highest) for log in logs) / len(logs))
    return 0.5 * (log_mean - sum(logs) / len(logs))
